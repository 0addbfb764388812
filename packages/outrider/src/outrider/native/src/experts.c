/* Mixtures of experts: each row goes through a few of a layer's MLPs.
 *
 * An expert sees the rows that chose it, side by side. Linear layers give a row the same bits in any company, and what
 * experts give is added to a row in their order, so a row's result does not depend on what the others chose.
 */
#include <string.h>

#include "forward.h"
#include "linear.h"
#include "threads.h"

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

static void choose_rows(pass *p, const outrider_layer *l, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) {
        p->k->softmax(l->experts, p->router + r * l->experts);
        choose(l, p->router + r * l->experts, p->chosen + r * l->experts);
    }
}

typedef struct {
    pass *p;
    const outrider_layer *layer;
    const outrider_mlp *mlp;
    int32_t expert;
    int64_t rows;
    columns inner;
} expert_work;

static void gather_item(void *context, int64_t i) {
    const expert_work *w = context;
    pass *p = w->p;
    int64_t d = p->model->hidden;
    memcpy(p->expert_in + i * d, p->normed + p->expert_rows[i] * d, (size_t)d * sizeof(float));
    quantise_some(p, p->expert_in, w->rows, d, &w->mlp->gate, &w->mlp->up, i, i + 1);
}

static void gate_item(void *context, int64_t i) {
    const expert_work *w = context;
    pass *p = w->p;
    const columns *c = &w->inner;
    activate(p, c->count, own(p->gate, c) + i * c->all, own(p->up, c) + i * c->all);
    quantise_own(p, p->gate, w->rows, c, &w->mlp->down, i, i + 1);
}

static void add_item(void *context, int64_t i) {
    const expert_work *w = context;
    pass *p = w->p;
    const columns *c = &p->hidden;
    int64_t row = p->expert_rows[i];
    float weight = p->router[row * w->layer->experts + w->expert], *out = own(p->expert_out, c) + i * c->all;
    for (int64_t j = 0; j < c->count; j++) out[j] *= weight;
    p->k->add(c->count, own(p->y, c) + row * c->all, out);
}

static void run_expert(expert_work *w) {
    pass *p = w->p;
    int64_t d = p->model->hidden;
    int64_t outputs = w->mlp->gate.outputs;
    w->inner = p->model->shard ? p->expert_inner : (columns){0, outputs, outputs, NULL, 1};
    if (w->inner.all > p->model->inner || !w->mlp->up.panels || !fits_mlp(p, w->mlp, &w->inner)) {
        p->unfit = 1;
        return;
    }
    run_items(w->rows, gather_item, w);
    activations in = rows_of(p, p->expert_in, w->rows, d);
    run_linear(p->k, &in, 2, (product[]){{&w->mlp->gate, own(p->gate, &w->inner), w->inner.all},
                                         {&w->mlp->up, own(p->up, &w->inner), w->inner.all}});
    run_items(w->rows, gate_item, w);
    gather_input(p, p->gate, w->rows, &w->inner, &w->mlp->down);
    activations gated = rows_of(p, p->gate, w->rows, w->inner.all);
    run_linear(p->k, &gated, 1, (product[]){{&w->mlp->down, own(p->expert_out, &p->hidden), d}});
    run_items(w->rows, add_item, w);
}

void run_experts(pass *p, const outrider_layer *l) {
    int64_t rows = p->batch->rows, d = p->model->hidden;
    activations normed = rows_of(p, p->normed, rows, d);
    run_linear(p->k, &normed, 1, (product[]){{&l->router, p->router, l->experts}});
    run_rows(p, l, rows, choose_rows);
    memset(p->y, 0, (size_t)(rows * d) * sizeof(float));
    for (int32_t e = 0; e < l->experts && !p->unfit; e++) {
        expert_work work = {.p = p, .layer = l, .mlp = l->expert + e, .expert = e};
        for (int64_t r = 0; r < rows; r++)
            if (p->chosen[r * l->experts + e]) p->expert_rows[work.rows++] = r;
        if (work.rows) run_expert(&work);
    }
}
