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
static inline void vec_store_bf16(uint16_t *p, vec v) {
    __m512i bits = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    rounded = _mm512_mask_set1_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), 0x7fc0);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(rounded));
}
/* To 8 bits, rounded to nearest, ties to even; |v| <= 127. */
static inline void vec_store_i8(int8_t *p, vec v) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
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
