/* Embeddings of each layer (Gemma 3n, Gemma 4): a token has some numbers for every layer, which its row reads there. */
#include "forward.h"
#include "linear.h"

#define INPUT_SCALE 0.70710678f /* of the sum of two */

static void quantise_embeddings(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const outrider_model *m = f->model.whole;
    (void)l;
    quantise_some(f, f->work.x, f->batch.asked->rows, m->hidden, m->layer_projection, NULL, first, last);
}

/* Projected rows [layers, layer_inputs], each layer's normed and added to the token's own. */
static void add_embeddings(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const outrider_model *m = f->model.whole;
    int64_t width = m->layer_inputs, all = m->layers * width;
    (void)l;
    for (int64_t r = first; r < last; r++) {
        float *x = f->work.layer_inputs + r * all;
        scale_row(all, x, 1.0f / __builtin_sqrtf((float)m->hidden));
        for (int64_t i = 0; i < all; i += width) f->k->norm(width, x + i, m->layer_projection_norm, m->eps, x + i);
        f->k->add(all, x, f->batch.asked->layer_embeddings + r * all);
        scale_row(all, x, INPUT_SCALE);
    }
}

void make_layer_inputs(forward_ctx *f) {
    const outrider_model *m = f->model.whole;
    int64_t rows = f->batch.asked->rows;
    activations x = rows_of(&f->work.codes, f->work.x, rows, m->hidden);
    run_rows(f, m->layer, rows, quantise_embeddings);
    run_linear(f->context, &x, 1,
               (product[]){{m->layer_projection, f->work.layer_inputs, (int64_t)m->layers * m->layer_inputs}});
    run_rows(f, m->layer, rows, add_embeddings);
}

static void gate_inputs(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const outrider_model *m = f->model.whole;
    int64_t width = m->layer_inputs, layer = l - m->layer;
    for (int64_t r = first; r < last; r++)
        activate(f, width, f->work.layer_gate + r * width, f->work.layer_inputs + (r * m->layers + layer) * width);
    quantise_some(f, f->work.layer_gate, f->batch.asked->rows, width, &l->input->out, NULL, first, last);
}

void run_input(forward_ctx *f, const outrider_layer *l) {
    const workspace *w = &f->work;
    int64_t rows = f->batch.asked->rows, d = f->model.whole->hidden, width = f->model.whole->layer_inputs;
    activations x = rows_of(&w->codes, w->x, rows, d), gated = rows_of(&w->codes, w->layer_gate, rows, width);
    run_linear(f->context, &x, 1, (product[]){{&l->input->gate, w->layer_gate, width}});
    run_rows(f, l, rows, gate_inputs);
    run_linear(f->context, &gated, 1, (product[]){{&l->input->out, w->y, d}});
}
