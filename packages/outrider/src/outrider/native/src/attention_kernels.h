/* Attention over the cache. Included once by each instruction set.
 *
 * For one query and one key the score is a sum by fmaf over the head's dimensions in order. Keys come in chunks of 128,
 * counted from position 0. In a chunk: the largest score m; weights exp(score - m), added up in sixteen lanes by
 * position and then as ``sum_lanes`` does; values added up by fmaf in the order of positions. Chunks are merged in
 * order. Nothing depends on how rows, heads and chunks are shared out among calls.
 */
#include "attention_keys.h"
#include "attention_sums.h"

#define RESULT_HEAD (LANES - 2) /* of a chunk's result in ``parts``: its sums of values are then aligned */

static int64_t attend_scratch(int32_t head_dim, int32_t value_dim) {
    int64_t keys = (head_dim + LANES - 1) / LANES * LANES, values = (value_dim + LANES - 1) / LANES * LANES;
    return CHUNK * (keys + values + 6) + PAIRS * (CHUNK + LANES + values);
}

/* result, over the keys before, and part, over those of a chunk: merged into result. */
static void merge(int32_t value_dim, float *result, const float *part) {
    if (part[0] == MINUS_INFINITY) return;
    if (result[0] == MINUS_INFINITY) {
        memcpy(result, part, (size_t)(2 + value_dim) * sizeof(float));
        return;
    }
    float most = result[0] > part[0] ? result[0] : part[0], factors[LANES] = {result[0] - most, part[0] - most};
    vec_store(factors, vec_exp(vec_load(factors)));
    float old = factors[0], fresh = factors[1];
    result[0] = most;
    result[1] = __builtin_fmaf(part[1], fresh, result[1] * old);
    for (int32_t i = 0; i < value_dim; i += LANES) {
        int n = value_dim - i < LANES ? value_dim - i : LANES;
        vec sum = vec_mul(vec_load_some(result + 2 + i, n), vec_set(old));
        vec_store_some(result + 2 + i, vec_fma(vec_load_some(part + 2 + i, n), vec_set(fresh), sum), n);
    }
}

/* Some pairs, over keys of the chunk from ``first`` on, each up to its own last: scores, weights, values, merged. */
static void attend_pairs(chunk_work *s, int pair, int count, const float *const *q, int32_t first,
                         const int32_t *last) {
    const struct attention_task *t = s->task;
    float *scores[PAIRS];
    float *parts = s->parts + RESULT_HEAD, *sums = s->parts + LANES;
    int32_t longest = last[count - 1], shortest = last[0];
    for (int p = 0; p < count; p++) scores[p] = s->scores + p * CHUNK;
    score_pairs(s, q, count, first, longest, scores);
    memset(s->parts, 0, (size_t)(count * s->result_size) * sizeof(float));
    for (int p = 0; p < count; p++) {
        float *part = parts + p * s->result_size;
        weigh(scores[p], first, last[p], t->scale, t->cap, &part[0], &part[1]);
    }
    add_all_values(s, scores, sums, count, first, shortest, s->num_ahead);
    s->num_ahead = 0;
    for (int p = 0, same; p < count; p += same) {
        for (same = 1; p + same < count && last[p + same] == last[p];) same++;
        if (last[p] > shortest)
            add_all_values(s, scores + p, sums + p * s->result_size, same, shortest, last[p], 0);
    }
    for (int p = 0; p < count; p++)
        merge(t->value_dim, t->result + (int64_t)(pair + p) * (2 + t->value_dim), parts + p * s->result_size);
}

static int32_t first_of(const key_range *range, int32_t begin) { return range->from > begin ? range->from - begin : 0; }

static int32_t last_of(const key_range *range, int32_t begin) {
    return range->keys - begin < CHUNK ? range->keys - begin : CHUNK;
}

/* Rows whose keys are loaded. They begin at the same key, and none ends before the one before it. */
static void attend_rows(chunk_work *s, int32_t row, int32_t rows, int32_t begin) {
    const struct attention_task *t = s->task;
    int32_t first = first_of(t->range + row, begin);
    for (int32_t pair = row * t->group, end = (row + rows) * t->group; pair < end; pair += PAIRS) {
        const float *q[PAIRS];
        int32_t last[PAIRS];
        int count = end - pair < PAIRS ? end - pair : PAIRS;
        for (int p = 0; p < count; p++) {
            int32_t r = (pair + p) / t->group, head = (pair + p) % t->group;
            q[p] = t->q + r * t->q_stride + (int64_t)head * t->head_dim;
            last[p] = last_of(t->range + r, begin);
        }
        attend_pairs(s, pair, count, q, first, last);
    }
}

static int32_t last_key(const key_range *range, int32_t end) { return range->keys < end ? range->keys : end; }

static int sees(const key_range *range, int32_t begin) { return range->keys > begin && range->from < begin + CHUNK; }

/* Whether all keys that a row sees of a chunk lie in the sequence's own order. */
static int in_order(const key_range *range, int32_t begin) { return range->shared >= last_key(range, begin + CHUNK); }

