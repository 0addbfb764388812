/* Exact sums of 4 products for 16 outputs, without VNNI.
 *
 * The instruction adds two products in 16 bits, which saturate. |w| <= 128 times the activation with w's sign does not:
 * 2 * 128 * 127 = 32512 < 32768.
 */
#define MOST_ROWS 4

typedef struct {
    __m256i low, high;
} quad; /* signed, [16 outputs][4 inputs] */
typedef quad isum;
typedef __m256i lookup;

static inline lookup lookup_of(const int8_t values[16]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)values));
}
static inline __m256i load_bytes(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline quad quad_of_bytes(const uint8_t *p) {
    __m256i offset = _mm256_set1_epi8((char)-128);
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
    (void)sum_x;
    return (isum){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
static inline __m256i four_products(__m256i w, __m256i x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)), _mm256_set1_epi16(1));
}
static inline isum isum_add(isum sum, quad w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    __m256i every = _mm256_set1_epi32(four);
    return (isum){_mm256_add_epi32(sum.low, four_products(w.low, every)),
                  _mm256_add_epi32(sum.high, four_products(w.high, every))};
}
/* Codes of 4 bits that count evenly need no look-up: value = code + the first value, which the start adds. They are
 * unsigned and small: 2 * 15 * 127 is far from saturating. */
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
static inline __m256i four_small_products(__m256i w, __m256i x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
}
static inline isum isum_add_codes(isum sum, quad w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    __m256i every = _mm256_set1_epi32(four);
    return (isum){_mm256_add_epi32(sum.low, four_small_products(w.low, every)),
                  _mm256_add_epi32(sum.high, four_small_products(w.high, every))};
}
static inline vec vec_of_isum(isum s) { return (vec){_mm256_cvtepi32_ps(s.low), _mm256_cvtepi32_ps(s.high)}; }
