/* Mixtures of experts: each row goes through a few of a layer's MLPs.
 *
 * An expert sees the rows that chose it, side by side. Linear layers give a row the same bits in any company, and what
 * experts give is added to a row in their order, so a row's result does not depend on what the others chose.
 */
#include <string.h>

#include "arguments.h"
#include "forward.h"
#include "linear.h"

/* The row's most likely experts, the first of equals; their weights stay, and those of the others become 0. */
static void choose(const outrider_layer *l, float *weights, uint8_t *chosen) {
    memset(chosen, 0, (size_t)l->experts);
    float sum = 0;
    for (int32_t n = 0; n < l->experts_used; n++) {
        int32_t best = -1;
        for (int32_t e = 0; e < l->experts; e++)
            if (!chosen[e] && (best < 0 || weights[e] > weights[best])) best = e;
        chosen[best] = 1;
        sum += weights[best];
    }
    for (int32_t e = 0; e < l->experts; e++) {
        if (!chosen[e]) weights[e] = 0;
        else if (l->normalised) weights[e] /= sum;
    }
}

static void choose_rows(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) {
        f->k->softmax(l->experts, f->work.router + r * l->experts);
        choose(l, f->work.router + r * l->experts, f->work.chosen + r * l->experts);
    }
}

typedef struct {
    forward_ctx *f;
    const outrider_layer *layer;
    const outrider_mlp *mlp;
    int32_t expert;
    int64_t rows;
    columns inner;
} expert_work;

static void gather_item(void *shared, int64_t i, int thread) {
    const expert_work *e = shared;
    forward_ctx *f = e->f;
    workspace *w = &f->work;
    int64_t d = f->model.whole->hidden;
    (void)thread;
    memcpy(w->expert_in + i * d, w->normed + w->expert_rows[i] * d, (size_t)d * sizeof(float));
    quantise_some(f, w->expert_in, e->rows, d, &e->mlp->gate, &e->mlp->up, i, i + 1);
}

static void gate_item(void *shared, int64_t i, int thread) {
    const expert_work *e = shared;
    forward_ctx *f = e->f;
    const columns *c = &e->inner;
    (void)thread;
    activate(f, c->count, local_columns(f->work.gate, c) + i * c->all, local_columns(f->work.up, c) + i * c->all);
    quantise_own(f, f->work.gate, e->rows, c, &e->mlp->down, i, i + 1);
}

static void add_item(void *shared, int64_t i, int thread) {
    const expert_work *e = shared;
    workspace *w = &e->f->work;
    const columns *c = &e->f->model.hidden;
    int64_t row = w->expert_rows[i];
    float weight = w->router[row * e->layer->experts + e->expert], *out = local_columns(w->expert_out, c) + i * c->all;
    (void)thread;
    for (int64_t j = 0; j < c->count; j++) out[j] *= weight;
    e->f->k->add(c->count, local_columns(w->y, c) + row * c->all, out);
}

static void run_expert(expert_work *e) {
    forward_ctx *f = e->f;
    workspace *w = &f->work;
    thread_pool *pool = &f->context->pool;
    const columns *inner = &e->inner;
    int64_t d = f->model.whole->hidden, outputs = e->mlp->gate.outputs;
    e->inner = f->model.whole->shard ? f->model.expert_inner : (columns){0, outputs, outputs, NULL, 1};
    if (inner->all > f->model.whole->inner || !e->mlp->up.panels || !fits_mlp(&f->model, e->mlp, inner)) {
        f->status = OUTRIDER_BAD_ARGUMENT;
        return;
    }
    run_items(pool, e->rows, gather_item, e);
    activations in = rows_of(w, w->expert_in, e->rows, d);
    run_linear(f->context, &in, 2, (product[]){{&e->mlp->gate, local_columns(w->gate, inner), inner->all},
                                               {&e->mlp->up, local_columns(w->up, inner), inner->all}});
    run_items(pool, e->rows, gate_item, e);
    gather_input(f, w->gate, e->rows, inner, &e->mlp->down);
    activations gated = rows_of(w, w->gate, e->rows, inner->all);
    run_linear(f->context, &gated, 1, (product[]){{&e->mlp->down, local_columns(w->expert_out, &f->model.hidden), d}});
    run_items(pool, e->rows, add_item, e);
}

void run_experts(forward_ctx *f, const outrider_layer *l) {
    workspace *w = &f->work;
    int64_t rows = f->batch.asked->rows, d = f->model.whole->hidden;
    activations normed = rows_of(w, w->normed, rows, d);
    run_linear(f->context, &normed, 1, (product[]){{&l->router, w->router, l->experts}});
    run_rows(f, l, rows, choose_rows);
    memset(w->y, 0, (size_t)(rows * d) * sizeof(float));
    for (int32_t i = 0; i < l->experts && f->status == OUTRIDER_OK; i++) {
        expert_work work = {.f = f, .layer = l, .mlp = l->expert + i, .expert = i};
        for (int64_t r = 0; r < rows; r++)
            if (w->chosen[r * l->experts + i]) w->expert_rows[work.rows++] = r;
        if (work.rows) run_expert(&work);
    }
}
