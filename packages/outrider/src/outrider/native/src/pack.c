#include "plan.h"

#include <stdlib.h>

#include "bytes.h"
#include "panels.h"
#include "quantise.h"

/* The largest scale: products with codes, and their sums with a minimum, then stay finite. */
#define MAX_SCALE 1.3e36f

/* Scratch memory for the outputs of one panel. */
typedef struct {
    pack_plan plan;
    int64_t padded, groups; /* of an output: inputs, and groups of 16 at most */
    uint8_t *codes;         /* [16, padded] */
    stored_scale *scales;   /* [16, groups] */
    float *floats;          /* [padded], of one output */
    int8_t *rounded;        /* [padded] */
    float *rounded_scales, *rounded_minima; /* [groups] */
} packer;

/* ---- One row out of the file ----------------------------------------------------------------------------------- */

static int unpack_row(packer *p, int64_t row, uint8_t *codes, stored_scale *to) {
    const block_format *format = p->plan.format;
    const uint8_t *data = p->plan.source->data + row * p->plan.row_bytes, *apart = p->plan.source->scales;
    if (apart) apart += row * (p->plan.source->inputs / format->inputs);
    int groups = format->inputs / format->group, fits = 1;
    for (int64_t at = 0; at < p->plan.source->inputs; at += format->inputs) {
        block_scales found = {0, 0, {0}, {0}};
        if (apart) found.scale[0] = *apart++;
        format->unpack(data, p->plan.source->grid, codes, &found);
        for (int g = 0; g < groups; g++, to++) {
            *to = (stored_scale){found.d, found.least, found.scale[g], found.minimum[g]};
            float scale = scale_of(&p->plan.stored, *to), minimum = minimum_of(&p->plan.stored, *to);
            fits &= scale >= -MAX_SCALE && scale <= MAX_SCALE; /* NaN fails every comparison */
            fits &= minimum >= -MAX_SCALE && minimum <= MAX_SCALE;
        }
        data += format->bytes;
        codes += format->inputs;
    }
    return fits ? OUTRIDER_OK : OUTRIDER_DAMAGED;
}

static void floats_of_codes(packer *p, const uint8_t *codes, const stored_scale *scales) {
    const outrider_weight *w = &p->plan.stored;
    float *to = p->floats;
    for (int64_t g = 0; g < w->groups; g++, scales++) {
        float scale = scale_of(w, *scales), minimum = minimum_of(w, *scales);
        for (int i = 0; i < w->group; i++) {
            float product = scale * (float)value_of(w, *codes++); /* exact */
            *to++ = w->has_minimum ? product + minimum : product;
        }
    }
}

static int read_floats(packer *p, int64_t row) {
    const outrider_source *s = p->plan.source;
    int64_t inputs = s->inputs, size = p->plan.row_bytes / inputs, step = s->transposed ? size * s->rows : size;
    const uint8_t *data = s->data + row * (s->transposed ? size : p->plan.row_bytes);
    float *x = p->floats;
    switch (s->type) {
    case OUTRIDER_FILE_F32: for (int64_t i = 0; i < inputs; i++) memcpy(x + i, data + step * i, sizeof *x); break;
    case OUTRIDER_FILE_F16: for (int64_t i = 0; i < inputs; i++) x[i] = read_half(data + step * i); break;
    default: for (int64_t i = 0; i < inputs; i++) x[i] = bf16_to_float(read_u16(data + step * i)); break;
    }
    uint32_t found = 0;
    for (int64_t i = 0; i < inputs; i++) found |= (bits_of_float(x[i]) & 0x7f800000) == 0x7f800000;
    return found ? OUTRIDER_DAMAGED : OUTRIDER_OK;
}

static int quantise_row(packer *p, uint8_t *codes, stored_scale *to) {
    const outrider_weight *w = &p->plan.weight;
    int64_t inputs = w->inputs;
    int8_t *rounded = p->rounded;
    float *scales = p->rounded_scales, *minima = p->rounded_minima;
    int overflows = 0;
    if (p->plan.source->target == OUTRIDER_TO_Q8_0) overflows = quantise_q8_0(inputs, p->floats, rounded, scales);
    if (p->plan.source->target == OUTRIDER_TO_Q4_0) overflows = quantise_q4_0(inputs, p->floats, rounded, scales);
    if (p->plan.source->target == OUTRIDER_TO_Q4_1)
        overflows = quantise_q4_1(inputs, p->floats, rounded, scales, minima);
    if (overflows) return OUTRIDER_TOO_LARGE;
    for (int64_t i = 0; i < p->padded; i++) codes[i] = (uint8_t)(rounded[i] + (w->bits == 8 ? 128 : 0));
    for (int64_t g = 0; g < w->groups; g++)
        to[g] = (stored_scale){float_to_half(scales[g]), w->has_minimum ? float_to_half(minima[g]) : 0, 0, 0};
    return OUTRIDER_OK;
}

