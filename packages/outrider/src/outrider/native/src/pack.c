#include "plan.h"

#include <stdlib.h>

#include "bytes.h"
#include "panels.h"
#include "quantise.h"

/* The largest scale: products with codes, and their sums with a minimum, then stay finite. */
#define MAX_SCALE 1.3e36f

typedef struct {
    pack_plan plan;
    const outrider_source *source;
    int8_t *codes;          /* one row: [inputs, padded] */
    float *scales, *minima; /* [groups of 16, padded] */
    float *floats;          /* [inputs] */
} packer;

/* ---- One row out of the file ----------------------------------------------------------------------------------- */

static int unpack_row(packer *p, const uint8_t *data) {
    const block_format *format = p->plan.format;
    int64_t groups = p->source->inputs / format->group;
    int8_t *codes = p->codes;
    float *scales = p->scales, *minima = p->minima;
    for (int64_t at = 0; at < p->source->inputs; at += format->inputs) {
        format->unpack(data, p->source->grid, codes, scales, minima);
        data += format->bytes;
        codes += format->inputs;
        scales += format->inputs / format->group;
        minima += format->inputs / format->group;
    }
    int fits = 1; /* NaN fails every comparison */
    for (int64_t g = 0; g < groups; g++) fits &= p->scales[g] >= -MAX_SCALE && p->scales[g] <= MAX_SCALE;
    if (format->has_minimum)
        for (int64_t g = 0; g < groups; g++) fits &= p->minima[g] >= -MAX_SCALE && p->minima[g] <= MAX_SCALE;
    return fits ? OUTRIDER_OK : OUTRIDER_DAMAGED;
}

static void floats_of_codes(packer *p) {
    const block_format *format = p->plan.format;
    for (int64_t start = 0, g = 0; start < p->source->inputs; start += format->group, g++) {
        const int8_t *codes = p->codes + start;
        for (int i = 0; i < format->group; i++) {
            int value = format->layout == OUTRIDER_Q4 ? p->plan.stored_values[codes[i]] : codes[i];
            float product = p->scales[g] * (float)value; /* exact */
            p->floats[start + i] = format->has_minimum ? product + p->minima[g] : product;
        }
    }
}

static int read_floats(packer *p, const uint8_t *data) {
    int64_t inputs = p->source->inputs;
    float *x = p->floats;
    switch (p->source->type) {
    case OUTRIDER_FILE_F32: memcpy(x, data, (size_t)inputs * sizeof *x); break;
    case OUTRIDER_FILE_F16: for (int64_t i = 0; i < inputs; i++) x[i] = read_half(data + 2 * i); break;
    default: for (int64_t i = 0; i < inputs; i++) x[i] = bf16_to_float(read_u16(data + 2 * i)); break;
    }
    uint32_t found = 0;
    for (int64_t i = 0; i < inputs; i++) found |= (bits_of_float(x[i]) & 0x7f800000) == 0x7f800000;
    return found ? OUTRIDER_DAMAGED : OUTRIDER_OK;
}

static int quantise_row(packer *p) {
    int64_t inputs = p->source->inputs;
    int overflows = 0;
    if (p->source->target == OUTRIDER_TO_Q8_0) overflows = quantise_q8_0(inputs, p->floats, p->codes, p->scales);
    if (p->source->target == OUTRIDER_TO_Q4_0) overflows = quantise_q4_0(inputs, p->floats, p->codes, p->scales);
    if (p->source->target == OUTRIDER_TO_Q4_1)
        overflows = quantise_q4_1(inputs, p->floats, p->codes, p->scales, p->minima);
    return overflows ? OUTRIDER_TOO_LARGE : OUTRIDER_OK;
}

/* ---- One row into its panel ------------------------------------------------------------------------------------ */

static void put_scales(const outrider_weight *w, const float *from, int64_t group, int64_t output, uint8_t *to) {
    if (w->half_scales) {
        uint16_t half = float_to_half(from[group]);
        memcpy(to + 2 * output, &half, 2);
    } else {
        memcpy(to + 4 * output, &from[group], 4);
    }
}

static void put_codes(const packer *p, uint8_t *panel, int64_t output) {
    const outrider_weight *w = &p->plan.weight;
    int64_t step = block_bytes(w->layout, w->group, w->half_scales, w->has_minimum);
    int64_t scales = scale_bytes(w->half_scales), half = w->group / 2;
    for (int64_t g = 0; g < w->groups; g++, panel += step) {
        const uint8_t *codes = (const uint8_t *)p->codes + g * w->group;
        uint8_t *to = panel + scales * (w->has_minimum ? 2 : 1) + 4 * output;
        put_scales(w, p->scales, g, output, panel);
        if (w->has_minimum) put_scales(w, p->minima, g, output, panel + scales);
        for (int64_t s = 0; s < (w->layout == OUTRIDER_Q8 ? w->group : half) / 4; s++, to += 4 * PANEL_OUTPUTS) {
            uint32_t four, other;
            memcpy(&four, codes + 4 * s, 4);
            if (w->layout == OUTRIDER_Q8) {
                four ^= 0x80808080u;
            } else {
                memcpy(&other, codes + half + 4 * s, 4);
                four |= other << 4;
            }
            memcpy(to, &four, 4);
        }
    }
}

