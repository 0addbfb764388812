/* Whether arguments can be: check.c, and for weights rows.c. */
#ifndef OUTRIDER_ARGUMENTS_H
#define OUTRIDER_ARGUMENTS_H

#include "check.h"
#include "columns.h"
#include "panels.h"

int is_model(const outrider_model *m);
int is_cache(const outrider_cache *c, int64_t layers, int32_t kv_heads, int32_t head_dim, int32_t value_dim);
int check_spans(const outrider_cache *cache, const outrider_batch *batch);

/* ``m``: of a model that is one. */
int check_batch(const local_model *m, const outrider_cache *cache, const outrider_batch *batch);

/* See check_recurrent.c; of a batch whose model, spans and cache have been looked at. */
int fits_recurrent(const local_model *m, const outrider_recurrent *r);
int check_recurrent(const local_model *m, const outrider_cache *cache, const outrider_batch *batch);

/* See check_layer.c. ``embeddings``: the batch's, of each layer. */
int is_norm(const outrider_norm_weights *n);
int fits_layer(const local_model *m, const outrider_layer *l);
int has_layer_inputs(const outrider_model *m, const float *embeddings);

static inline int is_product(const outrider_weight *w, int64_t outputs, int64_t inputs) {
    return w->outputs == outputs && w->inputs == inputs && (!outputs || is_weight(w)); /* none: all are others' */
}

/* An expert's own, of ``inner`` columns; looked at when it runs, as a pass reads few of many. */
int fits_mlp(const local_model *m, const outrider_mlp *mlp, const columns *inner);

#endif
