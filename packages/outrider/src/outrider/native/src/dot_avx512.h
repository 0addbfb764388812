/* Exact sums of 4 products for 16 outputs, by VNNI: unsigned weights (value + 128) times signed activations. */
#define MOST_ROWS 16

typedef __m512i quad; /* [16 outputs][4 inputs] */
typedef __m512i isum; /* [16 outputs] */
typedef __m512i lookup;

static inline lookup lookup_of(const int8_t values[16]) {
    __m128i table = _mm_add_epi8(_mm_loadu_si128((const __m128i *)values), _mm_set1_epi8((char)-128));
    return _mm512_broadcast_i32x4(table);
}
static inline quad quad_of_bytes(const uint8_t *p) { return _mm512_loadu_si512(p); }
static inline quad quad_of_low_halves(const uint8_t *p, lookup table) {
    return _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(15)));
}
static inline quad quad_of_high_halves(const uint8_t *p, lookup table) {
    __m512i high = _mm512_srli_epi16(_mm512_loadu_si512(p), 4);
    return _mm512_shuffle_epi8(table, _mm512_and_si512(high, _mm512_set1_epi8(15)));
}
/* The weights' 128 is taken off again here. */
static inline isum isum_start(int32_t sum_x) { return _mm512_set1_epi32(-128 * sum_x); }
static inline isum isum_add(isum sum, quad w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(four));
}
/* Codes of 4 bits that count evenly need no look-up: value = code + the first value, which the start adds. The upper
 * ones may stay where they are, sixteen times too large, as sums of them are. */
static inline quad quad_of_low_codes(const uint8_t *p) {
    return _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(15));
}
static inline quad quad_of_high_codes(const uint8_t *p) {
    return _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(p), 4), _mm512_set1_epi8(15));
}
static inline quad quad_of_sixteenfold_codes(const uint8_t *p) {
    return _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8((char)0xf0));
}
static inline isum isum_start_codes(int32_t sum_x, int32_t first) { return _mm512_set1_epi32(first * sum_x); }
static inline isum isum_add_codes(isum sum, quad w, const int8_t *x) { return isum_add(sum, w, x); }
static inline isum isum_plus_sixteenth(isum sum, isum sixteenfold) {
    return _mm512_add_epi32(sum, _mm512_srai_epi32(sixteenfold, 4));
}
#define HAS_SIXTEENFOLD 1
static inline vec vec_of_isum(isum s) { return _mm512_cvtepi32_ps(s); }
