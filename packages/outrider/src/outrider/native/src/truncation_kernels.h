/* Rows of log-weights, sixteen at a time, and what top-k and top-p keep of them. See truncation.py. */
#ifndef OUTRIDER_TRUNCATION_KERNELS_H
#define OUTRIDER_TRUNCATION_KERNELS_H

#include <math.h> /* INFINITY */

#include "sample.h"
#include "simd.h"

#define SUMS 256    /* in which a row's mass is added up: as many as make loops that the compiler turns into vectors */
#define GROUPS 1024 /* whose maxima bound the largest of a row: disjoint, of about equal size */

/* How many of sixteen numbers from i on are in a row. */
static inline int lanes_from(int64_t i, int64_t width) { return width - i < LANES ? (int)(width - i) : LANES; }

/* Numbers i to i + 15 of a row; -inf behind its end. */
static inline vec load_row(const float *x, int64_t width, int64_t i) {
    if (i + LANES <= width) return vec_load(x + i);
    float padded[LANES];
    for (int lane = 0; lane < LANES; lane++) padded[lane] = i + lane < width ? x[i + lane] : -INFINITY;
    return vec_load(padded);
}

static inline vec scale_logits(const weight_row *row, vec x) {
    return vec_div(vec_sub(x, vec_set(row->largest)), vec_set(row->temperature));
}

/* Log-weights i to i + 15, those below row->least included. */
static inline vec load_log_weights(const weight_row *row, int64_t i) {
    return scale_logits(row, load_row(row->x, row->width, i));
}

/* Log-weights are at most 0, so the bits of their size order them: the largest weight has the smallest key. */
static inline float weight_of_key(uint32_t key) { return -float_of_bits(key); }

/* Keys of the weights above ``bound``, in no order that matters; returns how many. */
static int64_t collect_keys(const weight_row *row, float bound, uint32_t *keys) {
    int64_t count = 0;
    float weights[LANES];
    for (int64_t i = 0; i < row->width; i += LANES) {
        vec w = load_log_weights(row, i);
        if (!vec_any_above(w, vec_set(bound))) continue;
        vec_store(weights, w);
        for (int lane = 0, n = lanes_from(i, row->width); lane < n; lane++) { /* no branch, which would be a guess */
            keys[count] = bits_of_float(weights[lane]) & 0x7fffffff;
            count += weights[lane] > bound;
        }
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
        vec_store(maxima + group, scale_logits(row, vec_load(maxima + group)));
    for (int group = 0; group < GROUPS; group++) keys[group] = bits_of_float(maxima[group]) & 0x7fffffff;
    sort_keys(GROUPS, keys, spare);
    float reached = weight_of_key(keys[top_k - 1]); /* by at least top_k weights: the maxima */
    return reached * 1.000001f - 1e-30f;
}

/* The sum of exp(log-weight), in float64: SUMS sums, token i in sum i % SUMS, added in halves. */
static double total_weight(const weight_row *row) {
    double sums[SUMS] = {0};
    float e[SUMS];
    for (int64_t start = 0; start < row->width; start += SUMS) {
        for (int i = 0; i < SUMS; i += LANES) vec_store(e + i, vec_exp(load_log_weights(row, start + i)));
        for (int i = 0; i < SUMS; i++) sums[i] += e[i];
    }
    for (int half = SUMS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
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
