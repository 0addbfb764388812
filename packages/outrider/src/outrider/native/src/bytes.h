/* Numbers in files: little-endian, at any address. */
#ifndef OUTRIDER_BYTES_H
#define OUTRIDER_BYTES_H

#include "simd.h"

static inline uint16_t read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static inline uint32_t read_u32(const uint8_t *p) {
    return (uint32_t)read_u16(p) | (uint32_t)read_u16(p + 2) << 16;
}

static inline float read_half(const uint8_t *p) { return half_to_float(read_u16(p)); }

/* Codes of 4 bits: the low halves of ``count`` bytes, then their high halves. */
static inline void split_halves(const uint8_t *bytes, int count, uint8_t *codes) {
    for (int i = 0; i < count; i++) {
        codes[i] = (uint8_t)(bytes[i] & 15);
        codes[count + i] = (uint8_t)(bytes[i] >> 4);
    }
}

/* Codes of 2 bits: the lowest pairs of bits of 32 bytes, then the next ones; 128 codes from each 32 bytes. */
static inline void split_quarters(const uint8_t *bytes, int count, uint8_t *codes) {
    for (int at = 0; at < count; at += 32, codes += 128)
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 32; i++) codes[32 * k + i] = (uint8_t)(bytes[at + i] >> 2 * k & 3);
}

#endif
