/* Attention of a forward pass: tasks of up to sixteen rows and one key head, over all chunks of keys or one of them. */
#include "attention.h"

#include <stdlib.h>
#include <string.h>

#include "forward.h"
#include "threads.h"

#define MOST_RESULTS ((int64_t)1 << 40)

/* Rows of one span that share tasks. */
typedef struct tile {
    const outrider_span *span;
    int64_t row; /* of the batch, the first */
    int32_t rows, chunks;
} tile;

typedef struct {
    pass *p;
    int32_t layer;
    const tile *tiles;
    int32_t parts; /* 1: a task goes over all chunks; otherwise there is one for each chunk, the most a tile has */
    int32_t share; /* tasks of an item */
    float *results;      /* [parts][rows of the batch][heads][2 + head_dim] */
    int64_t result_size; /* floats of one part */
} attention_work;

/* Floats that this thread keeps. */
static float *thread_memory(int64_t floats) {
    static _Thread_local float *held;
    static _Thread_local int64_t size;
    if (size < floats) {
        free(held);
        size = (floats + 1023) / 1024 * 1024;
        held = aligned_alloc(64, (size_t)size * sizeof(float));
        if (!held) abort(); /* some hundred kilobytes */
    }
    return held;
}

static struct attention_task task_of(const attention_work *w, const tile *t, int32_t head, int32_t part) {
    const outrider_model *m = w->p->model;
    int32_t group = m->heads / m->kv_heads, size = 2 + m->head_dim;
    int64_t width = w->p->queries.all, before = t->row * m->heads + (int64_t)head * t->rows * group;
    return (struct attention_task){.cache = w->p->cache,
                                   .table = t->span->table,
                                   .layer = w->layer,
                                   .kv_heads = m->kv_heads,
                                   .kv_head = head,
                                   .group = group,
                                   .head_dim = m->head_dim,
                                   .scale = m->attention_scale > 0 ? m->attention_scale
                                                                   : 1.0f / __builtin_sqrtf((float)m->head_dim),
                                   .cap = m->attention_cap,
                                   .rows = t->rows,
                                   .range = w->p->range + t->row,
                                   .q_stride = width,
                                   .q = own(w->p->q, &w->p->queries) + t->row * width + (int64_t)head * group * m->head_dim,
                                   .first_chunk = w->parts == 1 ? 0 : part,
                                   .last_chunk = w->parts == 1 ? t->chunks : part + 1,
                                   .fixed = w->p->fixed,
                                   .result = w->results + part * w->result_size + before * size};
}

/* Results over their sums, to the rows of ``attended``. */
static void write_rows(const attention_work *w, const struct attention_task *t) {
    int32_t d = t->head_dim;
    float *out = w->p->attended + (t->q - w->p->q);
    for (int32_t r = 0; r < t->rows; r++)
        for (int32_t g = 0; g < t->group; g++) {
            const float *from = t->result + (int64_t)(r * t->group + g) * (2 + d);
            float share = 1.0f / from[1], *to = out + r * t->q_stride + (int64_t)g * d;
            for (int32_t i = 0; i < d; i++) to[i] = from[2 + i] * share;
        }
}

static int64_t items_of_tile(const attention_work *w) {
    return (w->parts * w->p->model->kv_heads + w->share - 1) / w->share;
}

/* Some tasks of a tile, one after the other: the heads of a chunk lie beside each other in the cache. */
static void attend_item(void *context, int64_t item) {
    const attention_work *w = context;
    const kernels *k = w->p->k;
    int32_t heads = w->p->model->kv_heads;
    const tile *t = w->tiles + item / items_of_tile(w);
    int32_t first = (int32_t)(item % items_of_tile(w)) * w->share, last = first + w->share;
    int32_t all = (w->parts == 1 ? 1 : t->chunks) * heads;
    if (last > all) last = all;
    for (int32_t i = first; i < last; i++) {
        struct attention_task task = task_of(w, t, i % heads, i / heads);
        k->attend(&task, thread_memory(k->attend_scratch(&task)));
        if (w->parts == 1) write_rows(w, &task);
    }
}

