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

#define ROW_TILE 16         /* rows whose activations stay in a core's cache while it goes over panels */
#define PANEL_CACHE 262144 /* bytes of panels that do */
#define AHEAD_BYTES 8192   /* further than the processor looks ahead by itself, which is to the end of a page */
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

#include "codes.h"
#include "scales.h"

/* How a set multiplies a block with several rows at once, if not row by row. */
#if defined(ISA_AVX2)
#include "block_avx2.h"
#elif defined(ISA_AMX)
#include "dot_amx.h"
#elif defined(ISA_I8MM)
#include "dot_i8mm.h"
#else
#define MULTIPLIES_BLOCKS(count) 0
#define multiply_block(codes, table, x, stride, first, steps, bits, has_table, count, sums) (void)(sums)
#endif

/* What codes are, known to the compiler. */
typedef struct {
    int bits, has_table;
    int group; /* inputs */
    int first; /* whether code 0 stands for another number than 0 */
    int minimum; /* whether groups have a minimum; ASK: the weight says */
} form;

#define ASK 2

/* Adds a group to y: its products' exact sum with one row, which has the group's ``quant``.
 * ``part``: which of its sums are those of the group. */
FORCE_INLINE vec add_group(const outrider_weight *w, vec scale, vec minimum, isum sum, const act_quant_group *quant,
                           const int part, const form f, vec y) {
    const int is_value = f.has_table || f.bits == 8;
    if (is_value ? WEIGHT_OFFSET != 0 : f.first)
        sum = isum_plus(sum, isum_set((is_value ? -WEIGHT_OFFSET : w->first) * quant->sum[part]));
    vec scales = vec_mul(scale, vec_set(quant->scale));
    const int has_minimum = f.minimum == ASK ? w->has_minimum : f.minimum;
#if !defined(OUTRIDER_CONTROL_REORDERED)
    y = vec_fma(vec_of_isum(sum), scales, y);
    return has_minimum ? vec_fma(minimum, vec_set(quant->scaled_sum[part]), y) : y;
#else /* a build that the comparison of digests must notice */
    if (has_minimum) y = vec_fma(minimum, vec_set(quant->scaled_sum[part]), y);
    return vec_fma(vec_of_isum(sum), scales, y);
#endif
}

/* A block of 32 inputs for ``count`` rows. ``scale``, ``minimum``: of each of its groups. */
FORCE_INLINE void add_block(const outrider_weight *w, const uint8_t *codes, lookup table, const vec *scale,
                            const vec *minimum, const int8_t *x, const act_quant_group *quant, int64_t groups,
                            const int count, const form f, vec *y) {
    const int parts = 32 / f.group, steps = f.group / 4;
#if !defined(ISA_AVX2)
    if (!MULTIPLIES_BLOCKS(count)) {
        quad weights[8];
        for (int s = 0; s < 8; s++) weights[s] = weights_of_step(codes, table, s, f.bits, f.has_table);
#pragma GCC unroll 16
        for (int r = 0; r < count; r++, quant += groups, x += 32 * groups)
            for (int g = 0; g < parts; g++) {
                isum sum = isum_set(0);
                for (int s = g * steps; s < (g + 1) * steps; s++) sum = isum_add(sum, weights[s], x + 4 * s);
                y[r] = add_group(w, scale[g], minimum[g], sum, quant, parts == 1 ? 0 : 1 + g, f, y[r]);
            }
        return;
    }
#endif
    for (int g = 0; g < parts; g++) {
        isum sums[MOST_ROWS];
        multiply_block(codes, table, x, 32 * groups, g * steps, steps, f.bits, f.has_table, count, sums);
#pragma GCC unroll 16
        for (int r = 0; r < count; r++)
            y[r] = add_group(w, scale[g], minimum[g], sums[r], quant + r * groups, parts == 1 ? 0 : 1 + g, f, y[r]);
    }
}

