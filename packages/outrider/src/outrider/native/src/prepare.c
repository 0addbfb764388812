/* Before a forward pass: memory laid out, each row's keys found. */
#include <stdlib.h>
#include <string.h>

#include "forward.h"

static void *memory[MEMORY_KINDS];
static size_t memory_size[MEMORY_KINDS];

void *scratch_memory(int which, size_t size) {
    if (memory_size[which] < size) {
        free(memory[which]);
        size = (size + 4095) / 4096 * 4096;
        memory[which] = aligned_alloc(64, size);
        memory_size[which] = memory[which] ? size : 0;
    }
    return memory[which];
}

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

typedef struct {
    char *base; /* NULL while sizes are added up */
    size_t used;
} arena;

static void *take(arena *a, int64_t count, size_t size) {
    void *at = a->base ? a->base + a->used : NULL;
    a->used += ((size_t)count * size + 63) / 64 * 64;
    return at;
}

static void take_codes(arena *a, pass *p, int64_t rows, int64_t inputs) {
    int64_t groups = (inputs + 31) / 32;
    p->codes = take(a, rows * groups * 32, 1);
    p->about = take(a, rows * groups, sizeof(code_group));
}

/* Whether a layer reads embeddings beside the residual stream. */
static int reads_embeddings(const outrider_model *m) {
    for (int32_t i = 0; i < m->layers; i++)
        if (m->layer[i].embedding_norm) return 1;
    return 0;
}

static int64_t most_experts(const outrider_model *m) {
    int64_t most = 0;
    for (int32_t i = 0; i < m->layers; i++)
        if (m->layer[i].experts > most) most = m->layer[i].experts;
    return most;
}

static int64_t listed_keys(const outrider_batch *b) {
    int64_t keys = 0;
    for (int32_t i = 0; i < b->spans; i++)
        if (b->span[i].mask) keys += (int64_t)b->span[i].mask_rows * b->span[i].mask_keys;
    return keys;
}

static void take_pass(arena *a, pass *p) {
    const outrider_model *m = p->model;
    int64_t rows = p->batch->rows, most = rows > p->batch->logit_rows ? rows : p->batch->logit_rows, d = m->hidden;
    int64_t width = p->queries.all, inner = p->inner.all;
    int64_t wide = reads_embeddings(m) ? 2 * d : d; /* what attention reads */
    int64_t widest = wide > width ? wide : width, experts = most_experts(m);
    if (p->expert_inner.all > inner) inner = p->expert_inner.all;
    if (inner > widest) widest = inner;
    p->x = take(a, rows * d, sizeof(float));
    p->normed = take(a, most * wide, sizeof(float));
    p->y = take(a, rows * d, sizeof(float));
    p->q = take(a, rows * width, sizeof(float));
    p->attended = take(a, rows * width, sizeof(float));
    p->keys = take(a, rows * p->kv.all, sizeof(float));
    p->values = take(a, rows * p->kv.all, sizeof(float));
    p->gate = take(a, rows * inner, sizeof(float));
    p->up = take(a, rows * inner, sizeof(float));
    take_codes(a, p, most, widest);
    p->place = take(a, rows, sizeof *p->place);
    p->range = take(a, rows, sizeof *p->range);
    p->lists = take(a, listed_keys(p->batch), sizeof *p->lists);
    if (!experts) return;
    p->router = take(a, rows * experts, sizeof(float));
    p->chosen = take(a, rows * experts, sizeof *p->chosen);
    p->expert_rows = take(a, rows, sizeof *p->expert_rows);
    p->expert_in = take(a, rows * d, sizeof(float));
    p->expert_out = take(a, rows * d, sizeof(float));
}

int prepare_codes(pass *p, int64_t rows, int64_t inputs) {
    arena a = {NULL, 0};
    take_codes(&a, p, rows, inputs);
    a = (arena){scratch_memory(MEMORY_ROWS, a.used), 0};
    if (!a.base) return OUTRIDER_NO_MEMORY;
    take_codes(&a, p, rows, inputs);
    return OUTRIDER_OK;
}

/* ---- Keys ------------------------------------------------------------------------------------------------------- */

/* The keys of row r of a span, row ``own`` of its sequence. A row's path in a tree is in order as far as it goes on
 * from the rows before the tree. */
static key_range range_of(const outrider_span *s, int32_t r, int32_t **list) {
    int32_t own = s->start + r, keys = own + 1, shared = keys;
    const int32_t *path = *list;
    if (s->mask && r >= s->count - s->mask_rows) {
        int32_t before = s->start + s->count - s->mask_keys;
        const uint8_t *seen = s->mask + (int64_t)(r - (s->count - s->mask_rows)) * s->mask_keys;
        keys = shared = before;
        int32_t listed = 0;
        for (int32_t i = 0; i < s->mask_keys; i++) {
            if (!seen[i]) continue;
            if (shared == keys && before + i == shared) shared++;
            else (*list)[listed++] = before + i;
            keys++;
        }
        *list += listed;
    }
    return (key_range){keys, 0, shared, path};
}

static void find_keys(pass *p) {
    const outrider_batch *b = p->batch;
    int32_t *list = p->lists;
    int64_t row = 0;
    for (int32_t i = 0; i < b->spans; i++) {
        const outrider_span *s = b->span + i;
        for (int32_t r = 0; r < s->count; r++, row++) {
            int32_t own = s->start + r;
            p->place[row] = (int64_t)s->table[own / p->cache->block] * p->cache->block + own % p->cache->block;
            p->range[row] = range_of(s, r, &list);
        }
    }
}

void set_window(pass *p, int32_t window) {
    if (window == p->window) return;
    for (int32_t r = 0; r < p->batch->rows; r++) {
        key_range *range = p->range + r;
        range->from = window && range->keys > window ? range->keys - window : 0;
    }
    p->window = window;
}

int prepare_pass(pass *p) {
    arena a = {NULL, 0};
    take_pass(&a, p);
    a = (arena){scratch_memory(MEMORY_ROWS, a.used), 0};
    if (!a.base) return OUTRIDER_NO_MEMORY;
    take_pass(&a, p);
    find_keys(p);
    return prepare_attention(p);
}
