/* Work on rows, shared out among threads. */
#include <string.h>

#include "forward.h"
#include "linear.h"

#define FEW_ROWS 4 /* are done before another thread would have noticed */

typedef struct {
    forward_ctx *f;
    const outrider_layer *layer;
    row_function *rows;
} row_work;

static void row_share(void *shared, int64_t first, int64_t last, int thread) {
    const row_work *work = shared;
    (void)thread;
    work->rows(work->f, work->layer, first, last);
}

void run_rows(forward_ctx *f, const outrider_layer *layer, int64_t count, row_function *rows) {
    row_work work = {f, layer, rows};
    run_shares(&f->context->pool, count, (share_size){FEW_ROWS, count}, row_share, &work);
}

void quantise_some(const forward_ctx *f, const float *x, int64_t rows, int64_t inputs, const outrider_weight *for_one,
                   const outrider_weight *for_other, int64_t first, int64_t last) {
    if (!is_quantised(for_one) && !(for_other && is_quantised(for_other))) return;
    activations a = rows_of(&f->work.codes, x, rows, inputs);
    f->k->quantise(&a, first, last);
}

void norm_row(const kernels *k, int64_t width, const float *x, const outrider_norm_weights *norm, float eps,
              float *out) {
    if (norm->bias)
        k->layer_norm(width, x, norm->weight, norm->bias, eps, out);
    else
        k->norm(width, x, norm->weight, eps, out);
}

void norm_or_copy(const forward_ctx *f, const float *x, const outrider_norm_weights *norm, float *out) {
    int64_t d = f->model.whole->hidden;
    if (norm->weight)
        norm_row(f->k, d, x, norm, f->model.whole->eps, out);
    else
        memcpy(out, x, (size_t)d * sizeof(float));
}

/* max(x, 0) squared, in place; NaN stays. */
static void square_positive(int64_t width, float *x) {
    for (int64_t i = 0; i < width; i++) {
        float positive = x[i] < 0 ? 0 : x[i];
        x[i] = positive * positive;
    }
}

void activate(const forward_ctx *f, int64_t width, float *gate, const float *up) {
    const outrider_model *m = f->model.whole;
    if (m->activation == OUTRIDER_GELU_TANH)
        f->k->gelu_mul(width, gate, up);
    else if (m->activation == OUTRIDER_CLAMPED_SWIGLU)
        f->k->clamped_swiglu(width, gate, up, m->swiglu_alpha, m->swiglu_limit);
    else if (m->activation == OUTRIDER_RELU_SQUARED)
        square_positive(width, gate);
    else
        f->k->silu_mul(width, gate, up);
}

void scale_row(int64_t width, float *x, float scale) {
    for (int64_t i = 0; scale > 0 && i < width; i++) x[i] *= scale;
}
