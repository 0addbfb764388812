/* A model split over processes: each computes some columns of every array, and gathers bring them together. */
#include <string.h>

#include "forward.h"
#include "linear.h"

#define PIECE_BYTES ((int64_t)1 << 20) /* of a process, in one gather */

static columns split_columns(const outrider_shard *s, const int64_t *bounds, int64_t unit, int64_t whole) {
    if (!s) return (columns){0, whole, whole, NULL, 1};
    int64_t first = bounds[s->rank] * unit;
    return (columns){first, bounds[s->rank + 1] * unit - first, bounds[s->size] * unit, bounds, unit};
}

void find_columns(pass *p) {
    const outrider_model *m = p->model;
    const outrider_shard *s = m->shard;
    int64_t key_width = (int64_t)m->kv_heads * m->head_dim, width = (int64_t)m->heads * m->head_dim;
    p->queries = split_columns(s, s ? s->key_heads : NULL, s ? (int64_t)s->group * m->head_dim : 1, width);
    p->kv = split_columns(s, s ? s->key_heads : NULL, m->head_dim, key_width);
    p->hidden = split_columns(s, s ? s->hidden : NULL, 1, m->hidden);
    p->inner = split_columns(s, s ? s->inner : NULL, 1, m->inner);
    p->expert_inner = split_columns(s, s ? s->expert_inner : NULL, 1, 0); /* a whole expert says its own */
    p->vocabulary = split_columns(s, s ? s->vocabulary : NULL, 1, m->head ? m->head->outputs : 0);
}

/* ---- Pieces of rows --------------------------------------------------------------------------------------------- */

/* An array [rows, stride bytes] of which process r has the bytes from bounds[r] * unit on. */
typedef struct {
    char *base;
    int64_t stride, unit;
    const int64_t *bounds;
    int64_t own_first; /* where this process's part of a row lies */
} part;

static int64_t part_bytes(const part *x, int rank) { return (x->bounds[rank + 1] - x->bounds[rank]) * x->unit; }

static int64_t widest_part(const outrider_shard *s, const part *x) {
    int64_t widest = 0;
    for (int32_t r = 0; r < s->size; r++)
        if (part_bytes(x, r) > widest) widest = part_bytes(x, r);
    return widest;
}

static void copy_out(const part *x, int64_t first, int64_t rows, int64_t bytes, char *to, int64_t step) {
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * step, x->base + (first + i) * x->stride + x->own_first, (size_t)bytes);
}

static void copy_in(const part *x, int rank, int64_t first, int64_t rows, const char *from, int64_t step) {
    int64_t at = x->bounds[rank] * x->unit, bytes = part_bytes(x, rank);
    for (int64_t i = 0; i < rows; i++)
        memcpy(x->base + (first + i) * x->stride + at, from + i * step, (size_t)bytes);
}

/* Up to two arrays of the same rows in one gather: row by row, padded to the widest part. */
static void gather_parts(pass *p, int64_t rows, int count, const part *parts, int first_only) {
    outrider_shard *s = p->model->shard;
    int64_t width[2] = {0, 0}, step = 0;
    for (int i = 0; i < count; i++) step += width[i] = widest_part(s, parts + i);
    int64_t most = PIECE_BYTES / (step ? step : 1);
    if (most < 1) most = 1;
    if (most > rows) most = rows;
    char *mine = scratch_memory(MEMORY_GATHER, (size_t)(most * step * (1 + s->size)));
    if (!mine) p->lost = 1;
    char *all = mine + most * step;
    for (int64_t first = 0; first < rows && !p->lost; first += most) {
        int64_t piece = rows - first < most ? rows - first : most;
        for (int64_t i = 0, at = 0; i < count; at += width[i++])
            copy_out(parts + i, first, piece, part_bytes(parts + i, s->rank), mine + at, step);
        p->lost = s->gather(s->context, mine, all, piece * step, first_only) != 0;
        s->gathers++;
        if (p->lost || (first_only && s->rank)) continue;
        s->bytes += piece * step * (s->size - 1);
        for (int32_t r = 0; r < s->size; r++)
            for (int64_t i = 0, at = 0; i < count && r != s->rank; at += width[i++])
                copy_in(parts + i, r, first, piece, all + r * piece * step + at, step);
    }
}

/* ---- What a pass gathers ------------------------------------------------------------------------------------------ */

void gather_columns(pass *p, float *x, int64_t rows, const columns *c) {
    if (!c->bounds) return;
    part numbers = {(char *)x, c->all * 4, c->unit * 4, c->bounds, c->first * 4};
    gather_parts(p, rows, 1, &numbers, 0);
}

void gather_logits(pass *p, float *logits, int64_t rows) {
    const columns *c = &p->vocabulary;
    if (!c->bounds) return;
    int first = p->model->shard->rank == 0; /* a later one's rows are those that it has computed */
    part numbers = {(char *)logits, (first ? c->all : c->count) * 4, 4, c->bounds, 0};
    gather_parts(p, rows, 1, &numbers, 1);
}

/* Codes stand in groups of 32: they can be gathered if no group belongs to two processes. */
static int has_own_groups(const pass *p, const columns *c) {
    for (int32_t r = 0; r < p->model->shard->size; r++)
        if (c->bounds[r] != c->bounds[p->model->shard->size] && c->bounds[r] * c->unit % 32) return 0;
    return 1;
}

void quantise_own(const pass *p, const float *x, int64_t rows, const columns *c, const outrider_weight *reader,
                  int64_t first, int64_t last) {
    if (!c->bounds) {
        quantise_some(p, x, rows, c->all, reader, NULL, first, last);
        return;
    }
    if (!is_quantised(reader) || !c->count || !has_own_groups(p, c)) return;
    activations a = rows_of(p, x, rows, c->all);
    for (int64_t r = first; r < last; r++) {
        int64_t group = r * a.groups + c->first / 32;
        activations own_part = {.rows = 1, .inputs = c->count, .groups = (c->count + 31) / 32,
                                .x = x + r * c->all + c->first, .codes = a.codes + group * 32, .about = a.about + group};
        p->k->quantise(&own_part, 0, 1);
    }
}

void gather_input(pass *p, float *x, int64_t rows, const columns *c, const outrider_weight *reader) {
    if (!c->bounds) return;
    activations a = rows_of(p, x, rows, c->all);
    if (!is_quantised(reader) || !has_own_groups(p, c)) {
        gather_columns(p, x, rows, c);
        if (is_quantised(reader)) p->k->quantise(&a, 0, rows);
        return;
    }
    int32_t size = p->model->shard->size;
    int64_t groups[size + 1];
    for (int32_t r = 0; r <= size; r++) groups[r] = (c->bounds[r] * c->unit + 31) / 32;
    int64_t first = c->first / 32, bytes = sizeof(code_group);
    part parts[2] = {{(char *)a.codes, a.groups * 32, 32, groups, first * 32},
                     {(char *)a.about, a.groups * bytes, bytes, groups, first * bytes}};
    gather_parts(p, rows, 2, parts, 0);
}
