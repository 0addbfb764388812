/* Attention over the cache. Included once by each instruction set.
 *
 * For one query and one key the score is a sum by fmaf over the head's dimensions in order. Keys come in chunks of 128,
 * counted from position 0. In a chunk: the largest score m; weights exp(score - m), added up in sixteen lanes by
 * position and then as ``sum_lanes`` does; values added up by fmaf in the order of positions. Chunks are merged in
 * order. Nothing depends on how rows, heads and chunks are shared out among calls.
 */
#include "attention_keys.h"

#define MINUS_INFINITY (-__builtin_inff())

static int64_t attend_scratch(const struct attention_task *t) {
    int64_t padded = (t->head_dim + LANES - 1) / LANES * LANES;
    return CHUNK * (2 * padded + 6) + ((int64_t)t->rows * t->group + PAIRS) * (CHUNK + 2 + padded) + 64;
}

/* Keys whose scores are computed together, as many as the registers hold. */
#if defined(ISA_AVX512)
#define KEY_VECTORS 4
#else
#define KEY_VECTORS 2
#endif

/* sums += queries times keys, one dimension; the compiler knows ``count``. */
static inline __attribute__((always_inline)) void add_products(const float *const *q, const int count, int32_t i,
                                                               const vec *keys, vec sums[PAIRS][KEY_VECTORS]) {
    for (int p = 0; p < count; p++) {
        vec query = vec_set(q[p][i]);
        for (int v = 0; v < KEY_VECTORS; v++) sums[p][v] = vec_fma(query, keys[v], sums[p][v]);
    }
}

/* Scores of ``count`` pairs with some keys; the compiler knows ``count`` and ``halves``. */
static inline __attribute__((always_inline)) void score_block(const workspace *s, const float *const *q, const int count,
                                                              const int halves, int32_t key, float *const *scores) {
    vec sums[PAIRS][KEY_VECTORS], loaded[KEY_VECTORS], part[KEY_VECTORS];
    const float *keys = s->keys + key;
    int32_t dimensions = s->task->head_dim;
    for (int p = 0; p < count; p++)
        for (int v = 0; v < KEY_VECTORS; v++) sums[p][v] = vec_set(0);
    for (int32_t i = 0; i < dimensions; i += 1 + halves, keys += CHUNK) {
        for (int v = 0; v < KEY_VECTORS; v++) loaded[v] = vec_load(keys + v * LANES);
        for (int v = 0; v < KEY_VECTORS; v++) part[v] = halves ? vec_lower_bf16(loaded[v]) : loaded[v];
        add_products(q, count, i, part, sums);
        if (!halves) continue;
        for (int v = 0; v < KEY_VECTORS; v++) part[v] = vec_upper_bf16(loaded[v]);
        add_products(q, count, i + 1, part, sums);
    }
    for (int p = 0; p < count; p++)
        for (int v = 0; v < KEY_VECTORS; v++) vec_store(scores[p] + key + v * LANES, sums[p][v]);
}

static void score_pairs(const workspace *s, const float *const *q, int count, int32_t first, int32_t last,
                        float *const *scores) {
    int32_t step = KEY_VECTORS * LANES;
    for (int32_t key = first / step * step; key < last; key += step) switch (2 * count + (s->pairs != 0)) {
        case 2: score_block(s, q, 1, 0, key, scores); break;
        case 3: score_block(s, q, 1, 1, key, scores); break;
        case 4: score_block(s, q, 2, 0, key, scores); break;
        case 5: score_block(s, q, 2, 1, key, scores); break;
        case 6: score_block(s, q, 3, 0, key, scores); break;
        case 7: score_block(s, q, 3, 1, key, scores); break;
        case 8: score_block(s, q, PAIRS, 0, key, scores); break;
        default: score_block(s, q, PAIRS, 1, key, scores);
        }
}

/* Scores to weights, for keys first .. last - 1 of the chunk that are seen; the others' become 0. */
static void weigh(float *scores, int32_t first, int32_t last, float scale, float *most, float *sum) {
    vec largest = vec_set(MINUS_INFINITY), lanes = vec_set(0), by = vec_set(scale);
    int32_t end = (last + LANES - 1) / LANES * LANES;
    for (int32_t i = 0; i < first; i++) scores[i] = MINUS_INFINITY;
    for (int32_t i = last; i < end; i++) scores[i] = MINUS_INFINITY;
    for (int32_t i = 0; i < end; i += LANES) {
        vec v = vec_mul(vec_load(scores + i), by);
        vec_store(scores + i, v);
        largest = vec_max(v, largest);
    }
    *most = max_lanes(largest);
    if (*most == MINUS_INFINITY) *most = float_of_bits(0x7fc00000); /* scores that are no numbers, not keys unseen */
    for (int32_t i = 0; i < end; i += LANES) {
        vec weight = vec_exp(vec_sub(vec_load(scores + i), vec_set(*most)));
        vec_store(scores + i, weight);
        lanes = vec_add(lanes, weight);
    }
    *sum = sum_lanes(lanes);
}

