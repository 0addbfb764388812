/* Short gated convolutions (LFM2): the convolution of values times a factor, times a gate. There is no state: a slot has
 * inputs of the convolution alone. */
#include "recurrent_work.h"

enum { BLOCK = 128 }; /* channels of a task: whole groups of codes */

/* A span's rows of a block of channels. Each projected row is its factors, its gates and its values. */
static void convolve_item(void *shared, int64_t item, int thread) {
    (void)thread;
    const recurrent_work *w = shared;
    const workspace *work = &w->f->work;
    int64_t all = values_of(w->r), blocks = (all + BLOCK - 1) / BLOCK, first = item % blocks * BLOCK;
    int64_t width = all - first < BLOCK ? all - first : BLOCK;
    slot_work k = slot_of(w, w->f->recurrent.span + item / blocks, work->mixed);
    for (int64_t row = k.plan->row; row < k.plan->row + k.plan->span->count; row++) {
        const float *factor = work->channels + row * 3 * all + first, *value = factor + 2 * all;
        float *raw = work->mixed + row * all + first;
        for (int64_t i = 0; i < width; i++) raw[i] = factor[i] * value[i];
    }
    mix_channels(&k, first, width, work->z, work->channels + all, 3 * all);
    quantise_values(&k, work->z, first, first + width);
}

void run_short_convolution(recurrent_work *w) {
    int64_t blocks = (values_of(w->r) + BLOCK - 1) / BLOCK;
    w->reader = &w->r->out;
    run_items(&w->f->context->pool, w->f->batch.asked->spans * blocks, convolve_item, w);
}
