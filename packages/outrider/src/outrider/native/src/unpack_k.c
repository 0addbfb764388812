/* Blocks of 256 inputs: a scale for the block times a small integer for each group. The products are exact. */
#include "bytes.h"
#include "unpack.h"

void unpack_q2_k(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->d = read_u16(block + 80);
    scales->least = read_u16(block + 82);
    for (int g = 0; g < 16; g++) {
        scales->scale[g] = block[g] & 15;
        scales->minimum[g] = block[g] >> 4;
    }
    split_quarters(block + 16, 64, codes);
}

/* Codes of 3 bits; the third ones of 32 inputs at a time lie in the same bit of 32 bytes. Code 4 stands for 0. */
void unpack_q3_k(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    const uint8_t *packed = block + 96;
    scales->d = read_u16(block + 108);
    for (int g = 0; g < 16; g++) {
        int low = packed[g % 8] >> 4 * (g / 8) & 15, high = packed[8 + g % 4] >> 2 * (g / 4) & 3;
        scales->scale[g] = (uint8_t)((low | high << 4) - 32);
    }
    split_quarters(block + 32, 64, codes);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) codes[32 * g + i] |= (uint8_t)((block[i] >> g & 1) << 2);
}

/* Eight scales and eight minima of 6 bits in 12 bytes: the last four lend bits to the first four. */
static void scales_of_6_bits(const uint8_t *block, block_scales *scales) {
    const uint8_t *packed = block + 4;
    scales->d = read_u16(block);
    scales->least = read_u16(block + 2);
    for (int g = 0; g < 4; g++) {
        scales->scale[g] = packed[g] & 63;
        scales->minimum[g] = packed[4 + g] & 63;
        scales->scale[4 + g] = (uint8_t)((packed[8 + g] & 15) | (packed[g] >> 2 & 0x30));
        scales->minimum[4 + g] = (uint8_t)(packed[8 + g] >> 4 | (packed[4 + g] >> 2 & 0x30));
    }
}

void unpack_q4_k(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales_of_6_bits(block, scales);
    for (int i = 0; i < 4; i++) split_halves(block + 16 + 32 * i, 32, codes + 64 * i);
}

void unpack_q5_k(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales_of_6_bits(block, scales);
    for (int i = 0; i < 4; i++) split_halves(block + 48 + 32 * i, 32, codes + 64 * i);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) codes[32 * g + i] |= (uint8_t)((block[16 + i] >> g & 1) << 4);
}

void unpack_q6_k(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    uint8_t high[256];
    scales->d = read_u16(block + 208);
    memcpy(scales->scale, block + 192, 16);
    split_quarters(block + 128, 64, high);
    split_halves(block, 64, codes);
    split_halves(block + 64, 64, codes + 128);
    for (int i = 0; i < 256; i++) codes[i] |= (uint8_t)(high[i] << 4);
}

void unpack_iq4_xs(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    uint32_t high = read_u16(block + 2);
    scales->d = read_u16(block);
    for (int g = 0; g < 8; g++) {
        int low = block[4 + g / 2] >> 4 * (g % 2) & 15;
        scales->scale[g] = (uint8_t)((low | (int)(high >> 2 * g & 3) << 4) - 32);
        split_halves(block + 8 + 16 * g, 16, codes + 32 * g);
    }
}

/* A byte holds a fraction in base 3, rounded up: multiplying brings the next digit to the top. */
static void split_ternary(const uint8_t *bytes, int count, int digits, uint8_t *codes) {
    for (int k = 0, power = 1; k < digits; k++, power *= 3)
        for (int i = 0; i < count; i++) codes[count * k + i] = (uint8_t)((uint8_t)(bytes[i] * power) * 3 >> 8);
}

void unpack_tq1_0(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->d = read_u16(block + 52);
    split_ternary(block, 32, 5, codes);
    split_ternary(block + 32, 16, 5, codes + 160);
    split_ternary(block + 48, 4, 4, codes + 240);
}

void unpack_tq2_0(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->d = read_u16(block + 64);
    split_quarters(block, 64, codes);
}
