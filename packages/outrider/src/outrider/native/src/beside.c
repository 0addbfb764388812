/* Experts beside an MLP (Gemma 4): a row's router and its experts read the residual stream, each by a norm of its own. */
#include <string.h>

#include "forward.h"

static void norm_for_router(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const outrider_model *m = f->model.whole;
    const workspace *w = &f->work;
    int64_t d = m->hidden;
    for (int64_t r = first; r < last; r++) {
        f->k->norm(d, w->y + r * d, l->beside->mlp_output_norm, m->eps, w->beside + r * d);
        f->k->norm(d, w->x + r * d, l->beside->router_norm, m->eps, w->normed + r * d);
    }
    quantise_some(f, w->normed, f->batch.asked->rows, d, &l->router, NULL, first, last);
}

void prepare_beside(forward_ctx *f, const outrider_layer *l) { run_rows(f, l, f->batch.asked->rows, norm_for_router); }

/* The router has read the row, and its experts are chosen. */
void norm_for_experts(forward_ctx *f, const outrider_layer *l, int64_t row) {
    int64_t d = f->model.whole->hidden;
    float *weights = f->work.router + row * l->experts;
    for (int32_t e = 0; e < l->experts; e++) weights[e] *= l->beside->expert_scale[e];
    f->k->norm(d, f->work.x + row * d, l->beside->expert_norm, f->model.whole->eps, f->work.normed + row * d);
}

void add_beside(forward_ctx *f, const outrider_layer *l, int64_t row) {
    int64_t d = f->model.whole->hidden;
    float *y = f->work.y + row * d;
    f->k->norm(d, y, l->beside->expert_output_norm, f->model.whole->eps, y);
    f->k->add(d, y, f->work.beside + row * d);
}
