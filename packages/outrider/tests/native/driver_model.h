/* Small models of random weights, the same on every machine: no libm, and no operation that could round differently. */
#ifndef DRIVER_MODEL_H
#define DRIVER_MODEL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"
#include "system.h"

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
    void *memory = allocate_aligned(64, (size + 63) / 64 * 64);
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
    int32_t layout, bits, group, has_minimum;
    int narrow; /* no exponents of float16: multiples of a power of two */
    int table;  /* 4 bits: 0: code - 8; 1: code; 2: sixteen numbers over all of int8 */
} format;

enum { FORMATS = 10 };
static const format formats[FORMATS] = {
    {OUTRIDER_CODES, 4, 32, 0, 0, 0}, {OUTRIDER_CODES, 4, 32, 1, 0, 1}, {OUTRIDER_CODES, 8, 32, 0, 0, 0},
    {OUTRIDER_CODES, 8, 16, 0, 1, 0}, {OUTRIDER_CODES, 4, 16, 1, 1, 1}, {OUTRIDER_CODES, 8, 32, 1, 1, 0},
    {OUTRIDER_CODES, 4, 32, 0, 0, 2}, {OUTRIDER_BF16, 0, 0, 0, 0, 0},   {OUTRIDER_F32, 0, 0, 0, 0, 0},
    {OUTRIDER_CODES, 4, 16, 0, 0, 2},
};

/* From 2^-16 to 2^-5, by the size of the codes; one of 64 is subnormal. */
static uint16_t random_half(int small) {
    uint16_t bits = (uint16_t)random_below(1 << 10);
    if (random_below(64)) bits |= (uint16_t)((small ? 5 : 8) << 10);
    return bits;
}

/* ``count`` times 2^-24 as float16, for counts whose bits fit: float16's subnormal numbers, and above. */
static uint16_t half_of_count(uint32_t count) {
    uint32_t exponent = 1;
    if (count < 1 << 10) return (uint16_t)count;
    while (count >= 1 << 11) count >>= 1, exponent++;
    return (uint16_t)(exponent << 10 | (count & 0x3ff));
}

static void write_scale(uint8_t *at, const format *f, int small, float sign) {
    uint16_t half = random_half(small);
    if (f->narrow) half = half_of_count((uint32_t)(half & 0x3ff) << (small ? 4 : 7));
    if (sign < 0) half |= 0x8000;
    memcpy(at, &half, sizeof half);
}

/* Codes in the order in which blocks of one plane of 4 or 8 bits, and of 16 inputs by pairs, were first drawn. */
static void fill_codes(const format *f, uint8_t *block, int64_t first) {
    int64_t steps = f->group / 4;
    for (int64_t s = 0; s < (f->bits == 8 ? steps : steps / 2); s++)
        for (int64_t i = 0; i < 64; i++) {
            uint8_t both = (uint8_t)random_bits();
            if (f->bits == 8) {
                block[64 * (first + s) + i] = both;
                continue;
            }
            for (int half = 0; half < 2; half++) {
                int64_t step = first + s + half * steps / 2;
                block[64 * (step / 2) + i] |= (uint8_t)((both >> 4 * half & 15) << 4 * (step % 2));
            }
        }
}

static void fill_group(const outrider_weight *w, const format *f, int64_t panel, int64_t g, uint8_t *at) {
    int small = f->bits == 8 || f->table == 2;
    int64_t scale_bytes = 32 * (1 + f->has_minimum), run = 512 / f->group, first = g / run * run;
    int64_t groups = w->groups - first < run ? w->groups - first : run; /* of the run of 16 blocks */
    int64_t whole = (run * scale_bytes + 63) / 64 * 64 + 1024 * f->bits;
    uint8_t *scales = at + g / run * whole + g % run * scale_bytes;
    uint8_t *block = at + g / run * whole + (groups * scale_bytes + 63) / 64 * 64 + g % run * f->group / 32 * 64 * f->bits;
    for (int64_t o = 0; o < 16; o++) {
        if (panel * 16 + o >= w->outputs) continue; /* missing outputs are zero */
        write_scale(scales + 2 * o, f, small, random_below(8) ? 1.0f : -1.0f);
        if (f->has_minimum) write_scale(scales + 2 * (16 + o), f, 0, -1.0f);
    }
    fill_codes(f, block, g * f->group % 32 / 4);
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
    outrider_weight w = {.layout = f->layout, .bits = f->bits, .group = f->group, .has_minimum = f->has_minimum,
                         .has_table = f->table == 2, .first = f->bits == 8 ? -128 : f->table ? 0 : -8, .unit = 1,
                         .outputs = outputs, .inputs = inputs};
    w.groups = f->group ? (inputs + 31) / 32 * 32 / f->group : 0;
    w.panel_bytes = outrider_panel_bytes(&w);
    memcpy(w.values, table, sizeof table);
    int64_t panels = (outputs + 15) / 16;
    uint8_t *bytes = allocate((size_t)(panels * w.panel_bytes));
    for (int64_t p = 0; p < panels; p++) {
        uint8_t *panel = bytes + p * w.panel_bytes;
        if (!f->group) fill_floats(&w, f, p, panel);
        for (int64_t g = 0; g < w.groups; g++) fill_group(&w, f, p, g, panel);
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

/* Experts of all formats in place of a layer's MLP. ``like``: sizes of model_sizes. */
static void add_experts(outrider_model *m, int layer, int like, int experts, int used) {
    const sizes *s = model_sizes + like;
    outrider_layer *l = (outrider_layer *)m->layer + layer;
    outrider_mlp *expert = allocate((size_t)experts * sizeof *expert);
    for (int e = 0; e < experts; e++)
        expert[e] = (outrider_mlp){.gate = random_weight(e, s->inner, s->hidden, s->has_bias),
                                   .up = random_weight(e + e / FORMATS, s->inner, s->hidden, s->has_bias),
                                   .down = random_weight(3 * e, s->hidden, s->inner, s->has_bias)};
    l->router = random_weight(layer % 2 ? 8 : 2, experts, s->hidden, 0);
    l->expert = expert;
    l->experts = experts;
    l->experts_used = used;
    l->normalised = layer % 2;
}

/* Experts in all layers, and a router of another kind in each but the third. */
static void add_routers(outrider_model *m, int like, int experts, int used) {
    outrider_routing *routing = allocate(4 * sizeof *routing);
    routing[0] = (outrider_routing){.kind = OUTRIDER_SIGMOID, .groups = 3, .groups_used = 2, .best_of_group = 2,
                                    .sum_added = 0x1p-20f, .scale = 2.5f, .bias = random_floats(experts, 0.5f)};
    routing[1] = (outrider_routing){.kind = OUTRIDER_SOFTMAX_OF_USED, .scale = 1.5f};
    routing[3] = (outrider_routing){.kind = OUTRIDER_SIGMOID, .scales_inputs = 1, .scale = 1.0f};
    for (int i = 0; i < m->layers; i++) {
        outrider_layer *l = (outrider_layer *)m->layer + i;
        add_experts(m, i, like, experts, used);
        if (i % 4 != 2) l->routing = routing + i % 4;
        l->normalised = i % 4 == 0;
    }
    outrider_mlp *shared = allocate(sizeof *shared); /* without a gate of its own */
    *shared = m->layer[0].mlp;
    ((outrider_layer *)m->layer)[0].shared_expert = shared;
}

#endif
