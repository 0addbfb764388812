/* Blocks of 32 inputs or 64 (NVFP4), a scale each. */
#include "bytes.h"
#include "unpack.h"

void unpack_q4_0(const uint8_t *block, const uint8_t *grid, int8_t *codes, float *scales, float *minima) {
    (void)grid, (void)minima;
    scales[0] = read_half(block);
    split_halves(block + 2, 16, codes);
}

void unpack_iq4_nl(const uint8_t *block, const uint8_t *grid, int8_t *codes, float *scales, float *minima) {
    unpack_q4_0(block, grid, codes, scales, minima);
}

void unpack_q4_1(const uint8_t *block, const uint8_t *grid, int8_t *codes, float *scales, float *minima) {
    (void)grid;
    scales[0] = read_half(block);
    minima[0] = read_half(block + 2);
    split_halves(block + 4, 16, codes);
}

/* 32 codes of 5 bits: four in halves of bytes, the fifth in a word of its own. */
static void join_fifth(const uint8_t *fifths, const uint8_t *bytes, int zero, int8_t *codes) {
    uint32_t fifth = read_u32(fifths);
    split_halves(bytes, 16, codes);
    for (int i = 0; i < 32; i++) codes[i] = (int8_t)((codes[i] | (int)(fifth >> i & 1) << 4) - zero);
}

void unpack_q5_0(const uint8_t *block, const uint8_t *grid, int8_t *codes, float *scales, float *minima) {
    (void)grid, (void)minima;
    scales[0] = read_half(block);
    join_fifth(block + 2, block + 6, 16, codes);
}

void unpack_q5_1(const uint8_t *block, const uint8_t *grid, int8_t *codes, float *scales, float *minima) {
    (void)grid;
    scales[0] = read_half(block);
    minima[0] = read_half(block + 2);
    join_fifth(block + 4, block + 8, 0, codes);
}

void unpack_q8_0(const uint8_t *block, const uint8_t *grid, int8_t *codes, float *scales, float *minima) {
    (void)grid, (void)minima;
    scales[0] = read_half(block);
    memcpy(codes, block + 2, 32);
}

/* The scale is a power of two, half of 2^(byte - 127), since the values are doubled (OCP Microscaling, E8M0). */
void unpack_mxfp4(const uint8_t *block, const uint8_t *grid, int8_t *codes, float *scales, float *minima) {
    (void)grid, (void)minima;
    uint32_t exponent = block[0];
    scales[0] = float_of_bits(exponent < 2 ? (uint32_t)0x200000 << exponent : (exponent - 1) << 23);
    split_halves(block + 1, 16, codes);
}

/* An unsigned E4M3 number, halved, since the values are doubled; 0x7f is no number and stands for 0. */
static float read_e4m3(uint8_t byte) {
    if (byte == 0x7f) return 0.0f;
    uint32_t exponent = byte >> 3 & 15, mantissa = byte & 7;
    if (exponent == 0) return (float)mantissa * 0.0009765625f; /* 2^-10 */
    return float_of_bits((exponent - 8 + 127) << 23 | mantissa << 20);
}

void unpack_nvfp4(const uint8_t *block, const uint8_t *grid, int8_t *codes, float *scales, float *minima) {
    (void)grid, (void)minima;
    for (int g = 0; g < 4; g++) {
        scales[g] = read_e4m3(block[g]);
        split_halves(block + 4 + 8 * g, 8, codes + 16 * g);
    }
}
