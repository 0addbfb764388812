/* Linear layers with one input, over all threads. */
#ifndef OUTRIDER_LINEAR_H
#define OUTRIDER_LINEAR_H

#include "context.h"

typedef struct {
    const outrider_weight *weight;
    float *y;
    int64_t stride;
} product;

static inline int64_t panels_of(const outrider_weight *w) { return (w->outputs + 15) / 16; }

/* Panels that a thread takes at once of weights like ``w`` for so many rows, in units of ``unit`` panels. */
share_size share_of_panels(const outrider_weight *w, int64_t rows, int64_t unit);

/* y = x W' + bias for ``count`` products of one input. */
void run_linear(outrider_context *c, const activations *input, int count, const product *products);

static inline int is_quantised(const outrider_weight *w) {
    return w->layout == OUTRIDER_CODES;
}

#endif
