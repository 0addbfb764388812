/* Drawing tokens, sixteen at a time. Included once by the file of each instruction set, behind simd.h.
 *
 * A row of log-weights is worked out from logits wherever it is read, so that it need not be stored. Loops over
 * integers are plain C, which the compiler turns into vectors; operations on floats are those of simd.h.
 */
#ifndef OUTRIDER_SAMPLE_KERNELS_H
#define OUTRIDER_SAMPLE_KERNELS_H

#include <math.h> /* INFINITY */

#include "sample.h"
#include "simd.h"

#define BLOCK 256   /* tokens hashed at a time */
#define GROUPS 1024 /* whose maxima bound the largest of a row: disjoint, of about equal size */

/* The members of ``kernels`` that this file provides. */
#define SAMPLE_KERNELS                                                                                       \
    .first_largest = first_largest, .gumbel = gumbel_row, .gumbel_of = gumbel_of_each,                       \
    .least_weight = least_weight, .log_weights = write_log_weights, .draw = draw_token

/* Numbers i to i + 15 of a row; -inf behind its end. */
static inline vec load_row(const float *x, int64_t width, int64_t i) {
    if (i + LANES <= width) return vec_load(x + i);
    float padded[LANES];
    for (int lane = 0; lane < LANES; lane++) padded[lane] = i + lane < width ? x[i + lane] : -INFINITY;
    return vec_load(padded);
}

static inline vec scaled(const weight_row *row, vec x) {
    return vec_div(vec_sub(x, vec_set(row->largest)), vec_set(row->temperature));
}

/* Log-weights i to i + 15, those below row->least included. */
static inline vec load_weights(const weight_row *row, int64_t i) {
    return scaled(row, load_row(row->x, row->width, i));
}

/* Index of the first largest; a NaN counts as the largest. */
static int64_t first_largest(int64_t width, const float *x, float *value) {
    int64_t index = 0;
    *value = -INFINITY;
    for (int64_t i = 0; i < width; i += LANES) {
        if (!vec_any_above(load_row(x, width, i), vec_set(*value))) continue;
        for (int64_t j = i; j < width && j < i + LANES; j++) {
            if (x[j] <= *value) continue;
            *value = x[index = j];
            if (x[j] != x[j]) return j;
        }
    }
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
    for (int i = 0; i < BLOCK; i++) high[i] = mixed(token_word((uint32_t)first + (uint32_t)i), own);
}

/* k log 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1.
 *
 * log(1 + f) = f - f^2 / 2 + f^3 P(f); P is a minimax polynomial, its error less than 2^-28 of the logarithm.
 */
