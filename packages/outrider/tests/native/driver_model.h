/* Small models of random weights, the same on every machine: no libm, and no operation that could round differently. */
#ifndef DRIVER_MODEL_H
#define DRIVER_MODEL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

/* ---- Random numbers (Steele, Lea and Flood's SplitMix64) ---------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_bits(void) {
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }

/* In [-most, most); exact if ``most`` is a power of two. */
static float random_float(float most) { return ((float)random_below(1 << 24) * 0x1p-23f - 1.0f) * most; }

static void *allocate(size_t size) {
    void *memory = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!memory) {
        fprintf(stderr, "no memory\n");
        exit(2);
    }
    return memset(memory, 0, size);
}

static float *random_floats(int64_t count, float most) {
    float *x = allocate((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++) x[i] = random_float(most);
    return x;
}

/* ---- Weights ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int32_t layout, group, half_scales, has_minimum;
    int table; /* Q4: 0: code - 8; 1: code; 2: sixteen numbers over all of int8 */
} format;

enum { FORMATS = 10 };
static const format formats[FORMATS] = {
    {OUTRIDER_Q4, 32, 1, 0, 0},   {OUTRIDER_Q4, 32, 1, 1, 1}, {OUTRIDER_Q8, 32, 1, 0, 0},    {OUTRIDER_Q8, 16, 0, 0, 0},
    {OUTRIDER_Q4, 16, 0, 1, 1},   {OUTRIDER_Q8, 32, 0, 1, 0}, {OUTRIDER_Q4, 32, 1, 0, 2},    {OUTRIDER_BF16, 0, 0, 0, 0},
    {OUTRIDER_F32, 0, 0, 0, 0},   {OUTRIDER_Q4, 16, 1, 0, 2},
};

/* From 2^-16 to 2^-5, by the size of the codes; one of 64 is subnormal. */
static uint16_t random_half(int small) {
    uint16_t bits = (uint16_t)random_below(1 << 10);
    if (random_below(64)) bits |= (uint16_t)((small ? 5 : 8) << 10);
    return bits;
}

static void write_scale(uint8_t *at, const format *f, int small, float sign) {
    uint16_t half = random_half(small);
    float number = (float)(half & 0x3ff) * 0x1p-10f * (small ? 0x1p-10f : 0x1p-7f) * sign;
    if (sign < 0) half |= 0x8000;
    if (f->half_scales)
        memcpy(at, &half, sizeof half);
    else
        memcpy(at, &number, sizeof number);
}

static void fill_block(const outrider_weight *w, const format *f, int64_t panel, uint8_t *block) {
    int64_t size = f->half_scales ? 2 : 4, codes = (f->layout == OUTRIDER_Q8 ? 16 : 8) * f->group;
    int small = f->layout == OUTRIDER_Q8 || f->table == 2;
    for (int64_t o = 0; o < 16; o++) {
        if (panel * 16 + o >= w->outputs) continue; /* missing outputs are zero */
        write_scale(block + o * size, f, small, random_below(8) ? 1.0f : -1.0f);
        if (f->has_minimum) write_scale(block + (16 + o) * size, f, 0, -1.0f);
    }
    block += 16 * size * (1 + f->has_minimum);
    for (int64_t i = 0; i < codes; i++) block[i] = (uint8_t)random_bits();
}

static void fill_floats(const outrider_weight *w, const format *f, int64_t panel, uint8_t *at) {
    for (int64_t i = 0; i < w->inputs; i++)
        for (int64_t o = 0; o < 16; o++, at += f->layout == OUTRIDER_F32 ? 4 : 2) {
            float number = panel * 16 + o < w->outputs ? random_float(0.25f) : 0.0f;
            uint32_t bits;
            memcpy(&bits, &number, 4);
            uint16_t upper = (uint16_t)(bits >> 16);
            if (f->layout == OUTRIDER_F32)
                memcpy(at, &number, 4);
            else
                memcpy(at, &upper, 2);
        }
}

