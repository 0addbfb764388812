/* Exact sums of 4 products for 16 outputs, by the dot-product instructions of Armv8.2. */
#define MOST_ROWS 4

typedef struct {
    int8x16_t part[4];
} quad; /* [16 outputs][4 inputs] */
typedef struct {
    int32x4_t part[4];
} isum;
typedef int8x16_t lookup;

static inline lookup lookup_of(const int8_t values[16]) { return vld1q_s8(values); }
static inline quad quad_of_bytes(const uint8_t *p) {
    quad q;
    EACH_PART q.part[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + 16 * i), vdupq_n_u8(128)));
    return q;
}
static inline quad quad_of_low_halves(const uint8_t *p, lookup table) {
    quad q;
    EACH_PART q.part[i] = vqtbl1q_s8(table, vandq_u8(vld1q_u8(p + 16 * i), vdupq_n_u8(15)));
    return q;
}
static inline quad quad_of_high_halves(const uint8_t *p, lookup table) {
    quad q;
    EACH_PART q.part[i] = vqtbl1q_s8(table, vshrq_n_u8(vld1q_u8(p + 16 * i), 4));
    return q;
}
static inline isum isum_start(int32_t sum_x) {
    (void)sum_x;
    isum s;
    EACH_PART s.part[i] = vdupq_n_s32(0);
    return s;
}
static inline isum isum_add(isum sum, quad w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    int8x16_t every = vreinterpretq_s8_s32(vdupq_n_s32(four));
    EACH_PART sum.part[i] = vdotq_s32(sum.part[i], w.part[i], every);
    return sum;
}
/* Codes of 4 bits that count evenly need no look-up: value = code + the first value, which the start adds. */
static inline quad quad_of_low_codes(const uint8_t *p) {
    quad q;
    EACH_PART q.part[i] = vreinterpretq_s8_u8(vandq_u8(vld1q_u8(p + 16 * i), vdupq_n_u8(15)));
    return q;
}
static inline quad quad_of_high_codes(const uint8_t *p) {
    quad q;
    EACH_PART q.part[i] = vreinterpretq_s8_u8(vshrq_n_u8(vld1q_u8(p + 16 * i), 4));
    return q;
}
static inline isum isum_start_codes(int32_t sum_x, int32_t first) {
    isum s;
    EACH_PART s.part[i] = vdupq_n_s32(first * sum_x);
    return s;
}
static inline isum isum_add_codes(isum sum, quad w, const int8_t *x) { return isum_add(sum, w, x); }
static inline vec vec_of_isum(isum s) {
    vec v;
    EACH_PART v.part[i] = vcvtq_f32_s32(s.part[i]);
    return v;
}
