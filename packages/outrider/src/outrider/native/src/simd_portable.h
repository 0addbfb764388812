/* Sixteen lanes in an array: the reference, and what a processor without vectors runs.
 *
 * The compiler turns the loops into whatever vectors it has; each lane's operations are the same.
 */
#include <math.h> /* fmaf, which is exact by definition: one rounding */

typedef struct {
    float lane[LANES];
} vec;

#define EACH_LANE for (int i = 0; i < LANES; i++)

static inline vec vec_set(float f) {
    vec v;
    EACH_LANE v.lane[i] = f;
    return v;
}
static inline vec vec_load(const float *p) {
    vec v;
    memcpy(v.lane, p, sizeof v.lane);
    return v;
}
static inline void vec_store(float *p, vec v) { memcpy(p, v.lane, sizeof v.lane); }
static inline vec vec_add(vec a, vec b) {
    EACH_LANE a.lane[i] += b.lane[i];
    return a;
}
static inline vec vec_sub(vec a, vec b) {
    EACH_LANE a.lane[i] -= b.lane[i];
    return a;
}
static inline vec vec_mul(vec a, vec b) {
    EACH_LANE a.lane[i] *= b.lane[i];
    return a;
}
static inline vec vec_div(vec a, vec b) {
    EACH_LANE a.lane[i] /= b.lane[i];
    return a;
}
static inline vec vec_fma(vec a, vec b, vec c) {
    EACH_LANE a.lane[i] = fmaf(a.lane[i], b.lane[i], c.lane[i]);
    return a;
}
/* a > b ? a : b, so b where one is NaN, as x86 has it. */
static inline vec vec_max(vec a, vec b) {
    EACH_LANE a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
static inline vec vec_abs(vec a) {
    EACH_LANE a.lane[i] = float_of_bits(bits_of_float(a.lane[i]) & 0x7fffffff);
    return a;
}
static inline vec vec_load_some(const float *p, int n) {
    vec v = vec_set(0);
    memcpy(v.lane, p, (size_t)n * sizeof(float));
    return v;
}
static inline void vec_store_some(float *p, vec v, int n) { memcpy(p, v.lane, (size_t)n * sizeof(float)); }
static inline vec vec_load_bf16(const uint16_t *p) {
    vec v;
    EACH_LANE v.lane[i] = bf16_to_float(p[i]);
    return v;
}
static inline vec vec_load_half(const uint16_t *p) {
    vec v;
    EACH_LANE v.lane[i] = half_to_float(p[i]);
    return v;
}
static inline vec vec_load_i8(const int8_t *p) {
    vec v;
    EACH_LANE v.lane[i] = (float)p[i];
    return v;
}
/* Powers of two by their exponents, 2^(e - 128); the two smallest ones are subnormal. */
static inline vec vec_load_e8m0(const uint8_t *p) {
    vec v;
    EACH_LANE v.lane[i] = e8m0_to_float(p[i]);
    return v;
}
static inline void vec_store_bf16(uint16_t *p, vec v) { EACH_LANE p[i] = float_to_bf16(v.lane[i]); }
/* To 8 bits, rounded to nearest, ties to even; |v| <= 127. The sum of the sixteen. */
static inline int32_t vec_store_i8(int8_t *p, vec v) {
    int32_t sum = 0;
    EACH_LANE sum += p[i] = (int8_t)bits_of_float(v.lane[i] + 12582912.0f);
    return sum;
}
/* p times two to the integer that ``shifted`` holds in its low bits (see vec_exp). */
static inline vec vec_scale_by_power(vec p, vec shifted) {
    EACH_LANE p.lane[i] = float_of_bits(bits_of_float(p.lane[i]) + (bits_of_float(shifted.lane[i]) << 23));
    return p;
}
/* v where x >= least, else 0; v where x is NaN. */
static inline vec vec_zero_below(vec x, float least, vec v) {
    EACH_LANE v.lane[i] = x.lane[i] < least ? 0.0f : v.lane[i];
    return v;
}
/* Two bfloat16 in each lane: the lower ones, and the upper ones. */
static inline vec vec_lower_bf16(vec pairs) {
    EACH_LANE pairs.lane[i] = float_of_bits(bits_of_float(pairs.lane[i]) << 16);
    return pairs;
}
static inline vec vec_upper_bf16(vec pairs) {
    EACH_LANE pairs.lane[i] = float_of_bits(bits_of_float(pairs.lane[i]) & 0xffff0000);
    return pairs;
}
/* Transposes a square of sixteen by sixteen words: out[j][i] = in[i][first + j]; the stride in words. */
static inline void transpose16(const float *const in[16], int64_t first, float *out, int64_t out_stride) {
    for (int j = 0; j < LANES; j++)
        for (int i = 0; i < LANES; i++) memcpy(out + j * out_stride + i, in[i] + first + j, sizeof(float));
}
/* Whether any lane of a is above b's, or is NaN. */
static inline int vec_any_above(vec a, vec b) {
    int any = 0;
    EACH_LANE any |= !(a.lane[i] <= b.lane[i]);
    return any;
}
/* Of positive normal numbers x = m 2^k, sqrt(1/2) <= m < sqrt(2): k, and 2^-k in scale. */
static inline vec vec_exponent(vec x, vec *scale) {
    EACH_LANE {
        /* Exponents are biased by 127 first, so that the shift is one of an unsigned number. */
        uint32_t biased = (bits_of_float(x.lane[i]) + (127u << 23) - 0x3f3504f3u) >> 23;
        scale->lane[i] = float_of_bits((254u - biased) << 23);
        x.lane[i] = (float)((int32_t)biased - 127);
    }
    return x;
}
/* Of lanes that are no NaN. */
static inline float vec_largest_lane(vec v) {
    float most = v.lane[0];
    EACH_LANE most = v.lane[i] > most ? v.lane[i] : most;
    return most;
}
