/* Linear layers over quantised and floating-point weights. Included once by each instruction set.
 *
 * Quantised: inside a group the sum is an exact integer; across groups, for output o and row r,
 *
 *     y = fmaf(sum[g], scale_w[g] * scale_x[g], y);  y = fmaf(minimum_w[g], scale_x[g] * sum_x[g], y)      g in order
 *
 * Floating-point: two sums, over even and over odd inputs, each by fmaf in order, and then their sum.
 */
#include "kernels.h"
#include "simd.h"

#if defined(ISA_AVX512)
#include "dot_avx512.h"
#elif defined(ISA_AVX2)
#include "dot_avx2.h"
#elif defined(ISA_NEON)
#include "dot_neon.h"
#else
#include "dot_portable.h"
#endif

#define ROW_TILE 256 /* rows whose activations stay in a core's cache while it goes over its panels */
#define AHEAD_BYTES 4096 /* further than the processor looks ahead by itself, which is to the end of a page */
#define FORCE_INLINE static inline __attribute__((always_inline))

static void quantise_group(const float *x, int count, int8_t *codes, act_quant_group *quant) {
    vec low = vec_load_some(x, count < 16 ? count : 16), high = vec_load_some(x + 16, count < 16 ? 0 : count - 16);
    float most = vec_largest_lane(vec_max(vec_abs(low), vec_abs(high)));
    float odd = sum_lanes(vec_add(vec_sub(low, low), vec_sub(high, high))); /* NaN if a number is NaN or infinite */
    float inverse = most > 1e-36f ? 127.0f / most : 0.0f;                   /* smaller ones count as 0 */
    quant->scale = most > 1e-36f ? most / 127.0f : 0.0f;
    if (odd != 0) {
        quant->scale = float_of_bits(0x7fc00000);
        low = high = vec_set(0);
    }
    quant->sum[1] = vec_store_i8(codes, vec_mul(low, vec_set(inverse)));
    quant->sum[2] = vec_store_i8(codes + 16, vec_mul(high, vec_set(inverse)));
    quant->sum[0] = quant->sum[1] + quant->sum[2];
    for (int i = 0; i < 3; i++) quant->scaled_sum[i] = quant->scale * (float)quant->sum[i];
}

static void quantise(const activations *a, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++)
        for (int64_t g = 0; g < a->groups; g++) {
            int64_t left = a->inputs - 32 * g, at = r * a->groups + g;
            quantise_group(a->x + r * a->inputs + 32 * g, left < 32 ? (int)left : 32, a->codes + 32 * at,
                           a->quant + at);
        }
}

/* How codes become values. */
enum form { FORM_BYTES, FORM_TABLE, FORM_EVEN }; /* EVEN: 4 bits that count evenly, value = code + values[0] */

/* Rows for which the upper codes stay sixteen times too large: cheaper to unpack, dearer to add up. */
#if defined(HAS_SIXTEENFOLD)
#define IS_SIXTEENFOLD(form, count) ((form) == FORM_EVEN && (count) <= 2)
#else
#define IS_SIXTEENFOLD(form, count) 0
#define quad_of_sixteenfold_codes quad_of_high_codes
#define isum_plus_sixteenth(sum, sixteenfold) (sum)
#endif

#if defined(ISA_AVX2)
#include "block_avx2.h"
#else
/* The codes of a block, for all rows. The compiler knows the last three arguments. */
FORCE_INLINE void unpack_block(const uint8_t *codes, lookup table, quad *weights, const int steps,
                               const enum form form, const int sixteenfold) {
    for (int s = 0; s < steps; s++) {
        const uint8_t *upper = codes + 64 * (s - steps / 2);
        if (form == FORM_BYTES)
            weights[s] = quad_of_bytes(codes + 64 * s);
        else if (s < steps / 2)
            weights[s] = form == FORM_EVEN ? quad_of_low_codes(codes + 64 * s) : quad_of_low_halves(codes + 64 * s, table);
        else if (sixteenfold)
            weights[s] = quad_of_sixteenfold_codes(upper);
        else
            weights[s] = form == FORM_EVEN ? quad_of_high_codes(upper) : quad_of_high_halves(upper, table);
    }
}

/* The exact sum of a block's products with one row, behind ``sum``. */
FORCE_INLINE isum sum_block(isum sum, const quad *weights, const int8_t *x, const int steps, const enum form form,
                            const int sixteenfold) {
    isum upper = isum_start_codes(0, 0);
    for (int s = 0; s < steps; s++)
        if (form != FORM_EVEN)
            sum = isum_add(sum, weights[s], x + 4 * s);
        else if (sixteenfold && s >= steps / 2)
            upper = isum_add_codes(upper, weights[s], x + 4 * s);
        else
            sum = isum_add_codes(sum, weights[s], x + 4 * s);
    return sixteenfold ? isum_plus_sixteenth(sum, upper) : sum;
}

