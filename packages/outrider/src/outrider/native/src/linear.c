/* Linear layers: panels of weights, shared out among threads. */
#include "linear.h"

#define LEAST_BYTES 65536 /* that are worth a claim: some microseconds */
#define MOST_ROWS_PANELS 65536 /* rows times panels: so many panels stay in a cache while a core goes over the rows */

typedef struct {
    const kernels *k;
    const activations *input;
    const product *products;
} linear_work;

share_size share_of_panels(const outrider_weight *w, int64_t rows, int64_t unit) {
    int64_t cost = w->panel_bytes + 4 * rows * w->inputs; /* a byte is read while about four products are computed */
    share_size size = {LEAST_BYTES / (cost * unit), (1 + MOST_ROWS_PANELS / rows) / unit};
    if (size.least < 1) size.least = 1;
    if (size.most < size.least) size.most = size.least;
    return size;
}

/* Panels first .. last - 1 of all products' together. */
static void linear_share(void *shared, int64_t first, int64_t last, int thread) {
    const linear_work *work = shared;
    (void)thread;
    for (const product *p = work->products; last > 0; p++) {
        int64_t panels = panels_of(p->weight), to = last < panels ? last : panels;
        if (first < to) work->k->linear(p->weight, work->input, first, to, p->y, p->stride);
        first = first > panels ? first - panels : 0;
        last -= panels;
    }
}

void run_linear(outrider_context *c, const activations *input, int count, const product *products) {
    linear_work work = {c->k, input, products};
    int64_t panels = 0;
    for (int i = 0; i < count; i++) panels += panels_of(products[i].weight);
    if (!panels) return; /* of a split model: all outputs are others' */
    run_shares(&c->pool, panels, share_of_panels(products->weight, input->rows, 1), linear_share, &work);
}
