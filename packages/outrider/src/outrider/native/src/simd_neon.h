/* Sixteen lanes in four registers (Armv8.2 with dot products; half precision only to load). */
#include <arm_neon.h>

typedef struct {
    float32x4_t part[4];
} vec;

#define EACH_PART for (int i = 0; i < 4; i++)

static inline vec vec_set(float f) {
    vec v;
    EACH_PART v.part[i] = vdupq_n_f32(f);
    return v;
}
static inline vec vec_load(const float *p) {
    vec v;
    EACH_PART v.part[i] = vld1q_f32(p + 4 * i);
    return v;
}
static inline void vec_store(float *p, vec v) { EACH_PART vst1q_f32(p + 4 * i, v.part[i]); }
static inline vec vec_add(vec a, vec b) {
    EACH_PART a.part[i] = vaddq_f32(a.part[i], b.part[i]);
    return a;
}
static inline vec vec_sub(vec a, vec b) {
    EACH_PART a.part[i] = vsubq_f32(a.part[i], b.part[i]);
    return a;
}
static inline vec vec_mul(vec a, vec b) {
    EACH_PART a.part[i] = vmulq_f32(a.part[i], b.part[i]);
    return a;
}
static inline vec vec_div(vec a, vec b) {
    EACH_PART a.part[i] = vdivq_f32(a.part[i], b.part[i]);
    return a;
}
static inline vec vec_fma(vec a, vec b, vec c) {
    EACH_PART a.part[i] = vfmaq_f32(c.part[i], a.part[i], b.part[i]);
    return a;
}
/* a > b ? a : b, so b where one is NaN, as x86 has it. */
static inline vec vec_max(vec a, vec b) {
    EACH_PART a.part[i] = vbslq_f32(vcgtq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]);
    return a;
}
static inline vec vec_abs(vec a) {
    EACH_PART a.part[i] = vabsq_f32(a.part[i]);
    return a;
}
/* The first n lanes, 0 <= n <= 16; the others are zero, or are not stored. */
static inline vec vec_load_some(const float *p, int n) {
    float all[LANES] = {0};
    memcpy(all, p, (size_t)n * sizeof(float));
    return vec_load(all);
}
static inline void vec_store_some(float *p, vec v, int n) {
    float all[LANES];
    vec_store(all, v);
    memcpy(p, all, (size_t)n * sizeof(float));
}
static inline vec vec_load_bf16(const uint16_t *p) {
    vec v;
    EACH_PART v.part[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
    return v;
}
static inline vec vec_load_half(const uint16_t *p) {
    vec v;
    EACH_PART v.part[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return v;
}
static inline vec vec_load_i8(const int8_t *p) {
    int8x16_t bytes = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return (vec){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
/* Powers of two by their exponents, 2^(e - 128); the two smallest ones are subnormal. */
static inline vec vec_load_e8m0(const uint8_t *p) {
    uint8x16_t bytes = vld1q_u8(p);
    uint16x8_t half[2] = {vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes))};
    vec v;
    EACH_PART {
        uint32x4_t e = vmovl_u16(i % 2 ? vget_high_u16(half[i / 2]) : vget_low_u16(half[i / 2])), two = vdupq_n_u32(2);
        uint32x4_t small = vshlq_u32(vdupq_n_u32(0x200000), vreinterpretq_s32_u32(e));
        uint32x4_t bits = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
        v.part[i] = vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, two), small, bits));
    }
    return v;
}
static inline void vec_store_bf16(uint16_t *p, vec v) {
    EACH_PART {
        uint32x4_t bits = vreinterpretq_u32_f32(v.part[i]);
        uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), 16);
        rounded = vbslq_u32(vceqq_f32(v.part[i], v.part[i]), rounded, vdupq_n_u32(0x7fc0));
        vst1_u16(p + 4 * i, vmovn_u32(rounded));
    }
}
/* To 8 bits, rounded to nearest, ties to even; |v| <= 127. The sum of the sixteen. */
static inline int32_t vec_store_i8(int8_t *p, vec v) {
    int16x8_t low = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(v.part[0])), vmovn_s32(vcvtnq_s32_f32(v.part[1])));
    int16x8_t high = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(v.part[2])), vmovn_s32(vcvtnq_s32_f32(v.part[3])));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    return vaddvq_s32(vpaddlq_s16(vaddq_s16(low, high)));
}
/* p times two to the integer that ``shifted`` holds in its low bits (see vec_exp). */
static inline vec vec_scale_by_power(vec p, vec shifted) {
    EACH_PART {
        uint32x4_t power = vshlq_n_u32(vreinterpretq_u32_f32(shifted.part[i]), 23);
        p.part[i] = vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p.part[i]), power));
    }
    return p;
}
/* v where x >= least, else 0; v where x is NaN. */
static inline vec vec_zero_below(vec x, float least, vec v) {
    EACH_PART {
        uint32x4_t below = vcltq_f32(x.part[i], vdupq_n_f32(least));
        v.part[i] = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v.part[i]), below));
    }
    return v;
}
/* Two bfloat16 in each lane: the lower ones, and the upper ones. */
static inline vec vec_lower_bf16(vec pairs) {
    EACH_PART pairs.part[i] = vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pairs.part[i]), 16));
    return pairs;
}
static inline vec vec_upper_bf16(vec pairs) {
    uint32x4_t mask = vdupq_n_u32(0xffff0000);
    EACH_PART pairs.part[i] = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs.part[i]), mask));
    return pairs;
}
/* Transposes a square of sixteen by sixteen words: out[j][i] = in[i][first + j]; the stride in words. */
static inline void transpose16(const float *const in[16], int64_t first, float *out, int64_t out_stride) {
    for (int j = 0; j < LANES; j++)
        for (int i = 0; i < LANES; i++) memcpy(out + j * out_stride + i, in[i] + first + j, sizeof(float));
}
/* Whether any lane of a is above b's, or is NaN. */
static inline int vec_any_above(vec a, vec b) {
    uint32x4_t all = vdupq_n_u32(UINT32_MAX);
    EACH_PART all = vandq_u32(all, vcleq_f32(a.part[i], b.part[i]));
    return vminvq_u32(all) == 0;
}
/* Of positive normal numbers x = m 2^k, sqrt(1/2) <= m < sqrt(2): k, and 2^-k in scale. */
static inline vec vec_exponent(vec x, vec *scale) {
    EACH_PART {
        int32x4_t k = vshrq_n_s32(vsubq_s32(vreinterpretq_s32_f32(x.part[i]), vdupq_n_s32(0x3f3504f3)), 23);
        scale->part[i] = vreinterpretq_f32_s32(vshlq_n_s32(vsubq_s32(vdupq_n_s32(127), k), 23));
        x.part[i] = vcvtq_f32_s32(k);
    }
    return x;
}
/* Of lanes that are no NaN. */
static inline float vec_largest_lane(vec v) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.part[0], v.part[1]), vmaxq_f32(v.part[2], v.part[3])));
}
