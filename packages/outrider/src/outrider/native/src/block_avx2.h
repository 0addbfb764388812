/* Products of a block with up to four rows, in 256 bits.
 *
 * Input by input rather than row by row: what a step needs of the weights is unpacked into two registers, used for all
 * rows, and forgotten, so that the sums of four rows stay in registers.
 */
#define MULTIPLIES_BLOCKS(count) 1

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

static inline __m256i pairs_of_words(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

/* Codes below 2^bits, unsigned: products are added in 16 bits for as many steps as fit, two products a step:
 * 8 * 2 * 15 * 127 = 30480, 4 * 2 * 31 * 127 = 31496, 2 * 2 * 63 * 127 = 32004 < 32768. */
FORCE_INLINE void multiply_codes(const uint8_t *codes, const int8_t *x, int64_t stride, const int first, const int steps,
                                 const int bits, const int count, isum *sums) {
    const int fit = bits <= 4 ? 8 : bits == 5 ? 4 : 2;
    isum part[MOST_ROWS];
#pragma GCC unroll 8
    for (int s = 0; s < steps; s++) {
        quad w = codes_of_step(codes, first + s, bits);
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) {
            __m256i four = four_inputs(x + r * stride + 4 * (first + s));
            __m256i low = _mm256_maddubs_epi16(w.low, four), high = _mm256_maddubs_epi16(w.high, four);
            part[r].low = s % fit ? sum_so_far(_mm256_add_epi16(part[r].low, low)) : low;
            part[r].high = s % fit ? sum_so_far(_mm256_add_epi16(part[r].high, high)) : high;
            if (s % fit != fit - 1 && s != steps - 1) continue;
            isum whole = {pairs_of_words(part[r].low), pairs_of_words(part[r].high)};
            sums[r] = s < fit ? whole : isum_plus(sums[r], whole);
        }
    }
}

/* Any values. The instruction adds two products in 16 bits, which saturate; magnitudes of at most 128 times activations
 * with the weights' signs do not: 2 * 128 * 127 = 32512 < 32768. */
FORCE_INLINE void multiply_values(const uint8_t *codes, lookup table, const int8_t *x, int64_t stride, const int first,
                                  const int steps, const int bits, const int has_table, const int count, isum *sums) {
#pragma GCC unroll 8
    for (int s = 0; s < steps; s++) {
        quad w = weights_of_step(codes, table, first + s, bits, has_table);
        __m256i size_low = _mm256_abs_epi8(w.low), size_high = _mm256_abs_epi8(w.high);
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) {
            __m256i four = four_inputs(x + r * stride + 4 * (first + s));
            __m256i low = pairs_of_words(_mm256_maddubs_epi16(size_low, _mm256_sign_epi8(four, w.low)));
            __m256i high = pairs_of_words(_mm256_maddubs_epi16(size_high, _mm256_sign_epi8(four, w.high)));
            sums[r].low = s ? sum_so_far(_mm256_add_epi32(sums[r].low, low)) : low;
            sums[r].high = s ? sum_so_far(_mm256_add_epi32(sums[r].high, high)) : high;
        }
    }
}

FORCE_INLINE void multiply_block(const uint8_t *codes, lookup table, const int8_t *x, int64_t stride, const int first,
                                 const int steps, const int bits, const int has_table, const int count, isum *sums) {
    if (has_table || bits == 8)
        multiply_values(codes, table, x, stride, first, steps, bits, has_table, count, sums);
    else
        multiply_codes(codes, x, stride, first, steps, bits, count, sums);
}

#endif
