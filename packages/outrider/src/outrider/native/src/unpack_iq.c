/* Blocks of 256 inputs whose codes are rows of a grid, 8 or 4 inputs each, with a sign for each input.
 *
 * A grid holds levels from 0 to 7; the sign adds 8 to them, so that a table of 16 values gives both. Scales are odd
 * multiples of the block's, times the format's unit.
 */
#include "bytes.h"
#include "unpack.h"

/* The sign bits of 8 inputs, each at bit 3 of its byte. */
static uint64_t spread_signs(uint32_t signs) {
    uint64_t apart = (signs & 255) * 0x0101010101010101u & 0x8040201008040201u;
    return (apart + 0x7f7f7f7f7f7f7f7fu) >> 4 & 0x0808080808080808u;
}

/* Seven signs are stored; the eighth makes their number even. */
static uint32_t complete_signs(uint32_t seven) {
    uint32_t parity = seven & 127;
    parity ^= parity >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return (seven & 127) | (parity & 1) << 7;
}

static void put_eight(uint8_t *codes, const uint8_t *levels, uint32_t signs) {
    uint64_t eight, places;
    uint8_t place[8];
    uint64_t spread = spread_signs(signs);
    for (int i = 0; i < 8; i++) place[i] = (uint8_t)(spread >> 8 * i);
    memcpy(&eight, levels, 8);
    memcpy(&places, place, 8);
    eight = (eight & 0x0707070707070707u) | places;
    memcpy(codes, &eight, 8);
}

static void put_two_fours(uint8_t *codes, const uint8_t *first, const uint8_t *second, uint32_t signs) {
    uint8_t levels[8];
    memcpy(levels, first, 4);
    memcpy(levels + 4, second, 4);
    put_eight(codes, levels, signs);
}

void unpack_iq2_xxs(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    scales->d = read_u16(block);
    for (int g = 0; g < 8; g++) {
        const uint8_t *indices = block + 2 + 8 * g;
        uint32_t rest = read_u32(indices + 4); /* four times seven signs, and the scale */
        scales->scale[g] = (uint8_t)(2 * (rest >> 28) + 1);
        for (int e = 0; e < 4; e++)
            put_eight(codes + 32 * g + 8 * e, grid + 8 * indices[e], complete_signs(rest >> 7 * e));
    }
}

/* 16 scales of IQ2_XS and IQ2_S: 4 bits each. */
static void scales_of_4_bits(const uint8_t *packed, block_scales *scales) {
    for (int g = 0; g < 16; g++) scales->scale[g] = (uint8_t)(2 * (packed[g / 2] >> 4 * (g % 2) & 15) + 1);
}

void unpack_iq2_xs(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    scales->d = read_u16(block);
    scales_of_4_bits(block + 66, scales);
    for (int e = 0; e < 32; e++) {
        uint32_t packed = read_u16(block + 2 + 2 * e);
        put_eight(codes + 8 * e, grid + 8 * (packed & 511), complete_signs(packed >> 9));
    }
}

void unpack_iq2_s(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    const uint8_t *low = block + 2, *signs = block + 34, *high = block + 66;
    scales->d = read_u16(block);
    scales_of_4_bits(block + 74, scales);
    for (int e = 0; e < 32; e++) {
        int index = low[e] | (high[e / 4] >> 2 * (e % 4) & 3) << 8;
        put_eight(codes + 8 * e, grid + 8 * index, signs[e]);
    }
}

void unpack_iq3_xxs(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    scales->d = read_u16(block);
    for (int g = 0; g < 8; g++) {
        const uint8_t *indices = block + 2 + 8 * g;
        uint32_t rest = read_u32(block + 66 + 4 * g);
        scales->scale[g] = (uint8_t)(2 * (rest >> 28) + 1);
        for (int e = 0; e < 4; e++)
            put_two_fours(codes + 32 * g + 8 * e, grid + 4 * indices[2 * e], grid + 4 * indices[2 * e + 1],
                          complete_signs(rest >> 7 * e));
    }
}

void unpack_iq3_s(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    const uint8_t *low = block + 2, *high = block + 66, *signs = block + 74, *packed = block + 106;
    scales->d = read_u16(block);
    for (int g = 0; g < 8; g++) scales->scale[g] = (uint8_t)(2 * (packed[g / 2] >> 4 * (g % 2) & 15) + 1);
    for (int e = 0; e < 32; e++) {
        uint32_t ninth = high[e / 4] >> 2 * (e % 4);
        put_two_fours(codes + 8 * e, grid + 4 * (low[2 * e] | (ninth & 1) << 8),
                      grid + 4 * (low[2 * e + 1] | (ninth >> 1 & 1) << 8), signs[e]);
    }
}

/* IQ1: weights are d (level - 1 + delta) with delta 1/8 or -1/8; times 8 they are integers, and d / 8 is exact. */
void unpack_iq1_s(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    scales->d = read_u16(block);
    for (int g = 0; g < 8; g++) {
        uint32_t high = read_u16(block + 34 + 2 * g), shifted = high >> 15 ? 255 : 0;
        scales->scale[g] = (uint8_t)(2 * (high >> 12 & 7) + 1);
        for (int e = 0; e < 4; e++) {
            uint32_t index = block[2 + 4 * g + e] | (high >> 3 * e & 7) << 8;
            put_eight(codes + 32 * g + 8 * e, grid + 8 * index, shifted);
        }
    }
}

void unpack_iq1_m(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales) {
    uint32_t packed[4], half = 0; /* the block's scale lies in the upper halves of bytes, four bits in each word */
    for (int i = 0; i < 4; i++) {
        packed[i] = read_u16(block + 48 + 2 * i);
        half |= packed[i] >> 12 << 4 * i;
    }
    scales->d = (uint16_t)half;
    for (int g = 0; g < 16; g++) scales->scale[g] = (uint8_t)(2 * (packed[g / 4] >> 3 * (g % 4) & 7) + 1);
    for (int e = 0; e < 32; e++) {
        uint32_t high = block[32 + e / 2] >> 4 * (e % 2);
        put_eight(codes + 8 * e, grid + 8 * (block[e] | (high & 7) << 8), high & 8 ? 255 : 0);
    }
}