static inline vec log_of(vec k, vec f) {
    vec square = vec_mul(f, f), p = vec_set(0x1.145796p-4f);
    p = vec_fma(p, f, vec_set(-0x1.de3c04p-4f));
    p = vec_fma(p, f, vec_set(0x1.e6f06ap-4f));
    p = vec_fma(p, f, vec_set(-0x1.fc220ap-4f));
    p = vec_fma(p, f, vec_set(0x1.233768p-3f));
    p = vec_fma(p, f, vec_set(-0x1.555c4ep-3f));
    p = vec_fma(p, f, vec_set(0x1.99a4b6p-3f));
    p = vec_fma(p, f, vec_set(-0x1.000006p-2f));
    p = vec_fma(p, f, vec_set(0x1.555548p-2f));
    vec y = vec_mul(vec_mul(square, f), p);
    y = vec_fma(k, vec_set(-2.12194440e-4f), y); /* log 2 in two parts */
    y = vec_fma(square, vec_set(-0.5f), y);
    return vec_fma(k, vec_set(0.693359375f), vec_add(f, y));
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

/* Noise of sixteen tokens whose hashes are known. Small hashes get 32 more bits: see Noise of noise.py. */
static inline vec noise_of(const uint32_t *high, int64_t first, const uint32_t *keys) {
    const float unit = 0x1.fffffep-33f; /* 2^-32 less one part in 2^24, so that v stays below 1 */
    float v[LANES];
    for (int i = 0; i < LANES; i++) v[i] = (float)high[i] * unit;
    if (vec_any_above(vec_set(0x1p-8f), vec_load(v))) {
        for (int i = 0; i < LANES; i++) {
            if (high[i] >= 1u << 24) continue;
            uint32_t low = mixed(token_word((uint32_t)first + (uint32_t)i), keys + 3);
            v[i] = (float)((high[i] * 0x1p32 + low + 0.5) * 0x1p-64);
        }
    }
    return gumbel_of(vec_load(v));
}

static void gumbel_row(int64_t width, const uint32_t *keys, float *out) {
    uint32_t high[BLOCK];
    for (int64_t start = 0; start < width; start += BLOCK) {
        hash_block(start, keys, high);
        for (int64_t i = start; i < start + BLOCK && i < width; i += LANES)
            vec_store_some(out + i, noise_of(high + (i - start), i, keys), width - i < LANES ? (int)(width - i) : LANES);
    }
}

static void gumbel_of_each(int64_t count, const float *v, float *out) {
    for (int64_t i = 0; i < count; i += LANES) {
        int n = count - i < LANES ? (int)(count - i) : LANES;
        float padded[LANES];
        for (int lane = 0; lane < LANES; lane++) padded[lane] = lane < n ? v[i + lane] : 0.5f;
        vec_store_some(out + i, gumbel_of(vec_load(padded)), n);
    }
}

/* ---- The draw ------------------------------------------------------------------------------------------------- */

/* Logarithms that are not below log2(hash), as a float's bits read as a number, see bounds(). */
static inline void bits_of_hashes(const uint32_t *high, float *bits) {
    for (int i = 0; i < BLOCK; i++) bits[i] = (float)(int32_t)bits_of_float((float)high[i]);
}

/* What the noise of sixteen hashes cannot exceed.
 *
 * -log(-log1p(-v)) <= -log(v), v is at least 2^-32 hash but for its rounding, and log2(x) is at least its bits / 2^23
 * - 127, as the logarithm is concave between powers of two. 0.002 is left for rounding.
 */
static inline vec bounds(const float *bits) {
    return vec_fma(vec_load(bits), vec_set(-0.69314718f * 0x1p-23f), vec_set(159 * 0.69314718f + 0.002f));
}

static int any_possible(const weight_row *row, int64_t start) {
    vec largest = load_weights(row, start);
    for (int64_t i = start + LANES; i < start + BLOCK && i < row->width; i += LANES)
        largest = vec_max(load_weights(row, i), largest);
    return max_lanes(largest) >= row->least;
}

/* The first largest of log-weight + noise and its score; a NaN counts as the largest.
 *
 * Nearly all tokens lose to the best so far whatever their noise within its bound, which their hash alone gives: the
 * others' noise is worked out. Rounding is monotone, so what the bound's sum does not exceed, the score does not.
 */
static int64_t draw_token(const weight_row *row, const uint32_t *keys, float *score) {
    uint32_t high[BLOCK];
    float bits[BLOCK], weights[LANES], scores[LANES];
    int64_t token = 0;
    *score = -INFINITY;
    for (int64_t start = 0; start < row->width; start += BLOCK) {
        if (row->least > -INFINITY && !any_possible(row, start)) continue;
        hash_block(start, keys, high);
        bits_of_hashes(high, bits);
        for (int i = 0; i < BLOCK && start + i < row->width; i += LANES) {
            vec w = load_weights(row, start + i);
            if (!vec_any_above(vec_add(w, bounds(bits + i)), vec_set(*score))) continue;
            vec_store(weights, w);
            vec_store(scores, vec_add(w, noise_of(high + i, start + i, keys)));
            for (int lane = 0; lane < LANES; lane++) {
                if (weights[lane] < row->least || scores[lane] <= *score) continue;
                *score = scores[lane], token = start + i + lane;
                if (*score != *score) return token;
            }
        }
    }
    return token;
}

static void write_log_weights(const weight_row *row, float *out) {
    for (int64_t i = 0; i < row->width; i += LANES)
        vec_store_some(out + i, load_weights(row, i), row->width - i < LANES ? (int)(row->width - i) : LANES);
    if (row->least == -INFINITY) return;
    const float least = row->least;
    for (int64_t i = 0; i < row->width; i++) out[i] = out[i] < least ? -INFINITY : out[i];
}

/* ---- Truncation ----------------------------------------------------------------------------------------------- */

/* Log-weights are at most 0, so the bits of their size order them: the largest weight has the smallest key. */
static inline float weight_of_key(uint32_t key) { return -float_of_bits(key); }

/* Keys of the weights above ``bound``, in no order that matters; returns how many. */
static int64_t collect_keys(const weight_row *row, float bound, uint32_t *keys) {
    int64_t count = 0;
    float weights[LANES];
    for (int64_t i = 0; i < row->width; i += LANES) {
        vec w = load_weights(row, i);
        if (!vec_any_above(w, vec_set(bound))) continue;
        vec_store(weights, w);
        for (int lane = 0; lane < LANES; lane++)
            if (weights[lane] > bound) keys[count++] = bits_of_float(weights[lane]) & 0x7fffffff;
    }
    return count;
}

/* A number below the top_k-th largest weight, and seldom below many more. */
static float rank_bound(const weight_row *row, int64_t top_k) {
    float maxima[GROUPS];
    uint32_t keys[GROUPS], spare[GROUPS];
    if (top_k > GROUPS) return -INFINITY;
    for (int group = 0; group < GROUPS; group++) maxima[group] = -INFINITY;
    for (int64_t i = 0; i < row->width; i += LANES) {
        float *group = maxima + i % GROUPS;
        vec_store(group, vec_max(load_row(row->x, row->width, i), vec_load(group)));
    }
    for (int group = 0; group < GROUPS; group += LANES)
        vec_store(maxima + group, scaled(row, vec_load(maxima + group)));
    for (int group = 0; group < GROUPS; group++) keys[group] = bits_of_float(maxima[group]) & 0x7fffffff;
    sort_keys(GROUPS, keys, spare);
    float reached = weight_of_key(keys[top_k - 1]); /* by at least top_k weights: the maxima */
    return reached * 1.000001f - 1e-30f;
}

/* The sum of exp(log-weight), in float64: sixteen sums, token i in sum i % 16, added in halves. */
static double total_weight(const weight_row *row) {
    double sums[LANES] = {0};
    float e[LANES];
    for (int64_t i = 0; i < row->width; i += LANES) {
        vec_store(e, vec_exp(load_weights(row, i)));
        for (int lane = 0; lane < LANES; lane++) sums[lane] += e[lane];
    }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) sums[lane] += sums[lane + half];
    return sums[0];
}

