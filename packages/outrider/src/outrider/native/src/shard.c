/* A model split over processes: each computes some columns of every array, and gathers bring them together. */
#include <string.h>

#include "forward.h"
#include "linear.h"

#define PIECE_BYTES ((int64_t)1 << 20) /* of a process, in one gather */

/* ---- Pieces of rows --------------------------------------------------------------------------------------------- */

/* An array [rows, stride bytes] of which each process has its columns of every row, in groups of so many columns. */
typedef struct {
    char *base;
    int64_t stride;
    const columns *c;
    int64_t group, group_bytes;
    int64_t own_at; /* bytes of a row before this process's part, in its own array */
} part;

/* Bytes of a row before a process's part. */
static int64_t part_at(const part *x, int32_t rank) {
    return (x->c->bounds[rank] * x->c->unit + x->group - 1) / x->group * x->group_bytes;
}

static int64_t part_bytes(const part *x, int32_t rank) { return part_at(x, rank + 1) - part_at(x, rank); }

static int64_t widest_part(const outrider_shard *s, const part *x) {
    int64_t widest = 0;
    for (int32_t r = 0; r < s->size; r++)
        if (part_bytes(x, r) > widest) widest = part_bytes(x, r);
    return widest;
}

static void copy_out(const part *x, int64_t first, int64_t rows, int64_t bytes, char *to, int64_t step) {
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * step, x->base + (first + i) * x->stride + x->own_at, (size_t)bytes);
}

static void copy_in(const part *x, int32_t rank, int64_t first, int64_t rows, const char *from, int64_t step) {
    int64_t at = part_at(x, rank), bytes = part_bytes(x, rank);
    for (int64_t i = 0; i < rows; i++)
        memcpy(x->base + (first + i) * x->stride + at, from + i * step, (size_t)bytes);
}

/* Every process's piece of some rows: from ``mine`` and this process's parts to ``all`` and everybody's. */
static int gather_piece(outrider_shard *s, int count, const part *parts, const int64_t *width, int64_t first,
                        int64_t rows, int first_only, char *mine, char *all) {
    int64_t step = width[0] + width[1];
    for (int64_t i = 0, at = 0; i < count; at += width[i++])
        copy_out(parts + i, first, rows, part_bytes(parts + i, s->rank), mine + at, step);
    int lost = s->gather(s->context, mine, all, rows * step, first_only) != 0;
    s->gathers++;
    if (lost || (first_only && s->rank)) return lost;
    s->bytes += rows * step * (s->size - 1);
    for (int32_t r = 0; r < s->size; r++)
        for (int64_t i = 0, at = 0; i < count && r != s->rank; at += width[i++])
            copy_in(parts + i, r, first, rows, all + r * rows * step + at, step);
    return 0;
}

/* Up to two arrays of the same rows in one gather: row by row, padded to the widest part. */
static void gather_parts(forward_ctx *f, int64_t rows, int count, const part *parts, int first_only) {
    outrider_shard *s = f->model.whole->shard;
    int64_t width[2] = {0, 0};
    for (int i = 0; i < count; i++) width[i] = widest_part(s, parts + i);
    int64_t step = width[0] + width[1], most = PIECE_BYTES / (step ? step : 1);
    if (most < 1) most = 1;
    if (most > rows) most = rows;
    char *mine = scratch_memory(f->context, MEMORY_GATHER, (size_t)(most * step * (1 + s->size)));
    if (!mine) f->status = OUTRIDER_NO_MEMORY;
    for (int64_t first = 0; first < rows && f->status == OUTRIDER_OK; first += most) {
        int64_t piece = rows - first < most ? rows - first : most;
        if (gather_piece(s, count, parts, width, first, piece, first_only, mine, mine + most * step))
            f->status = OUTRIDER_PEER_LOST;
    }
}

/* ---- What a pass gathers ---------------------------------------------------------------------------------------- */

void gather_columns(forward_ctx *f, float *x, int64_t rows, const columns *c) {
    if (!c->bounds) return;
    part numbers = {(char *)x, c->all * 4, c, 1, 4, c->first * 4};
    gather_parts(f, rows, 1, &numbers, 0);
}

void gather_logits(forward_ctx *f, float *logits, int64_t rows) {
    const columns *c = &f->model.vocabulary;
    if (!c->bounds) return;
    int first = f->model.whole->shard->rank == 0; /* a later one's rows are those that it has computed */
    part numbers = {(char *)logits, (first ? c->all : c->count) * 4, c, 1, 4, 0};
    gather_parts(f, rows, 1, &numbers, 1);
}

/* Codes stand in groups of 32: they can be gathered if no group belongs to two processes. */
static int has_own_groups(const outrider_shard *s, const columns *c) {
    for (int32_t r = 0; r < s->size; r++)
        if (c->bounds[r] != c->bounds[s->size] && c->bounds[r] * c->unit % 32) return 0;
    return 1;
}

void quantise_columns(const forward_ctx *f, const activations *a, const columns *c, const outrider_weight *reader,
                      int64_t from, int64_t to) {
    if (from >= to || !is_quantised(reader) || (c->bounds && !has_own_groups(f->model.whole->shard, c))) return;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t group = r * a->groups + (c->first + from) / 32;
        activations part = {.rows = 1, .inputs = to - from, .groups = (to - from + 31) / 32,
                            .x = a->x + r * a->inputs + c->first + from, .codes = a->codes + group * 32,
                            .quant = a->quant + group};
        f->k->quantise(&part, 0, 1);
    }
}

void gather_input(forward_ctx *f, const activations *a, float *x, const columns *c, const outrider_weight *reader) {
    if (!c->bounds) return;
    if (!is_quantised(reader) || !has_own_groups(f->model.whole->shard, c)) {
        gather_columns(f, x, a->rows, c);
        if (is_quantised(reader)) f->k->quantise(a, 0, a->rows);
        return;
    }
    int64_t first = c->first / 32, bytes = sizeof(act_quant_group);
    part parts[2] = {{(char *)a->codes, a->groups * 32, c, 32, 32, first * 32},
                     {(char *)a->quant, a->groups * bytes, c, 32, bytes, first * bytes}};
    gather_parts(f, a->rows, 2, parts, 0);
}
