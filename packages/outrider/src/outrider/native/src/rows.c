/* Rows of a packed matrix, as numbers. */
#include "bytes.h"
#include "panels.h"

int is_weight(const outrider_weight *w) {
    if (!is_array(w, _Alignof(outrider_weight)) || w->outputs < 1 || w->outputs > MAX_OUTPUTS) return 0;
    int64_t bytes = outrider_panel_bytes(w->layout, w->group, w->half_scales, w->has_minimum, w->inputs);
    int coded = w->layout == OUTRIDER_Q8 || w->layout == OUTRIDER_Q4;
    return bytes && bytes == w->panel_bytes && (!coded || w->groups == padded_inputs(w->inputs) / w->group) &&
           is_array(w->panels, 64) && is_array_or_null(w->bias, sizeof(float));
}

static float scale_at(const outrider_weight *w, const uint8_t *scales, int64_t lane) {
    float scale;
    if (w->half_scales) return read_half(scales + 2 * lane);
    memcpy(&scale, scales + 4 * lane, 4);
    return scale;
}

/* The values of a group: [group]. */
static void group_values(const outrider_weight *w, const uint8_t *codes, int64_t lane, int8_t *values) {
    int half = w->group / 2;
    codes += 4 * lane;
    for (int at = 0; at < (w->layout == OUTRIDER_Q8 ? w->group : half); at += 4, codes += 4 * PANEL_OUTPUTS)
        for (int i = 0; i < 4; i++) {
            values[at + i] = w->layout == OUTRIDER_Q8 ? (int8_t)(codes[i] - 128) : w->values[codes[i] & 15];
            if (w->layout == OUTRIDER_Q4) values[half + at + i] = w->values[codes[i] >> 4];
        }
}

/* fmaf(scale, value, minimum): the products of all block formats are exact, so two operations round once. */
static void quantised_row(const outrider_weight *w, const uint8_t *panel, int64_t lane, float *out) {
    int64_t step = block_bytes(w->layout, w->group, w->half_scales, w->has_minimum);
    int64_t scales = scale_bytes(w->half_scales);
    int8_t values[32];
    for (int64_t start = 0; start < w->inputs; start += w->group, panel += step) {
        float scale = scale_at(w, panel, lane), minimum = w->has_minimum ? scale_at(w, panel + scales, lane) : 0.0f;
        int64_t count = w->inputs - start < w->group ? w->inputs - start : w->group;
        group_values(w, panel + scales * (w->has_minimum ? 2 : 1), lane, values);
        for (int64_t i = 0; i < count; i++) {
            float product = scale * (float)values[i];
            out[start + i] = w->has_minimum ? product + minimum : product;
        }
    }
}

static void float_row(const outrider_weight *w, const uint8_t *panel, int64_t lane, float *out) {
    for (int64_t i = 0; i < w->inputs; i++) {
        int64_t at = PANEL_OUTPUTS * i + lane;
        if (w->layout == OUTRIDER_F32)
            memcpy(&out[i], panel + 4 * at, 4);
        else
            out[i] = bf16_to_float(read_u16(panel + 2 * at));
    }
}

int outrider_rows(const outrider_weight *weight, int64_t count, const int64_t *ids, float *out) {
    if (count < 0 || !is_weight(weight)) return OUTRIDER_BAD_ARGUMENT;
    if (count && (!is_array(ids, sizeof *ids) || !is_array(out, sizeof *out))) return OUTRIDER_BAD_ARGUMENT;
    for (int64_t n = 0; n < count; n++) {
        int64_t id = ids[n];
        if (id < 0 || id >= weight->outputs) return OUTRIDER_BAD_ARGUMENT;
        const uint8_t *panel = weight->panels + id / PANEL_OUTPUTS * weight->panel_bytes;
        if (weight->layout == OUTRIDER_Q8 || weight->layout == OUTRIDER_Q4)
            quantised_row(weight, panel, id % PANEL_OUTPUTS, out + n * weight->inputs);
        else
            float_row(weight, panel, id % PANEL_OUTPUTS, out + n * weight->inputs);
    }
    return OUTRIDER_OK;
}
