#include "forward.h"
#include "latent.h"

#define PAIRS 256 /* of an expert and a row: work enough for any number of threads */

act_codes take_codes(arena *a, int64_t rows, int64_t inputs) {
    int64_t groups = (inputs + 31) / 32;
    int8_t *codes = take(a, rows * groups * 32, 1);
    return (act_codes){codes, take(a, rows * groups, sizeof(act_quant_group))};
}

/* Whether a layer reads embeddings beside the residual stream. */
static int reads_embeddings(const outrider_model *m) {
    for (int32_t i = 0; i < m->layers; i++)
        if (m->layer[i].embedding_norm) return 1;
    return 0;
}

static int has_gates(const outrider_model *m) {
    for (int32_t i = 0; i < m->layers; i++)
        if (m->layer[i].gated) return 1;
    return 0;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Experts of the layer that has the most, and experts of a row. */
static void count_experts(const outrider_model *m, int64_t *experts, int64_t *used) {
    for (int32_t i = 0; i < m->layers; i++) {
        *experts = larger(*experts, m->layer[i].experts);
        *used = larger(*used, m->layer[i].experts ? m->layer[i].experts_used : 0);
    }
}

static void take_experts(arena *a, workspace *w, int64_t experts, int64_t rows, int64_t d) {
    w->router = take(a, rows * experts, sizeof(float));
    w->choice = take(a, rows * experts, sizeof(float));
    w->chosen = take(a, rows * experts, sizeof *w->chosen);
    w->shared_weight = take(a, rows, sizeof(float));
    w->pair_row = take(a, w->pairs, sizeof *w->pair_row);
    w->expert_in = take(a, w->pairs * d, sizeof(float));
    w->expert_codes = take_codes(a, w->pairs, d);
    w->expert_out = take(a, rows * d, sizeof(float));
    w->parts = take(a, w->pairs, sizeof *w->parts);
}

static void take_recurrent_rows(arena *a, workspace *w, const outrider_recurrent *r, int64_t rows) {
    w->channels = take(a, rows * projected_of(r), sizeof(float));
    w->mixed = take(a, rows * channels_of(r), sizeof(float));
    w->decay = take(a, rows * r->value_heads, sizeof(float));
    w->write = take(a, rows * r->value_heads, sizeof(float));
    w->alike = take(a, rows * r->key_heads, sizeof(float));
    w->z = take(a, rows * values_of(r), sizeof(float));
    w->recalled = take(a, rows * values_of(r), sizeof(float));
}

/* Of codes in groups of 32, each head's by itself. */
static int64_t codes_of_heads(const outrider_model *m, int64_t inputs) { return m->heads * ((inputs + 31) / 32 * 32); }

/* Returns the most codes of a row. */
static int64_t take_latent_rows(arena *a, workspace *w, const outrider_model *m, int64_t rows) {
    const outrider_latent *t = find_latent(m);
    if (!t) return 0;
    w->query_latent = take(a, rows * t->query_rank, sizeof(float));
    w->query_parts = take(a, rows * m->heads * query_of(t), sizeof(float));
    w->plain = take(a, rows * m->heads * t->plain, sizeof(float));
    w->outputs = take(a, rows * outputs_of(m, t), sizeof(float));
    int64_t of_heads = larger(codes_of_heads(m, t->plain), codes_of_heads(m, t->rank));
    return larger(larger(of_heads, outputs_of(m, t)), t->query_rank);
}

static void take_layer_inputs(arena *a, workspace *w, const outrider_model *m, int64_t rows) {
    w->layer_inputs = take(a, rows * m->layers * m->layer_inputs, sizeof(float));
    w->layer_gate = take(a, rows * m->layer_inputs, sizeof(float));
}

/* Numbers of a row's keys in the layer that has the most. */
static int64_t widest_keys(const local_model *m) {
    int64_t most = m->kv.all;
    for (int32_t i = 0; i < m->whole->layers; i++) most = larger(most, columns_of_layer(m, m->whole->layer + i).kv.all);
    return most;
}

static int has_beside(const outrider_model *m) {
    for (int32_t i = 0; i < m->layers; i++)
        if (m->layer[i].beside) return 1;
    return 0;
}

void take_workspace(arena *a, workspace *w, const local_model *m, const outrider_recurrent *r, int64_t rows,
                    int64_t scored) {
    int64_t d = m->whole->hidden, width = larger(m->queries.all, (int64_t)m->whole->heads * widest_head(m->whole));
    int64_t keys = widest_keys(m), layer_inputs = m->whole->layer_inputs;
    int64_t inner = larger(m->inner.all, m->expert_inner.all);
    int64_t wide = reads_embeddings(m->whole) ? 2 * d : d; /* what attention reads */
    int64_t experts = 0, used = 0, most = larger(rows, scored);
    count_experts(m->whole, &experts, &used);
    w->pairs = larger(rows, smaller(rows * used, PAIRS));
    w->x = take(a, rows * d, sizeof(float));
    w->normed = take(a, most * wide, sizeof(float));
    w->y = take(a, rows * d, sizeof(float));
    w->q = take(a, rows * width, sizeof(float));
    w->attended = take(a, rows * width, sizeof(float));
    w->query_gates = take(a, has_gates(m->whole) ? rows * 2 * width : 0, sizeof(float));
    w->keys = take(a, rows * keys, sizeof(float));
    w->values = take(a, rows * keys, sizeof(float));
    w->gate = take(a, w->pairs * inner, sizeof(float));
    w->up = take(a, w->pairs * inner, sizeof(float));
    int64_t latent = take_latent_rows(a, w, m->whole, rows);
    w->codes = take_codes(a, most, larger(larger(larger(wide, width), larger(latent, layer_inputs)), r ? values_of(r) : 0));
    if (r) take_recurrent_rows(a, w, r, rows);
    w->gated = take_codes(a, w->pairs, inner);
    if (experts) take_experts(a, w, experts, rows, d);
    if (layer_inputs) take_layer_inputs(a, w, m->whole, rows);
    w->beside = take(a, has_beside(m->whole) ? rows * d : 0, sizeof(float));
}
