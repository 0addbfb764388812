/* Rows of a packed matrix, as numbers. */
#include "bytes.h"
#include "panels.h"

int is_weight(const outrider_weight *w) {
    if (!is_array(w, _Alignof(outrider_weight)) || w->outputs < 1 || w->outputs > MAX_OUTPUTS) return 0;
    int64_t bytes = outrider_panel_bytes(w);
    return bytes && bytes == w->panel_bytes &&
           (w->layout != OUTRIDER_CODES || w->groups == padded_inputs(w->inputs) / w->group) &&
           is_array(w->panels, 64) && is_array_or_null(w->bias, sizeof(float));
}

static stored_scale scale_at(const outrider_weight *w, const uint8_t *panel, int64_t g, int64_t lane) {
    const uint8_t *at = panel + group_at(w, g), *halves = w->scales == OUTRIDER_SCALES_F16 ? at : panel + super_at(w, g);
    stored_scale s = {0, 0, at[lane], 0};
    if (w->scales < OUTRIDER_SCALES_E8M0) s.d = read_u16(halves + 2 * lane);
    if (w->has_minimum) s.least = read_u16(halves + 2 * (PANEL_OUTPUTS + lane));
    if (w->scales == OUTRIDER_SCALES_U8) s.minimum = at[PANEL_OUTPUTS + lane];
    if (w->scales == OUTRIDER_SCALES_U4) s.scale = at[lane] & 15, s.minimum = at[lane] >> 4;
    return s;
}

/* Bits of one input of a block, from the plane that begins at ``plane``. */
static int plane_bits(const uint8_t *plane, int bits, int64_t lane, int input) {
    int steps = 8 / bits, step = input / 4;
    return plane[64 * (step / steps) + 4 * lane + input % 4] >> bits * (step % steps) & ((1 << bits) - 1);
}

static uint8_t code_at(const outrider_weight *w, const uint8_t *block, int64_t lane, int input) {
    int low = low_bits(w->bits), high = w->bits - low;
    int code = plane_bits(block, low, lane, input);
    if (high) code |= plane_bits(block + block_bytes(low), high, lane, input) << low;
    return (uint8_t)(w->bits == 1 ? 2 * code : code);
}

/* scale * value + minimum: the products of all block formats are exact, so two operations round once. */
static void quantised_row(const outrider_weight *w, const uint8_t *panel, int64_t lane, float *out) {
    for (int64_t g = 0, i = 0; g < w->groups; g++) {
        stored_scale s = scale_at(w, panel, g, lane);
        float scale = scale_of(w, s), minimum = minimum_of(w, s);
        const uint8_t *block = panel + block_at(w, i / BLOCK_INPUTS);
        for (int64_t end = i + w->group; i < end && i < w->inputs; i++) {
            float product = scale * (float)value_of(w, code_at(w, block, lane, (int)(i % BLOCK_INPUTS)));
            out[i] = w->has_minimum ? product + minimum : product;
        }
    }
}

static void float_row(const outrider_weight *w, const uint8_t *panel, int64_t lane, float *out) {
    for (int64_t i = 0; i < w->inputs; i++) {
        int64_t at = PANEL_OUTPUTS * i + lane;
        if (w->layout == OUTRIDER_F32)
            memcpy(&out[i], panel + 4 * at, 4);
        else if (w->layout == OUTRIDER_BF16)
            out[i] = bf16_to_float(read_u16(panel + 2 * at));
        else
            out[i] = read_half(panel + 2 * at);
    }
}

int outrider_rows(const outrider_weight *weight, int64_t count, const int64_t *ids, float *out) {
    if (count < 0 || !is_weight(weight)) return OUTRIDER_BAD_ARGUMENT;
    if (count && (!is_array(ids, sizeof *ids) || !is_array(out, sizeof *out))) return OUTRIDER_BAD_ARGUMENT;
    for (int64_t n = 0; n < count; n++) {
        int64_t id = ids[n];
        if (id < 0 || id >= weight->outputs) return OUTRIDER_BAD_ARGUMENT;
        const uint8_t *panel = weight->panels + id / PANEL_OUTPUTS * weight->panel_bytes;
        if (weight->layout == OUTRIDER_CODES)
            quantised_row(weight, panel, id % PANEL_OUTPUTS, out + n * weight->inputs);
        else
            float_row(weight, panel, id % PANEL_OUTPUTS, out + n * weight->inputs);
    }
    return OUTRIDER_OK;
}
