/* Which columns of a model's arrays this process computes. */
#ifndef OUTRIDER_COLUMNS_H
#define OUTRIDER_COLUMNS_H

#include "native.h"

/* Columns of an array that this process computes: all of them, unless the model is split. */
typedef struct {
    int64_t first, count, all;
    const int64_t *bounds; /* of all processes, in units of so many columns; NULL: the model is whole */
    int64_t unit;
} columns;

/* A model as this process has it. */
typedef struct {
    const outrider_model *whole;
    columns queries, kv, hidden, inner, expert_inner, vocabulary;
    int32_t kv_heads, head_dim; /* those that ``queries`` and ``kv`` are of */
} local_model;

static inline columns split_columns(const outrider_shard *s, const int64_t *bounds, int64_t unit, int64_t whole) {
    if (!s) return (columns){0, whole, whole, NULL, 1};
    int64_t first = bounds[s->rank] * unit;
    return (columns){first, bounds[s->rank + 1] * unit - first, bounds[s->size] * unit, bounds, unit};
}

/* ``m``: a model that is one, see check.h. */
static inline local_model find_columns(const outrider_model *m) {
    const outrider_shard *s = m->shard;
    int64_t key_width = (int64_t)m->kv_heads * m->head_dim, width = (int64_t)m->heads * m->head_dim;
    return (local_model){
        .whole = m,
        .queries = split_columns(s, s ? s->key_heads : NULL, s ? (int64_t)s->group * m->head_dim : 1, width),
        .kv = split_columns(s, s ? s->key_heads : NULL, m->head_dim, key_width),
        .hidden = split_columns(s, s ? s->hidden : NULL, 1, m->hidden),
        .inner = split_columns(s, s ? s->inner : NULL, 1, m->inner),
        .expert_inner = split_columns(s, s ? s->expert_inner : NULL, 1, 0), /* a whole expert says its own */
        .vocabulary = split_columns(s, s ? s->vocabulary : NULL, 1, m->head ? m->head->outputs : 0),
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
    };
}

/* The model with the heads and the MLP of one layer, where these are not all alike. No model that is split has such. */
static inline local_model columns_of_layer(const local_model *m, const outrider_layer *l) {
    local_model own = *m;
    if (m->whole->shard) return own;
    own.kv_heads = l->kv_heads ? l->kv_heads : m->whole->kv_heads;
    own.head_dim = l->head_dim ? l->head_dim : m->whole->head_dim;
    own.queries = split_columns(NULL, NULL, 1, (int64_t)m->whole->heads * own.head_dim);
    own.kv = split_columns(NULL, NULL, 1, (int64_t)own.kv_heads * own.head_dim);
    own.inner = split_columns(NULL, NULL, 1, l->mlp.gate.panels ? l->mlp.gate.outputs : m->whole->inner);
    return own;
}

/* Dimensions of the widest head of any layer. */
static inline int32_t widest_head(const outrider_model *m) {
    int32_t most = m->head_dim;
    for (int32_t i = 0; i < m->layers; i++) most = m->layer[i].head_dim > most ? m->layer[i].head_dim : most;
    return most;
}

/* Columns that a product writes, from the first of this process's. */
static inline float *local_columns(float *x, const columns *c) { return x + c->first; }

#endif