/* sums[p] += weights of pair p times values, over keys first .. last - 1; up to 64 dimensions from ``at`` on. Meanwhile
 * the next chunk's keys come nearer, ``num_ahead`` of them. */
static inline __attribute__((always_inline)) void add_values(const workspace *s, float *const *weights,
                                                             const int count, const int halves, int32_t first,
                                                             int32_t last, int32_t num_ahead, int32_t at,
                                                             const int vectors, vec sums[PAIRS][4]) {
    const char *keys = s->task->cache->keys[s->task->layer];
    int64_t bytes = s->bytes;
    for (int32_t key = first; key < last; key++) {
        const void *from = s->value_at[key];
        if (key < num_ahead) prefetch_head(keys + s->ahead[key], bytes);
        for (int v = 0; v < vectors; v++) {
            vec value = halves ? vec_load_bf16((const uint16_t *)from + at + v * LANES)
                               : vec_load((const float *)from + at + v * LANES);
            for (int p = 0; p < count; p++)
                sums[p][v] = vec_fma(vec_set(weights[p][key]), value, sums[p][v]);
        }
    }
}

static void add_values_of(const workspace *s, float *const *weights, int count, int32_t first, int32_t last,
                          int32_t num_ahead, int32_t at, int vectors, vec sums[PAIRS][4]) {
    if (vectors == 4 && count == PAIRS && s->in_place)
        add_values(s, weights, PAIRS, 1, first, last, num_ahead, at, 4, sums);
    else if (vectors == 4 && count == PAIRS)
        add_values(s, weights, PAIRS, 0, first, last, num_ahead, at, 4, sums);
    else if (vectors == 4 && count == 3 && s->in_place)
        add_values(s, weights, 3, 1, first, last, num_ahead, at, 4, sums);
    else if (vectors == 4 && count == 3)
        add_values(s, weights, 3, 0, first, last, num_ahead, at, 4, sums);
    else
        for (int p = 0; p < count; p++)
            for (int v = 0; v < vectors; v++) {
                vec one[PAIRS][4] = {{sums[p][v]}};
                if (s->in_place)
                    add_values(s, weights + p, 1, 1, first, last, p + v ? 0 : num_ahead, at + v * LANES, 1, one);
                else
                    add_values(s, weights + p, 1, 0, first, last, p + v ? 0 : num_ahead, at + v * LANES, 1, one);
                sums[p][v] = one[0][0];
            }
}

/* result, over the keys before, and part, over those of a chunk: merged into result. */
static void merge(int32_t head_dim, float *result, const float *part) {
    if (part[0] == MINUS_INFINITY) return;
    if (result[0] == MINUS_INFINITY) {
        memcpy(result, part, (size_t)(2 + head_dim) * sizeof(float));
        return;
    }
    float most = result[0] > part[0] ? result[0] : part[0], factors[2 * LANES];
    vec_store(factors, vec_exp(vec_set(result[0] - most)));
    vec_store(factors + LANES, vec_exp(vec_set(part[0] - most)));
    float old = factors[0], fresh = factors[LANES];
    result[0] = most;
    result[1] = __builtin_fmaf(part[1], fresh, result[1] * old);
    for (int32_t i = 0; i < head_dim; i += LANES) {
        int n = head_dim - i < LANES ? head_dim - i : LANES;
        vec sum = vec_mul(vec_load_some(result + 2 + i, n), vec_set(old));
        vec_store_some(result + 2 + i, vec_fma(vec_load_some(part + 2 + i, n), vec_set(fresh), sum), n);
    }
}

/* Some pairs of one row over keys first .. last - 1 of the chunk that are seen: scores, weights, values, merged. */
static void attend_pairs(const workspace *s, int pair, int count, const float *const *q, int32_t first, int32_t last,
                         int32_t num_ahead) {
    const struct attention_task *t = s->task;
    float *scores[PAIRS], scale = 1.0f / __builtin_sqrtf((float)t->head_dim);
    for (int p = 0; p < count; p++) scores[p] = s->scores + (int64_t)(pair + p) * CHUNK;
    score_pairs(s, q, count, first, last, scores);
    float most[PAIRS], sum[PAIRS];
    for (int p = 0; p < count; p++) weigh(scores[p], first, last, scale, &most[p], &sum[p]);
    for (int32_t at = 0; at < s->padded; at += 4 * LANES) {
        vec sums[PAIRS][4];
        int vectors = (s->padded - at) / LANES < 4 ? (s->padded - at) / LANES : 4;
        for (int p = 0; p < count; p++)
            for (int v = 0; v < 4; v++) sums[p][v] = vec_set(0);
        add_values_of(s, scores, count, first, last, at ? 0 : num_ahead, at, vectors, sums);
        for (int p = 0; p < count; p++)
            for (int v = 0; v < vectors; v++)
                vec_store(s->total + (int64_t)p * s->padded + at + v * LANES, sums[p][v]);
    }
    for (int p = 0; p < count; p++) {
        s->part[0] = most[p];
        s->part[1] = sum[p];
        memcpy(s->part + 2, s->total + (int64_t)p * s->padded, (size_t)t->head_dim * sizeof(float));
        merge(t->head_dim, t->result + (int64_t)(pair + p) * (2 + t->head_dim), s->part);
    }
}