/* ---- Sixteen rows into their panel ------------------------------------------------------------------------------- */

static void put_half(uint8_t *at, int64_t output, uint16_t half) { memcpy(at + 2 * output, &half, 2); }

static void put_scales(const packer *p, uint8_t *panel) {
    const outrider_weight *w = &p->plan.weight;
    memset(panel, 0, (size_t)w->panel_bytes); /* what lies between scales and codes, too */
    for (int64_t g = 0; g < w->groups; g++) {
        uint8_t *at = panel + group_at(w, g), *super = panel + super_at(w, g);
        for (int64_t o = 0; o < PANEL_OUTPUTS; o++) {
            stored_scale s = p->scales[o * p->groups + g];
            uint8_t *halves = w->scales == OUTRIDER_SCALES_F16 ? at : super;
            if (w->scales < OUTRIDER_SCALES_E8M0) put_half(halves, o, s.d);
            if (w->has_minimum) put_half(halves + 2 * PANEL_OUTPUTS, o, s.least);
            if (w->scales == OUTRIDER_SCALES_U4)
                at[o] = (uint8_t)(s.scale | s.minimum << 4);
            else if (w->scales > OUTRIDER_SCALES_BLOCK_F16)
                at[o] = s.scale;
            if (w->scales == OUTRIDER_SCALES_U8) at[PANEL_OUTPUTS + o] = s.minimum;
        }
    }
}

/* A plane of ``bits`` bits of each code, from the bit ``from`` up. A word holds four inputs of an output. */
static inline __attribute__((always_inline)) uint8_t *put_plane(uint32_t words[8][PANEL_OUTPUTS], const int bits,
                                                                const int from, uint8_t *to) {
    const int steps = 8 / bits;
    const uint32_t mask = 0x01010101u * ((1u << bits) - 1);
    for (int v = 0; v < bits; v++, to += 4 * PANEL_OUTPUTS) {
        uint32_t packed[PANEL_OUTPUTS] = {0};
        for (int k = 0; k < steps; k++)
            for (int o = 0; o < PANEL_OUTPUTS; o++) packed[o] |= (words[v * steps + k][o] >> from & mask) << bits * k;
        memcpy(to, packed, sizeof packed);
    }
    return to;
}

static void put_block(const packer *p, int64_t at, uint8_t *to) {
    uint32_t words[8][PANEL_OUTPUTS];
    for (int o = 0; o < PANEL_OUTPUTS; o++)
        for (int s = 0; s < 8; s++) memcpy(&words[s][o], p->codes + o * p->padded + at + 4 * s, 4);
    switch (p->plan.weight.bits) {
    case 1: put_plane(words, 1, 1, to); break;
    case 2: put_plane(words, 2, 0, to); break;
    case 3: put_plane(words, 1, 2, put_plane(words, 2, 0, to)); break;
    case 4: put_plane(words, 4, 0, to); break;
    case 5: put_plane(words, 1, 4, put_plane(words, 4, 0, to)); break;
    case 6: put_plane(words, 2, 4, put_plane(words, 4, 0, to)); break;
    default: put_plane(words, 8, 0, to); break;
    }
}

static void put_codes(const packer *p, uint8_t *panel) {
    put_scales(p, panel);
    for (int64_t at = 0; at < p->padded; at += BLOCK_INPUTS)
        put_block(p, at, panel + block_at(&p->plan.weight, at / BLOCK_INPUTS));
}

