/* What the parts of a forward pass share. */
#ifndef OUTRIDER_FORWARD_H
#define OUTRIDER_FORWARD_H

#include "attention.h"
#include "kernels.h"

typedef struct {
    const outrider_model *model;
    const outrider_cache *cache;
    const outrider_batch *batch;
    const kernels *k;
    /* By row. */
    float *x, *normed, *y;                    /* [rows, hidden]; x: the residual stream */
    float *q, *attended;                      /* [rows, heads * head_dim] */
    float *keys, *values;                     /* [rows, kv_heads * head_dim] */
    float *gate, *up;                         /* [rows, inner] */
    int8_t *codes;                            /* of the activations that are being read, as in ``activations`` */
    code_group *about;
    int64_t *place;                           /* [rows]: row of the cache */
    key_range *range;                         /* [rows] */
    int32_t *lists;                           /* what ranges point to */
    /* See attention.c. */
    struct tile *tiles;
    int64_t num_tiles;
    int32_t parts;
    float *results;
} pass;

/* BAD_ARGUMENT if a size, an id, a position or a row of the cache is out of range. */
int check_batch(const outrider_model *model, const outrider_cache *cache, const outrider_batch *batch);

/* Memory for a pass, and each row's keys and place. The memory is that of the pass before, if it is large enough. */
int prepare_pass(pass *p);
int prepare_codes(pass *p, int64_t rows, int64_t inputs);

/* ``size`` bytes, aligned to 64, that stay until the next request for the same ``which``; NULL if there are none. */
enum { MEMORY_ROWS, MEMORY_ATTENTION, MEMORY_KINDS };
void *scratch_memory(int which, size_t size);

int prepare_attention(pass *p);

/* Attention of all rows over a layer's cache: q to attended. */
void run_attention(pass *p, int32_t layer);

#endif