static outrider_weight random_weight(int which, int64_t outputs, int64_t inputs, int has_bias) {
    static const int8_t table[16] = {-128, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 127};
    const format *f = formats + which % FORMATS;
    int quantised = f->layout == OUTRIDER_Q8 || f->layout == OUTRIDER_Q4;
    outrider_weight w = {.layout = f->layout, .group = f->group, .half_scales = f->half_scales,
                         .has_minimum = f->has_minimum, .outputs = outputs, .inputs = inputs};
    w.groups = quantised ? (inputs + 31) / 32 * 32 / f->group : 0;
    w.panel_bytes = outrider_panel_bytes(f->layout, f->group, f->half_scales, f->has_minimum, inputs);
    for (int i = 0; i < 16; i++) w.values[i] = (int8_t)(f->table == 0 ? i - 8 : f->table == 1 ? i : table[i]);
    int64_t panels = (outputs + 15) / 16, step = quantised ? w.panel_bytes / w.groups : 0;
    uint8_t *bytes = allocate((size_t)(panels * w.panel_bytes));
    for (int64_t p = 0; p < panels; p++) {
        uint8_t *panel = bytes + p * w.panel_bytes;
        if (!quantised) fill_floats(&w, f, p, panel);
        for (int64_t g = 0; g < w.groups; g++) fill_block(&w, f, p, panel + g * step);
    }
    w.panels = bytes;
    w.bias = has_bias ? random_floats(outputs, 0.5f) : NULL;
    return w;
}

/* ---- Models ------------------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t layers, hidden, heads, kv_heads, head_dim, inner, window, has_bias, has_norms;
    int64_t vocabulary;
} sizes;

enum { MODELS = 3, POSITIONS = 512 };
static const sizes model_sizes[MODELS] = {
    {4, 72, 6, 2, 24, 112, 0, 0, 0, 259},  /* inputs that are no multiple of 32, outputs none of 16 */
    {3, 96, 4, 4, 22, 80, 40, 0, 1, 130},  /* odd halves of heads; norms of q and k; a window */
    {3, 64, 10, 2, 64, 160, 0, 1, 0, 200}, /* five heads share one; biases */
};

/* Points of the unit circle, by arithmetic alone: (1 - t^2, 2 t) / (1 + t^2). */
static float *random_rotations(int64_t half) {
    float *rotations = allocate((size_t)(POSITIONS * 2 * half) * sizeof(float));
    for (int64_t p = 0; p < POSITIONS; p++)
        for (int64_t i = 0; i < half; i++) {
            float t = random_float(2.0f), square = t * t;
            rotations[p * 2 * half + i] = (1.0f - square) / (1.0f + square);
            rotations[p * 2 * half + half + i] = 2.0f * t / (1.0f + square);
        }
    return rotations;
}

static outrider_model random_model(int which) {
    const sizes *s = model_sizes + which;
    random_state = 1 + (uint64_t)which;
    int64_t width = (int64_t)s->heads * s->head_dim, own = (int64_t)s->kv_heads * s->head_dim;
    outrider_layer *layers = allocate((size_t)s->layers * sizeof *layers);
    for (int i = 0; i < s->layers; i++) {
        int f = 3 * i + which; /* every format in some place, and unlike ones side by side */
        layers[i] = (outrider_layer){
            .q = random_weight(f, width, s->hidden, s->has_bias),
            .k = random_weight(f + 1, own, s->hidden, s->has_bias),
            .v = random_weight(f + 2 * i, own, s->hidden, s->has_bias),
            .out = random_weight(f + 2, s->hidden, width, s->has_bias),
            .mlp = {.gate = random_weight(f + 3, s->inner, s->hidden, s->has_bias),
                    .up = random_weight(f + 3 + i, s->inner, s->hidden, s->has_bias),
                    .down = random_weight(f + 5, s->hidden, s->inner, s->has_bias)},
            .attention_norm = {random_floats(s->hidden, 1.0f)},
            .mlp_norm = {random_floats(s->hidden, 1.0f)},
            .window = s->window,
            .q_norm = s->has_norms ? random_floats(s->head_dim, 2.0f) : NULL,
            .k_norm = s->has_norms ? random_floats(s->head_dim, 2.0f) : NULL,
        };
    }
    outrider_weight *ends = allocate(2 * sizeof *ends);
    ends[0] = random_weight(which + 6, s->vocabulary, s->hidden, 0);
    ends[1] = random_weight(which + 1, s->vocabulary, s->hidden, 0);
    float *rotations = random_rotations(s->head_dim / 2);
    for (int i = 0; i < s->layers; i++) layers[i].rotations = rotations;
    return (outrider_model){.layers = s->layers, .hidden = s->hidden, .heads = s->heads, .kv_heads = s->kv_heads,
                            .head_dim = s->head_dim, .inner = s->inner, .positions = POSITIONS, .eps = 1e-5f, .layer = layers,
                            .final_norm = {random_floats(s->hidden, 1.0f)}, .embedding = ends, .head = ends + 1};
}

#endif
