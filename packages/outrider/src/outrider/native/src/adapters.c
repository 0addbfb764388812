/* Low-rank adapters: what a row's own adapter adds to a linear layer's output.
 *
 * A row is worked on alone, and every sum runs over inputs, then over ranks, in their order, so its bits depend on
 * nothing but the row and its adapter. Lanes are different outputs of a sum, never parts of one.
 */
#include "forward.h"

#define MOST_LANES 64 /* ranks that are summed in one go */

/* y += up' (down' x), some ranks at a time. */
static void add_low_rank(const outrider_low_rank *a, const float *x, float *y) {
    for (int32_t first = 0; first < a->rank; first += MOST_LANES) {
        int32_t lanes = a->rank - first < MOST_LANES ? a->rank - first : MOST_LANES;
        float t[MOST_LANES] = {0};
        for (int64_t i = 0; i < a->inputs; i++) {
            const float *down = a->down + i * a->rank + first;
            for (int32_t j = 0; j < lanes; j++) t[j] += x[i] * down[j];
        }
        for (int32_t j = 0; j < lanes; j++) {
            const float *up = a->up + (int64_t)(first + j) * a->outputs;
            for (int64_t o = 0; o < a->outputs; o++) y[o] += t[j] * up[o];
        }
    }
}

typedef struct {
    const outrider_batch *batch;
    int64_t at; /* of the layer's and kind's adapter, in an adapter's list */
    int64_t inputs, outputs;
    const float *x;
    float *y;
} adapter_work;

static void adapter_item(void *shared, int64_t r, int thread) {
    const adapter_work *work = shared;
    (void)thread;
    const outrider_low_rank *list = work->batch->adapters[r];
    if (list && list[work->at].rank)
        add_low_rank(list + work->at, work->x + r * work->inputs, work->y + r * work->outputs);
}

void run_adapters(forward_ctx *f, const outrider_layer *l, enum outrider_adapted kind, int64_t inputs, const float *x,
                  int64_t outputs, float *y) {
    if (!f->batch.asked->adapters) return;
    int64_t layer = l - f->model.whole->layer;
    adapter_work work = {f->batch.asked, layer * OUTRIDER_ADAPTED + kind, inputs, outputs, x, y};
    run_items(&f->context->pool, f->batch.asked->rows, adapter_item, &work);
}
