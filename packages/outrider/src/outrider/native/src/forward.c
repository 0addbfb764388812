/* A forward pass: phases over rows, linear layers and tasks of attention, shared out among threads. */
#include "forward.h"

#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "kernels.h"
#include "linear.h"
#include "panels.h"
#include "threads.h"

/* ---- Rows ------------------------------------------------------------------------------------------------------- */

typedef struct {
    pass *p;
    const outrider_layer *layer;
    row_function *rows;
    int64_t count, share;
} row_work;

static void row_item(void *context, int64_t item) {
    const row_work *work = context;
    int64_t first = item * work->share, last = first + work->share;
    work->rows(work->p, work->layer, first, last < work->count ? last : work->count);
}

/* Few rows are done before another thread would have noticed. */
void run_rows(pass *p, const outrider_layer *layer, int64_t count, row_function *rows) {
    row_work work = {p, layer, rows, count, 4};
    run_items((count + work.share - 1) / work.share, row_item, &work);
}

activations rows_of(const pass *p, const float *x, int64_t rows, int64_t inputs) {
    return (activations){.rows = rows, .inputs = inputs, .groups = (inputs + 31) / 32, .x = x,
                         .codes = p->codes, .about = p->about};
}

void quantise_some(const pass *p, const float *x, int64_t rows, int64_t inputs, const outrider_weight *for_one,
                   const outrider_weight *for_other, int64_t first, int64_t last) {
    if (!is_quantised(for_one) && !(for_other && is_quantised(for_other))) return;
    activations a = rows_of(p, x, rows, inputs);
    p->k->quantise(&a, first, last);
}

/* q, k and v may be stored in different ways. */
static const outrider_weight *quantised_of(const outrider_layer *l) {
    return is_quantised(&l->q) ? &l->q : is_quantised(&l->k) ? &l->k : &l->v;
}

static void norm_row(const kernels *k, int64_t width, const float *x, const outrider_norm_weights *norm, float eps,
                     float *out) {
    if (norm->bias)
        k->layer_norm(width, x, norm->weight, norm->bias, eps, out);
    else
        k->norm(width, x, norm->weight, eps, out);
}

void norm_or_copy(const pass *p, const float *x, const outrider_norm_weights *norm, float *out) {
    int64_t d = p->model->hidden;
    if (norm->weight)
        norm_row(p->k, d, x, norm, p->model->eps, out);
    else
        memcpy(out, x, (size_t)d * sizeof(float));
}

void activate(const pass *p, int64_t width, float *gate, const float *up) {
    if (p->model->activation == OUTRIDER_GELU_TANH)
        p->k->gelu_mul(width, gate, up);
    else
        p->k->silu_mul(width, gate, up);
}

static void scale_row(int64_t width, float *x, float scale) {
    for (int64_t i = 0; scale > 0 && i < width; i++) x[i] *= scale;
}

/* x += what a block adds, of its output y. */
static void add_block(const pass *p, int64_t r, const outrider_norm_weights *norm) {
    int64_t d = p->model->hidden;
    float *y = p->y + r * d;
    if (norm->weight) norm_row(p->k, d, y, norm, p->model->eps, y);
    scale_row(d, y, p->model->residual_scale);
    p->k->add(d, p->x + r * d, y);
}

/* Inputs of q, k and v. */
static int64_t attention_inputs(const pass *p, const outrider_layer *l) {
    return l->embedding_norm ? 2 * (int64_t)p->model->hidden : p->model->hidden;
}

static void norm_for_attention(pass *p, const outrider_layer *l, int64_t first, int64_t last) {
    int64_t d = p->model->hidden, wide = attention_inputs(p, l);
    for (int64_t r = first; r < last; r++) {
        float *out = p->normed + r * wide;
        if (l->embedding_norm) p->k->norm(d, p->batch->embeddings + r * d, l->embedding_norm, p->model->eps, out);
        norm_or_copy(p, p->x + r * d, &l->attention_norm, out + wide - d);
    }
    quantise_some(p, p->normed, p->batch->rows, wide, quantised_of(l), NULL, first, last);
}