/* How a set multiplies a block with several rows at once, if not row by row. */
#if defined(ISA_AMX)
#include "dot_amx.h"
#elif defined(ISA_I8MM)
#include "dot_i8mm.h"
#else
#define MULTIPLIES_BLOCKS(count) 0
#define multiply_block(codes, table, x, stride, steps, form, count, sums) (void)(sums)
#define isum_plus(a, b) (a)
#endif
#endif

/* One block for ``count`` rows, which the compiler knows, as it does ``steps`` (inputs of a group / 4), ``form``, and
 * ``part``: which of a quant group's sums are those of the block. ``quant``: of the first row. */
FORCE_INLINE void quantised_block(const outrider_weight *w, const uint8_t *block, const int8_t *x,
                                  const act_quant_group *quant, int64_t groups, const int count, const int steps,
                                  const int part, const enum form form, int32_t first_value, lookup table, vec *y) {
    const uint8_t *codes = block + (w->half_scales ? 32 : 64) * (1 + w->has_minimum);
    vec scale = w->half_scales ? vec_load_half((const uint16_t *)block) : vec_load((const float *)block);
    vec minimum = vec_set(0);
    if (w->has_minimum)
        minimum = w->half_scales ? vec_load_half((const uint16_t *)(block + 32)) : vec_load((const float *)(block + 64));
    quad weights[8];
    isum products[MOST_ROWS];
    if (MULTIPLIES_BLOCKS(count))
        multiply_block(codes, table, x, 32 * groups, steps, form, count, products);
    else
        unpack_block(codes, table, weights, steps, form, IS_SIXTEENFOLD(form, count));
    for (int r = 0; r < count; r++, quant += groups) {
        int32_t sum_x = quant->sum[part];
        isum sum = form == FORM_EVEN ? isum_start_codes(sum_x, first_value) : isum_start(sum_x);
        if (MULTIPLIES_BLOCKS(count))
            sum = isum_plus(sum, products[r]);
        else
            sum = sum_block(sum, weights, x + 32 * groups * r, steps, form, IS_SIXTEENFOLD(form, count));
        vec scales = vec_mul(scale, vec_set(quant->scale));
#if !defined(OUTRIDER_CONTROL_REORDERED)
        y[r] = vec_fma(vec_of_isum(sum), scales, y[r]);
        if (w->has_minimum) y[r] = vec_fma(minimum, vec_set(quant->scaled_sum[part]), y[r]);
#else /* a build that the comparison of digests must notice */
        if (w->has_minimum) y[r] = vec_fma(minimum, vec_set(quant->scaled_sum[part]), y[r]);
        y[r] = vec_fma(vec_of_isum(sum), scales, y[r]);
#endif
    }
}

/* One panel; see ``quantised_block``. */
FORCE_INLINE void quantised_panel(const outrider_weight *w, const uint8_t *block, const activations *a, int64_t row,
                                  const int count, const int steps, const enum form form, int32_t first_value, vec *y) {
    const int64_t groups = a->groups, bytes = w->panel_bytes / w->groups;
    const act_quant_group *quant = a->quant + row * groups;
    const int8_t *x = a->codes + row * groups * 32;
    lookup table = lookup_of(w->values);
    for (int r = 0; r < count; r++) y[r] = vec_set(0);
    for (int64_t g = 0; g < groups; g++, quant++, x += 32) {
        for (int64_t i = 0; i < bytes * (8 / steps); i += 64) /* the next panel's */
            __builtin_prefetch(block + w->panel_bytes + i);
        if (steps == 8) {
            quantised_block(w, block, x, quant, groups, count, steps, 0, form, first_value, table, y);
        } else {
            quantised_block(w, block, x, quant, groups, count, steps, 1, form, first_value, table, y);
            quantised_block(w, block + bytes, x + 16, quant, groups, count, steps, 2, form, first_value, table, y);
        }
        block += bytes * (8 / steps);
    }
}

FORCE_INLINE vec load_weights(const uint8_t *panel, int64_t input, const int half) {
    return half ? vec_load_bf16((const uint16_t *)panel + LANES * input) : vec_load((const float *)panel + LANES * input);
}

