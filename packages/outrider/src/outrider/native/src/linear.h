/* Linear layers with one input, over all threads. */
#ifndef OUTRIDER_LINEAR_H
#define OUTRIDER_LINEAR_H

#include "context.h"

typedef struct {
    const outrider_weight *weight;
    float *y;
    int64_t stride;
} product;

/* y = x W' + bias for ``count`` products of one input. */
void run_linear(outrider_context *c, const activations *input, int count, const product *products);

static inline int is_quantised(const outrider_weight *w) {
    return w->layout == OUTRIDER_Q8 || w->layout == OUTRIDER_Q4;
}

#endif