/* Of a row x, those heads that are this process's. */
static void turn_heads(const pass *p, const outrider_layer *l, const columns *c, const float *norm, int64_t position,
                       float *x) {
    const outrider_model *m = p->model;
    const float *rotation = l->rotations ? l->rotations + position * m->head_dim : NULL;
    if (norm && l->whole_qk_norm) {
        p->k->norm(c->all, x, norm, m->eps, x);
        norm = NULL;
    }
    for (int64_t i = 0; i < c->count; i += m->head_dim) p->k->rotate(m->head_dim, own(x, c) + i, rotation, norm, m->eps);
}

static void place_heads(pass *p, const outrider_layer *l, int64_t first, int64_t last) {
    const outrider_model *m = p->model;
    const outrider_cache *c = p->cache;
    int64_t at = l - m->layer, row_bytes = p->kv.count * number_bytes(c);
    for (int64_t r = first; r < last; r++) {
        float *k = p->keys + r * p->kv.all, *v = p->values + r * p->kv.all;
        turn_heads(p, l, &p->queries, l->q_norm, p->batch->positions[r], p->q + r * p->queries.all);
        turn_heads(p, l, &p->kv, l->k_norm, p->batch->positions[r], k);
        int64_t row = p->place[r];
        float *key_scales = c->key_scales ? c->key_scales[at] + row * m->kv_heads : NULL;
        float *value_scales = c->value_scales ? c->value_scales[at] + row * m->kv_heads : NULL;
        p->k->store(c->type, m->kv_heads, m->head_dim, own(k, &p->kv), (char *)c->keys[at] + row * row_bytes,
                    key_scales);
        p->k->store(c->type, m->kv_heads, m->head_dim, own(v, &p->kv), (char *)c->values[at] + row * row_bytes,
                    value_scales);
    }
}

static void quantise_attended(pass *p, const outrider_layer *l, int64_t first, int64_t last) {
    quantise_own(p, p->attended, p->batch->rows, &p->queries, &l->out, first, last);
}

static void add_and_norm(pass *p, const outrider_layer *l, int64_t first, int64_t last) {
    int64_t d = p->model->hidden;
    for (int64_t r = first; r < last; r++) {
        add_block(p, r, &l->attention_output_norm);
        norm_or_copy(p, p->x + r * d, &l->mlp_norm, p->normed + r * d);
    }
    const outrider_weight *one = l->experts ? &l->router : &l->mlp.gate;
    quantise_some(p, p->normed, p->batch->rows, d, one, &l->mlp.up, first, last);
}

static void gate_rows(pass *p, const outrider_layer *l, int64_t first, int64_t last) {
    const columns *c = &p->inner;
    for (int64_t r = first; r < last; r++) {
        const float *up = l->mlp.up.panels ? own(p->up, c) + r * c->all : NULL;
        activate(p, c->count, own(p->gate, c) + r * c->all, up);
    }
    quantise_own(p, p->gate, p->batch->rows, c, &l->mlp.down, first, last);
}

static void add_rows(pass *p, const outrider_layer *l, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) add_block(p, r, &l->mlp_output_norm);
}

/* ---- A layer ------------------------------------------------------------------------------------------------------ */

static void run_mlp(pass *p, const outrider_layer *l) {
    const outrider_model *m = p->model;
    int64_t rows = p->batch->rows;
    activations normed = rows_of(p, p->normed, rows, m->hidden);
    int products = l->mlp.up.panels ? 2 : 1;
    run_linear(p->k, &normed, products, (product[]){{&l->mlp.gate, own(p->gate, &p->inner), p->inner.all},
                                                    {&l->mlp.up, own(p->up, &p->inner), p->inner.all}});
    run_adapters(p, l, OUTRIDER_ADAPTED_GATE, m->hidden, p->normed, m->inner, p->gate);
    run_adapters(p, l, OUTRIDER_ADAPTED_UP, m->hidden, p->normed, m->inner, p->up);
    run_rows(p, l, rows, gate_rows);
    gather_input(p, p->gate, rows, &p->inner, &l->mlp.down);
    activations gated = rows_of(p, p->gate, rows, p->inner.all);
    run_linear(p->k, &gated, 1, (product[]){{&l->mlp.down, own(p->y, &p->hidden), m->hidden}});
    run_adapters(p, l, OUTRIDER_ADAPTED_DOWN, m->inner, p->gate, m->hidden, p->y);
}

