/* Drawing tokens, sixteen at a time. Included once by the file of each instruction set, behind simd.h.
 *
 * A row of log-weights is worked out from logits wherever it is read, so that it need not be stored. Loops over
 * integers are plain C, which the compiler turns into vectors; operations on floats are those of simd.h.
 */
#ifndef OUTRIDER_SAMPLE_KERNELS_H
#define OUTRIDER_SAMPLE_KERNELS_H

#include "truncation_kernels.h"

#define HASH_BLOCK 256 /* tokens hashed at a time */

/* The members of ``kernels`` that this file provides. */
#define SAMPLE_KERNELS                                                                                       \
    .first_largest = first_largest, .gumbel = gumbel_row, .gumbel_of_tokens = gumbel_of_tokens,             \
    .gumbel_of = gumbel_of_each, .least_weight = least_weight, .log_weights = write_log_weights,             \
    .draw = draw_token, .most_likely = most_likely

/* Whether any of 64 numbers from i on is above ``bound``, or is NaN. */
static inline int any_above(const float *x, int64_t width, int64_t i, vec bound) {
    if (i + 4 * LANES > width) return 1;
    vec a = vec_load(x + i), b = vec_load(x + i + LANES), c = vec_load(x + i + 2 * LANES);
    return vec_any_above(a, bound) | vec_any_above(b, bound) | vec_any_above(c, bound) |
           vec_any_above(vec_load(x + i + 3 * LANES), bound);
}

/* Index of the first largest; a NaN counts as the largest. */
static int64_t first_largest(int64_t width, const float *x, float *value) {
    float best = -INFINITY;
    int64_t index = 0;
    for (int64_t i = 0; i < width && best == best; i += 4 * LANES) {
        if (!any_above(x, width, i, vec_set(best))) continue;
        for (int64_t j = i; j < width && j < i + 4 * LANES && best == best; j++)
            if (!(x[j] <= best)) best = x[index = j];
    }
    *value = best;
    return index;
}

/* ---- Noise ---------------------------------------------------------------------------------------------------- */

/* A well mixed word per token: _token_table of noise.py. */
static inline uint32_t token_word(uint32_t h) {
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    h = (h ^ h >> 16) * 0x9e3779b1u;
    return h ^ h >> 16;
}

/* Two multiply-xorshift rounds with a key before, between and after: _mix of noise.py. */
static inline uint32_t mixed(uint32_t word, const uint32_t *keys) {
    uint32_t h = (word ^ keys[0]) * 0x7feb352du;
    h = ((h ^ h >> 15) + keys[1]) * 0x846ca68bu;
    return (h ^ h >> 16) + keys[2];
}

static inline void hash_block(int64_t first, const uint32_t *keys, uint32_t *high) {
    const uint32_t own[3] = {keys[0], keys[1], keys[2]}; /* which nothing stored to ``high`` can change */
    for (int i = 0; i < HASH_BLOCK; i++) high[i] = mixed(token_word((uint32_t)first + (uint32_t)i), own);
}

/* -log(-log1p(-v)) for 2^-65 <= v < 1. */
static inline vec gumbel_of(vec v) {
    const vec one = vec_set(1), zero = vec_set(0);
    vec scale;
    vec k = vec_exponent(vec_sub(one, v), &scale);
    vec f = vec_sub(vec_sub(scale, one), vec_mul(scale, v)); /* scale (1 - v) - 1: exact, as 1 - v is not */
    vec e = vec_sub(zero, log_of(k, f));
    k = vec_exponent(e, &scale);
    return vec_sub(zero, log_of(k, vec_sub(vec_mul(e, scale), one)));
}

/* Noise of sixteen tokens whose hashes are known: those from ``first`` on, or of ``tokens`` if these are given.
 *
 * Small hashes get 32 more bits: see Noise of noise.py. */
static inline vec noise_of(const uint32_t *high, int64_t first, const int64_t *tokens, const uint32_t *keys) {
    const float unit = 0x1.fffffep-33f; /* 2^-32 less one part in 2^24, so that v stays below 1 */
    float v[LANES];
    for (int i = 0; i < LANES; i++) v[i] = (float)high[i] * unit;
    if (vec_any_above(vec_set(0x1p-8f), vec_load(v))) {
        for (int i = 0; i < LANES; i++) {
            if (high[i] >= 1u << 24) continue;
            uint32_t token = tokens ? (uint32_t)tokens[i] : (uint32_t)first + (uint32_t)i;
            uint32_t low = mixed(token_word(token), keys + 3);
            v[i] = (float)((high[i] * 0x1p32 + low + 0.5) * 0x1p-64);
        }
    }
    return gumbel_of(vec_load(v));
}

static inline float log_of_number(float x) {
    vec scale, number = vec_set(x), k = vec_exponent(number, &scale);
    float out[LANES];
    vec_store(out, log_of(k, vec_sub(vec_mul(number, scale), vec_set(1))));
    return out[0];
}

static void gumbel_row(int64_t width, const uint32_t *keys, float *out) {
    uint32_t high[HASH_BLOCK];
    for (int64_t start = 0; start < width; start += HASH_BLOCK) {
        hash_block(start, keys, high);
        for (int64_t i = start; i < start + HASH_BLOCK && i < width; i += LANES)
            vec_store_some(out + i, noise_of(high + (i - start), i, NULL, keys), lanes_from(i, width));
    }
}

