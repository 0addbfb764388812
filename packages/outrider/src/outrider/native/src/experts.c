/* Mixtures of experts: each row goes through a few of a layer's MLPs.
 *
 * An expert sees the rows that chose it, side by side. Linear layers give a row the same bits in any company, and what
 * experts give is added to a row in their order, so a row's result does not depend on what the others chose.
 *
 * Threads share all experts' columns of gate and up, and then the outputs of down: whoever computes some outputs does so
 * for every expert in turn, and adds them up. So a layer takes few phases, however many experts there are.
 */
#include <string.h>

#include "arguments.h"
#include "forward.h"
#include "linear.h"

#define FEW_COPIES 32
#define SHARED (-1) /* in place of an expert's number: the one of all rows */
#define LEAST_PANELS 8 /* of each expert's down: a jump in memory costs about as much as reading one */

static int reads_codes(const outrider_mlp *mlp) { return is_quantised(&mlp->gate) || is_quantised(&mlp->up); }

/* Codes for the experts of a row, unless the router has read them. */
static void quantise_for(forward_ctx *f, const outrider_layer *l, int64_t row) {
    int reads = l->shared_expert && reads_codes(l->shared_expert);
    for (int32_t e = 0; !reads && e < l->experts; e++)
        reads = f->work.chosen[row * l->experts + e] && reads_codes(l->expert + e);
    if (!reads || (is_quantised(&l->router) && !l->beside)) return;
    activations normed = rows_of(&f->work.codes, f->work.normed, f->batch.asked->rows, f->model.whole->hidden);
    f->k->quantise(&normed, row, row + 1);
}

/* The weight of the shared expert for a row. */
static void weigh_shared(forward_ctx *f, const outrider_layer *l, int64_t row) {
    int64_t d = f->model.whole->hidden;
    if (!l->shared_expert) return;
    f->work.shared_weight[row] = 1;
    if (!l->shared_expert_gate) return;
    float gate = f->k->dot(d, f->work.normed + row * d, l->shared_expert_gate);
    f->k->sigmoid_mul(1, f->work.shared_weight + row, &gate);
}

static void choose_rows(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) {
        route_row(f, l, r);
        if (l->beside) norm_for_experts(f, l, r);
        quantise_for(f, l, r);
        weigh_shared(f, l, r);
    }
}

/* Experts that are computed at once. */
typedef struct {
    forward_ctx *f;
    const outrider_layer *layer;
    columns inner; /* of each of them */
    int64_t count, pairs;
} wave;

/* ---- Rows of an expert ------------------------------------------------------------------------------------------ */

/* ``numbers``: without codes. */
static void copy_row(const mlp_rows *p, int64_t i, const activations *from, int numbers) {
    int64_t d = from->inputs, g = from->groups;
    if (numbers || !is_quantised(&p->mlp->gate) || !is_quantised(&p->mlp->up))
        memcpy((float *)p->in.x + i * d, from->x, (size_t)d * sizeof(float));
    if (numbers || !reads_codes(p->mlp)) return;
    memcpy(p->in.codes + i * g * 32, from->codes, (size_t)g * 32);
    memcpy(p->in.quant + i * g, from->quant, (size_t)g * sizeof *from->quant);
}

static int scales_inputs(const outrider_layer *l, int32_t expert) {
    return expert != SHARED && l->routing && l->routing->scales_inputs;
}

/* Input i of an expert, times its weight. */
static void scale_input(const wave *v, const mlp_rows *p, int64_t i) {
    int64_t d = p->in.inputs;
    float *x = (float *)p->in.x + i * d, weight = v->f->work.router[p->row[i] * v->layer->experts + p->expert];
    for (int64_t j = 0; j < d; j++) x[j] *= weight;
    if (reads_codes(p->mlp)) v->f->k->quantise(&p->in, i, i + 1);
}

