/* Blocks of 32 inputs and, of the types of 2026, of 64 or 128: scales are not scaled again. */
#include "bytes.h"
#include "unpack.h"

void unpack_q4_0(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->d = read_u16(block);
    split_halves(block + 2, 16, codes);
}

void unpack_iq4_nl(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    unpack_q4_0(block, grid, codes, scales);
}

void unpack_q4_1(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->d = read_u16(block);
    scales->least = read_u16(block + 2);
    split_halves(block + 4, 16, codes);
}

/* 32 codes of 5 bits: four in halves of bytes, the fifth in a word of its own. */
static void join_fifth(const uint8_t *fifths, const uint8_t *bytes, uint8_t *codes) {
    split_halves(bytes, 16, codes);
    for (int i = 0; i < 32; i++) codes[i] |= (uint8_t)((fifths[i / 8] >> i % 8 & 1) << 4);
}

void unpack_q5_0(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->d = read_u16(block);
    join_fifth(block + 2, block + 6, codes);
}

void unpack_q5_1(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->d = read_u16(block);
    scales->least = read_u16(block + 2);
    join_fifth(block + 4, block + 8, codes);
}

void unpack_q8_0(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->d = read_u16(block);
    for (int i = 0; i < 32; i++) codes[i] = block[2 + i] ^ 0x80;
}

void unpack_mxfp4(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->scale[0] = block[0];
    split_halves(block + 1, 16, codes);
}

/* The caller knows the scale. */
void unpack_mxfp4_apart(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    (void)scales;
    for (int i = 0; i < 16; i++) {
        codes[2 * i] = block[i] & 15;
        codes[2 * i + 1] = block[i] >> 4;
    }
}

/* Scales are unsigned E4M3 numbers; 0x7f is no number and stands for 0. The highest bit means nothing. */
void unpack_nvfp4(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    for (int g = 0; g < 4; g++) {
        scales->scale[g] = block[g] == 0x7f ? 0 : block[g] & 0x7f;
        split_halves(block + 4 + 8 * g, 8, codes + 16 * g);
    }
}

/* One bit an input: -1 or 1. */
void unpack_q1_0(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->d = read_u16(block);
    for (int i = 0; i < 128; i++) codes[i] = (uint8_t)((block[2 + i / 8] >> i % 8 & 1) << 1);
}

/* Two bits an input, four neighbours in a byte: -1 to 2. */
void unpack_q2_0(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    (void)grid;
    scales->d = read_u16(block);
    for (int i = 0; i < 64; i++) codes[i] = block[2 + i / 4] >> 2 * (i % 4) & 3;
}
