/* What the parts of a forward pass share. */
#ifndef OUTRIDER_FORWARD_H
#define OUTRIDER_FORWARD_H

#include "batch.h"
#include "context.h"
#include "recurrent.h"

typedef struct {
    outrider_context *context;
    const kernels *k; /* the context's */
    local_model model;
    placed_batch batch;
    workspace work;
    attention_plan attention;
    recurrent_plan recurrent;
    const outrider_layer *next; /* the layer behind the one that runs, or NULL */
    int32_t ordinal;            /* of the one that runs, among those that attend or those that are recurrent */
    const float *gates;         /* of a gated layer that runs, as ``query_gates`` of the workspace; else NULL */
    const float *sinks;         /* of the layer that runs, of this process's heads; or NULL */
    int status;                 /* what went wrong within the pass, if anything */
} forward_ctx;

/* ---- Before a pass: prepare.c ----------------------------------------------------------------------------------- */

/* Memory for a pass, and each row's keys and place. The memory is that of the pass before, if it is large enough. */
int prepare_pass(forward_ctx *f);
/* Memory for codes alone. */
int prepare_codes(outrider_context *c, act_codes *codes, int64_t rows, int64_t inputs);

/* ---- Work on rows: phases.c ------------------------------------------------------------------------------------- */

/* Work on some rows, shared out among threads. */
typedef void row_function(forward_ctx *f, const outrider_layer *layer, int64_t first, int64_t last);
void run_rows(forward_ctx *f, const outrider_layer *layer, int64_t count, row_function *rows);

/* Codes of rows first .. last - 1 of x, if one of the weights (the second may be NULL) reads codes. */
void quantise_some(const forward_ctx *f, const float *x, int64_t rows, int64_t inputs, const outrider_weight *for_one,
                   const outrider_weight *for_other, int64_t first, int64_t last);

/* One row of a block's input, and its activation in place. */
void norm_row(const kernels *k, int64_t width, const float *x, const outrider_norm_weights *norm, float eps,
              float *out);
void norm_or_copy(const forward_ctx *f, const float *x, const outrider_norm_weights *norm, float *out);
void activate(const forward_ctx *f, int64_t width, float *gate, const float *up);

/* x times a scale, unless that is off. */
void scale_row(int64_t width, float *x, float scale);

/* ---- A model split over processes: shard.c ---------------------------------------------------------------------- */

/* Of this process's columns of rows a [rows, c->all], from .. to - 1: codes for a linear layer ``reader``, unless it
 * reads numbers, or codes cannot be gathered. ``from``: a multiple of 32; ``to``: another, or the last. */
void quantise_columns(const forward_ctx *f, const activations *a, const columns *c, const outrider_weight *reader,
                      int64_t from, int64_t to);
/* Every process's columns of what a layer reads, a with its numbers x: codes if ``reader`` reads codes, or numbers. */
void gather_input(forward_ctx *f, const activations *a, float *x, const columns *c, const outrider_weight *reader);
/* Every process's columns of x [rows, c->all]. */
void gather_columns(forward_ctx *f, float *x, int64_t rows, const columns *c);
/* The first process's rows of logits from each one's part. */
void gather_logits(forward_ctx *f, float *logits, int64_t rows);

/* ---- Parts of a layer ------------------------------------------------------------------------------------------- */

/* Adds what the rows' adapters make of x [rows, inputs] to y [rows, outputs]. See adapters.c. */
void run_adapters(forward_ctx *f, const outrider_layer *l, enum outrider_adapted kind, int64_t inputs, const float *x,
                  int64_t outputs, float *y);

/* An MLP, and the rows that go through it. */
typedef struct mlp_rows {
    const outrider_mlp *mlp;
    activations in;    /* what gate and up read */
    activations gated; /* what down reads, [rows, inner]; x is ``gate`` */
    float *gate, *up;  /* [rows, inner] */
    /* Of an expert: */
    int32_t expert, copied; /* copied: ``in`` is a copy, as the rows do not stand together */
    const int64_t *row;     /* [rows]: of the batch */
} mlp_rows;

/* Asks memory for the beginning of a panel. */
void fetch_panel(const outrider_weight *w, int64_t panel);

/* What gate, up and the activation make of each part's input, with its codes. All have the columns ``inner``. */
void run_gates(forward_ctx *f, const columns *inner, int64_t count, const mlp_rows *parts);

/* From the router's numbers of a row: its experts, and their weights. See routing.c. */
void route_row(const forward_ctx *f, const outrider_layer *l, int64_t row);

/* What a layer's experts make of the normed rows, to y. See experts.c. */
void run_experts(forward_ctx *f, const outrider_layer *l);

/* Experts beside an MLP: puts away what the MLP gives, and norms rows for the router. See beside.c. */
void prepare_beside(forward_ctx *f, const outrider_layer *l);
/* One row as its experts read it, normed. */
void norm_for_experts(forward_ctx *f, const outrider_layer *l, int64_t row);
/* Both together, to y of one row. */
void add_beside(forward_ctx *f, const outrider_layer *l, int64_t row);

/* Embeddings of each layer: what layers read, of all rows; and what one adds, to y. See layer_inputs.c. */
void make_layer_inputs(forward_ctx *f);
void run_input(forward_ctx *f, const outrider_layer *l);

/* Rows of q, keys and values as attention reads them; keys and values in the cache too. See attention_rows.c. */
row_function write_kv;

/* Attention of all rows over a layer's cache: q to attended, with codes for ``reader`` unless it is NULL. See
 * attention.c. */
int prepare_attention(forward_ctx *f);
void run_attention(forward_ctx *f, int32_t layer, const outrider_weight *reader);

/* A recurrent layer of all rows, from ``normed`` to y. See recurrent.c. */
int prepare_recurrent(forward_ctx *f);
void run_recurrent(forward_ctx *f, const outrider_layer *l);

/* Attention on latents of all rows, from ``normed`` to y. See latent.c. */
void run_latent(forward_ctx *f, const outrider_layer *l);

/* See layer.c. ``next``: the layer behind it, or NULL. */
void run_layer(forward_ctx *f, const outrider_layer *l, const outrider_layer *next);

#endif
