/* What the parts of a forward pass share. */
#ifndef OUTRIDER_FORWARD_H
#define OUTRIDER_FORWARD_H

#include "attention.h"
#include "kernels.h"

/* Columns of an array that this process computes: all of them, unless the model is split. */
typedef struct {
    int64_t first, count, all;
    const int64_t *bounds; /* of all processes, in units of so many columns */
    int64_t unit;
} columns;

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
    columns queries, kv, hidden, inner, expert_inner, vocabulary;
    int lost;                                 /* a process of a split model is gone */
    int unfit;                                /* an expert is not what its fields say */
    int8_t *codes;                            /* of the activations that are being read, as in ``activations`` */
    code_group *about;
    int64_t *place;                           /* [rows]: row of the cache */
    key_range *range;                         /* [rows] */
    int32_t *lists;                           /* what ranges point to */
    int32_t window;                           /* that the ranges have now */
    /* Of layers with experts. */
    float *router;                            /* [rows, experts]: weights of the experts; 0 of those not used */
    uint8_t *chosen;                          /* [rows, experts] */
    int64_t *expert_rows;                     /* those of one expert */
    float *expert_in, *expert_out;            /* [rows, hidden] of one expert */
    /* See attention.c. */
    int fixed; /* the cache holds outrider_fixed_keys */
    struct tile *tiles;
    int64_t num_tiles;
    int32_t parts;
    float *results;
} pass;

/* Arguments: see check.c. ``check_batch`` needs a model that is one, and its columns. */
int is_model(const outrider_model *m);
int is_cache(const outrider_cache *c, int64_t layers, int32_t kv_heads, int32_t head_dim);
int check_spans(const outrider_cache *cache, const outrider_batch *batch);
int check_batch(const pass *p);
/* An expert's own, of ``inner`` columns; looked at when it runs, as a pass reads few of many. */
int fits_mlp(const pass *p, const outrider_mlp *mlp, const columns *inner);

/* Memory for a pass, and each row's keys and place. The memory is that of the pass before, if it is large enough. */
int prepare_pass(pass *p);
int prepare_codes(pass *p, int64_t rows, int64_t inputs);

/* ``size`` bytes, aligned to 64, that stay until the next request for the same ``which``; NULL if there are none. */
enum { MEMORY_ROWS, MEMORY_ATTENTION, MEMORY_GATHER, MEMORY_KINDS };
void *scratch_memory(int which, size_t size);

int prepare_attention(pass *p);

/* How far back rows look from now on; 0: to the beginning. */
void set_window(pass *p, int32_t window);

/* Work on some rows, shared out among threads. */
typedef void row_function(pass *p, const outrider_layer *layer, int64_t first, int64_t last);
void run_rows(pass *p, const outrider_layer *layer, int64_t count, row_function *rows);

/* Codes of rows first .. last - 1 of x, if one of the weights (the second may be NULL) reads codes. */
activations rows_of(const pass *p, const float *x, int64_t rows, int64_t inputs);
void quantise_some(const pass *p, const float *x, int64_t rows, int64_t inputs, const outrider_weight *for_one,
                   const outrider_weight *for_other, int64_t first, int64_t last);

/* Which columns are whose; p has a model. See shard.c. */
void find_columns(pass *p);

/* Columns that a product writes, from the first of p's. */
static inline float *own(float *x, const columns *c) { return x + c->first; }

/* The codes of rows first .. last - 1 of x [rows, c->all], of which this process has its columns, for a layer that
 * reads all: of those columns, if their codes can be gathered; all, if the model is whole. */
void quantise_own(const pass *p, const float *x, int64_t rows, const columns *c, const outrider_weight *reader,
                  int64_t first, int64_t last);
/* Every process's columns of what a layer reads: their codes if ``reader`` reads codes, or numbers. */
void gather_input(pass *p, float *x, int64_t rows, const columns *c, const outrider_weight *reader);
/* Every process's columns of x [rows, c->all]. */
void gather_columns(pass *p, float *x, int64_t rows, const columns *c);
/* The first process's rows of logits from each one's part. */
void gather_logits(pass *p, float *logits, int64_t rows);

/* One row of a block's input, and its activation in place. */
void norm_or_copy(const pass *p, const float *x, const outrider_norm_weights *norm, float *out);
void activate(const pass *p, int64_t width, float *gate, const float *up);

/* Adds what the rows' adapters make of x [rows, inputs] to y [rows, outputs]. See adapters.c. */
void run_adapters(const pass *p, const outrider_layer *l, enum outrider_adapted kind, int64_t inputs, const float *x,
                  int64_t outputs, float *y);

/* What a layer's experts make of the normed rows, to y. See experts.c. */
void run_experts(pass *p, const outrider_layer *l);

/* Attention of all rows over a layer's cache: q to attended. */
void run_attention(pass *p, int32_t layer);

#endif