/* Inputs of pairs first .. last - 1, where they are copies. */
static void copy_share(void *shared, int64_t first, int64_t last, int thread) {
    const wave *v = shared;
    const workspace *w = &v->f->work;
    activations normed = rows_of(&w->codes, w->normed, v->f->batch.asked->rows, v->f->model.whole->hidden);
    (void)thread;
    for (const mlp_rows *p = w->parts; p < w->parts + v->count; p++) {
        int64_t from = p->row - w->pair_row, to = from + p->in.rows;
        for (int64_t i = from > first ? from : first; p->copied && i < to && i < last; i++) {
            activations row = some_rows(&normed, w->pair_row[i], 1);
            copy_row(p, i - from, &row, scales_inputs(v->layer, p->expert));
            if (scales_inputs(v->layer, p->expert)) scale_input(v, p, i - from);
        }
    }
}

/* Takes the rows that chose an expert into the wave, behind the pairs of the experts before. */
static void add_part(wave *v, int32_t expert, int64_t rows) {
    const forward_ctx *f = v->f;
    const workspace *w = &f->work;
    const int64_t *row = w->pair_row + v->pairs;
    int64_t d = f->model.whole->hidden, all = v->inner.all;
    int together = row[rows - 1] - row[0] == rows - 1 && !scales_inputs(v->layer, expert);
    activations normed = rows_of(&w->codes, w->normed, f->batch.asked->rows, d);
    activations copies = rows_of(&w->expert_codes, w->expert_in, w->pairs, d);
    activations gated = rows_of(&w->gated, w->gate, w->pairs, all);
    w->parts[v->count++] = (mlp_rows){
        .mlp = expert == SHARED ? v->layer->shared_expert : v->layer->expert + expert,
        .in = together ? some_rows(&normed, row[0], rows) : some_rows(&copies, v->pairs, rows),
        .gated = some_rows(&gated, v->pairs, rows),
        .gate = w->gate + v->pairs * all,
        .up = w->up + v->pairs * all,
        .expert = expert,
        .copied = !together,
        .row = row,
    };
    v->pairs += rows;
}

/* ---- A wave ----------------------------------------------------------------------------------------------------- */

static float weight_of(const wave *v, int32_t expert, int64_t row) {
    const workspace *w = &v->f->work;
    if (expert == SHARED) return w->shared_weight[row];
    return scales_inputs(v->layer, expert) ? 1.0f : w->router[row * v->layer->experts + expert];
}

/* Some outputs of an expert, by their rows' weights, to y. */
static void add_outputs(const wave *v, const mlp_rows *p, int64_t first, int64_t last) {
    const forward_ctx *f = v->f;
    const columns *c = &f->model.hidden;
    int64_t from = 16 * first, to = 16 * last < c->count ? 16 * last : c->count;
    float *out = local_columns(f->work.expert_out, c), *y = local_columns(f->work.y, c);
    f->k->linear(&p->mlp->down, &p->gated, first, last, out, c->all);
    for (int64_t r = 0; r < p->gated.rows; r++) {
        float weight = weight_of(v, p->expert, p->row[r]), *x = out + r * c->all;
        for (int64_t j = from; j < to; j++) x[j] *= weight;
        f->k->add(to - from, y + p->row[r] * c->all + from, x + from);
    }
}

/* Panels first .. last - 1 of every expert's down. */
static void down_share(void *shared, int64_t first, int64_t last, int thread) {
    const wave *v = shared;
    const mlp_rows *end = v->f->work.parts + v->count;
    (void)thread;
    for (const mlp_rows *p = v->f->work.parts; p < end; p++) {
        if (p + 1 < end) fetch_panel(&p[1].mlp->down, first);
        add_outputs(v, p, first, last);
    }
}

/* Codes or numbers of all processes, of as many experts at once as read the same. */
static void gather_gated(const wave *v) {
    const mlp_rows *p = v->f->work.parts, *end = p + v->count;
    while (p < end) {
        const mlp_rows *next = p;
        activations gated = p->gated;
        for (gated.rows = 0; next < end && is_quantised(&next->mlp->down) == is_quantised(&p->mlp->down); next++)
            gated.rows += next->gated.rows;
        gather_input(v->f, &gated, p->gate, &v->inner, &p->mlp->down);
        p = next;
    }
}

