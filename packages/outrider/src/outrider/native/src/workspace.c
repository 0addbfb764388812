#include "workspace.h"

void take_codes(arena *a, workspace *w, int64_t rows, int64_t inputs) {
    int64_t groups = (inputs + 31) / 32;
    w->codes = take(a, rows * groups * 32, 1);
    w->quant = take(a, rows * groups, sizeof *w->quant);
}

/* Whether a layer reads embeddings beside the residual stream. */
static int reads_embeddings(const outrider_model *m) {
    for (int32_t i = 0; i < m->layers; i++)
        if (m->layer[i].embedding_norm) return 1;
    return 0;
}

static int64_t most_experts(const outrider_model *m) {
    int64_t most = 0;
    for (int32_t i = 0; i < m->layers; i++)
        if (m->layer[i].experts > most) most = m->layer[i].experts;
    return most;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

void take_workspace(arena *a, workspace *w, const local_model *m, int64_t rows, int64_t scored) {
    int64_t d = m->whole->hidden, width = m->queries.all, inner = larger(m->inner.all, m->expert_inner.all);
    int64_t wide = reads_embeddings(m->whole) ? 2 * d : d; /* what attention reads */
    int64_t experts = most_experts(m->whole), most = larger(rows, scored);
    w->x = take(a, rows * d, sizeof(float));
    w->normed = take(a, most * wide, sizeof(float));
    w->y = take(a, rows * d, sizeof(float));
    w->q = take(a, rows * width, sizeof(float));
    w->attended = take(a, rows * width, sizeof(float));
    w->keys = take(a, rows * m->kv.all, sizeof(float));
    w->values = take(a, rows * m->kv.all, sizeof(float));
    w->gate = take(a, rows * inner, sizeof(float));
    w->up = take(a, rows * inner, sizeof(float));
    take_codes(a, w, most, larger(larger(wide, width), inner));
    if (!experts) return;
    w->router = take(a, rows * experts, sizeof(float));
    w->chosen = take(a, rows * experts, sizeof *w->chosen);
    w->expert_rows = take(a, rows, sizeof *w->expert_rows);
    w->expert_in = take(a, rows * d, sizeof(float));
    w->expert_out = take(a, rows * d, sizeof(float));
}
