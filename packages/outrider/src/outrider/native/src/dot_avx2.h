/* Weights and sums in 256 bits, for 16 outputs in two registers. block_avx2.h multiplies them. */
#define MOST_ROWS 4

#if defined(ISA_AVXVNNI)
#define WEIGHT_OFFSET 128 /* its instruction wants unsigned weights */
#else
#define WEIGHT_OFFSET 0
#endif

typedef struct {
    __m256i low, high;
} quad; /* [16 outputs][4 inputs] */
typedef quad isum;
typedef __m256i lookup;

typedef uint16_t words __attribute__((vector_size(32)));

static inline quad quad_load(const uint8_t *p) {
    return (quad){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
}
static inline __m256i bits_of_bytes(__m256i bytes, const int shift, const int mask) {
    words w = (words)bytes;
    w = shift < 0 ? w << -shift : w >> shift;
    return _mm256_and_si256((__m256i)w, _mm256_set1_epi8((char)mask));
}
/* Bits of every byte, moved down; with a negative shift up. */
static inline quad quad_bits(quad q, const int shift, const int mask) {
    return (quad){bits_of_bytes(q.low, shift, mask), bits_of_bytes(q.high, shift, mask)};
}
static inline quad quad_or_bits(quad low, quad q, const int shift, const int mask) {
    return (quad){_mm256_or_si256(low.low, bits_of_bytes(q.low, shift, mask)),
                  _mm256_or_si256(low.high, bits_of_bytes(q.high, shift, mask))};
}
static inline lookup lookup_of(const int8_t values[16]) {
    __m128i table = _mm_add_epi8(_mm_loadu_si128((const __m128i *)values), _mm_set1_epi8((char)WEIGHT_OFFSET));
    return _mm256_broadcastsi128_si256(table);
}
static inline quad quad_lookup(lookup table, quad q) {
    return (quad){_mm256_shuffle_epi8(table, q.low), _mm256_shuffle_epi8(table, q.high)};
}
static inline quad quad_of_bytes(quad q) {
    __m256i offset = _mm256_set1_epi8((char)(WEIGHT_OFFSET - 128)); /* 128 or nothing */
    return (quad){_mm256_xor_si256(q.low, offset), _mm256_xor_si256(q.high, offset)};
}
static inline isum isum_set(int32_t sum) { return (isum){_mm256_set1_epi32(sum), _mm256_set1_epi32(sum)}; }
static inline isum isum_plus(isum a, isum b) {
    return (isum){_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
static inline vec vec_of_isum(isum s) { return (vec){_mm256_cvtepi32_ps(s.low), _mm256_cvtepi32_ps(s.high)}; }