/* Chunks are merged in order, as one task that goes over all of them does. */
static void merge_item(void *context, int64_t item) {
    const attention_work *w = context;
    int32_t heads = w->p->model->kv_heads, d = w->p->model->head_dim;
    const tile *t = w->tiles + item / heads;
    struct attention_task task = task_of(w, t, (int32_t)(item % heads), 0);
    for (int32_t part = 1; part < t->chunks; part++)
        for (int64_t pair = 0; pair < (int64_t)t->rows * task.group; pair++)
            w->p->k->merge(d, task.result + pair * (2 + d), task.result + part * w->result_size + pair * (2 + d));
    write_rows(w, &task);
}

static int64_t tiles_of(const pass *p, tile *tiles, int32_t *most_chunks) {
    int64_t count = 0, row = 0;
    *most_chunks = 1;
    for (int32_t i = 0; i < p->batch->spans; i++) {
        const outrider_span *s = p->batch->span + i;
        for (int32_t r = 0; r < s->count; r += TILE_ROWS, count++) {
            tile t = {s, row + r, s->count - r < TILE_ROWS ? s->count - r : TILE_ROWS, 1};
            for (int32_t j = 0; j < t.rows; j++) {
                int32_t chunks = (p->range[t.row + j].keys + CHUNK - 1) / CHUNK;
                if (chunks > t.chunks) t.chunks = chunks;
            }
            if (t.chunks > *most_chunks) *most_chunks = t.chunks;
            if (tiles) tiles[count] = t;
        }
        row += s->count;
    }
    return count;
}

int prepare_attention(pass *p) {
    int32_t chunks;
    int64_t count = tiles_of(p, NULL, &chunks), rows = p->batch->rows;
    int64_t items = count * p->model->kv_heads;
    p->parts = chunks > 1 && items < 4 * outrider_threads() ? chunks : 1;
    int64_t size = rows * p->model->heads * (2 + p->model->head_dim);
    if (size > MOST_RESULTS / p->parts) return OUTRIDER_NO_MEMORY;
    size_t table = ((size_t)count * sizeof(tile) + 63) / 64 * 64;
    char *memory = scratch_memory(MEMORY_ATTENTION, table + (size_t)(p->parts * size) * sizeof(float));
    if (!memory) return OUTRIDER_NO_MEMORY;
    p->tiles = (tile *)memory;
    p->results = (float *)(memory + table);
    p->num_tiles = tiles_of(p, p->tiles, &chunks);
    return OUTRIDER_OK;
}

/* A thread has some items, so that all end together, of many chunks, so that each asks memory for the next one. */
void run_attention(pass *p, int32_t layer) {
    attention_work w = {.p = p, .layer = layer, .tiles = p->tiles, .parts = p->parts, .results = p->results,
                        .result_size = p->batch->rows * p->model->heads * (2 + p->model->head_dim)};
    int64_t tiles = p->num_tiles, heads = p->model->kv_heads;
    w.share = (int32_t)(tiles * heads * w.parts / (4 * outrider_threads()));
    if (w.parts == 1 || w.share < 1) w.share = 1;
    run_items(tiles * items_of_tile(&w), attend_item, &w);
    if (w.parts > 1) run_items(tiles * heads, merge_item, &w);
}

/* ---- Attention by itself ---------------------------------------------------------------------------------------- */

static int attend_alone(pass *p, int32_t layer, const float *q, float *out, int32_t fixed_length) {
    int status = prepare_pass(p);
    if (status != OUTRIDER_OK) return status;
    for (int64_t r = 0; fixed_length && r < p->batch->rows; r++)
        p->range[r] = (key_range){.keys = fixed_length, .shared = fixed_length};
    status = prepare_attention(p);
    if (status != OUTRIDER_OK) return status;
    memcpy(p->q, q, (size_t)(p->batch->rows * p->queries.all) * sizeof(float));
    p->attended = out;
    run_attention(p, layer);
    return OUTRIDER_OK;
}

