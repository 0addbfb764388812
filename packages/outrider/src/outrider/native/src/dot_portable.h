/* Sums of 4 products for 16 outputs, written out. */
#define MOST_ROWS 2

typedef struct {
    int8_t weight[LANES][4];
} quad;
typedef struct {
    int32_t lane[LANES];
} isum;
typedef const int8_t *lookup;

static inline lookup lookup_of(const int8_t values[16]) { return values; }
static inline quad quad_of_bytes(const uint8_t *p) {
    quad q;
    for (int i = 0; i < 64; i++) q.weight[i / 4][i % 4] = (int8_t)(p[i] - 128);
    return q;
}
static inline quad quad_of_low_halves(const uint8_t *p, lookup table) {
    quad q;
    for (int i = 0; i < 64; i++) q.weight[i / 4][i % 4] = table[p[i] & 15];
    return q;
}
static inline quad quad_of_high_halves(const uint8_t *p, lookup table) {
    quad q;
    for (int i = 0; i < 64; i++) q.weight[i / 4][i % 4] = table[p[i] >> 4];
    return q;
}
static inline isum isum_start(int32_t sum_x) {
    (void)sum_x;
    return (isum){{0}};
}
static inline isum isum_add(isum sum, quad w, const int8_t *x) {
    for (int o = 0; o < LANES; o++)
        for (int i = 0; i < 4; i++) sum.lane[o] += w.weight[o][i] * x[i];
    return sum;
}
/* Codes of 4 bits that count evenly need no look-up: value = code + the first value, which the start adds. */
static inline quad quad_of_low_codes(const uint8_t *p) {
    quad q;
    for (int i = 0; i < 64; i++) q.weight[i / 4][i % 4] = (int8_t)(p[i] & 15);
    return q;
}
static inline quad quad_of_high_codes(const uint8_t *p) {
    quad q;
    for (int i = 0; i < 64; i++) q.weight[i / 4][i % 4] = (int8_t)(p[i] >> 4);
    return q;
}
static inline isum isum_start_codes(int32_t sum_x, int32_t first) {
    isum s;
    EACH_LANE s.lane[i] = first * sum_x;
    return s;
}
static inline isum isum_add_codes(isum sum, quad w, const int8_t *x) { return isum_add(sum, w, x); }
static inline vec vec_of_isum(isum s) {
    vec v;
    EACH_LANE v.lane[i] = (float)s.lane[i];
    return v;
}