/* One panel. ``ahead``: bytes to what is fetched into the cache, or 0. */
FORCE_INLINE void coded_panel(const outrider_weight *w, const uint8_t *panel, int64_t ahead, const activations *a,
                              int64_t row, const int count, const form f, vec *y) {
    const int64_t groups = a->groups, stride = 32 * groups;
    const act_quant_group *quant = a->quant + row * groups;
    const int8_t *x = a->codes + row * stride;
    const int direct = w->scales == OUTRIDER_SCALES_F16 && f.group == 32;
    const int has_minimum = f.minimum == ASK ? w->has_minimum : f.minimum;
    lookup table = lookup_of(w->values);
    group_scales scales;
    for (int r = 0; r < count; r++) y[r] = vec_set(0);
    for (int64_t block = 0; block < groups; block += RUN_BLOCKS) {
        int64_t left = groups - block, blocks = left < RUN_BLOCKS ? left : RUN_BLOCKS;
        const uint8_t *codes = panel + run_scale_bytes(w, blocks);
        /* Memory is asked for what comes in the order in which it lies there: out of order it gave a sixth less. */
        for (const uint8_t *line = panel; line < codes; line += 64) __builtin_prefetch(line + ahead);
        if (direct) { /* no buffer between: one row of Q4_1 in the cache takes a fifth less */
            for (int64_t b = 0; b < blocks; b++, quant++, x += 32, codes += 64 * f.bits) {
                vec scale = vec_load_halves(panel), minimum = has_minimum ? vec_load_halves(panel + 2 * LANES) : scale;
                panel += 2 * LANES << has_minimum;
                for (int i = 0; i < f.bits; i++) __builtin_prefetch(codes + ahead + 64 * i);
                add_block(w, codes, table, &scale, &minimum, x, quant, groups, count, f, y);
            }
            panel = codes;
            continue;
        }
        read_scales(w, panel, (int)blocks, &scales);
        const vec *scale = scales.scale, *minimum = scales.minimum, *end = scale + blocks * (32 / f.group);
        for (; scale < end; scale += 32 / f.group, minimum += 32 / f.group) {
            for (int i = 0; i < f.bits; i++) __builtin_prefetch(codes + ahead + 64 * i);
            add_block(w, codes, table, scale, minimum, x, quant, groups, count, f, y);
            quant++, x += 32, codes += 64 * f.bits;
        }
        panel = codes;
    }
}

FORCE_INLINE vec load_weights(const uint8_t *panel, int64_t input, const int layout) {
    if (layout == OUTRIDER_F32) return vec_load((const float *)panel + LANES * input);
    const uint16_t *halves = (const uint16_t *)panel + LANES * input;
    return layout == OUTRIDER_BF16 ? vec_load_bf16(halves) : vec_load_half(halves);
}

FORCE_INLINE void float_panel(const outrider_weight *w, const uint8_t *panel, const activations *a, int64_t row,
                              const int count, const int layout, vec *y) {
    const float *x = a->x + row * a->inputs;
    vec odd[MOST_ROWS];
    for (int r = 0; r < count; r++) y[r] = odd[r] = vec_set(0);
    int64_t i = 0;
    for (; i + 1 < w->inputs; i += 2) {
        __builtin_prefetch(panel + (LANES * i << (layout == OUTRIDER_F32 ? 2 : 1)) + AHEAD_BYTES);
        vec even_weights = load_weights(panel, i, layout), odd_weights = load_weights(panel, i + 1, layout);
        for (int r = 0; r < count; r++) {
            y[r] = vec_fma(even_weights, vec_set(x[r * a->inputs + i]), y[r]);
            odd[r] = vec_fma(odd_weights, vec_set(x[r * a->inputs + i + 1]), odd[r]);
        }
    }
    for (int r = 0; r < count; r++) {
        if (i < w->inputs) y[r] = vec_fma(load_weights(panel, i, layout), vec_set(x[r * a->inputs + i]), y[r]);
        y[r] = vec_add(y[r], odd[r]);
    }
}

