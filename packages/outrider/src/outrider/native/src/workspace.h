/* Memory of a forward pass, by row. */
#ifndef OUTRIDER_WORKSPACE_H
#define OUTRIDER_WORKSPACE_H

#include <stddef.h>

#include "columns.h"
#include "kernels.h"

/* Codes of activations: see ``activations``. */
typedef struct {
    int8_t *codes;
    act_quant_group *quant;
} act_codes;

typedef struct {
    float *x, *normed, *y;    /* [rows, hidden]; x: the residual stream */
    float *q, *attended;      /* [rows, heads * head_dim] */
    float *query_gates;       /* [rows, heads, 2, head_dim], of gated layers: queries, and gates of attended */
    float *keys, *values;     /* [rows, kv_heads * head_dim] */
    float *layer_inputs;      /* [rows, layers, layer_inputs], of a model that has them */
    float *layer_gate;        /* [rows, layer_inputs] */
    float *beside;            /* [rows, hidden]: of a layer with experts beside its MLP, what the MLP gives */
    /* Of attention on latents, whose q is [rows, heads, rank + rotated], attended [heads, rows, rank]: */
    float *query_latent;      /* [rows, query_rank] */
    float *query_parts;       /* [rows, heads, plain + rotated] */
    float *plain;             /* [heads, rows, plain] */
    float *outputs;           /* [rows, heads * value_dim] */
    /* Of recurrent layers: */
    float *channels, *mixed;  /* [rows, channels]: before and behind the convolution */
    float *decay, *write;     /* [rows, value_heads] */
    float *alike;             /* [rows, key_heads]: query times key */
    float *z, *recalled;      /* [rows, value_heads * value_dim]; z: at last what the layer's output reads */
    float *gate, *up;         /* [rows, inner]; or of an expert and a row: [pairs, inner] */
    act_codes codes, gated;   /* of what linear layers read, and of what the last one of an MLP does, as gate */
    /* Of layers with experts. */
    int64_t pairs;            /* of an expert and a row that are computed at once, at most */
    float *router;            /* [rows, experts]: weights of the experts; 0 of those not used */
    float *choice;            /* [rows, experts]: scores that experts are chosen by, where they are not the weights */
    uint8_t *chosen;          /* [rows, experts] */
    float *shared_weight;     /* [rows]: of the shared expert */
    int64_t *pair_row;        /* [pairs] */
    float *expert_in;         /* [pairs, hidden], and their codes */
    act_codes expert_codes;
    float *expert_out;        /* [rows, hidden] of one expert */
    struct mlp_rows *parts;   /* of experts that are computed at once, [pairs]; see forward.h */
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

act_codes take_codes(arena *a, int64_t rows, int64_t inputs);

/* ``r``: sizes of recurrent layers, or NULL; ``scored``: rows of logits. */
void take_workspace(arena *a, workspace *w, const local_model *m, const outrider_recurrent *r, int64_t rows,
                    int64_t scored);

/* x as a linear layer reads it. */
static inline activations rows_of(const act_codes *c, const float *x, int64_t rows, int64_t inputs) {
    return (activations){.rows = rows, .inputs = inputs, .groups = (inputs + 31) / 32, .x = x,
                         .codes = c->codes, .quant = c->quant};
}

/* Rows of them from ``first`` on. */
static inline activations some_rows(const activations *a, int64_t first, int64_t rows) {
    return (activations){.rows = rows, .inputs = a->inputs, .groups = a->groups, .x = a->x + first * a->inputs,
                         .codes = a->codes + first * a->groups * 32, .quant = a->quant + first * a->groups};
}

#endif