FORCE_INLINE void float_panel(const outrider_weight *w, const uint8_t *panel, const activations *a, int64_t row,
                              const int count, const int half, vec *y) {
    const float *x = a->x + row * a->inputs;
    vec odd[MOST_ROWS];
    for (int r = 0; r < count; r++) y[r] = odd[r] = vec_set(0);
    int64_t i = 0;
    for (; i + 1 < w->inputs; i += 2) {
        __builtin_prefetch(panel + (LANES * i << (half ? 1 : 2)) + AHEAD_BYTES);
        vec even_weights = load_weights(panel, i, half), odd_weights = load_weights(panel, i + 1, half);
        for (int r = 0; r < count; r++) {
            y[r] = vec_fma(even_weights, vec_set(x[r * a->inputs + i]), y[r]);
            odd[r] = vec_fma(odd_weights, vec_set(x[r * a->inputs + i + 1]), odd[r]);
        }
    }
    for (int r = 0; r < count; r++) {
        if (i < w->inputs) y[r] = vec_fma(load_weights(panel, i, half), vec_set(x[r * a->inputs + i]), y[r]);
        y[r] = vec_add(y[r], odd[r]);
    }
}

/* Whether codes of 4 bits stand for numbers one apart. */
static inline int counts_evenly(const outrider_weight *w) {
    int evenly = 1;
    for (int i = 1; i < 16; i++) evenly &= w->values[i] == w->values[0] + i;
    return evenly;
}

/* One panel for ``count`` rows, which the compiler knows. ``evenly``: see ``counts_evenly``. */
FORCE_INLINE void panel_rows(const outrider_weight *w, int64_t panel, const activations *a, int64_t row,
                             const int count, int evenly, float *out, int64_t stride) {
    vec y[MOST_ROWS];
    const uint8_t *at = w->panels + panel * w->panel_bytes;
    if (w->layout == OUTRIDER_F32)
        float_panel(w, at, a, row, count, 0, y);
    else if (w->layout == OUTRIDER_BF16)
        float_panel(w, at, a, row, count, 1, y);
    else if (w->layout == OUTRIDER_Q8 && w->group == 32)
        quantised_panel(w, at, a, row, count, 8, FORM_BYTES, 0, y);
    else if (w->layout == OUTRIDER_Q8)
        quantised_panel(w, at, a, row, count, 4, FORM_BYTES, 0, y);
    else if (w->group == 32 && evenly && w->values[0] == 0)
        quantised_panel(w, at, a, row, count, 8, FORM_EVEN, 0, y); /* one product less for each row and group */
    else if (w->group == 32 && evenly)
        quantised_panel(w, at, a, row, count, 8, FORM_EVEN, w->values[0], y);
    else if (w->group == 32)
        quantised_panel(w, at, a, row, count, 8, FORM_TABLE, 0, y);
    else
        quantised_panel(w, at, a, row, count, 4, FORM_TABLE, 0, y);
    int64_t left = w->outputs - panel * LANES;
    int lanes = left < LANES ? (int)left : LANES;
    for (int r = 0; r < count; r++) {
        if (w->bias) y[r] = vec_add(y[r], vec_load_some(w->bias + panel * LANES, lanes));
        float *to = out + (row + r) * stride + panel * LANES;
        if (lanes == LANES)
            vec_store(to, y[r]);
        else
            vec_store_some(to, y[r], lanes);
    }
}

/* The rows that one panel is multiplied with at once, as many as the registers hold. */
#define ROWS(name, count)                                                                                            \
    static void name(const outrider_weight *w, int64_t panel, const activations *a, int64_t row, int evenly,         \
                     float *y, int64_t stride) {                                                                     \
        panel_rows(w, panel, a, row, count, evenly, y, stride);                                                      \
    }
ROWS(one_row, 1)
ROWS(two_rows, 2)
#if MOST_ROWS >= 4
ROWS(three_rows, 3)
ROWS(four_rows, 4)
#endif
#if MOST_ROWS >= 8
ROWS(eight_rows, 8)
#endif
#if MOST_ROWS >= 16
ROWS(sixteen_rows, 16)
#endif

static void linear(const outrider_weight *w, const activations *a, int64_t first, int64_t last, float *y,
                   int64_t stride) {
    int evenly = counts_evenly(w);
    for (int64_t tile = 0; tile < a->rows; tile += ROW_TILE) {
        int64_t end = tile + ROW_TILE < a->rows ? tile + ROW_TILE : a->rows;
        for (int64_t p = first; p < last; p++) {
            int64_t r = tile;
#if MOST_ROWS >= 16
            for (; r + 16 <= end; r += 16) sixteen_rows(w, p, a, r, evenly, y, stride);
#endif
#if MOST_ROWS >= 8
            for (; r + 8 <= end; r += 8) eight_rows(w, p, a, r, evenly, y, stride);
#endif
#if MOST_ROWS >= 4
            for (; r + 4 <= end; r += 4) four_rows(w, p, a, r, evenly, y, stride);
            if (r + 3 == end) three_rows(w, p, a, r, evenly, y, stride), r = end; /* a draft of two tokens */
#endif
            for (; r + 2 <= end; r += 2) two_rows(w, p, a, r, evenly, y, stride);
            for (; r < end; r++) one_row(w, p, a, r, evenly, y, stride);
        }
    }
}
