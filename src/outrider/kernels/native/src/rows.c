/* Rows of a packed matrix, as numbers. */
#include "bytes.h"
#include "panels.h"

static int is_consistent(const outrider_weight *w) {
    int64_t bytes = outrider_panel_bytes(w->layout, w->group, w->half_scales, w->has_minimum, w->inputs);
    return w->panels && bytes && bytes == w->panel_bytes;
}

static float scale_at(const outrider_weight *w, const uint8_t *scales, int64_t lane) {
    float scale;
    if (w->half_scales) return read_half(scales + 2 * lane);
    memcpy(&scale, scales + 4 * lane, 4);
    return scale;
}

/* The value of input ``at`` of a group. */
static int value_at(const outrider_weight *w, const uint8_t *codes, int64_t at, int64_t lane) {
    if (w->layout == OUTRIDER_Q8) return codes[4 * PANEL_OUTPUTS * (at / 4) + 4 * lane + at % 4] - 128;
    int64_t half = w->group / 2, low = at % half;
    int byte = codes[4 * PANEL_OUTPUTS * (low / 4) + 4 * lane + low % 4];
    return w->values[at < half ? byte & 15 : byte >> 4];
}

/* fmaf(scale, value, minimum): the products of all block formats are exact, so two operations round once. */
static void quantised_row(const outrider_weight *w, const uint8_t *panel, int64_t lane, float *out) {
    int64_t step = block_bytes(w->layout, w->group, w->half_scales, w->has_minimum);
    int64_t scales = scale_bytes(w->half_scales);
    for (int64_t start = 0; start < w->inputs; start += w->group, panel += step) {
        const uint8_t *codes = panel + scales * (w->has_minimum ? 2 : 1);
        float scale = scale_at(w, panel, lane), minimum = w->has_minimum ? scale_at(w, panel + scales, lane) : 0.0f;
        for (int64_t i = 0; i < w->group && start + i < w->inputs; i++) {
            float product = scale * (float)value_at(w, codes, i, lane);
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
    if (!weight || count < 0 || (count && (!ids || !out)) || !is_consistent(weight)) return OUTRIDER_BAD_ARGUMENT;
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
