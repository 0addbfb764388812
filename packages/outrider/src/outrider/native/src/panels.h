/* Where things lie in the panels of a quantised weight; native.h draws them. */
#ifndef OUTRIDER_PANELS_H
#define OUTRIDER_PANELS_H

#include "check.h"
#include "simd.h"

#define PANEL_OUTPUTS 16
#define BLOCK_INPUTS 32
#define MAX_INPUTS ((int64_t)1 << 26)
#define MAX_OUTPUTS ((int64_t)1 << 32) /* products of sizes stay far below 2^63 */

static inline int64_t padded_inputs(int64_t inputs) {
    return (inputs + BLOCK_INPUTS - 1) / BLOCK_INPUTS * BLOCK_INPUTS;
}

static inline int64_t panel_count(int64_t outputs) { return (outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS; }

/* Whether a packed matrix is what its fields say, as far as they can be compared. See rows.c. */
int is_weight(const outrider_weight *w);

/* The bits of the lower plane of codes of ``bits``; those of the upper one are the rest. */
static inline int low_bits(int bits) { return bits == 8 ? 8 : bits >= 4 ? 4 : bits >= 2 ? 2 : 1; }

static inline int64_t block_bytes(int32_t bits) { return (int64_t)bits * BLOCK_INPUTS * PANEL_OUTPUTS / 8; }

static inline int is_of_super_blocks(int32_t scales) {
    return scales >= OUTRIDER_SCALES_BLOCK_F16 && scales <= OUTRIDER_SCALES_U4;
}

/* Bytes of the scales and minima of a group of one panel, and of what a super-block has before its groups'. */
static inline int64_t group_scale_bytes(const outrider_weight *w) {
    static const int8_t bytes[] = {2, 0, 1, 2, 1, 1, 1};
    int per_output = bytes[w->scales] << (w->scales == OUTRIDER_SCALES_F16 && w->has_minimum);
    return PANEL_OUTPUTS * per_output;
}

static inline int64_t super_scale_bytes(const outrider_weight *w) {
    return is_of_super_blocks(w->scales) ? PANEL_OUTPUTS * (w->has_minimum ? 4 : 2) : 0;
}

/* Blocks lie in runs: the scales of sixteen blocks, then their codes, so that a panel is read from front to back. */
#define RUN_BLOCKS 16

/* Bytes of the scales of ``blocks`` blocks of a run, rounded up to whole cache lines. */
static inline int64_t run_scale_bytes(const outrider_weight *w, int64_t blocks) {
    int64_t groups = blocks * BLOCK_INPUTS / w->group, bytes = groups * group_scale_bytes(w);
    if (is_of_super_blocks(w->scales)) bytes += blocks * BLOCK_INPUTS / w->super_block * super_scale_bytes(w);
    return (bytes + 63) / 64 * 64;
}

static inline int64_t run_bytes(const outrider_weight *w, int64_t blocks) {
    return run_scale_bytes(w, blocks) + blocks * block_bytes(w->bits);
}

static inline int64_t coded_panel_bytes(const outrider_weight *w) {
    int64_t blocks = padded_inputs(w->inputs) / BLOCK_INPUTS;
    return blocks / RUN_BLOCKS * run_bytes(w, RUN_BLOCKS) + run_bytes(w, blocks % RUN_BLOCKS);
}

/* Where the scales of the super-block of group ``g`` begin in a panel, those of the group, and the codes of a block. */
static inline int64_t super_at(const outrider_weight *w, int64_t g) {
    int64_t run = RUN_BLOCKS * BLOCK_INPUTS / w->group, start = g / run * run_bytes(w, RUN_BLOCKS);
    if (!is_of_super_blocks(w->scales)) return start;
    int64_t groups = w->super_block / w->group;
    return start + g % run / groups * (super_scale_bytes(w) + groups * group_scale_bytes(w));
}

static inline int64_t group_at(const outrider_weight *w, int64_t g) {
    int64_t groups = is_of_super_blocks(w->scales) ? w->super_block / w->group : RUN_BLOCKS * BLOCK_INPUTS / w->group;
    return super_at(w, g) + super_scale_bytes(w) + g % groups * group_scale_bytes(w);
}

static inline int64_t block_at(const outrider_weight *w, int64_t block) {
    int64_t run = block / RUN_BLOCKS, left = padded_inputs(w->inputs) / BLOCK_INPUTS - run * RUN_BLOCKS;
    return run * run_bytes(w, RUN_BLOCKS) + run_scale_bytes(w, left < RUN_BLOCKS ? left : RUN_BLOCKS) +
           block % RUN_BLOCKS * block_bytes(w->bits);
}

/* The scale and the minimum of one output's group, as stored: a float16 or two, and a byte or two. */
typedef struct {
    uint16_t d, least;
    uint8_t scale, minimum;
} stored_scale;

/* A float16 has three more bits of exponent and seven of fraction: moved there, an E4M3 number is 2^-8 of itself. */
static inline uint16_t e4m3_to_half(uint8_t e4m3) { return (uint16_t)(e4m3 << 7); }
#define E4M3_UNIT 128.0f /* of the half of a number */

static inline float scale_of(const outrider_weight *w, stored_scale s) {
    switch (w->scales) {
    case OUTRIDER_SCALES_I8: return half_to_float(s.d) * w->unit * (float)(int8_t)s.scale;
    case OUTRIDER_SCALES_U8:
    case OUTRIDER_SCALES_U4: return half_to_float(s.d) * (float)s.scale;
    case OUTRIDER_SCALES_E8M0: return e8m0_to_float(s.scale);
    case OUTRIDER_SCALES_E4M3: return half_to_float(e4m3_to_half(s.scale)) * E4M3_UNIT;
    default: return half_to_float(s.d);
    }
}

static inline float minimum_of(const outrider_weight *w, stored_scale s) {
    if (!w->has_minimum) return 0.0f;
    float least = half_to_float(s.least);
    return w->scales == OUTRIDER_SCALES_F16 ? least : -(least * (float)s.minimum);
}

static inline int value_of(const outrider_weight *w, uint8_t code) {
    return w->has_table ? w->values[code & 15] : code + w->first;
}

#endif
