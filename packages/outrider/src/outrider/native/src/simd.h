/* Sixteen floats at a time, on every instruction set.
 *
 * All instruction sets do the same IEEE operations on the same sixteen lanes, so kernels written with this header have
 * the same bits everywhere. The file that includes it sets ISA_AVX512, ISA_AVX2 or ISA_NEON, or none of them: portable C.
 */
#ifndef OUTRIDER_SIMD_H
#define OUTRIDER_SIMD_H

#include <stdint.h>
#include <string.h>

#define LANES 16

static inline float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* bfloat16: the upper half of a float, rounded to nearest, ties to even. */
static inline float bf16_to_float(uint16_t b) { return float_of_bits((uint32_t)b << 16); }

static inline uint16_t float_to_bf16(float f) {
    uint32_t bits = bits_of_float(f);
    return f != f ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Exact, subnormal numbers included. */
static inline float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400) return float_of_bits(sign | ((rest << 13) + 0x38000000));
    float small = (float)rest * 5.9604644775390625e-8f; /* 2^-24 */
    return sign ? -small : small;
}

/* A power of two by its exponent, 2^(e - 128); the two smallest ones are subnormal (OCP Microscaling's E8M0, halved). */
static inline float e8m0_to_float(uint8_t e) {
    return float_of_bits(e < 2 ? (uint32_t)0x200000 << e : (uint32_t)(e - 1) << 23);
}

#if defined(ISA_AVX512)
#include "simd_avx512.h"
#elif defined(ISA_AVX2)
#include "simd_avx2.h"
#elif defined(ISA_NEON)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

#if defined(ISA_AVX512) || defined(ISA_AVX2)
#include "simd_lanes_x86.h"
#else
/* The one order in which sixteen lanes are added up. */
static inline float sum_lanes(vec v) {
    float x[LANES];
    vec_store(x, v);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

static inline float max_lanes(vec v) {
    float x[LANES];
    vec_store(x, v);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i + half] > x[i] ? x[i + half] : x[i];
    return x[0];
}
#endif

/* exp(x) within two units in the last place for x <= 88; exactly 0 below -87. Cephes' polynomial (Moshier). */
static inline vec vec_exp(vec x) {
    vec magic = vec_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vec shifted = vec_fma(x, vec_set(1.44269504f), magic);
    vec n = vec_sub(shifted, magic);
    vec r = vec_fma(n, vec_set(-0.693359375f), x);
    r = vec_fma(n, vec_set(2.12194440e-4f), r);
    vec p = vec_set(1.9875691500e-4f);
    p = vec_fma(p, r, vec_set(1.3981999507e-3f));
    p = vec_fma(p, r, vec_set(8.3334519073e-3f));
    p = vec_fma(p, r, vec_set(4.1665795894e-2f));
    p = vec_fma(p, r, vec_set(1.6666665459e-1f));
    p = vec_fma(p, r, vec_set(5.0000001201e-1f));
    p = vec_fma(vec_mul(p, r), r, vec_add(r, vec_set(1.0f)));
    return vec_zero_below(x, -87.0f, vec_scale_by_power(p, shifted));
}

/* k log 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1.
 *
 * log(1 + f) = f - f^2 / 2 + f^3 P(f); P is a minimax polynomial, its error less than 2^-28 of the logarithm.
 */
static inline vec log_of(vec k, vec f) {
    vec square = vec_mul(f, f), p = vec_set(0x1.145796p-4f);
    p = vec_fma(p, f, vec_set(-0x1.de3c04p-4f));
    p = vec_fma(p, f, vec_set(0x1.e6f06ap-4f));
    p = vec_fma(p, f, vec_set(-0x1.fc220ap-4f));
    p = vec_fma(p, f, vec_set(0x1.233768p-3f));
    p = vec_fma(p, f, vec_set(-0x1.555c4ep-3f));
    p = vec_fma(p, f, vec_set(0x1.99a4b6p-3f));
    p = vec_fma(p, f, vec_set(-0x1.000006p-2f));
    p = vec_fma(p, f, vec_set(0x1.555548p-2f));
    vec y = vec_mul(vec_mul(square, f), p);
    y = vec_fma(k, vec_set(-2.12194440e-4f), y); /* log 2 in two parts */
    y = vec_fma(square, vec_set(-0.5f), y);
    return vec_fma(k, vec_set(0.693359375f), vec_add(f, y));
}

/* most * tanh(x / most), as most * (1 - 2 / (1 + exp(2 x / most))). NaN stays. */
static inline vec capped(vec x, float most) {
    vec one = vec_set(1.0f), zero = vec_set(0);
    vec twice = vec_div(vec_mul(x, vec_set(-2.0f)), vec_set(most));
    vec share = vec_div(vec_set(2.0f), vec_add(one, vec_exp(vec_sub(zero, vec_max(vec_set(-88.0f), twice)))));
    return vec_mul(vec_sub(one, share), vec_set(most));
}

#endif
