/* Exact sums of 4 products for 16 outputs, by VNNI: unsigned weights (value + 128) times signed activations. */
#define MOST_ROWS 16

typedef __m512i quad; /* [16 outputs][4 inputs] */
typedef __m512i isum; /* [16 outputs] */
typedef __m512i lookup;
typedef uint16_t words __attribute__((vector_size(64)));

#define WEIGHT_OFFSET 128 /* the instruction wants unsigned weights */

static inline quad quad_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
/* Bits of every byte, moved down; with a negative shift up. */
static inline quad quad_bits(quad q, const int shift, const int mask) {
    words w = (words)q;
    w = shift < 0 ? w << -shift : w >> shift;
    return _mm512_and_si512((__m512i)w, _mm512_set1_epi8((char)mask));
}
static inline quad quad_or_bits(quad low, quad q, const int shift, const int mask) {
    words w = (words)q;
    w = shift < 0 ? w << -shift : w >> shift;
    return _mm512_ternarylogic_epi32(low, (__m512i)w, _mm512_set1_epi8((char)mask), 0xf8); /* low | (w & mask) */
}
static inline lookup lookup_of(const int8_t values[16]) {
    __m128i table = _mm_add_epi8(_mm_loadu_si128((const __m128i *)values), _mm_set1_epi8((char)WEIGHT_OFFSET));
    return _mm512_broadcast_i32x4(table);
}
static inline quad quad_lookup(lookup table, quad q) { return _mm512_shuffle_epi8(table, q); }
static inline quad quad_of_bytes(quad q) { return q; }
static inline isum isum_set(int32_t sum) { return _mm512_set1_epi32(sum); }
static inline isum isum_add(isum sum, quad w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(four));
}
static inline isum isum_plus(isum a, isum b) { return _mm512_add_epi32(a, b); }
static inline vec vec_of_isum(isum s) { return _mm512_cvtepi32_ps(s); }