/* One row, whose keys are loaded. */
static void attend_row(workspace *s, int32_t row, int32_t begin) {
    const struct attention_task *t = s->task;
    const key_range *range = t->range + row;
    int32_t first = range->from > begin ? range->from - begin : 0;
    int32_t last = range->keys - begin < CHUNK ? range->keys - begin : CHUNK;
    for (int32_t head = 0; head < t->group; head += PAIRS) {
        const float *q[PAIRS];
        int count = t->group - head < PAIRS ? t->group - head : PAIRS;
        for (int p = 0; p < count; p++) q[p] = t->q + row * t->q_stride + (int64_t)(head + p) * t->head_dim;
        attend_pairs(s, row * t->group + head, count, q, first, last, s->num_ahead);
        s->num_ahead = 0;
    }
}

static int32_t last_key(const key_range *range, int32_t end) { return range->keys < end ? range->keys : end; }

static int sees(const key_range *range, int32_t begin) { return range->keys > begin && range->from < begin + CHUNK; }

/* Whether all keys that a row sees of a chunk lie in the sequence's own order. */
static int in_order(const key_range *range, int32_t begin) { return range->shared >= last_key(range, begin + CHUNK); }

/* Keys in the sequence's own order are loaded once for all rows; a row of a tree then puts its path behind them. */
static void attend_chunk(workspace *s, int32_t begin) {
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
    for (int32_t r = 0; r < t->rows; r++)
        if (sees(t->range + r, begin) && in_order(t->range + r, begin)) attend_row(s, r, begin);
    for (int32_t r = 0; r < t->rows; r++) {
        const key_range *range = t->range + r;
        if (!sees(range, begin) || in_order(range, begin)) continue;
        int32_t from = range->shared < loaded ? range->shared : loaded;
        from = from > begin ? from / LANES * LANES : begin;
        load_keys(s, range, begin, from, last_key(range, end));
        loaded = range->shared > begin ? range->shared : begin;
        attend_row(s, r, begin);
    }
}

/* Finds the keys of the chunk after this one, as far as they lie in the sequence's own order. */
static void look_ahead(workspace *s, int32_t chunk) {
    const struct attention_task *t = s->task;
    int32_t begin = (chunk + 1) * CHUNK, end = begin;
    for (int32_t r = 0; r < t->rows; r++) end = t->range[r].shared > end ? t->range[r].shared : end;
    s->num_ahead = end - begin < CHUNK ? end - begin : CHUNK;
    find_rows(t, begin, begin + s->num_ahead, s->ahead);
    for (int32_t i = 0; i < s->num_ahead; i++) s->ahead[i] *= s->bytes;
}

static void attend(const struct attention_task *t, float *scratch) {
    int halves = t->cache->type == OUTRIDER_CACHE_BF16;
    workspace s = {.task = t, .padded = (t->head_dim + LANES - 1) / LANES * LANES};
    s.bytes = t->head_dim * number_bytes(t->cache);
    s.pairs = halves && t->head_dim % (2 * LANES) == 0;
    s.in_place = halves && t->head_dim % LANES == 0 && t->rows * t->group <= 2 * PAIRS; /* else many read them */
    s.keys = scratch;
    s.values = s.keys + (int64_t)CHUNK * s.padded;
    s.value_at = (const void **)(s.values + (int64_t)CHUNK * s.padded);
    s.heads = (int64_t *)(s.value_at + CHUNK);
    s.ahead = s.heads + CHUNK;
    s.scores = (float *)(s.ahead + CHUNK);
    s.part = s.scores + (int64_t)t->rows * t->group * CHUNK;
    s.total = s.part + 2 + s.padded;
    for (int64_t pair = 0; pair < (int64_t)t->rows * t->group; pair++)
        t->result[pair * (2 + t->head_dim)] = MINUS_INFINITY;
    for (int32_t chunk = t->first_chunk; chunk < t->last_chunk; chunk++) {
        look_ahead(&s, chunk);
        attend_chunk(&s, chunk * CHUNK);
    }
}
