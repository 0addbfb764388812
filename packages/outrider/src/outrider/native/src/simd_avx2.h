/* Sixteen lanes in two registers. */
#include <immintrin.h>

typedef struct {
    __m256 low, high;
} vec;

static inline vec vec_set(float f) { return (vec){_mm256_set1_ps(f), _mm256_set1_ps(f)}; }
static inline vec vec_load(const float *p) { return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void vec_store(float *p, vec v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
}
static inline vec vec_add(vec a, vec b) { return (vec){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
static inline vec vec_sub(vec a, vec b) { return (vec){_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
static inline vec vec_mul(vec a, vec b) { return (vec){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
static inline vec vec_div(vec a, vec b) { return (vec){_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
static inline vec vec_fma(vec a, vec b, vec c) {
    return (vec){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
/* a > b ? a : b, so b where one is NaN, as the instruction has it. */
static inline vec vec_max(vec a, vec b) { return (vec){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
static inline vec vec_abs(vec a) {
    __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return (vec){_mm256_and_ps(a.low, mask), _mm256_and_ps(a.high, mask)};
}
/* The first n lanes, 0 <= n <= 16; the others are zero, or are not stored. */
static inline vec vec_load_some(const float *p, int n) {
    if (n == LANES) return vec_load(p);
    float all[LANES] = {0};
    memcpy(all, p, (size_t)n * sizeof(float));
    return vec_load(all);
}
static inline void vec_store_some(float *p, vec v, int n) {
    if (n == LANES) {
        vec_store(p, v);
        return;
    }
    float all[LANES];
    vec_store(all, v);
    memcpy(p, all, (size_t)n * sizeof(float));
}
static inline __m256 eight_bf16(const uint16_t *p) {
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
static inline vec vec_load_bf16(const uint16_t *p) { return (vec){eight_bf16(p), eight_bf16(p + 8)}; }
static inline vec vec_load_half(const uint16_t *p) {
    return (vec){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
static inline vec vec_load_i8(const int8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    __m256i low = _mm256_cvtepi8_epi32(bytes), high = _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8));
    return (vec){_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)};
}
static inline __m256 eight_e8m0(__m128i bytes) {
    __m256i e = _mm256_cvtepu8_epi32(bytes), small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    __m256i bits = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}
/* Powers of two by their exponents, 2^(e - 128); the two smallest ones are subnormal. */
static inline vec vec_load_e8m0(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return (vec){eight_e8m0(bytes), eight_e8m0(_mm_srli_si128(bytes, 8))};
}
static inline __m256i bf16_bits(__m256 v) {
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}
static inline void vec_store_bf16(uint16_t *p, vec v) {
    __m256i pairs = _mm256_packus_epi32(bf16_bits(v.low), bf16_bits(v.high)); /* quarters 0 2 1 3 */
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(pairs, 0xd8));
}
/* To 8 bits, rounded to nearest, ties to even; |v| <= 127. The sum of the sixteen. */
static inline int32_t vec_store_i8(int8_t *p, vec v) {
    __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));
    pairs = _mm256_permute4x64_epi64(pairs, 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
    __m256i pairs_summed = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs_summed), _mm256_extracti128_si256(pairs_summed, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
/* p times two to the integer that ``shifted`` holds in its low bits (see vec_exp). */
static inline __m256 scale_by_power(__m256 p, __m256 shifted) {
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
}
static inline vec vec_scale_by_power(vec p, vec shifted) {
    return (vec){scale_by_power(p.low, shifted.low), scale_by_power(p.high, shifted.high)};
}
/* v where x >= least, else 0; v where x is NaN. */
static inline vec vec_zero_below(vec x, float least, vec v) {
    __m256 bound = _mm256_set1_ps(least);
    return (vec){_mm256_and_ps(_mm256_cmp_ps(x.low, bound, _CMP_NLT_UQ), v.low),
                 _mm256_and_ps(_mm256_cmp_ps(x.high, bound, _CMP_NLT_UQ), v.high)};
}
/* Two bfloat16 in each lane: the lower ones, and the upper ones. */
static inline __m256 lower_bf16(__m256 pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}
static inline __m256 upper_bf16(__m256 pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32((int)0xffff0000)));
}
static inline vec vec_lower_bf16(vec pairs) { return (vec){lower_bf16(pairs.low), lower_bf16(pairs.high)}; }
static inline vec vec_upper_bf16(vec pairs) { return (vec){upper_bf16(pairs.low), upper_bf16(pairs.high)}; }
/* Transposes eight rows of eight words: out[j][i] = in[i][first + j]; the stride in words. */
static inline void transpose8(const float *const in[8], int64_t first, float *out, int64_t out_stride) {
    __m256 row[8], pairs[8], fours[8];
    for (int i = 0; i < 8; i++) row[i] = _mm256_loadu_ps(in[i] + first);
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
            fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
        }
    for (int j = 0; j < 4; j++) {
        _mm256_storeu_ps(out + j * out_stride, _mm256_permute2f128_ps(fours[j], fours[j + 4], 0x20));
        _mm256_storeu_ps(out + (j + 4) * out_stride, _mm256_permute2f128_ps(fours[j], fours[j + 4], 0x31));
    }
}
/* Transposes a square of sixteen by sixteen words: out[j][i] = in[i][first + j]; the stride in words. */
static inline void transpose16(const float *const in[16], int64_t first, float *out, int64_t out_stride) {
    for (int i = 0; i < LANES; i += 8)
        for (int j = 0; j < LANES; j += 8) transpose8(in + i, first + j, out + j * out_stride + i, out_stride);
}
/* Whether any lane of a is above b's, or is NaN. */
static inline int vec_any_above(vec a, vec b) {
    __m256 low = _mm256_cmp_ps(a.low, b.low, _CMP_NLE_UQ), high = _mm256_cmp_ps(a.high, b.high, _CMP_NLE_UQ);
    return _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0;
}
static inline __m256 exponent(__m256 x, __m256 *scale) {
    __m256i k = _mm256_srai_epi32(_mm256_sub_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x3f3504f3)), 23);
    *scale = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(127), k), 23));
    return _mm256_cvtepi32_ps(k);
}
/* Of positive normal numbers x = m 2^k, sqrt(1/2) <= m < sqrt(2): k, and 2^-k in scale. */
static inline vec vec_exponent(vec x, vec *scale) {
    return (vec){exponent(x.low, &scale->low), exponent(x.high, &scale->high)};
}
/* Of lanes that are no NaN. */
static inline float vec_largest_lane(vec v) {
    __m256 eight = _mm256_max_ps(v.low, v.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}