static void gumbel_of_tokens(int64_t count, const int64_t *tokens, const uint32_t *keys, float *out) {
    for (int64_t i = 0; i < count; i += LANES) {
        int n = lanes_from(i, count);
        int64_t some[LANES];
        uint32_t high[LANES];
        for (int lane = 0; lane < LANES; lane++) some[lane] = tokens[lane < n ? i + lane : i];
        for (int lane = 0; lane < LANES; lane++) high[lane] = mixed(token_word((uint32_t)some[lane]), keys);
        vec_store_some(out + i, noise_of(high, 0, some, keys), n);
    }
}

static void gumbel_of_each(int64_t count, const float *v, float *out) {
    for (int64_t i = 0; i < count; i += LANES) {
        int n = lanes_from(i, count);
        float padded[LANES];
        for (int lane = 0; lane < LANES; lane++) padded[lane] = lane < n ? v[i + lane] : 0.5f;
        vec_store_some(out + i, gumbel_of(vec_load(padded)), n);
    }
}

/* ---- The draw ------------------------------------------------------------------------------------------------- */

/* Logarithms that are not below log2(hash), as a float's bits read as a number, see noise_bounds(). */
static inline void bits_of_hashes(const uint32_t *high, float *bits) {
    for (int i = 0; i < HASH_BLOCK; i++) bits[i] = (float)(int32_t)bits_of_float((float)high[i]);
}

/* What the noise of sixteen hashes cannot exceed.
 *
 * -log(-log1p(-v)) <= -log(v), v is at least 2^-32 hash but for its rounding, and log2(x) is at least its bits / 2^23
 * - 127, as the logarithm is concave between powers of two. 0.002 is left for rounding.
 */
static inline vec noise_bounds(const float *bits) {
    return vec_fma(vec_load(bits), vec_set(-0.69314718f * 0x1p-23f), vec_set(159 * 0.69314718f + 0.002f));
}

static int any_possible(const weight_row *row, int64_t start) {
    vec largest = load_log_weights(row, start);
    for (int64_t i = start + LANES; i < start + HASH_BLOCK && i < row->width; i += LANES)
        largest = vec_max(load_log_weights(row, i), largest);
    return max_lanes(largest) >= row->least;
}

/* The first largest of log-weight + noise and its score; a NaN counts as the largest.
 *
 * Nearly all tokens lose to the best so far whatever their noise within its bound, which their hash alone gives: the
 * others' noise is worked out. Rounding is monotone, so what the bound's sum does not exceed, the score does not.
 */
static int64_t draw_token(const weight_row *row, const uint32_t *keys, float *score) {
    uint32_t high[HASH_BLOCK];
    float bits[HASH_BLOCK], weights[LANES], scores[LANES];
    int64_t token = 0;
    *score = -INFINITY;
    for (int64_t start = 0; start < row->width; start += HASH_BLOCK) {
        if (row->least > -INFINITY && !any_possible(row, start)) continue;
        hash_block(start, keys, high);
        bits_of_hashes(high, bits);
        for (int i = 0; i < HASH_BLOCK && start + i < row->width; i += LANES) {
            vec w = load_log_weights(row, start + i);
            if (!vec_any_above(vec_add(w, noise_bounds(bits + i)), vec_set(*score))) continue;
            vec_store(weights, w);
            vec_store(scores, vec_add(w, noise_of(high + i, start + i, NULL, keys)));
            for (int lane = 0; lane < LANES; lane++) {
                if (weights[lane] < row->least || scores[lane] <= *score) continue;
                *score = scores[lane], token = start + i + lane;
                if (*score != *score) return token;
            }
        }
    }
    return token;
}

/* Moves ``x`` to its place among the ``found`` largest so far, in descending order, behind its equals. */
static void insert_largest(float x, int64_t token, int64_t found, int64_t *index, float *largest) {
    int64_t at = found;
    for (; at > 0 && x > largest[at - 1]; at--) largest[at] = largest[at - 1], index[at] = index[at - 1];
    largest[at] = x;
    index[at] = token;
}

/* See outrider_most_likely: one pass, in which few numbers are above the least of the largest so far. */
static int64_t most_likely(const weight_row *row, int64_t count, int64_t *index, float *score) {
    int64_t found = 0;
    float least = -INFINITY, x[LANES];
    vec sum = vec_set(0);
    for (int64_t i = 0; i < row->width; i += LANES) {
        vec numbers = load_row(row->x, row->width, i);
        sum = vec_add(sum, vec_exp(scale_logits(row, numbers)));
        if (!vec_any_above(numbers, vec_set(least))) continue;
        vec_store(x, numbers);
        for (int lane = 0; lane < LANES; lane++) {
            if (!(x[lane] > least)) continue;
            if (found < count) found++;
            insert_largest(x[lane], i + lane, found - 1, index, score);
            if (found == count) least = score[count - 1];
        }
    }
    float total = log_of_number(sum_lanes(sum));
    for (int64_t i = 0; i < found; i++) score[i] = (score[i] - row->largest) / row->temperature - total;
    return found;
}

static void write_log_weights(const weight_row *row, float *out) {
    for (int64_t i = 0; i < row->width; i += LANES)
        vec_store_some(out + i, load_log_weights(row, i), lanes_from(i, row->width));
    if (row->least == -INFINITY) return;
    const float least = row->least;
    for (int64_t i = 0; i < row->width; i++) out[i] = out[i] < least ? -INFINITY : out[i];
}

#endif
