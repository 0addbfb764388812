/* Rows on their way to attention: queries are normed and rotated, keys and values go to the cache too. */
#include <string.h>

#include "forward.h"

/* Of a row x, those heads that are this process's; normed first, if they are. */
static void apply_rope(const forward_ctx *f, const outrider_layer *l, const columns *c, const float *norm,
                       int64_t position, float *x) {
    const outrider_model *m = f->model.whole;
    int64_t d = f->model.head_dim;
    const float *rotation = l->rotations ? l->rotations + position * d : NULL;
    if (norm && l->whole_qk_norm) {
        f->k->norm(c->all, x, norm, m->eps, x);
        norm = NULL;
    }
    float *heads = local_columns(x, c);
    for (int64_t i = 0; i < c->count; i += d) {
        f->k->rotate(d, heads + i, rotation, l->rotated_qk_norm ? NULL : norm, m->eps);
        if (norm && l->rotated_qk_norm) f->k->norm(d, heads + i, norm, m->eps, heads + i);
    }
}

/* Keys or values of a row, x [kv_heads, head_dim], to row ``row`` of the cache. */
static void write_row(const forward_ctx *f, int64_t layer, int64_t row, const float *x, void *const *rows,
                      float *const *scales) {
    const outrider_cache *c = f->batch.cache;
    char *to = (char *)rows[layer] + row * f->model.kv.count * number_bytes(c);
    int64_t heads = f->model.kv_heads;
    f->k->store(c->type, heads, f->model.head_dim, x, to, scales ? scales[layer] + row * heads : NULL);
}

/* The queries of a gated layer's row, from between its gates. */
static void copy_queries(const forward_ctx *f, int64_t r) {
    int64_t width = f->model.queries.all, d = f->model.head_dim;
    const float *both = f->work.query_gates + r * 2 * width;
    float *q = f->work.q + r * width;
    for (int64_t i = 0; i < width; i += d) memcpy(q + i, both + 2 * i, (size_t)d * sizeof(float));
}

static void write_keys_values(forward_ctx *f, const outrider_layer *l, int64_t r) {
    const columns *kv = &f->model.kv;
    const outrider_cache *c = f->batch.cache;
    int64_t d = f->model.head_dim, layer = f->ordinal, row = f->batch.place[r];
    float *k = f->work.keys + r * kv->all, *v = f->work.values + r * kv->all;
    if (l->values_are_keys) memcpy(v, k, (size_t)kv->all * sizeof(float));
    for (int64_t i = 0; l->v_norm && i < kv->all; i += d) f->k->norm(d, v + i, l->v_norm, f->model.whole->eps, v + i);
    apply_rope(f, l, kv, l->k_norm, f->batch.asked->positions[r], k);
    write_row(f, layer, row, local_columns(k, kv), c->keys, c->key_scales);
    write_row(f, layer, row, local_columns(v, kv), c->values, c->value_scales);
}

void write_kv(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const columns *queries = &f->model.queries;
    for (int64_t r = first; r < last; r++) {
        if (l->gated) copy_queries(f, r);
        int64_t position = f->batch.asked->positions[r];
        float *q = f->work.q + r * queries->all;
        apply_rope(f, l, queries, l->q_norm, position, q);
        if (l->query_scales) scale_row(queries->count, local_columns(q, queries), l->query_scales[position]);
        if (!l->reads) write_keys_values(f, l, r);
    }
}
