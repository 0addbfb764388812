/* Scales and minima of groups, from what a panel stores to floats: once for all rows of a call. */
#include "panels.h"

typedef struct {
    vec scale[2 * RUN_BLOCKS], minimum[2 * RUN_BLOCKS];
} group_scales;

static inline vec vec_load_halves(const uint8_t *p) { return vec_load_half((const uint16_t *)p); }

/* Of a super-block of ``count`` groups. */
static inline void scales_of_super_block(const outrider_weight *w, const uint8_t *at, int count, vec *scale,
                                         vec *minimum) {
    vec d = vec_load_halves(at), least = d;
    if (w->has_minimum) least = vec_mul(vec_load_halves(at + 2 * LANES), vec_set(-1.0f));
    const int8_t *integers = (const int8_t *)at + super_scale_bytes(w);
    if (w->scales == OUTRIDER_SCALES_BLOCK_F16)
        for (int g = 0; g < count; g++) scale[g] = d;
    if (w->scales == OUTRIDER_SCALES_I8) {
        d = vec_mul(d, vec_set(w->unit));
        for (int g = 0; g < count; g++) scale[g] = vec_mul(d, vec_load_i8(integers + LANES * g));
    }
    if (w->scales == OUTRIDER_SCALES_U8)
        for (int g = 0; g < count; g++) {
            scale[g] = vec_mul(d, vec_load_i8(integers + 2 * LANES * g));
            minimum[g] = vec_mul(least, vec_load_i8(integers + 2 * LANES * g + LANES));
        }
    if (w->scales == OUTRIDER_SCALES_U4)
        for (int g = 0; g < count; g++) {
            int8_t low[LANES], high[LANES];
            for (int i = 0; i < LANES; i++) {
                low[i] = integers[LANES * g + i] & 15;
                high[i] = (int8_t)((uint8_t)integers[LANES * g + i] >> 4);
            }
            scale[g] = vec_mul(d, vec_load_i8(low));
            minimum[g] = vec_mul(least, vec_load_i8(high));
        }
}

static void scales_of_groups(const outrider_weight *w, const uint8_t *at, int count, group_scales *s) {
    for (int g = 0; g < count; g++, at += group_scale_bytes(w)) {
        if (w->scales == OUTRIDER_SCALES_F16) {
            s->scale[g] = vec_load_halves(at);
            if (w->has_minimum) s->minimum[g] = vec_load_halves(at + 2 * LANES);
        } else if (w->scales == OUTRIDER_SCALES_E8M0) {
            s->scale[g] = vec_load_e8m0(at);
        } else {
            uint16_t halves[LANES];
            for (int i = 0; i < LANES; i++) halves[i] = e4m3_to_half(at[i]);
            s->scale[g] = vec_mul(vec_load_half(halves), vec_set(E4M3_UNIT));
        }
    }
}

/* Of the next ``blocks``, at most a run. */
static void read_scales(const outrider_weight *w, const uint8_t *at, int blocks, group_scales *s) {
    const int count = w->group == 32 ? blocks : 2 * blocks, has_super = is_of_super_blocks(w->scales);
    const int super = !has_super ? count : w->super_block >> (w->group == 32 ? 5 : 4);
    const int64_t bytes = super_scale_bytes(w) + super * group_scale_bytes(w);
    for (int done = 0; done < count; done += super, at += bytes) {
        if (has_super)
            scales_of_super_block(w, at, super, s->scale + done, s->minimum + done);
        else
            scales_of_groups(w, at, count, s);
    }
}
