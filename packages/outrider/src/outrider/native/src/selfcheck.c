/* Compares an instruction set with the portable one, every kernel of it. A fault that this project has not seen, of a
 * compiler, an emulator or a processor, then costs speed, and not the promise of equal bits.
 */
#include "selfcheck.h"

#include "panels.h"

/* 31 = 16 + 8 + 4 + 2 + 1 rows: one product goes through the kernels for all numbers of rows. */
enum { ROWS = 31, OUTPUTS = 21, PANELS = 2, MOST_INPUTS = 256, MOST_BYTES = PANELS * PANEL_OUTPUTS * 88 * 4 };

typedef struct {
    int32_t layout, bits, group, scales, has_minimum, first;
    int32_t has_table; /* numbers over all of int8 */
} format;

enum { F16 = OUTRIDER_SCALES_F16, I8 = OUTRIDER_SCALES_I8, CODES = OUTRIDER_CODES };

static const format formats[] = {
    {CODES, 8, 32, F16, 0, -128, 0}, {CODES, 8, 16, F16, 1, -128, 0},  {CODES, 4, 32, F16, 1, 0, 0},
    {CODES, 4, 32, F16, 0, -8, 0},   {CODES, 4, 32, I8, 0, 0, 1},      {CODES, 4, 16, F16, 1, 0, 0},
    {CODES, 4, 16, OUTRIDER_SCALES_E4M3, 0, 0, 1},                     {CODES, 4, 32, OUTRIDER_SCALES_E8M0, 0, 0, 1},
    {CODES, 4, 32, OUTRIDER_SCALES_U8, 1, 0, 0},                       {CODES, 5, 32, OUTRIDER_SCALES_U8, 1, 0, 0},
    {CODES, 5, 32, F16, 0, -16, 0},  {CODES, 6, 16, I8, 0, -32, 0},    {CODES, 3, 16, I8, 0, -4, 0},
    {CODES, 2, 16, OUTRIDER_SCALES_U4, 1, 0, 0},                       {CODES, 2, 32, OUTRIDER_SCALES_BLOCK_F16, 0, -1, 0},
    {CODES, 1, 32, OUTRIDER_SCALES_BLOCK_F16, 0, -1, 0},   {OUTRIDER_F32, 0, 0, 0, 0, 0, 0}, {OUTRIDER_BF16, 0, 0, 0, 0, 0, 0},
    {OUTRIDER_F16, 0, 0, 0, 0, 0, 0},
};

typedef struct {
    float x[ROWS * MOST_INPUTS], bias[OUTPUTS];
    uint8_t panels[MOST_BYTES];
} numbers;

/* Halves of about 2^-4, bytes of any kind; an exponent is at most 2^-2. */
static void fill_scales(const outrider_weight *w, int64_t g, uint8_t *panel, uint32_t *state) {
    uint8_t *at = panel + super_at(w, g), *end = panel + group_at(w, g) + group_scale_bytes(w);
    int has_halves = is_of_super_blocks(w->scales) && g % (w->super_block / w->group) == 0;
    for (int64_t i = 0; has_halves && i < super_scale_bytes(w); i += 2) at = write_number(at, 2, 0x2c00, state);
    for (at = end - group_scale_bytes(w); at < end;)
        if (w->scales == OUTRIDER_SCALES_F16)
            at = write_number(at, 2, 0x2c00, state);
        else
            *at++ = (uint8_t)next_random(state) & 0x7e;
}

static void fill(const outrider_weight *w, numbers *n, uint32_t *state) {
    for (int i = 0; i < ROWS * w->inputs; i++) n->x[i] = random_float(state);
    for (int i = 0; i < OUTPUTS; i++) n->bias[i] = random_float(state);
    for (int p = 0; p < PANELS; p++) {
        uint8_t *panel = n->panels + p * w->panel_bytes, *at = panel, *end = panel + w->panel_bytes;
        uint32_t exponent = w->layout == OUTRIDER_F16 ? 0x2c00 : 0x3f00;
        while (!w->group && at < end) at = write_number(at, w->layout == OUTRIDER_F32 ? 4 : 2, exponent, state);
        for (; w->group && at < end; at++) *at = (uint8_t)next_random(state);
        for (int64_t g = 0; g < w->groups; g++) fill_scales(w, g, panel, state);
    }
}

static void multiply(const kernels *k, const outrider_weight *w, const float *x, float *y) {
    int8_t codes[ROWS * MOST_INPUTS];
    act_quant_group quant[ROWS * MOST_INPUTS / 32];
    activations a = {ROWS, w->inputs, padded_inputs(w->inputs) / 32, x, codes, quant};
    k->quantise(&a, 0, ROWS);
    k->linear(w, &a, 0, PANELS, y, OUTPUTS);
}

/* Products of all layouts. */
static int has_portable_products(const kernels *k) {
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const format *f = formats + i;
        numbers n;
        float y[ROWS * OUTPUTS], expected[ROWS * OUTPUTS];
        outrider_weight w = {.layout = f->layout, .bits = f->bits, .group = f->group, .scales = f->scales,
                             .has_minimum = f->has_minimum, .has_table = f->has_table, .first = f->first, .unit = 0.25f,
                             .super_block = is_of_super_blocks(f->scales) ? 256 >> (f->bits == 1) : 0,
                             .outputs = OUTPUTS, .inputs = is_of_super_blocks(f->scales) ? 256 : 88, .panels = n.panels,
                             .bias = n.bias};
        w.groups = f->group ? padded_inputs(w.inputs) / f->group : 0;
        w.panel_bytes = outrider_panel_bytes(&w);
        for (int c = 0; c < 16; c++) w.values[c] = (int8_t)(c * 17 - 128);
        fill(&w, &n, &state);
        multiply(&portable_kernels, &w, n.x, expected);
        multiply(k, &w, n.x, y);
        if (memcmp(y, expected, sizeof y)) return 0;
    }
    return 1;
}

int outrider_isa_state(const char *name) {
    const kernels *k = find_kernels(name);
    if (!k || !k->supported()) return OUTRIDER_ISA_ABSENT;
    if (k == &portable_kernels) return OUTRIDER_ISA_WORKS;
    return has_portable_products(k) ? try_rows(k) : OUTRIDER_ISA_DIFFERS;
}