static void run_wave(wave *v) {
    forward_ctx *f = v->f;
    const mlp_rows *parts = f->work.parts;
    thread_pool *pool = &f->context->pool;
    int copies = 0;
    for (int64_t i = 0; i < v->count; i++) copies |= parts[i].copied;
    if (copies) run_shares(pool, v->pairs, (share_size){FEW_COPIES, v->pairs}, copy_share, v);
    if (v->count) {
        run_gates(f, &v->inner, v->count, parts);
        gather_gated(v);
        share_size size = share_of_panels(&parts->mlp->down, parts->in.rows, v->count);
        if (size.least < LEAST_PANELS) size.least = LEAST_PANELS;
        if (size.most < size.least) size.most = size.least;
        run_shares(pool, (f->model.hidden.count + 15) / 16, size, down_share, v);
    }
    v->count = v->pairs = 0;
}

/* Columns of an expert's gate and up; a mistake of the caller if they do not fit. */
static columns inner_of(forward_ctx *f, const outrider_mlp *mlp) {
    int64_t outputs = mlp->gate.outputs;
    columns inner = f->model.whole->shard ? f->model.expert_inner : (columns){0, outputs, outputs, NULL, 1};
    if (inner.all > f->model.whole->inner || !fits_mlp(&f->model, mlp, &inner))
        f->status = OUTRIDER_BAD_ARGUMENT;
    return inner;
}

/* Whether a row goes through an expert. */
static int goes_through(const forward_ctx *f, const outrider_layer *l, int64_t row, int32_t expert) {
    return expert == SHARED || f->work.chosen[row * l->experts + expert];
}

/* Counts an expert for its layer: in the pass, and in every whole window of rows with one that chose it. */
static void count_expert(const outrider_batch *b, const int64_t *row, int64_t count) {
    b->experts[0]++;
    for (int w = 0; w < OUTRIDER_WINDOWS - 1; w++) {
        int64_t before = -1, windows = b->rows >> w;
        for (int64_t i = 0; i < count && row[i] >> w < windows; i++)
            if (row[i] >> w != before) {
                before = row[i] >> w;
                b->experts[1 + w]++;
            }
    }
}

/* Takes an expert's rows into the wave, or first runs those that are in it. */
static void take_expert(wave *v, int32_t expert) {
    forward_ctx *f = v->f;
    const outrider_layer *l = v->layer;
    int64_t rows = f->batch.asked->rows, count = 0;
    for (int64_t r = 0; r < rows; r++) count += goes_through(f, l, r, expert);
    if (!count) return;
    columns inner = inner_of(f, expert == SHARED ? l->shared_expert : l->expert + expert);
    if (v->pairs + count > f->work.pairs || inner.all != v->inner.all) run_wave(v);
    v->inner = inner;
    for (int64_t r = 0, at = v->pairs; r < rows; r++)
        if (goes_through(f, l, r, expert)) f->work.pair_row[at++] = r;
    if (expert != SHARED && f->batch.asked->experts) count_expert(f->batch.asked, f->work.pair_row + v->pairs, count);
    if (f->status == OUTRIDER_OK) add_part(v, expert, count);
}

/* The shared expert comes last. */
void run_experts(forward_ctx *f, const outrider_layer *l) {
    workspace *w = &f->work;
    int64_t rows = f->batch.asked->rows, d = f->model.whole->hidden;
    activations normed = rows_of(&w->codes, w->normed, rows, d);
    run_linear(f->context, &normed, 1, (product[]){{&l->router, w->router, l->experts}});
    run_rows(f, l, rows, choose_rows);
    memset(w->y, 0, (size_t)(rows * d) * sizeof(float));
    wave v = {.f = f, .layer = l};
    for (int32_t i = 0; i < l->experts && f->status == OUTRIDER_OK; i++) take_expert(&v, i);
    if (l->shared_expert && f->status == OUTRIDER_OK) take_expert(&v, SHARED);
    if (f->status == OUTRIDER_OK) run_wave(&v);
}