static int put_floats(const packer *p, uint8_t *panel, int64_t output) {
    const outrider_weight *w = &p->plan.weight;
    int overflows = 0;
    for (int64_t i = 0; i < w->inputs; i++) {
        int64_t at = PANEL_OUTPUTS * i + output;
        uint16_t half = w->layout == OUTRIDER_F16 ? float_to_half(p->floats[i]) : float_to_bf16(p->floats[i]);
        if (w->layout == OUTRIDER_F32)
            memcpy(panel + 4 * at, &p->floats[i], 4);
        else
            memcpy(panel + 2 * at, &half, 2);
        overflows |= w->layout == OUTRIDER_BF16 && (half & 0x7f80) == 0x7f80;
    }
    return overflows ? OUTRIDER_TOO_LARGE : OUTRIDER_OK;
}

/* An output that is not there. */
static void pack_nothing(packer *p, uint8_t *codes, stored_scale *scales, uint8_t *panel, int64_t output) {
    const outrider_weight *w = &p->plan.weight;
    uint8_t zero = w->has_table ? 0 : (uint8_t)-w->first;
    for (int code = 15; code >= 0 && w->has_table; code--)
        if (w->values[code] == 0) zero = (uint8_t)code;
    memset(codes, zero, (size_t)p->padded);
    memset(scales, 0, (size_t)p->groups * sizeof *scales);
    memset(p->floats, 0, (size_t)p->padded * sizeof(float));
    if (!w->group) put_floats(p, panel, output);
}

static int pack_row(packer *p, int64_t row, uint8_t *codes, stored_scale *scales, uint8_t *panel, int64_t output) {
    const pack_plan *plan = &p->plan;
    int status = plan->format ? unpack_row(p, row, codes, scales) : read_floats(p, row);
    if (status != OUTRIDER_OK || (plan->format && plan->source->target == OUTRIDER_AS_STORED)) return status;
    if (plan->format) floats_of_codes(p, codes, scales);
    return plan->weight.group ? quantise_row(p, codes, scales) : put_floats(p, panel, output);
}

static int pack_panel(packer *p, int64_t number, uint8_t *panel) {
    const outrider_source *s = p->plan.source;
    for (int64_t o = 0; o < PANEL_OUTPUTS; o++) {
        int64_t output = number * PANEL_OUTPUTS + o;
        uint8_t *codes = p->codes + o * p->padded;
        stored_scale *scales = p->scales + o * p->groups;
        if (output >= s->outputs) {
            pack_nothing(p, codes, scales, panel, o);
            continue;
        }
        int64_t row = s->order ? s->order[output] : output;
        if (row < 0 || row >= s->rows) return OUTRIDER_BAD_ARGUMENT;
        int status = pack_row(p, row, codes, scales, panel, o);
        if (status != OUTRIDER_OK) return status;
    }
    if (p->plan.weight.group) put_codes(p, panel);
    return OUTRIDER_OK;
}

static int allocate(packer *p) {
    p->padded = padded_inputs(p->plan.source->inputs);
    p->groups = p->padded / 16;
    size_t padded = (size_t)p->padded, groups = (size_t)p->groups;
    p->codes = calloc(PANEL_OUTPUTS * padded, 1);
    p->scales = calloc(PANEL_OUTPUTS * groups, sizeof *p->scales);
    p->floats = calloc(padded, sizeof(float));
    p->rounded = calloc(padded, 1);
    p->rounded_scales = calloc(groups, sizeof(float));
    p->rounded_minima = calloc(groups, sizeof(float));
    int complete = p->codes && p->scales && p->floats && p->rounded && p->rounded_scales && p->rounded_minima;
    return complete ? OUTRIDER_OK : OUTRIDER_NO_MEMORY;
}

int outrider_pack(const outrider_source *source, int64_t first, int64_t last, uint8_t *panels, int64_t bytes) {
    packer p;
    memset(&p, 0, sizeof p);
    int status = make_plan(&p.plan, source);
    if (status != OUTRIDER_OK) return status;
    int64_t panel_bytes = p.plan.weight.panel_bytes;
    if (first < 0 || first >= last || last > panel_count(source->outputs)) return OUTRIDER_BAD_SIZE;
    if (!panels || bytes != (last - first) * panel_bytes) return OUTRIDER_BAD_SIZE;
    status = allocate(&p);
    for (int64_t i = first; status == OUTRIDER_OK && i < last; i++)
        status = pack_panel(&p, i, panels + (i - first) * panel_bytes);
    free(p.codes);
    free(p.scales);
    free(p.floats);
    free(p.rounded);
    free(p.rounded_scales);
    free(p.rounded_minima);
    return status;
}