static void run_layer(pass *p, const outrider_layer *l) {
    const outrider_model *m = p->model;
    int64_t rows = p->batch->rows;
    run_rows(p, l, rows, norm_for_attention);
    activations read = rows_of(p, p->normed, rows, attention_inputs(p, l));
    run_linear(p->k, &read, 3, (product[]){{&l->q, own(p->q, &p->queries), p->queries.all},
                                           {&l->k, own(p->keys, &p->kv), p->kv.all},
                                           {&l->v, own(p->values, &p->kv), p->kv.all}});
    run_adapters(p, l, OUTRIDER_ADAPTED_Q, m->hidden, p->normed, p->queries.all, p->q);
    run_adapters(p, l, OUTRIDER_ADAPTED_K, m->hidden, p->normed, p->kv.all, p->keys);
    run_adapters(p, l, OUTRIDER_ADAPTED_V, m->hidden, p->normed, p->kv.all, p->values);
    if (l->whole_qk_norm) {
        gather_columns(p, p->q, rows, &p->queries);
        gather_columns(p, p->keys, rows, &p->kv);
    }
    run_rows(p, l, rows, place_heads);
    set_window(p, l->window);
    run_attention(p, (int32_t)(l - m->layer));
    run_rows(p, l, rows, quantise_attended);
    gather_input(p, p->attended, rows, &p->queries, &l->out);
    activations attended = rows_of(p, p->attended, rows, p->queries.all);
    run_linear(p->k, &attended, 1, (product[]){{&l->out, own(p->y, &p->hidden), m->hidden}});
    run_adapters(p, l, OUTRIDER_ADAPTED_OUT, p->queries.all, p->attended, m->hidden, p->y);
    gather_columns(p, p->y, rows, &p->hidden);
    run_rows(p, l, rows, add_and_norm);
    if (l->experts)
        run_experts(p, l);
    else
        run_mlp(p, l);
    gather_columns(p, p->y, rows, &p->hidden);
    run_rows(p, l, rows, add_rows);
}

/* ---- Before and after the layers ---------------------------------------------------------------------------------- */

static void embed_item(void *context, int64_t r) {
    const pass *p = context;
    int64_t d = p->model->hidden;
    if (p->batch->inputs)
        memcpy(p->x + r * d, p->batch->inputs + r * d, (size_t)d * sizeof(float));
    else {
        outrider_rows(p->model->embedding, 1, p->batch->tokens + r, p->x + r * d);
        scale_row(d, p->x + r * d, p->model->embedding_scale);
    }
}

static void copy_features(const pass *p, int32_t layers_done) {
    const outrider_batch *b = p->batch;
    int64_t d = p->model->hidden;
    for (int32_t f = 0; f < b->features; f++)
        if (b->feature_layers[f] == layers_done)
            for (int64_t r = 0; r < b->rows; r++)
                memcpy(b->feature + (r * b->features + f) * d, p->x + r * d, (size_t)d * sizeof(float));
}

static void cap_item(void *context, int64_t r) {
    const pass *p = context;
    const outrider_model *m = p->model;
    int64_t width = p->vocabulary.all;
    float *row = p->batch->logits + r * width, scale = m->logit_scale > 0 ? m->logit_scale : 1.0f;
    if (m->logit_cap > 0)
        p->k->cap(width, row, scale, m->logit_cap);
    else
        scale_row(width, row, scale);
}

