/* How fast this machine reads memory and multiplies, the two limits of a forward pass, and how fast its threads meet. */
#define _GNU_SOURCE /* clock_gettime */
#include <string.h>
#include <time.h>

#include "context.h"
#include "system.h"

enum { PIECE = 1 << 20, TRIES = 5 };
enum { ROWS = 16, OUTPUTS = 256, INPUTS = 1024, GROUPS = INPUTS / 32, PANEL = GROUPS * (32 + 16 * 32) }; /* fits a core's cache */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The shortest of a few runs of all items. */
static double best_time(thread_pool *pool, int64_t items, item_function *function, void *work) {
    double best = 1e30;
    for (int i = 0; i < TRIES; i++) {
        double start = seconds();
        run_items(pool, items, function, work);
        double took = seconds() - start;
        best = took < best ? took : best;
    }
    return best;
}

static void read_piece(void *buffer, int64_t item, int thread) {
    const uint64_t *words = (const uint64_t *)((const char *)buffer + item * PIECE);
    (void)thread;
    uint64_t sums[16] = {0};
    for (int64_t i = 0; i < PIECE / 8; i += 16)
        for (int j = 0; j < 16; j++) sums[j] += words[i + j];
    volatile uint64_t kept = 0; /* or nothing would have to be read */
    for (int j = 0; j < 16; j++) kept += sums[j];
}

double outrider_memory_rate(outrider_context *context, int64_t bytes) {
    int64_t pieces = bytes / PIECE; /* of a number below 0: none */
    char *buffer = pieces < 1 || !is_context(context) ? NULL : allocate_aligned(64, (size_t)(pieces * PIECE));
    if (!buffer) return 0;
    memset(buffer, 1, (size_t)(pieces * PIECE)); /* pages that were never written are all one page of zeros */
    lock_context(context);
    double rate = (double)(pieces * PIECE) / best_time(&context->pool, pieces, read_piece, buffer);
    unlock_context(context);
    free_aligned(buffer);
    return rate;
}

typedef struct {
    const kernels *k;
    outrider_weight weight;
    activations input;
} product;

static void multiply(void *shared, int64_t item, int thread) {
    const product *p = shared;
    float y[ROWS * OUTPUTS];
    (void)item;
    (void)thread;
    p->k->linear(&p->weight, &p->input, 0, OUTPUTS / 16, y, OUTPUTS);
}

double outrider_arithmetic_rate(outrider_context *context) {
    uint8_t *panels = allocate_aligned(64, OUTPUTS / 16 * PANEL);
    float *x = allocate_aligned(64, ROWS * INPUTS * sizeof(float));
    int8_t *codes = allocate_aligned(64, ROWS * INPUTS);
    act_quant_group *quant = allocate_aligned(64, ROWS * GROUPS * sizeof(act_quant_group));
    double rate = 0;
    if (is_context(context) && panels && x && codes && quant) {
        memset(panels, 0, OUTPUTS / 16 * PANEL);
        for (int i = 0; i < ROWS * INPUTS; i++) x[i] = (float)(i % 255 - 127);
        product p = {context->k,
                     {.layout = OUTRIDER_CODES, .bits = 8, .group = 32, .first = -128, .unit = 1, .outputs = OUTPUTS,
                      .inputs = INPUTS, .groups = GROUPS, .panel_bytes = PANEL, .panels = panels},
                     {ROWS, INPUTS, GROUPS, x, codes, quant}};
        lock_context(context);
        p.k->quantise(&p.input, 0, ROWS);
        int64_t items = 2; /* as many as take some milliseconds */
        double took = 0;
        while (took < 2e-3 && items < 4096) took = best_time(&context->pool, items *= 2, multiply, &p);
        rate = (double)items * ROWS * OUTPUTS * INPUTS / took;
        unlock_context(context);
    }
    free_aligned(panels);
    free_aligned(x);
    free_aligned(codes);
    free_aligned(quant);
    return rate;
}

enum { MEETINGS = 200 };

typedef struct {
    const thread_pool *pool;
    _Atomic int64_t met;
} meeting;

/* An item for each thread: none ends before all have begun, so that no thread does two. */
static void meet(void *shared, int64_t item, int thread) {
    meeting *m = shared;
    int64_t count = m->pool->count, all = (atomic_fetch_add(&m->met, 1) / count + 1) * count;
    (void)item;
    (void)thread;
    for (int looks = 0; atomic_load(&m->met) < all; looks++) wait_briefly(m->pool, looks);
}

double outrider_sync_time(outrider_context *context) {
    if (!is_context(context)) return 0;
    meeting m = {.pool = &context->pool};
    lock_context(context);
    double best = 1e30;
    for (int i = 0; i < TRIES; i++) {
        double start = seconds();
        for (int j = 0; j < MEETINGS; j++) run_items(&context->pool, context->pool.count, meet, &m);
        double took = (seconds() - start) / MEETINGS;
        best = took < best ? took : best;
    }
    unlock_context(context);
    return best;
}
