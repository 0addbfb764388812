/* Linear layers: panels of weights, shared out among threads. */
#include "linear.h"

typedef struct {
    const kernels *k;
    const activations *input;
    const product *products;
    int count;
    int64_t share; /* panels of an item */
} linear_work;

static int64_t panels_of(const outrider_weight *w) { return (w->outputs + 15) / 16; }
static int64_t shares_of(const linear_work *work, int i) {
    return (panels_of(work->products[i].weight) + work->share - 1) / work->share;
}

static void linear_item(void *shared, int64_t item, int thread) {
    const linear_work *work = shared;
    (void)thread;
    int i = 0;
    for (; item >= shares_of(work, i); i++) item -= shares_of(work, i);
    const product *p = work->products + i;
    int64_t first = item * work->share, last = first + work->share, panels = panels_of(p->weight);
    work->k->linear(p->weight, work->input, first, last < panels ? last : panels, p->y, p->stride);
}

/* Two items for each thread: long runs of panels are read faster than short ones. */
void run_linear(outrider_context *c, const activations *input, int count, const product *products) {
    linear_work work = {c->k, input, products, count, 1};
    int64_t panels = 0, items = 0, wanted = 2 * c->pool.count;
    for (int i = 0; i < count; i++) panels += panels_of(products[i].weight);
    if (!panels) return; /* of a split model: all outputs are others' */
    work.share = (panels + wanted - 1) / wanted;
    int64_t most = 1 + 65536 / input->rows; /* many rows: fewer panels are work enough, and the end comes together */
    if (work.share > most) work.share = most;
    for (int i = 0; i < count; i++) items += shares_of(&work, i);
    run_items(&c->pool, items, linear_item, &work);
}
