/* Memory of a forward pass, by row. */
#ifndef OUTRIDER_WORKSPACE_H
#define OUTRIDER_WORKSPACE_H

#include <stddef.h>

#include "columns.h"
#include "kernels.h"

typedef struct {
    float *x, *normed, *y;    /* [rows, hidden]; x: the residual stream */
    float *q, *attended;      /* [rows, heads * head_dim] */
    float *keys, *values;     /* [rows, kv_heads * head_dim] */
    float *gate, *up;         /* [rows, inner] */
    int8_t *codes;            /* of the activations that are being read, as in ``activations`` */
    act_quant_group *quant;
    /* Of layers with experts. */
    float *router;            /* [rows, experts]: weights of the experts; 0 of those not used */
    uint8_t *chosen;          /* [rows, experts] */
    int64_t *expert_rows;     /* those of one expert */
    float *expert_in, *expert_out; /* [rows, hidden] of one expert */
} workspace;

/* Memory that is handed out piece by piece. */
typedef struct {
    char *base; /* NULL while sizes are added up */
    size_t used;
} arena;

/* Aligned to 64. */
static inline void *take(arena *a, int64_t count, size_t size) {
    void *at = a->base ? a->base + a->used : NULL;
    a->used += ((size_t)count * size + 63) / 64 * 64;
    return at;
}

void take_codes(arena *a, workspace *w, int64_t rows, int64_t inputs);

/* ``scored``: rows of logits. */
void take_workspace(arena *a, workspace *w, const local_model *m, int64_t rows, int64_t scored);

/* x as a linear layer reads it. */
static inline activations rows_of(const workspace *w, const float *x, int64_t rows, int64_t inputs) {
    return (activations){.rows = rows, .inputs = inputs, .groups = (inputs + 31) / 32, .x = x,
                         .codes = w->codes, .quant = w->quant};
}

#endif
