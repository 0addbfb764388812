/* Exact sums of 4 products for 16 outputs, by VNNI in 256 bits: unsigned weights (value + 128, or the codes themselves)
 * times signed activations. Input by input, as in block_avx2.h.
 */
FORCE_INLINE void multiply_block(const uint8_t *codes, lookup table, const int8_t *x, int64_t stride, const int first,
                                 const int steps, const int bits, const int has_table, const int count, isum *sums) {
    for (int r = 0; r < count; r++) sums[r] = isum_set(0);
#pragma GCC unroll 8
    for (int s = first; s < first + steps; s++) {
        quad w = weights_of_step(codes, table, s, bits, has_table);
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) {
            __m256i four = four_inputs(x + r * stride + 4 * s);
            sums[r].low = _mm256_dpbusd_avx_epi32(sums[r].low, w.low, four);
            sums[r].high = _mm256_dpbusd_avx_epi32(sums[r].high, w.high, four);
        }
    }
}
