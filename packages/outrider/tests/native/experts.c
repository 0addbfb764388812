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

/* What the experts of a row are chosen by: with groups, -1 outside of the best. */
static void score(const kernels *k, const outrider_layer *l, const float *numbers, float *weights, float *scores) {
    const outrider_routing *by = l->routing;
    int size = by && by->groups ? l->experts / by->groups : l->experts;
    float total[EXPERTS];
    memcpy(weights, numbers, EXPERTS * sizeof(float));
    if (!by) k->softmax(EXPERTS, weights);
    for (int e = 0; by && by->kind == OUTRIDER_SIGMOID && e < EXPERTS; e++) {
        weights[e] = 1.0f;
        k->sigmoid_mul(1, weights + e, numbers + e);
    }
    for (int e = 0; e < EXPERTS; e++) scores[e] = weights[e] + (by && by->bias ? by->bias[e] : 0.0f);
    for (int g = 0; g < EXPERTS / size; g++) {
        total[g] = -9;
        for (int i = 0; i < size; i++)
            for (int j = 0; j < i; j++) {
                float both = scores[g * size + i] + scores[g * size + j];
                total[g] = both > total[g] ? both : total[g];
            }
    }
    for (int g = 0; by && by->groups && g < by->groups; g++) {
        int before = 0;
        for (int i = 0; i < by->groups; i++) before += total[i] > total[g] || (total[i] == total[g] && i < g);
        for (int e = 0; before >= by->groups_used && e < size; e++) scores[g * size + e] = -9;
    }
}

/* The experts_used best, the first of equals, in order. */
static void order(const outrider_layer *l, const float *scores, int *best) {
    for (int e = 0; e < EXPERTS; e++) {
        int before = 0; /* experts that are chosen first */
        for (int i = 0; i < EXPERTS; i++) before += scores[i] > scores[e] || (scores[i] == scores[e] && i < e);
        if (before < l->experts_used) best[before] = e;
    }
}

/* Weights of the experts of a row; 0 of those not used. Weights are summed as experts are chosen: from the best down. */
static void weigh(const kernels *k, const outrider_layer *l, const float *numbers, float *weights) {
    const outrider_routing *by = l->routing;
    float scores[EXPERTS], chosen[USED], all[EXPERTS], sum = 0;
    int best[USED], used = 0;
    score(k, l, numbers, all, scores);
    order(l, scores, best);
    for (int n = 0; n < USED; n++) sum += all[best[n]];
    for (int e = 0; e < EXPERTS; e++)
        for (int n = 0; n < USED; n++)
            if (best[n] == e) chosen[used++] = all[e]; /* in the experts' order */
    if (by && by->kind == OUTRIDER_SOFTMAX_OF_USED) k->softmax(USED, chosen);
    if (by) sum += by->sum_added;
    used = 0;
    for (int e = 0; e < EXPERTS; e++) {
        int is_best = 0;
        for (int n = 0; n < USED; n++) is_best |= best[n] == e;
        weights[e] = is_best ? chosen[used++] : 0;
        if (l->normalised) weights[e] /= sum;
        if (by) weights[e] *= by->scale;
    }
}

static void add_mlp(const kernels *k, const outrider_mlp *mlp, const float *x, float weight, float *y) {
    float gate[INNER], up[INNER], out[HIDDEN];
    multiply(&mlp->gate, x, gate);
    multiply(&mlp->up, x, up);
    k->silu_mul(INNER, gate, up);
    multiply(&mlp->down, gate, out);
    for (int i = 0; i < HIDDEN; i++) out[i] *= weight;
    k->add(HIDDEN, y, out);
}

/* x += what the layer's experts make of one row. */
static void add_experts_of_row(const kernels *k, const outrider_layer *l, float *x) {
    float normed[HIDDEN], scaled[HIDDEN], numbers[EXPERTS], weights[EXPERTS], y[HIDDEN] = {0};
    k->norm(HIDDEN, x, l->mlp_norm.weight, 1e-5f, normed);
    multiply(&l->router, normed, numbers);
    weigh(k, l, numbers, weights);
    for (int e = 0; e < l->experts; e++) {
        int before = l->routing && l->routing->scales_inputs;
        for (int i = 0; i < HIDDEN; i++) scaled[i] = normed[i] * (before ? weights[e] : 1.0f);
        if (weights[e] != 0) add_mlp(k, l->expert + e, scaled, before ? 1.0f : weights[e], y);
    }
    if (l->shared_expert) add_mlp(k, l->shared_expert, normed, 1.0f, y);
    k->add(HIDDEN, x, y);
}

/* ``routers``: of all kinds. */
static outrider_model build(int routers) {
    outrider_model m = random_model(LIKE);
    float *none = allocate(HIDDEN * 144 * sizeof(float) * 2);
    for (int i = 0; i < m.layers; i++) {
        int64_t inputs = m.layer[i].out.inputs;
        outrider_weight zeros = {.layout = OUTRIDER_F32, .outputs = HIDDEN, .inputs = inputs, .panel_bytes = 64 * inputs,
                                 .panels = (const uint8_t *)none};
        ((outrider_layer *)m.layer)[i].out = zeros;
    }
    if (routers)
        add_routers(&m, LIKE, EXPERTS, USED);
    else
        for (int i = 0; i < m.layers; i++) add_experts(&m, i, LIKE, EXPERTS, USED);
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
    for (int i = 0; i < m->layers; i++) free_aligned(keys[i]), free_aligned(values[i]);
    free_aligned(found);
    return wrong;
}

/* Whether any count of rows differs on a set of instructions with so many threads. */
static int any_differs(const char *set, int threads, const outrider_model *m, const float *x, const float *expected) {
    outrider_context *c;
    if (outrider_create(threads, set, &c)) exit(2);
    int parts = differs(c, m, ROWS, x, expected);
    for (int rows = 1; rows <= ROWS; rows = rows < 3 ? rows + 1 : rows * 7) parts |= differs(c, m, rows, x, expected);
    outrider_destroy(c);
    return parts;
}

int main(void) {
    static const char *const sets[] = {"portable", "avx2", "avxvnni", "avx512", "amx", "neon", "i8mm"};
    int wrong = 0;
    if (outrider_create(1, "portable", &alone)) return 2;
    for (int routers = 0; routers < 2; routers++) {
        outrider_model m = build(routers);
        float *x = random_floats(ROWS * HIDDEN, 2.0f), *expected = allocate(ROWS * HIDDEN * sizeof(float));
        memcpy(expected, x, ROWS * HIDDEN * sizeof(float));
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < m.layers; i++)
                add_experts_of_row(find_kernels("portable"), m.layer + i, expected + r * HIDDEN);
        for (size_t s = 0; s < sizeof sets / sizeof *sets; s++)
            for (int threads = 1; outrider_isa_state(sets[s]) == OUTRIDER_ISA_WORKS && threads <= 5; threads += 2) {
                int parts = any_differs(sets[s], threads, &m, x, expected);
                printf("%s, %d threads, %s: %s\n", sets[s], threads, routers ? "routers of all kinds" : "softmax",
                       parts ? "DIFFERENT" : "the same bits");
                wrong |= parts;
            }
    }
    return wrong;
}