static int put_floats(const packer *p, uint8_t *panel, int64_t output) {
    int64_t inputs = p->source->inputs;
    if (p->plan.weight.layout == OUTRIDER_F32) {
        for (int64_t i = 0; i < inputs; i++) memcpy(panel + 4 * (PANEL_OUTPUTS * i + output), &p->floats[i], 4);
        return OUTRIDER_OK;
    }
    int overflows = 0;
    for (int64_t i = 0; i < inputs; i++) {
        uint16_t rounded = float_to_bf16(p->floats[i]);
        overflows |= (rounded & 0x7f80) == 0x7f80;
        memcpy(panel + 2 * (PANEL_OUTPUTS * i + output), &rounded, 2);
    }
    return overflows ? OUTRIDER_TOO_LARGE : OUTRIDER_OK;
}

static int pack_row(packer *p, int64_t row, uint8_t *panel, int64_t output) {
    const uint8_t *data = p->source->data + row * p->plan.row_bytes;
    int status = p->plan.format ? unpack_row(p, data) : read_floats(p, data);
    if (status != OUTRIDER_OK) return status;
    if (p->plan.format && p->source->target == OUTRIDER_AS_STORED) {
        put_codes(p, panel, output);
        return OUTRIDER_OK;
    }
    if (p->plan.format) floats_of_codes(p);
    if (!p->plan.weight.group) return put_floats(p, panel, output);
    status = quantise_row(p);
    if (status == OUTRIDER_OK) put_codes(p, panel, output);
    return status;
}

/* A row that is not there. */
static void pack_nothing(packer *p, uint8_t *panel, int64_t output) {
    int8_t zero = 0;
    for (int code = 15; code >= 0 && p->plan.weight.layout == OUTRIDER_Q4; code--)
        if (p->plan.weight.values[code] == 0) zero = (int8_t)code;
    int64_t groups = padded_inputs(p->source->inputs) / 16;
    memset(p->codes, zero, (size_t)groups * 16);
    memset(p->scales, 0, (size_t)groups * sizeof(float));
    memset(p->minima, 0, (size_t)groups * sizeof(float));
    memset(p->floats, 0, (size_t)p->source->inputs * sizeof(float));
    if (p->plan.weight.group)
        put_codes(p, panel, output);
    else
        put_floats(p, panel, output);
}

static int allocate(packer *p) {
    size_t padded = (size_t)padded_inputs(p->source->inputs);
    p->codes = calloc(padded, 1);
    p->scales = calloc(padded / 16, sizeof(float));
    p->minima = calloc(padded / 16, sizeof(float));
    p->floats = calloc(padded, sizeof(float));
    return p->codes && p->scales && p->minima && p->floats ? OUTRIDER_OK : OUTRIDER_NO_MEMORY;
}

static int pack_range(packer *p, int64_t first, int64_t last, uint8_t *panels) {
    const outrider_source *s = p->source;
    for (int64_t output = first * PANEL_OUTPUTS; output < last * PANEL_OUTPUTS; output++) {
        uint8_t *panel = panels + (output / PANEL_OUTPUTS - first) * p->plan.weight.panel_bytes;
        if (output >= s->outputs) {
            pack_nothing(p, panel, output % PANEL_OUTPUTS);
            continue;
        }
        int64_t row = s->order ? s->order[output] : output;
        if (row < 0 || row >= s->rows) return OUTRIDER_BAD_ARGUMENT;
        int status = pack_row(p, row, panel, output % PANEL_OUTPUTS);
        if (status != OUTRIDER_OK) return status;
    }
    return OUTRIDER_OK;
}

int outrider_pack(const outrider_source *source, int64_t first, int64_t last, uint8_t *panels, int64_t bytes) {
    packer p;
    memset(&p, 0, sizeof p);
    int status = make_plan(&p.plan, source);
    if (status != OUTRIDER_OK) return status;
    if (first < 0 || first >= last || last > panel_count(source->outputs)) return OUTRIDER_BAD_SIZE;
    if (!panels || bytes != (last - first) * p.plan.weight.panel_bytes) return OUTRIDER_BAD_SIZE;
    p.source = source;
    status = allocate(&p);
    if (status == OUTRIDER_OK) status = pack_range(&p, first, last, panels);
    free(p.codes);
    free(p.scales);
    free(p.minima);
    free(p.floats);
    return status;
}
