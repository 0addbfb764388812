/* Attention of a forward pass: tasks of up to sixteen rows and one key head, over all chunks of keys or one of them. */
#include "attention.h"

#include "forward.h"
#include "linear.h"

#define MOST_RESULTS ((int64_t)1 << 40)

/* Rows of one span that share tasks. */
typedef struct tile {
    const outrider_span *span;
    int64_t row; /* of the batch, the first */
    int32_t rows, chunks;
} tile;

typedef struct {
    const forward_ctx *f;
    const attention_plan *plan;
    const outrider_weight *reader; /* that attended rows are given codes for, or NULL */
    int32_t layer;
    int64_t share;       /* tasks of an item */
    int64_t result_size; /* floats of one part */
} attention_work;

/* Query heads are shared out by key heads; those of latents, which have one key head, by eight or a few more. */
static int32_t units_of(const forward_ctx *f) {
    int32_t heads = f->model.whole->heads;
    if (!f->batch.cache->value_dim) return f->model.kv_heads;
    for (int32_t size = 8; size < 16; size++)
        if (heads % size == 0) return heads / size;
    return 1;
}

static struct attention_task task_of(const attention_work *w, const tile *t, int32_t head, int32_t part) {
    const forward_ctx *f = w->f;
    const outrider_model *m = f->model.whole;
    const columns *queries = &f->model.queries;
    int32_t head_dim = f->model.head_dim, units = units_of(f), group = m->heads / units, values = value_dim_of(f->batch.cache, head_dim);
    int64_t before = t->row * m->heads + (int64_t)head * t->rows * group;
    float scale = m->attention_scale > 0 ? m->attention_scale : 1.0f / __builtin_sqrtf((float)head_dim);
    const float *q = local_columns(f->work.q, queries) + t->row * queries->all + (int64_t)head * group * head_dim;
    return (struct attention_task){.cache = f->batch.cache,
                                   .table = t->span->table,
                                   .layer = w->layer,
                                   .kv_heads = f->model.kv_heads,
                                   .kv_head = (int32_t)((int64_t)head * f->model.kv_heads / units),
                                   .group = group,
                                   .head_dim = head_dim,
                                   .value_dim = values,
                                   .scale = scale,
                                   .cap = m->attention_cap,
                                   .rows = t->rows,
                                   .range = f->batch.range + t->row,
                                   .q_stride = queries->all,
                                   .q = q,
                                   .first_chunk = w->plan->parts == 1 ? 0 : part,
                                   .last_chunk = w->plan->parts == 1 ? t->chunks : part + 1,
                                   .fixed = f->batch.fixed,
                                   .result = w->plan->results + part * w->result_size + before * (2 + values)};
}

/* What a head has attended to: a result over its sum. */
static void write_head(const float *result, int64_t values, float *to) {
    float share = 1.0f / result[1];
    for (int64_t i = 0; i < values; i++) to[i] = result[2 + i] * share;
}

/* The same of latents: head by head, [heads, rows, value_dim]. */
static void write_latents(const attention_work *w, const struct attention_task *t, int64_t row) {
    const forward_ctx *f = w->f;
    const outrider_model *m = f->model.whole;
    int64_t rows = f->batch.asked->rows, values = t->value_dim;
    int64_t first = (t->q - f->work.q) % f->model.queries.all / t->head_dim; /* head */
    activations all = rows_of(&f->work.codes, f->work.attended, rows * m->heads, values);
    for (int64_t pair = 0; pair < (int64_t)t->rows * t->group; pair++) {
        int64_t at = (first + pair % t->group) * rows + row + pair / t->group;
        write_head(t->result + pair * (2 + values), values, f->work.attended + at * values);
        activations written = some_rows(&all, at, 1);
        if (is_quantised(w->reader)) f->k->quantise(&written, 0, 1);
    }
}

/* A head's sink, as a key behind all others whose value is zero. */
static void add_sink(const attention_work *w, int32_t head, float *result) {
    float part[2 + MOST_HEAD_DIM] = {w->f->sinks[head], 1.0f};
    w->f->k->merge(w->f->model.head_dim, result, part);
}

/* Results over their sums, to the rows of ``attended``, with codes if the reader reads any. */
static void write_rows(const attention_work *w, const struct attention_task *t, int64_t row) {
    if (w->f->batch.cache->value_dim) {
        write_latents(w, t, row);
        return;
    }
    const columns *c = &w->f->model.queries;
    int64_t d = t->head_dim, own = t->group * d;
    float *out = w->f->work.attended + (t->q - w->f->work.q);
    for (int32_t r = 0; r < t->rows; r++)
        for (int32_t g = 0; g < t->group; g++) {
            float *from = t->result + (int64_t)(r * t->group + g) * (2 + d), *to = out + r * t->q_stride + (int64_t)g * d;
            if (w->f->sinks) add_sink(w, t->kv_head * t->group + g, from);
            write_head(from, d, to);
            if (w->f->gates) w->f->k->sigmoid_mul(d, to, w->f->gates + 2 * (to - w->f->work.attended) + d);
        }
    if (!w->reader) return;
    activations all = rows_of(&w->f->work.codes, w->f->work.attended, w->f->batch.asked->rows, c->all);
    activations written = some_rows(&all, row, t->rows);
    quantise_columns(w->f, &written, c, w->reader, t->kv_head * own, (t->kv_head + 1) * own);
}

