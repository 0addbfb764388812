/* A checksum that costs as much as reading: it tells damage, not malice. */
#include <string.h>

#include "check.h"
#include "pack.h"

enum { LANES = 8 };

/* A bijection of either argument: one changed word always changes the result. */
static uint64_t mix(uint64_t state, uint64_t word) {
    uint64_t product = (state ^ word) * 0x9e3779b97f4a7c15u;
    return product << 31 | product >> 33;
}

static void mix_block(uint64_t *lanes, const uint8_t *data) {
    for (int l = 0; l < LANES; l++) {
        uint64_t word;
        memcpy(&word, data + 8 * l, 8);
        lanes[l] = mix(lanes[l], word);
    }
}

int outrider_checksum(const uint8_t *data, int64_t bytes, uint64_t *sum) {
    if (!data || bytes < 0 || !is_array(sum, sizeof *sum)) return OUTRIDER_BAD_ARGUMENT;
    uint64_t lanes[LANES], whole = mix(0, (uint64_t)bytes);
    uint8_t rest[8 * LANES] = {0};
    int64_t blocks = bytes / (8 * LANES);
    for (int l = 0; l < LANES; l++) lanes[l] = (uint64_t)l;
    for (int64_t b = 0; b < blocks; b++) mix_block(lanes, data + b * 8 * LANES);
    memcpy(rest, data + blocks * 8 * LANES, (size_t)(bytes - blocks * 8 * LANES));
    mix_block(lanes, rest);
    for (int l = 0; l < LANES; l++) whole = mix(whole, lanes[l]);
    *sum = mix(whole, whole >> 32);
    return OUTRIDER_OK;
}