/* A log-weight at and below which all tokens of a row together have less than ``mass``; 2^-126 < mass / width <= 1. */
static float mass_bound(double mass, int64_t width) {
    double bits = (double)bits_of_float((float)(mass / (double)width));
    return (float)((bits * 0x1p-23 - 127) * 0.693147) - 0.01f; /* a logarithm that is too small by up to 0.07 */
}

/* Adds exp(log-weight) of ascending keys until the sum reaches ``mass``; returns the place of the key that does it,
 * or count. The sum is left in ``sum``.
 */
static int64_t first_to_reach(double mass, int64_t count, const uint32_t *keys, double *sum) {
    float e[LANES];
    *sum = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i % LANES == 0) {
            for (int lane = 0; lane < LANES; lane++) e[lane] = i + lane < count ? weight_of_key(keys[i + lane]) : 0;
            vec_store(e, vec_exp(vec_load(e)));
        }
        *sum += e[i % LANES];
        if (*sum >= mass) return i;
    }
    return count;
}

/* The smallest weight that top-k and then top-p keep; -inf: all. Ties with it are kept. scratch: [2 * width]. */
static float least_weight(const weight_row *row, int64_t top_k, double top_p, uint32_t *scratch) {
    uint32_t *keys = scratch, *spare = scratch + row->width;
    double sum;
    if (0 < top_k && top_k < row->width) {
        int64_t count = collect_keys(row, rank_bound(row, top_k), keys);
        sort_keys(count, keys, spare);
        if (count >= top_k) { /* else fewer tokens are possible, and all are kept */
            int64_t kept = top_k;
            while (kept < count && keys[kept] == keys[top_k - 1]) kept++;
            if (top_p < 1) {
                first_to_reach(INFINITY, kept, keys, &sum);
                kept = 1 + first_to_reach(top_p * sum, kept, keys, &sum);
            }
            return weight_of_key(keys[kept - 1]);
        }
    }
    if (top_p >= 1) return -INFINITY;
    const double total = total_weight(row);
    const float bounds[2] = {mass_bound((1 - top_p) * total, row->width), -INFINITY};
    for (int i = 0; i < 2; i++) {
        int64_t count = collect_keys(row, bounds[i], keys);
        sort_keys(count, keys, spare);
        int64_t last = first_to_reach(top_p * total, count, keys, &sum);
        if (last < count) return weight_of_key(keys[last]);
    }
    return -INFINITY; /* rounding left the whole row just short of a top_p near 1 */
}

#endif
