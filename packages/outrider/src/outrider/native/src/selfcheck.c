/* Compares an instruction set with the portable one, every kernel of it. A fault that this project has not seen, of a
 * compiler, an emulator or a processor, then costs speed, and not the promise of equal bits.
 */
#include "selfcheck.h"

#include "panels.h"

/* 31 = 16 + 8 + 4 + 2 + 1 rows: one product goes through the kernels for all numbers of rows. */
enum { ROWS = 31, OUTPUTS = 21, INPUTS = 88, GROUPS = 3, PANELS = 2, MOST_BYTES = PANELS * PANEL_OUTPUTS * INPUTS * 4 };

typedef struct {
    int32_t layout, group, half_scales, has_minimum;
    int table; /* Q4: 0: code - 8; 1: numbers over all of int8 */
} format;

static const format formats[] = {
    {OUTRIDER_Q8, 32, 1, 0, 0}, {OUTRIDER_Q8, 16, 0, 1, 0}, {OUTRIDER_Q4, 32, 1, 1, 0},  {OUTRIDER_Q4, 32, 0, 0, 1},
    {OUTRIDER_Q4, 16, 0, 1, 1}, {OUTRIDER_F32, 0, 0, 0, 0}, {OUTRIDER_BF16, 0, 0, 0, 0},
};

typedef struct {
    float x[ROWS * INPUTS], bias[OUTPUTS];
    uint8_t panels[MOST_BYTES];
} numbers;

static void fill(const outrider_weight *w, numbers *n, uint32_t *state) {
    uint8_t *at = n->panels, *end = at + PANELS * w->panel_bytes;
    for (int i = 0; i < ROWS * INPUTS; i++) n->x[i] = random_float(state);
    for (int i = 0; i < OUTPUTS; i++) n->bias[i] = random_float(state);
    if (!w->groups)
        while (at < end) at = write_number(at, w->layout == OUTRIDER_F32 ? 4 : 2, 0x3f00, state);
    int64_t codes = w->groups ? w->panel_bytes / w->groups - scale_bytes(w->half_scales) * (1 + w->has_minimum) : 0;
    while (at < end) {
        for (int i = 0; i < PANEL_OUTPUTS * (1 + w->has_minimum); i++)
            at = write_number(at, w->half_scales ? 2 : 4, 0x2c00, state);
        for (int64_t i = 0; i < codes; i++) *at++ = (uint8_t)next_random(state);
    }
}

static void multiply(const kernels *k, const outrider_weight *w, const float *x, float *y) {
    int8_t codes[ROWS * GROUPS * 32];
    act_quant_group quant[ROWS * GROUPS];
    activations a = {ROWS, INPUTS, GROUPS, x, codes, quant};
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
        outrider_weight w = {.layout = f->layout, .group = f->group, .half_scales = f->half_scales,
                             .has_minimum = f->has_minimum, .outputs = OUTPUTS, .inputs = INPUTS, .panels = n.panels,
                             .groups = f->group ? GROUPS * 32 / f->group : 0, .bias = n.bias};
        w.panel_bytes = outrider_panel_bytes(f->layout, f->group, f->half_scales, f->has_minimum, INPUTS);
        for (int c = 0; c < 16; c++) w.values[c] = (int8_t)(f->table ? c * 17 - 128 : c - 8);
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
