/* Sixteen lanes in one register. */
#include <immintrin.h>

typedef __m512 vec;

static inline vec vec_set(float f) { return _mm512_set1_ps(f); }
static inline vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vec_store(float *p, vec v) { _mm512_storeu_ps(p, v); }
static inline vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
/* a > b ? a : b, so b where one is NaN, as the instruction has it. */
static inline vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec vec_abs(vec a) { return _mm512_abs_ps(a); }

static inline __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1); }
/* The first n lanes, 0 <= n <= 16; the others are zero, or are not stored. */
static inline vec vec_load_some(const float *p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
static inline void vec_store_some(float *p, vec v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

static inline vec vec_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline vec vec_load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vec vec_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* Powers of two by their exponents, 2^(e - 128); the two smallest ones are subnormal. */
static inline vec vec_load_e8m0(const uint8_t *p) {
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), e);
    __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), small));
}
static inline void vec_store_bf16(uint16_t *p, vec v) {
    __m512i bits = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    rounded = _mm512_mask_set1_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), 0x7fc0);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(rounded));
}
/* To 8 bits, rounded to nearest, ties to even; |v| <= 127. The sum of the sixteen. */
static inline int32_t vec_store_i8(int8_t *p, vec v) {
    __m512i codes = _mm512_cvtps_epi32(v);
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(codes));
    return _mm512_reduce_add_epi32(codes);
}
/* p times two to the integer that ``shifted`` holds in its low bits (see vec_exp). */
static inline vec vec_scale_by_power(vec p, vec shifted) {
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), power));
}
/* v where x >= least, else 0; v where x is NaN. */
static inline vec vec_zero_below(vec x, float least, vec v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_NLT_UQ), v);
}
/* Two bfloat16 in each lane: the lower ones, and the upper ones. */
static inline vec vec_lower_bf16(vec pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
static inline vec vec_upper_bf16(vec pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32((int)0xffff0000)));
}
/* Transposes a square of sixteen by sixteen words: out[j][i] = in[i][first + j]; the stride in words. */
static inline void transpose16(const float *const in[16], int64_t first, float *out, int64_t out_stride) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(in[i] + first);
    for (int i = 0; i < 16; i += 2) { /* pairs of rows */
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) /* fours of rows */
        for (int k = 0; k < 2; k++) {
            __m512d x = _mm512_castps_pd(b[i + k]), y = _mm512_castps_pd(b[i + k + 2]);
            a[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            a[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    for (int k = 0; k < 4; k++) { /* quarters of registers: rows 0-3, 4-7, 8-11, 12-15 */
        __m512 low01 = _mm512_shuffle_f32x4(a[k], a[4 + k], 0x88), high01 = _mm512_shuffle_f32x4(a[k], a[4 + k], 0xdd);
        __m512 low23 = _mm512_shuffle_f32x4(a[8 + k], a[12 + k], 0x88);
        __m512 high23 = _mm512_shuffle_f32x4(a[8 + k], a[12 + k], 0xdd);
        _mm512_storeu_ps(out + k * out_stride, _mm512_shuffle_f32x4(low01, low23, 0x88));
        _mm512_storeu_ps(out + (4 + k) * out_stride, _mm512_shuffle_f32x4(high01, high23, 0x88));
        _mm512_storeu_ps(out + (8 + k) * out_stride, _mm512_shuffle_f32x4(low01, low23, 0xdd));
        _mm512_storeu_ps(out + (12 + k) * out_stride, _mm512_shuffle_f32x4(high01, high23, 0xdd));
    }
}
/* Whether any lane of a is above b's, or is NaN. */
static inline int vec_any_above(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ) != 0; }
/* Of positive normal numbers x = m 2^k, sqrt(1/2) <= m < sqrt(2): k, and 2^-k in scale. */
static inline vec vec_exponent(vec x, vec *scale) {
    __m512i k = _mm512_srai_epi32(_mm512_sub_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x3f3504f3)), 23);
    *scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(127), k), 23));
    return _mm512_cvtepi32_ps(k);
}
/* Of lanes that are no NaN. */
static inline float vec_largest_lane(vec v) { return _mm512_reduce_max_ps(v); }