static void score_rows(pass *p) {
    const outrider_batch *b = p->batch;
    const outrider_model *m = p->model;
    int64_t d = m->hidden;
    for (int64_t i = 0; i < b->logit_rows; i++)
        norm_or_copy(p, p->x + b->logit_row[i] * d, &m->final_norm, p->normed + i * d);
    if (b->hidden_out) memcpy(b->hidden_out, p->normed, (size_t)(b->logit_rows * d) * sizeof(float));
    if (!b->logits || !b->logit_rows) return;
    activations a = rows_of(p, p->normed, b->logit_rows, d);
    if (is_quantised(m->head)) p->k->quantise(&a, 0, b->logit_rows);
    int first = !m->shard || m->shard->rank == 0; /* the first process's columns are the first */
    run_linear(p->k, &a, 1, (product[]){{m->head, b->logits, first ? p->vocabulary.all : p->vocabulary.count}});
    gather_logits(p, b->logits, b->logit_rows);
    if (first && (m->logit_scale > 0 || m->logit_cap > 0)) run_items(b->logit_rows, cap_item, p);
}

OUTRIDER_API int outrider_forward(const outrider_model *model, const outrider_cache *cache,
                                  const outrider_batch *batch) {
    if (!is_model(model) || !is_array(batch, _Alignof(outrider_batch))) return OUTRIDER_BAD_ARGUMENT;
    pass p = {.model = model, .cache = cache, .batch = batch};
    find_columns(&p);
    int status = check_batch(&p);
    if (status != OUTRIDER_OK || batch->rows == 0) return status;
    lock_threads();
    p.k = current_kernels();
    status = prepare_pass(&p);
    if (status == OUTRIDER_OK) {
        run_items(batch->rows, embed_item, &p);
        copy_features(&p, 0);
        for (int32_t i = 0; i < batch->layers && !p.lost && !p.unfit; i++) {
            run_layer(&p, model->layer + i);
            copy_features(&p, i + 1);
        }
        if (batch->residual)
            memcpy(batch->residual, p.x, (size_t)batch->rows * (size_t)model->hidden * sizeof(float));
        if (!p.lost && !p.unfit) score_rows(&p);
        if (p.lost || p.unfit) status = p.lost ? OUTRIDER_PEER_LOST : OUTRIDER_BAD_ARGUMENT;
    }
    unlock_threads();
    return status;
}

/* ---- Parts by themselves -------------------------------------------------------------------------------------------- */

OUTRIDER_API int outrider_norm(int64_t rows, int64_t width, const float *x, const float *weight, const float *bias,
                               float eps, float *out) {
    outrider_norm_weights norm = {weight, bias};
    if (rows < 0 || rows > MOST_BATCH_ROWS || width < 1 || width > MOST_WIDTH) return OUTRIDER_BAD_ARGUMENT;
    if (rows == 0) return OUTRIDER_OK;
    if (!is_array(x, sizeof *x) || !is_array(weight, sizeof *x) || !is_array_or_null(bias, sizeof *x) ||
        !is_array(out, sizeof *x))
        return OUTRIDER_BAD_ARGUMENT;
    for (int64_t r = 0; r < rows; r++) norm_row(current_kernels(), width, x + r * width, &norm, eps, out + r * width);
    return OUTRIDER_OK;
}

OUTRIDER_API int outrider_linear(const outrider_weight *weight, int64_t rows, const float *x, float *y) {
    if (rows < 0 || rows > MOST_BATCH_ROWS || !is_weight(weight)) return OUTRIDER_BAD_ARGUMENT;
    if (rows == 0) return OUTRIDER_OK;
    if (!is_array(x, sizeof *x) || !is_array(y, sizeof *y)) return OUTRIDER_BAD_ARGUMENT;
    lock_threads();
    pass p = {.k = current_kernels()};
    int status = prepare_codes(&p, rows, weight->inputs);
    if (status == OUTRIDER_OK) {
        activations a = rows_of(&p, x, rows, weight->inputs);
        if (is_quantised(weight)) p.k->quantise(&a, 0, rows);
        run_linear(p.k, &a, 1, (product[]){{weight, y, weight->outputs}});
    }
    unlock_threads();
    return status;
}