/* How many rows from r on can share the computation of a chunk in order, see ``attend_rows``; 0: it is not r's. */
static int32_t rows_together(const struct attention_task *t, int32_t r, int32_t begin) {
    int32_t rows = 0;
    for (const key_range *range = t->range + r; r + rows < t->rows; rows++) {
        const key_range *next = range + rows;
        if (!sees(next, begin) || !in_order(next, begin) || first_of(next, begin) != first_of(range, begin)) break;
        if (rows && last_of(next, begin) < last_of(next - 1, begin)) break;
    }
    return rows;
}

/* Keys in the sequence's own order are loaded once for all rows; a row of a tree then puts its path behind them. */
static void attend_chunk(chunk_work *s, int32_t begin) {
    const struct attention_task *t = s->task;
    int32_t end = begin + CHUNK, loaded = begin; /* keys before it are in order */
    const key_range *longest = NULL;
    for (int32_t r = 0; r < t->rows; r++) {
        const key_range *range = t->range + r;
        if (sees(range, begin) && in_order(range, begin) && last_key(range, end) > loaded) {
            loaded = last_key(range, end);
            longest = range;
        }
    }
    if (longest) load_keys(s, longest, begin, begin, loaded);
    for (int32_t r = 0, rows; r < t->rows; r += rows) {
        rows = rows_together(t, r, begin);
        if (rows)
            attend_rows(s, r, rows, begin);
        else
            rows = 1;
    }
    for (int32_t r = 0; r < t->rows; r++) {
        const key_range *range = t->range + r;
        if (!sees(range, begin) || in_order(range, begin)) continue;
        int32_t from = range->shared < loaded ? range->shared : loaded;
        from = from > begin ? from / LANES * LANES : begin;
        load_keys(s, range, begin, from, last_key(range, end));
        loaded = range->shared > begin ? range->shared : begin;
        attend_rows(s, r, 1, begin);
    }
}

/* Finds the keys of the chunk after this one, as far as they lie in the sequence's own order. */
static void look_ahead(chunk_work *s, int32_t chunk) {
    const struct attention_task *t = s->task;
    int32_t begin = (chunk + 1) * CHUNK, end = begin;
    for (int32_t r = 0; r < t->rows; r++) end = t->range[r].shared > end ? t->range[r].shared : end;
    s->num_ahead = end - begin < CHUNK ? end - begin : CHUNK;
    find_rows(t, begin, begin + s->num_ahead, s->ahead);
    for (int32_t i = 0; i < s->num_ahead; i++) s->ahead[i] *= s->bytes;
}

/* Fixed keys lie as ``load_keys`` would put them. */
static void attend_fixed(chunk_work *s, int32_t chunk) {
    const struct attention_task *t = s->task;
    int64_t begin = (int64_t)t->kv_head * t->cache->rows + (int64_t)chunk * CHUNK, value_bytes = s->value_padded * s->size;
    const char *keys = t->cache->keys[t->layer], *values = t->cache->values[t->layer];
    s->keys = (const float *)(const void *)(keys + begin * s->bytes);
    s->num_ahead = chunk + 1 < t->last_chunk ? CHUNK : 0;
    for (int64_t j = 0; j < CHUNK; j++) {
        s->value_at[j] = values + (begin + j) * value_bytes;
        s->ahead[j] = (begin + CHUNK + j) * s->bytes;
    }
    attend_rows(s, 0, t->rows, chunk * CHUNK);
}

static void attend(const struct attention_task *t, float *scratch) {
    int halves = t->cache->type == OUTRIDER_CACHE_BF16;
    chunk_work s = {.task = t};
    s.padded = (t->head_dim + LANES - 1) / LANES * LANES;
    s.value_padded = (t->value_dim + LANES - 1) / LANES * LANES;
    s.size = number_bytes(t->cache);
    s.bytes = t->head_dim * s.size;
    s.pairs = halves && (t->fixed || t->head_dim % (2 * LANES) == 0);
    s.in_place = halves && (t->fixed || t->value_dim % LANES == 0);
    s.keys = s.transposed = scratch;
    s.values = scratch + (int64_t)CHUNK * s.padded;
    s.value_at = (const void **)(s.values + (int64_t)CHUNK * s.value_padded);
    s.heads = (int64_t *)(s.value_at + CHUNK);
    s.ahead = s.heads + CHUNK;
    s.scores = (float *)(s.ahead + CHUNK);
    s.parts = s.scores + PAIRS * CHUNK;
    s.result_size = LANES + s.value_padded;
    for (int64_t pair = 0; pair < (int64_t)t->rows * t->group; pair++)
        t->result[pair * (2 + t->value_dim)] = MINUS_INFINITY;
    for (int32_t chunk = t->first_chunk; chunk < t->last_chunk; chunk++) {
        if (t->fixed) {
            attend_fixed(&s, chunk);
            continue;
        }
        look_ahead(&s, chunk);
        attend_chunk(&s, chunk * CHUNK);
    }
}