/* One panel for ``count`` rows, which the compiler knows. */
FORCE_INLINE void panel_sums(const outrider_weight *w, const uint8_t *at, int64_t ahead, const activations *a,
                             int64_t row, const int count, vec *y) {
#define CODED(...) coded_panel(w, at, ahead, a, row, count, (form){__VA_ARGS__}, y)
    if (w->layout == OUTRIDER_F32)
        float_panel(w, at, a, row, count, OUTRIDER_F32, y);
    else if (w->layout == OUTRIDER_BF16)
        float_panel(w, at, a, row, count, OUTRIDER_BF16, y);
    else if (w->layout == OUTRIDER_F16)
        float_panel(w, at, a, row, count, OUTRIDER_F16, y);
    else if (w->group == 32)
        switch (w->bits) {
        case 1: CODED(1, 0, 32, 1, 0); break;
        case 2: CODED(2, 0, 32, 1, 0); break;
        case 4:
            if (w->has_table) CODED(4, 1, 32, 1, 0);
            else if (w->has_minimum) CODED(4, 0, 32, 0, 1);
            else CODED(4, 0, 32, 1, 0);
            break;
        case 5:
            if (w->has_minimum) CODED(5, 0, 32, 0, 1);
            else CODED(5, 0, 32, 1, 0);
            break;
        default: CODED(8, 0, 32, 1, ASK); break;
        }
    else
        switch (w->bits) {
        case 2: CODED(2, 0, 16, 0, 1); break;
        case 3: CODED(3, 0, 16, 1, 0); break;
        case 4:
            if (w->has_table) CODED(4, 1, 16, 1, 0);
            else CODED(4, 0, 16, 0, 1);
            break;
        case 6: CODED(6, 0, 16, 1, 0); break;
        default: CODED(8, 0, 16, 1, ASK); break;
        }
#undef CODED
}

FORCE_INLINE void panel_rows(const outrider_weight *w, int64_t panel, int64_t ahead, const activations *a, int64_t row,
                             const int count, float *out, int64_t stride) {
    vec y[MOST_ROWS];
    panel_sums(w, w->panels + panel * w->panel_bytes, ahead, a, row, count, y);
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
    static void name(const outrider_weight *w, int64_t panel, int64_t ahead, const activations *a, int64_t row,      \
                     float *y, int64_t stride) {                                                                     \
        panel_rows(w, panel, ahead, a, row, count, y, stride);                                                       \
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

/* Rows [first, last) through one panel. */
static void rows_of_panel(const outrider_weight *w, int64_t p, int64_t ahead, const activations *a, int64_t first,
                          int64_t last, float *y, int64_t stride) {
    int64_t r = first;
#if MOST_ROWS >= 16
    for (; r + 16 <= last; r += 16) sixteen_rows(w, p, ahead, a, r, y, stride);
#endif
#if MOST_ROWS >= 8
    for (; r + 8 <= last; r += 8) eight_rows(w, p, ahead, a, r, y, stride);
#endif
#if MOST_ROWS >= 4
    for (; r + 4 <= last; r += 4) four_rows(w, p, ahead, a, r, y, stride);
    if (r + 3 == last) three_rows(w, p, ahead, a, r, y, stride), r = last; /* a draft of two tokens */
#endif
    for (; r + 2 <= last; r += 2) two_rows(w, p, ahead, a, r, y, stride);
    for (; r < last; r++) one_row(w, p, ahead, a, r, y, stride);
}

/* Panels that stay in a core's cache meet all rows, a few rows at a time that stay there too. */
static void linear(const outrider_weight *w, const activations *a, int64_t first, int64_t last, float *y,
                   int64_t stride) {
    int64_t together = 1 + PANEL_CACHE / w->panel_bytes;
    for (int64_t start = first; start < last; start += together) {
        int64_t end = start + together < last ? start + together : last;
        for (int64_t r = 0; r < a->rows; r += ROW_TILE)
            for (int64_t p = start; p < end; p++) {
                int64_t ahead = r == 0 && (p + 1) * LANES < w->outputs ? AHEAD_BYTES : 0;
                rows_of_panel(w, p, ahead, a, r, r + ROW_TILE < a->rows ? r + ROW_TILE : a->rows, y, stride);
            }
    }
}
