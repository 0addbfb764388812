/* Products of a block with up to four rows, in 256 bits.
 *
 * Input by input rather than row by row: what a step needs of the weights is unpacked into two registers, used for all
 * rows, and forgotten, so that the sums of four rows stay in registers.
 */
#define MULTIPLIES_BLOCKS(count) 1
#define unpack_block(codes, table, weights, steps, form, sixteenfold) (void)(weights)
#define sum_block(sum, weights, x, steps, form, sixteenfold) (sum)

FORCE_INLINE quad quad_of_step(const uint8_t *codes, lookup table, const int s, const int steps, const enum form form) {
    const uint8_t *upper = codes + 64 * (s - steps / 2);
    if (form == FORM_BYTES) return quad_of_bytes(codes + 64 * s);
    if (s < steps / 2)
        return form == FORM_EVEN ? quad_of_low_codes(codes + 64 * s) : quad_of_low_halves(codes + 64 * s, table);
    return form == FORM_EVEN ? quad_of_high_codes(upper) : quad_of_high_halves(upper, table);
}

static inline __m256i four_inputs(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

#if defined(ISA_AVXVNNI)
#include "dot_avxvnni.h"
#else
/* Compilers would add up the steps as a tree, for which there are too few registers. */
static inline __m256i sum_so_far(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

/* Codes from 0 to 15: the products of a whole group fit 16 bits, 8 steps * 2 * 15 * 127 = 30480 < 32768. */
FORCE_INLINE void multiply_codes(const uint8_t *codes, lookup table, const int8_t *x, int64_t stride, const int steps,
                                 const int count, isum *sums) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int s = 0; s < steps; s++) {
        quad w = quad_of_step(codes, table, s, steps, FORM_EVEN);
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) {
            __m256i four = four_inputs(x + r * stride + 4 * s);
            __m256i low = _mm256_maddubs_epi16(w.low, four), high = _mm256_maddubs_epi16(w.high, four);
            sums[r].low = s ? sum_so_far(_mm256_add_epi16(sums[r].low, low)) : low;
            sums[r].high = s ? sum_so_far(_mm256_add_epi16(sums[r].high, high)) : high;
        }
    }
    for (int r = 0; r < count; r++)
        sums[r] = (isum){_mm256_madd_epi16(sums[r].low, ones), _mm256_madd_epi16(sums[r].high, ones)};
}

/* Any weights. The instruction adds two products in 16 bits, which saturate; magnitudes of at most 128 times activations
 * with the weights' signs do not: 2 * 128 * 127 = 32512 < 32768. */
FORCE_INLINE void multiply_values(const uint8_t *codes, lookup table, const int8_t *x, int64_t stride, const int steps,
                                  const enum form form, const int count, isum *sums) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int s = 0; s < steps; s++) {
        quad w = quad_of_step(codes, table, s, steps, form);
        __m256i size_low = _mm256_abs_epi8(w.low), size_high = _mm256_abs_epi8(w.high);
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) {
            __m256i four = four_inputs(x + r * stride + 4 * s);
            __m256i low = _mm256_maddubs_epi16(size_low, _mm256_sign_epi8(four, w.low));
            __m256i high = _mm256_maddubs_epi16(size_high, _mm256_sign_epi8(four, w.high));
            low = _mm256_madd_epi16(low, ones);
            high = _mm256_madd_epi16(high, ones);
            sums[r].low = s ? sum_so_far(_mm256_add_epi32(sums[r].low, low)) : low;
            sums[r].high = s ? sum_so_far(_mm256_add_epi32(sums[r].high, high)) : high;
        }
    }
}

FORCE_INLINE void multiply_block(const uint8_t *codes, lookup table, const int8_t *x, int64_t stride, const int steps,
                                 const enum form form, const int count, isum *sums) {
    if (form == FORM_EVEN)
        multiply_codes(codes, table, x, stride, steps, count, sums);
    else
        multiply_values(codes, table, x, stride, steps, form, count, sums);
}

#endif

static inline isum isum_plus(isum a, isum b) {
    return (isum){_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
