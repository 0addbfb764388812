/* Weights and sums in 256 bits, for 16 outputs in two registers. block_avx2.h multiplies them. */
#define MOST_ROWS 4

#if defined(ISA_AVXVNNI)
#define WEIGHT_OFFSET 128 /* its instruction wants unsigned weights */
#else
#define WEIGHT_OFFSET 0
#endif

typedef struct {
    __m256i low, high;
} quad; /* value + WEIGHT_OFFSET, or a code, [16 outputs][4 inputs] */
typedef quad isum;
typedef __m256i lookup;

static inline lookup lookup_of(const int8_t values[16]) {
    __m128i table = _mm_add_epi8(_mm_loadu_si128((const __m128i *)values), _mm_set1_epi8((char)WEIGHT_OFFSET));
    return _mm256_broadcastsi128_si256(table);
}
static inline __m256i load_bytes(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline quad quad_of_bytes(const uint8_t *p) {
    __m256i offset = _mm256_set1_epi8((char)(WEIGHT_OFFSET - 128)); /* 128 or nothing */
    return (quad){_mm256_xor_si256(load_bytes(p), offset), _mm256_xor_si256(load_bytes(p + 32), offset)};
}
static inline quad quad_of_low_halves(const uint8_t *p, lookup table) {
    __m256i mask = _mm256_set1_epi8(15);
    return (quad){_mm256_shuffle_epi8(table, _mm256_and_si256(load_bytes(p), mask)),
                  _mm256_shuffle_epi8(table, _mm256_and_si256(load_bytes(p + 32), mask))};
}
static inline quad quad_of_high_halves(const uint8_t *p, lookup table) {
    __m256i mask = _mm256_set1_epi8(15);
    return (quad){_mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(load_bytes(p), 4), mask)),
                  _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(load_bytes(p + 32), 4), mask))};
}
static inline isum isum_start(int32_t sum_x) {
    __m256i start = _mm256_set1_epi32(-WEIGHT_OFFSET * sum_x);
    return (isum){start, start};
}
/* Codes of 4 bits that count evenly need no look-up: value = code + the first value, which the start adds. */
static inline quad quad_of_low_codes(const uint8_t *p) {
    __m256i mask = _mm256_set1_epi8(15);
    return (quad){_mm256_and_si256(load_bytes(p), mask), _mm256_and_si256(load_bytes(p + 32), mask)};
}
static inline quad quad_of_high_codes(const uint8_t *p) {
    __m256i mask = _mm256_set1_epi8(15);
    return (quad){_mm256_and_si256(_mm256_srli_epi16(load_bytes(p), 4), mask),
                  _mm256_and_si256(_mm256_srli_epi16(load_bytes(p + 32), 4), mask)};
}
static inline isum isum_start_codes(int32_t sum_x, int32_t first) {
    __m256i start = _mm256_set1_epi32(first * sum_x);
    return (isum){start, start};
}
static inline vec vec_of_isum(isum s) { return (vec){_mm256_cvtepi32_ps(s.low), _mm256_cvtepi32_ps(s.high)}; }
