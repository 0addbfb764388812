#include "quantise.h"

#include "simd.h"

uint16_t float_to_half(float f) {
    uint32_t bits = bits_of_float(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    if (rest >= 0x38800000) return (uint16_t)(sign | (rest + 0xfff + (rest >> 13 & 1) - 0x38000000) >> 13);
    float shifted = float_of_bits(rest) + 0.5f; /* float16's subnormal numbers are multiples of 2^-24, as floats here */
    return (uint16_t)(sign | (bits_of_float(shifted) - 0x3f000000));
}

static int is_finite(float f) { return (bits_of_float(f) & 0x7f800000) != 0x7f800000; }

static float round_to_half(float f) { return half_to_float(float_to_half(f)); }

/* 1 / scale, or 0 for a scale that float16 rounds to 0: all codes are then the one of the smallest value. */
static float inverse_of(float scale) { return round_to_half(scale) != 0.0f ? 1.0f / scale : 0.0f; }

static int64_t group_inputs(int64_t inputs, int64_t at) {
    return inputs - at < QUANTISED_GROUP ? inputs - at : QUANTISED_GROUP;
}

static int8_t round_half_away(float f) {
    int whole = (int)f;
    float rest = f - (float)whole;
    return (int8_t)(whole + (rest >= 0.5f) - (rest <= -0.5f));
}

int quantise_q8_0(int64_t inputs, const float *x, int8_t *codes, float *scales) {
    for (int64_t at = 0; at < inputs; at += QUANTISED_GROUP, x += QUANTISED_GROUP, codes += QUANTISED_GROUP) {
        int64_t count = group_inputs(inputs, at);
        int32_t largest = 0; /* as bits: sizes of finite numbers have the order of their bits */
        for (int64_t i = 0; i < count; i++) {
            int32_t size = (int32_t)(bits_of_float(x[i]) & 0x7fffffff);
            largest = size > largest ? size : largest;
        }
        float scale = float_of_bits((uint32_t)largest) / 127, inverse = inverse_of(scale);
        *scales = round_to_half(scale);
        if (!is_finite(*scales++)) return 1;
        for (int64_t i = 0; i < count; i++) codes[i] = round_half_away(x[i] * inverse);
        memset(codes + count, 0, (size_t)(QUANTISED_GROUP - count));
    }
    return 0;
}

static int8_t code_of_4_bits(float f) { return f >= 15.0f ? 15 : (int8_t)f; }

/* The number of the largest size, with its sign, becomes code 0: value -8. */
int quantise_q4_0(int64_t inputs, const float *x, int8_t *codes, float *scales) {
    for (int64_t at = 0; at < inputs; at += QUANTISED_GROUP, x += QUANTISED_GROUP, codes += QUANTISED_GROUP) {
        int64_t count = group_inputs(inputs, at);
        float largest = 0.0f, size = 0.0f;
        for (int64_t i = 0; i < count; i++) {
            float other = x[i] < 0 ? -x[i] : x[i];
            if (other > size) size = other, largest = x[i];
        }
        float scale = largest / -8, inverse = inverse_of(scale);
        *scales = round_to_half(scale);
        if (!is_finite(*scales++)) return 1;
        for (int64_t i = 0; i < count; i++) codes[i] = code_of_4_bits(x[i] * inverse + 8.5f);
        memset(codes + count, 8, (size_t)(QUANTISED_GROUP - count));
    }
    return 0;
}

int quantise_q4_1(int64_t inputs, const float *x, int8_t *codes, float *scales, float *minima) {
    for (int64_t at = 0; at < inputs; at += QUANTISED_GROUP, x += QUANTISED_GROUP, codes += QUANTISED_GROUP) {
        int64_t count = group_inputs(inputs, at);
        float least = x[0], most = x[0];
        for (int64_t i = 1; i < count; i++) {
            least = x[i] < least ? x[i] : least;
            most = x[i] > most ? x[i] : most;
        }
        float scale = (most - least) / 15, inverse = inverse_of(scale);
        *scales = round_to_half(scale);
        *minima = round_to_half(least);
        if (!is_finite(*scales++) || !is_finite(*minima++)) return 1;
        for (int64_t i = 0; i < count; i++) codes[i] = code_of_4_bits((x[i] - least) * inverse + 0.5f);
        memset(codes + count, 0, (size_t)(QUANTISED_GROUP - count));
    }
    return 0;
}