static int64_t items_of_tile(const attention_work *w) {
    return ((int64_t)w->plan->parts * units_of(w->f) + w->share - 1) / w->share;
}

/* Some tasks of a tile, one after the other: the heads of a chunk lie beside each other in the cache. */
static void attend_item(void *shared, int64_t item, int thread) {
    const attention_work *w = shared;
    int32_t heads = units_of(w->f);
    const tile *t = w->plan->tiles + item / items_of_tile(w);
    int64_t first = item % items_of_tile(w) * w->share, last = first + w->share;
    int64_t all = (int64_t)(w->plan->parts == 1 ? 1 : t->chunks) * heads;
    if (last > all) last = all;
    for (int64_t i = first; i < last; i++) {
        struct attention_task task = task_of(w, t, (int32_t)(i % heads), (int32_t)(i / heads));
        w->f->k->attend(&task, w->plan->scratch + thread * w->plan->scratch_size);
        if (w->plan->parts == 1) write_rows(w, &task, t->row);
    }
}

/* Chunks are merged in order, as one task that goes over all of them does. */
static void merge_item(void *shared, int64_t item, int thread) {
    const attention_work *w = shared;
    int32_t heads = units_of(w->f), d = value_dim_of(w->f->batch.cache, w->f->model.head_dim);
    const tile *t = w->plan->tiles + item / heads;
    struct attention_task task = task_of(w, t, (int32_t)(item % heads), 0);
    (void)thread;
    for (int32_t part = 1; part < t->chunks; part++)
        for (int64_t pair = 0; pair < (int64_t)t->rows * task.group; pair++)
            w->f->k->merge(d, task.result + pair * (2 + d), task.result + part * w->result_size + pair * (2 + d));
    write_rows(w, &task, t->row);
}

static int64_t tiles_of(const placed_batch *b, tile *tiles, int32_t *most_chunks) {
    int64_t count = 0, row = 0;
    *most_chunks = 1;
    for (int32_t i = 0; i < b->asked->spans; i++) {
        const outrider_span *s = b->asked->span + i;
        for (int32_t r = 0; r < s->count; r += TILE_ROWS, count++) {
            tile t = {s, row + r, s->count - r < TILE_ROWS ? s->count - r : TILE_ROWS, 1};
            for (int32_t j = 0; j < t.rows; j++) {
                int32_t chunks = (b->range[t.row + j].keys + CHUNK - 1) / CHUNK;
                if (chunks > t.chunks) t.chunks = chunks;
            }
            if (t.chunks > *most_chunks) *most_chunks = t.chunks;
            if (tiles) tiles[count] = t;
        }
        row += s->count;
    }
    return count;
}

/* Floats of one part. */
static int64_t result_size(const forward_ctx *f, int32_t head_dim) {
    int64_t values = value_dim_of(f->batch.cache, head_dim);
    return f->batch.asked->rows * f->model.whole->heads * (2 + values);
}

int prepare_attention(forward_ctx *f) {
    attention_plan *plan = &f->attention;
    int32_t chunks, threads = f->context->pool.count, head_dim = widest_head(f->model.whole);
    int64_t count = tiles_of(&f->batch, NULL, &chunks), items = count * units_of(f), size = result_size(f, head_dim);
    plan->parts = chunks > 1 && items < 4 * threads ? chunks : 1;
    if (size > MOST_RESULTS / plan->parts) return OUTRIDER_NO_MEMORY;
    size_t table = ((size_t)count * sizeof(tile) + 63) / 64 * 64;
    size_t results = table + (size_t)(plan->parts * size) * sizeof(float);
    plan->scratch_size = f->k->attend_scratch(head_dim, value_dim_of(f->batch.cache, head_dim));
    plan->scratch_size = (plan->scratch_size + 1023) / 1024 * 1024; /* pages of their own */
    size_t scratch = (size_t)(threads * plan->scratch_size) * sizeof(float);
    char *memory = scratch_memory(f->context, MEMORY_ATTENTION, results);
    plan->scratch = scratch_memory(f->context, MEMORY_THREADS, scratch);
    if (!memory || !plan->scratch) return OUTRIDER_NO_MEMORY;
    plan->tiles = (tile *)memory;
    plan->results = (float *)(memory + table);
    plan->num_tiles = tiles_of(&f->batch, plan->tiles, &chunks);
    return OUTRIDER_OK;
}

/* A thread has some items, so that all end together, of many chunks, so that each asks memory for the next one. */
void run_attention(forward_ctx *f, int32_t layer, const outrider_weight *reader) {
    const attention_plan *plan = &f->attention;
    thread_pool *pool = &f->context->pool;
    attention_work w = {.f = f, .plan = plan, .reader = reader, .layer = layer,
                        .result_size = result_size(f, f->model.head_dim)};
    int64_t heads = units_of(f);
    w.share = plan->num_tiles * heads * plan->parts / (4 * pool->count);
    if (plan->parts == 1 || w.share < 1) w.share = 1;
    run_items(pool, plan->num_tiles * items_of_tile(&w), attend_item, &w);
    if (plan->parts > 1) run_items(pool, plan->num_tiles * heads, merge_item, &w);
}
