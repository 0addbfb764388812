/* Sums of 4 products for 16 outputs, written out. */
#define MOST_ROWS 2

#define WEIGHT_OFFSET 0

typedef struct {
    uint8_t byte[4 * LANES];
} quad; /* [16 outputs][4 inputs] */
typedef struct {
    int32_t lane[LANES];
} isum;
typedef const int8_t *lookup;

#define EACH_BYTE for (int i = 0; i < 4 * LANES; i++)

static inline quad quad_load(const uint8_t *p) {
    quad q;
    memcpy(q.byte, p, sizeof q.byte);
    return q;
}
/* Bits of every byte, moved down; with a negative shift up. */
static inline quad quad_bits(quad q, const int shift, const int mask) {
    EACH_BYTE q.byte[i] = (uint8_t)((shift < 0 ? q.byte[i] << -shift : q.byte[i] >> shift) & mask);
    return q;
}
static inline quad quad_or_bits(quad low, quad q, const int shift, const int mask) {
    q = quad_bits(q, shift, mask);
    EACH_BYTE q.byte[i] |= low.byte[i];
    return q;
}
static inline lookup lookup_of(const int8_t values[16]) { return values; }
static inline quad quad_lookup(lookup table, quad q) {
    EACH_BYTE q.byte[i] = (uint8_t)table[q.byte[i]];
    return q;
}
static inline quad quad_of_bytes(quad q) {
    EACH_BYTE q.byte[i] ^= 0x80;
    return q;
}
static inline isum isum_set(int32_t sum) {
    isum s;
    EACH_LANE s.lane[i] = sum;
    return s;
}
static inline isum isum_add(isum sum, quad w, const int8_t *x) {
    for (int o = 0; o < LANES; o++)
        for (int i = 0; i < 4; i++) sum.lane[o] += (int8_t)w.byte[4 * o + i] * x[i];
    return sum;
}
static inline isum isum_plus(isum a, isum b) {
    EACH_LANE a.lane[i] += b.lane[i];
    return a;
}
static inline vec vec_of_isum(isum s) {
    vec v;
    EACH_LANE v.lane[i] = (float)s.lane[i];
    return v;
}
