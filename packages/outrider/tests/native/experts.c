/* Layers of experts, computed together, against one expert and one row at a time, to the bit.
 *
 * Attention gives zeros here. Prints one line for each count of threads and set, and ends with 1 if bits differ.
 */
#include "driver_model.h"
#include "kernels.h"

enum { LIKE = 0, HIDDEN = 72, INNER = 112, EXPERTS = 12, USED = 5, ROWS = 150 }; /* several waves of rows */

static outrider_context *alone;

static void multiply(const outrider_weight *w, const float *x, float *y) {
    if (outrider_linear(alone, w, 1, x, y)) exit(2);
}

/* The experts_used likeliest, the first of equals: a mark for each. */
static void mark_chosen(const outrider_layer *l, const float *weights, int *chosen) {
    for (int e = 0; e < l->experts; e++) {
        int before = 0; /* experts that are chosen first */
        for (int i = 0; i < l->experts; i++)
            before += weights[i] > weights[e] || (weights[i] == weights[e] && i < e);
        chosen[e] = before < l->experts_used;
    }
}

/* Weights are summed as they are chosen: from the largest down. */
static float sum_chosen(const outrider_layer *l, const float *weights, const int *chosen) {
    float sum = 0;
    int taken[EXPERTS] = {0};
    for (int n = 0; n < l->experts_used; n++) {
        int best = -1;
        for (int e = 0; e < l->experts; e++)
            if (chosen[e] && !taken[e] && (best < 0 || weights[e] > weights[best])) best = e;
        taken[best] = 1;
        sum += weights[best];
    }
    return sum;
}

/* x += what the layer's experts make of one row. */
static void add_experts_of_row(const kernels *k, const outrider_layer *l, float *x) {
    float normed[HIDDEN], weights[EXPERTS], gate[INNER], up[INNER], out[HIDDEN], y[HIDDEN] = {0};
    int chosen[EXPERTS];
    k->norm(HIDDEN, x, l->mlp_norm.weight, 1e-5f, normed);
    multiply(&l->router, normed, weights);
    k->softmax(EXPERTS, weights);
    mark_chosen(l, weights, chosen);
    float sum = sum_chosen(l, weights, chosen);
    for (int e = 0; e < EXPERTS; e++) {
        if (!chosen[e]) continue;
        float weight = l->normalised ? weights[e] / sum : weights[e];
        multiply(&l->expert[e].gate, normed, gate);
        multiply(&l->expert[e].up, normed, up);
        k->silu_mul(INNER, gate, up);
        multiply(&l->expert[e].down, gate, out);
        for (int i = 0; i < HIDDEN; i++) out[i] *= weight;
        k->add(HIDDEN, y, out);
    }
    k->add(HIDDEN, x, y);
}

static outrider_model build(void) {
    outrider_model m = random_model(LIKE);
    float *none = allocate(HIDDEN * 144 * sizeof(float) * 2);
    for (int i = 0; i < m.layers; i++) {
        int64_t inputs = m.layer[i].out.inputs;
        outrider_weight zeros = {.layout = OUTRIDER_F32, .outputs = HIDDEN, .inputs = inputs, .panel_bytes = 64 * inputs,
                                 .panels = (const uint8_t *)none};
        ((outrider_layer *)m.layer)[i].out = zeros;
        add_experts(&m, i, LIKE, EXPERTS, USED);
    }
    return m;
}

static int differs(outrider_context *c, const outrider_model *m, int rows, const float *x, const float *expected) {
    void *keys[8], *values[8];
    int64_t positions[ROWS];
    const int32_t table = 0;
    size_t bytes = (size_t)ROWS * (size_t)(m->kv_heads * m->head_dim) * 2;
    outrider_cache cache = {.type = OUTRIDER_CACHE_BF16, .block = ROWS, .rows = ROWS, .layers = m->layers,
                            .kv_heads = m->kv_heads, .head_dim = m->head_dim, .keys = keys, .values = values};
    float *found = allocate((size_t)rows * HIDDEN * sizeof(float));
    for (int i = 0; i < m->layers; i++) keys[i] = allocate(bytes), values[i] = allocate(bytes);
    for (int r = 0; r < rows; r++) positions[r] = r;
    outrider_span span = {.count = rows, .entries = 1, .table = &table};
    outrider_batch batch = {.rows = rows, .spans = 1, .layers = m->layers, .positions = positions, .inputs = x,
                            .span = &span, .residual = found};
    int status = outrider_forward(c, m, &cache, &batch);
    int wrong = status || memcmp(found, expected, (size_t)rows * HIDDEN * sizeof(float));
    for (int i = 0; i < m->layers; i++) free(keys[i]), free(values[i]);
    free(found);
    return wrong;
}

int main(void) {
    static const char *const sets[] = {"portable", "avx2", "avxvnni", "avx512", "amx", "neon", "i8mm"};
    outrider_model m = build();
    float *x = random_floats(ROWS * HIDDEN, 2.0f), *expected = allocate(ROWS * HIDDEN * sizeof(float));
    int wrong = 0;
    if (outrider_create(1, "portable", &alone)) return 2;
    memcpy(expected, x, ROWS * HIDDEN * sizeof(float));
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < m.layers; i++)
            add_experts_of_row(find_kernels("portable"), m.layer + i, expected + r * HIDDEN);
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        if (outrider_isa_state(sets[s]) != OUTRIDER_ISA_WORKS) continue;
        for (int threads = 1; threads <= 5; threads += 2) {
            outrider_context *c;
            if (outrider_create(threads, sets[s], &c)) return 2;
            int parts = 0;
            for (int rows = 1; rows <= ROWS; rows = rows < 3 ? rows + 1 : rows * 7) parts |= differs(c, &m, rows, x, expected);
            parts |= differs(c, &m, ROWS, x, expected);
            printf("%s, %d threads: %s\n", sets[s], threads, parts ? "DIFFERENT" : "the same bits");
            wrong |= parts;
            outrider_destroy(c);
        }
    }
    return wrong;
}
