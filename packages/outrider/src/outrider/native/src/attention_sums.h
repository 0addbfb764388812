/* Scores, weights and weighted values of some pairs of a row and a head in one chunk. Included by attention_kernels.h.
 *
 * Sums stay in registers, for so many pairs at once that each number of a key or a value is used several times.
 */
#include "attention_keys.h"

#define MINUS_INFINITY (-__builtin_inff())

/* sums += queries times keys, one dimension; the compiler knows ``count``. */
static inline __attribute__((always_inline)) void add_products(const float *const *q, const int count, int32_t i,
                                                               const vec *keys, vec sums[PAIRS][KEY_VECTORS]) {
    for (int p = 0; p < count; p++) {
        vec query = vec_set(q[p][i]);
        for (int v = 0; v < KEY_VECTORS; v++) sums[p][v] = vec_fma(query, keys[v], sums[p][v]);
    }
}

/* Scores of ``count`` pairs with some keys; the compiler knows ``count`` and ``halves``. */
static inline __attribute__((always_inline)) void score_block(const chunk_work *s, const float *const *q,
                                                              const int count, const int halves, int32_t key,
                                                              float *const *scores) {
    vec sums[PAIRS][KEY_VECTORS], part[KEY_VECTORS];
    const float *keys = s->keys + key;
    int32_t dimensions = s->task->head_dim;
    for (int p = 0; p < count; p++)
        for (int v = 0; v < KEY_VECTORS; v++) sums[p][v] = vec_set(0);
    for (int32_t i = 0; i < dimensions; i += 1 + halves, keys += CHUNK) {
        for (int v = 0; v < KEY_VECTORS; v++) {
            part[v] = vec_load(keys + v * LANES);
            if (halves) part[v] = vec_lower_bf16(part[v]);
        }
        add_products(q, count, i, part, sums);
        if (!halves) continue;
        for (int v = 0; v < KEY_VECTORS; v++) part[v] = vec_upper_bf16(vec_load(keys + v * LANES));
        add_products(q, count, i + 1, part, sums);
    }
    for (int p = 0; p < count; p++)
        for (int v = 0; v < KEY_VECTORS; v++) vec_store(scores[p] + key + v * LANES, sums[p][v]);
}

static void score_pairs(const chunk_work *s, const float *const *q, int count, int32_t first, int32_t last,
                        float *const *scores) {
    int32_t step = KEY_VECTORS * LANES;
    for (int32_t key = first / step * step; key < last; key += step) switch (2 * count + (s->pairs != 0)) {
        case 2: score_block(s, q, 1, 0, key, scores); break;
        case 3: score_block(s, q, 1, 1, key, scores); break;
        case 4: score_block(s, q, 2, 0, key, scores); break;
        case 5: score_block(s, q, 2, 1, key, scores); break;
#if PAIRS > 3
        case 6: score_block(s, q, 3, 0, key, scores); break;
        case 7: score_block(s, q, 3, 1, key, scores); break;
        case 8: score_block(s, q, 4, 0, key, scores); break;
        case 9: score_block(s, q, 4, 1, key, scores); break;
        case 10: score_block(s, q, 5, 0, key, scores); break;
        case 11: score_block(s, q, 5, 1, key, scores); break;
#endif
        case 2 * PAIRS: score_block(s, q, PAIRS, 0, key, scores); break;
        default: score_block(s, q, PAIRS, 1, key, scores);
        }
}

/* Scores to weights, for keys first .. last - 1 of the chunk that are seen; the others' become 0. */
static void weigh(float *scores, int32_t first, int32_t last, float scale, float cap, float *most, float *sum) {
    vec largest = vec_set(MINUS_INFINITY), lanes = vec_set(0), by = vec_set(cap > 0 ? 1.0f : scale);
    int32_t end = (last + LANES - 1) / LANES * LANES;
    for (int32_t i = 0; cap > 0 && i < end; i += LANES)
        vec_store(scores + i, capped(vec_mul(vec_load(scores + i), vec_set(scale)), cap));
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

/* Of each pair, some vectors of dimensions from ``at`` on: sums += weights times values, over keys first .. last - 1.
 * Meanwhile the next chunk's keys come nearer, ``num_ahead`` of them. The compiler knows ``count``, ``halves`` and
 * ``vectors``. */
static inline __attribute__((always_inline)) void add_values(const chunk_work *s, float *const *weights,
                                                             float *sums, const int count, const int halves,
                                                             const int vectors, int32_t at, int32_t first,
                                                             int32_t last, int32_t num_ahead) {
    const char *keys = s->task->cache->keys[s->task->layer];
    int64_t bytes = s->bytes, stride = s->result_size;
    vec sum[PAIRS][VALUE_VECTORS];
    for (int p = 0; p < count; p++)
        for (int v = 0; v < vectors; v++) sum[p][v] = vec_load(sums + p * stride + v * LANES);
    for (int32_t key = first; key < last; key++) {
        const void *from = s->value_at[key];
        if (key < num_ahead) prefetch_head(keys + s->ahead[key], bytes);
        vec value[VALUE_VECTORS];
        for (int v = 0; v < vectors; v++)
            value[v] = halves ? vec_load_bf16((const uint16_t *)from + at + v * LANES)
                              : vec_load((const float *)from + at + v * LANES);
        for (int p = 0; p < count; p++)
            for (int v = 0; v < vectors; v++) sum[p][v] = vec_fma(vec_set(weights[p][key]), value[v], sum[p][v]);
    }
    for (int p = 0; p < count; p++)
        for (int v = 0; v < vectors; v++) vec_store(sums + p * stride + v * LANES, sum[p][v]);
}

static inline __attribute__((always_inline)) void add_values_of(const chunk_work *s, float *const *weights,
                                                                float *sums, int count, const int halves,
                                                                const int vectors, int32_t at, int32_t first,
                                                                int32_t last, int32_t num_ahead) {
    switch (count) {
    case 1: add_values(s, weights, sums, 1, halves, vectors, at, first, last, num_ahead); break;
    case 2: add_values(s, weights, sums, 2, halves, vectors, at, first, last, num_ahead); break;
#if PAIRS > 3
    case 3: add_values(s, weights, sums, 3, halves, vectors, at, first, last, num_ahead); break;
    case 4: add_values(s, weights, sums, 4, halves, vectors, at, first, last, num_ahead); break;
    case 5: add_values(s, weights, sums, 5, halves, vectors, at, first, last, num_ahead); break;
#endif
    default: add_values(s, weights, sums, PAIRS, halves, vectors, at, first, last, num_ahead);
    }
}

static void add_all_values(const chunk_work *s, float *const *weights, float *sums, int count, int32_t first,
                           int32_t last, int32_t num_ahead) {
    int32_t at = 0;
    for (; at + VALUE_VECTORS * LANES <= s->value_padded; at += VALUE_VECTORS * LANES, num_ahead = 0)
        if (s->in_place)
            add_values_of(s, weights, sums + at, count, 1, VALUE_VECTORS, at, first, last, num_ahead);
        else
            add_values_of(s, weights, sums + at, count, 0, VALUE_VECTORS, at, first, last, num_ahead);
    for (; at < s->value_padded; at += LANES, num_ahead = 0)
        if (s->in_place)
            add_values_of(s, weights, sums + at, count, 1, 1, at, first, last, num_ahead);
        else
            add_values_of(s, weights, sums + at, count, 0, 1, at, first, last, num_ahead);
}