/* -1 for spans that no batch has. */
static int32_t rows_of_spans(int32_t spans, const outrider_span *span) {
    int64_t rows = 0;
    if (spans < 0 || spans > MOST_BATCH_ROWS || (spans && !is_array(span, _Alignof(outrider_span)))) return -1;
    for (int32_t i = 0; i < spans; i++) rows += span[i].count;
    return rows < 0 || rows > MOST_BATCH_ROWS ? -1 : (int32_t)rows;
}

int outrider_attend(const outrider_cache *cache, int32_t layer, int32_t heads, int32_t kv_heads, int32_t head_dim,
                    float scale, int32_t spans, const outrider_span *span, const float *q, float *out) {
    if (heads < 1 || kv_heads < 1 || heads % kv_heads || head_dim < 1 || head_dim > MOST_HEAD_DIM || layer < 0 ||
        heads > MOST_WIDTH / head_dim || !is_cache(cache, (int64_t)layer + 1, kv_heads, head_dim))
        return OUTRIDER_BAD_ARGUMENT;
    outrider_model model = {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .attention_scale = scale};
    outrider_batch batch = {.rows = rows_of_spans(spans, span), .spans = spans, .span = span};
    int status = check_spans(cache, &batch);
    if (status != OUTRIDER_OK || batch.rows == 0) return status;
    if (!is_array(q, sizeof *q) || !is_array(out, sizeof *out)) return OUTRIDER_BAD_ARGUMENT;
    lock_threads();
    pass p = {.model = &model, .cache = cache, .batch = &batch, .k = current_kernels()};
    find_columns(&p);
    status = attend_alone(&p, layer, q, out, 0);
    unlock_threads();
    return status;
}

int outrider_attend_fixed(const outrider_fixed_keys *keys, int64_t rows, float scale, const float *q, float *out) {
    if (!is_array(keys, _Alignof(outrider_fixed_keys))) return OUTRIDER_BAD_ARGUMENT;
    int halves = keys->type == OUTRIDER_CACHE_BF16;
    int fits = keys->heads >= 1 && keys->head_dim >= 1 && keys->head_dim <= MOST_HEAD_DIM && keys->length >= 1 &&
               keys->heads <= MOST_WIDTH / keys->head_dim && keys->length <= INT32_MAX - CHUNK &&
               is_array(keys->keys, halves ? 2 : 4) && is_array(keys->values, halves ? 2 : 4) &&
               (halves ? keys->head_dim % 2 == 0 : keys->type == OUTRIDER_CACHE_F32) && rows >= 0 && rows <= 1 << 20;
    if (!fits) return OUTRIDER_BAD_ARGUMENT;
    if (rows == 0) return OUTRIDER_OK;
    if (!is_array(q, sizeof *q) || !is_array(out, sizeof *out)) return OUTRIDER_BAD_ARGUMENT;
    void *k = (void *)(uintptr_t)keys->keys, *v = (void *)(uintptr_t)keys->values;
    int32_t padded = (keys->length + CHUNK - 1) / CHUNK * CHUNK;
    outrider_cache cache = {.type = keys->type, .block = padded > rows ? padded : (int32_t)rows, .rows = padded,
                            .keys = &k, .values = &v};
    outrider_span span = {.count = (int32_t)rows, .table = (const int32_t[]){0}};
    outrider_model model = {.heads = keys->heads, .kv_heads = keys->heads, .head_dim = keys->head_dim,
                            .attention_scale = scale};
    outrider_batch batch = {.rows = (int32_t)rows, .spans = 1, .span = &span};
    lock_threads();
    pass p = {.model = &model, .cache = &cache, .batch = &batch, .k = current_kernels(), .fixed = 1};
    find_columns(&p);
    int status = attend_alone(&p, 0, q, out, keys->length);
    unlock_threads();
    return status;
}
