/* Exact sums of 4 products for 16 outputs, by the dot-product instructions of Armv8.2. */
#define MOST_ROWS 4

#define WEIGHT_OFFSET 0

typedef struct {
    uint8x16_t part[4];
} quad; /* [16 outputs][4 inputs] */
typedef struct {
    int32x4_t part[4];
} isum;
typedef int8x16_t lookup;

static inline quad quad_load(const uint8_t *p) {
    quad q;
    EACH_PART q.part[i] = vld1q_u8(p + 16 * i);
    return q;
}
/* Bits of every byte, moved down; with a negative shift up. */
static inline quad quad_bits(quad q, const int shift, const int mask) {
    int8x16_t up = vdupq_n_s8((int8_t)-shift);
    EACH_PART q.part[i] = vandq_u8(vshlq_u8(q.part[i], up), vdupq_n_u8((uint8_t)mask));
    return q;
}
static inline quad quad_or_bits(quad low, quad q, const int shift, const int mask) {
    q = quad_bits(q, shift, mask);
    EACH_PART q.part[i] = vorrq_u8(low.part[i], q.part[i]);
    return q;
}
static inline lookup lookup_of(const int8_t values[16]) { return vld1q_s8(values); }
static inline quad quad_lookup(lookup table, quad q) {
    EACH_PART q.part[i] = vreinterpretq_u8_s8(vqtbl1q_s8(table, q.part[i]));
    return q;
}
static inline quad quad_of_bytes(quad q) {
    EACH_PART q.part[i] = veorq_u8(q.part[i], vdupq_n_u8(128));
    return q;
}
static inline isum isum_set(int32_t sum) {
    isum s;
    EACH_PART s.part[i] = vdupq_n_s32(sum);
    return s;
}
static inline isum isum_add(isum sum, quad w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    int8x16_t every = vreinterpretq_s8_s32(vdupq_n_s32(four));
    EACH_PART sum.part[i] = vdotq_s32(sum.part[i], vreinterpretq_s8_u8(w.part[i]), every);
    return sum;
}
static inline isum isum_plus(isum a, isum b) {
    EACH_PART a.part[i] = vaddq_s32(a.part[i], b.part[i]);
    return a;
}
static inline vec vec_of_isum(isum s) {
    vec v;
    EACH_PART v.part[i] = vcvtq_f32_s32(s.part[i]);
    return v;
}
