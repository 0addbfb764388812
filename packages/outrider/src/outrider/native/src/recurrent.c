/* A recurrent layer of a forward pass: linear layers, and between them tasks of one span and one key head. */
#include "recurrent.h"

#include <string.h>

#include "forward.h"
#include "linear.h"

typedef struct {
    forward_ctx *f;
    const outrider_layer *layer;
    const outrider_recurrent *r;
    const outrider_weight *reader; /* that rows are given codes for, or NULL */
} recurrent_work;

/* A span in a layer: where its rows and its slot begin. */
typedef struct {
    const recurrent_work *w;
    const span_plan *plan;
    float *state, *inputs, *updates;      /* of the slot */
    int64_t channels, values, update_size; /* numbers of a row, of a pending row's update */
} slot_work;

static slot_work slot_of(const recurrent_work *w, const span_plan *p) {
    const outrider_recurrent *r = w->r;
    const outrider_states *s = w->f->batch.cache->states;
    int32_t layer = w->f->ordinal;
    slot_work k = {w, p, NULL, NULL, NULL, channels_of(r), values_of(r), keys_of(r) + values_of(r) + r->value_heads};
    k.state = s->state[layer] + p->span->slot * values_of(r) * r->key_dim;
    k.inputs = s->inputs[layer] + p->span->slot * (int64_t)(r->convolution - 1 + s->pending) * k.channels;
    k.updates = s->updates[layer] + p->span->slot * (int64_t)s->pending * k.update_size;
    return k;
}

/* ---- Channels --------------------------------------------------------------------------------------------------- */

/* Channels first .. first + width - 1 of all rows: convolved to ``mixed``. */
static void convolve_rows(const slot_work *k, int64_t first, int64_t width) {
    const outrider_recurrent *r = k->w->r;
    const workspace *work = &k->w->f->work;
    const float *raw = work->channels + k->plan->row * k->channels + first, *rows[MOST_CONVOLUTION];
    float *mixed = work->mixed + k->plan->row * k->channels + first;
    const int32_t *window = k->plan->window;
    for (int64_t i = 0; i < k->plan->span->count; i++, window += r->convolution) {
        for (int32_t t = 0; t < r->convolution; t++)
            rows[t] = window[t] < 0 ? k->inputs + (-1 - window[t]) * k->channels + first : raw + window[t] * k->channels;
        k->w->f->k->convolve(width, r->convolution, rows, r->taps + first, k->channels, mixed + i * k->channels);
    }
}

/* What the next pass reads before its own rows: inputs of the last settled rows, and of those that are pending. */
static void keep_inputs(const slot_work *k, int64_t first, int64_t width) {
    const outrider_span *s = k->plan->span;
    int64_t held = k->w->r->convolution - 1 + k->plan->pending, all = held + s->count;
    int64_t from = s->kept < 0 ? held : k->plan->pending + s->kept, to = s->kept < 0 ? held : 0;
    const float *raw = k->w->f->work.channels + k->plan->row * k->channels + first;
    for (; from < all; from++, to++) /* upwards: no row is overwritten before it has been read */
        if (from != to || from >= held)
            memcpy(k->inputs + to * k->channels + first,
                   from < held ? k->inputs + from * k->channels + first : raw + (from - held) * k->channels,
                   (size_t)width * sizeof(float));
}

static void clear_inputs(const slot_work *k, int64_t first, int64_t width) {
    for (int64_t i = 0; i < k->w->r->convolution - 1; i++)
        memset(k->inputs + i * k->channels + first, 0, (size_t)width * sizeof(float));
}

static void mix_channels(const slot_work *k, int64_t first, int64_t width) {
    if (k->plan->span->start == 0) clear_inputs(k, first, width);
    convolve_rows(k, first, width);
    keep_inputs(k, first, width);
}

/* Queries and keys of a key head, of length 1 or 1 / sqrt(key_dim). */
static void mix_keys(const slot_work *k, int32_t head) {
    const outrider_recurrent *r = k->w->r;
    const kernels *kernel = k->w->f->k;
    int64_t d = r->key_dim, first = k->plan->row;
    float scale = 1.0f / __builtin_sqrtf((float)d);
    mix_channels(k, head * d, d);
    mix_channels(k, keys_of(r) + head * d, d);
    for (int64_t row = first; row < first + k->plan->span->count; row++) {
        float *query = k->w->f->work.mixed + row * k->channels + head * d, *key = query + keys_of(r);
        kernel->unit(d, query, scale);
        kernel->unit(d, key, 1.0f);
        k->w->f->work.alike[row * r->key_heads + head] = kernel->dot(d, query, key);
    }
}

/* ---- A value head ----------------------------------------------------------------------------------------------- */

static struct recurrent_task task_of(const slot_work *k, int32_t key_head, int32_t head) {
    const outrider_recurrent *r = k->w->r;
    const workspace *work = &k->w->f->work;
    int64_t row = k->plan->row, keys = keys_of(r), at = row * k->channels + (int64_t)key_head * r->key_dim;
    return (struct recurrent_task){
        .key_dim = r->key_dim, .value_dim = r->value_dim, .pending = k->plan->pending,
        .num_steps = k->plan->num_steps, .step = k->plan->step,
        .state = k->state + (int64_t)head * r->key_dim * r->value_dim,
        .old_key = k->updates + (int64_t)key_head * r->key_dim,
        .old_change = k->updates + keys + (int64_t)head * r->value_dim,
        .old_decay = k->updates + keys + k->values + head,
        .update_stride = k->update_size,
        .query = work->mixed + at, .key = work->mixed + at + keys,
        .alike = work->alike + row * r->key_heads + key_head, .alike_stride = r->key_heads,
        .value = work->mixed + row * k->channels + 2 * keys + (int64_t)head * r->value_dim, .stride = k->channels,
        .decay = work->decay + row * r->value_heads + head, .write = work->write + row * r->value_heads + head,
        .gate_stride = r->value_heads,
        .out = work->recalled + row * k->values + (int64_t)head * r->value_dim, .out_stride = k->values};
}

/* Outputs of a head: normed, and times silu(z), which they replace. */
static void gate_outputs(const slot_work *k, int32_t head) {
    const recurrent_work *w = k->w;
    int64_t d = w->r->value_dim, first = k->plan->row, rows = k->plan->span->count;
    for (int64_t row = first; row < first + rows; row++) {
        float *out = w->f->work.recalled + row * k->values + head * d;
        w->f->k->norm(d, out, w->r->norm, w->f->model.whole->eps, out);
        w->f->k->silu_mul(d, w->f->work.z + row * k->values + head * d, out);
    }
    if (!w->reader) return;
    columns c = {0, k->values, k->values, NULL, 1};
    activations all = rows_of(&w->f->work.codes, w->f->work.z, w->f->batch.asked->rows, k->values);
    activations written = some_rows(&all, first, rows);
    quantise_columns(w->f, &written, &c, w->reader, head * d, (head + 1) * d);
}

/* ``next``: the head that probably comes next on this thread, or -1. */
static void run_head(const slot_work *k, int32_t key_head, int32_t head, int32_t next, float *copies) {
    const outrider_recurrent *r = k->w->r;
    const workspace *work = &k->w->f->work;
    struct recurrent_task task = task_of(k, key_head, head);
    int64_t row = k->plan->row;
    mix_channels(k, 2 * keys_of(r) + (int64_t)head * r->value_dim, r->value_dim);
    for (int64_t i = row; i < row + k->plan->span->count; i++)
        k->w->f->k->recurrent_gates(1, work->decay + i * r->value_heads + head, work->write + i * r->value_heads + head,
                                    r->decay + head, r->dt_bias + head);
    task.next = next < 0 ? NULL : k->state + (int64_t)next * r->key_dim * r->value_dim;
    if (k->plan->span->start == 0) memset(task.state, 0, (size_t)(r->key_dim * r->value_dim) * sizeof(float));
    k->w->f->k->recur(&task, copies);
    gate_outputs(k, head);
}

/* ---- Rows that may be dropped ----------------------------------------------------------------------------------- */

/* Keys of a key head, or changes and decays of a value head, of the rows that are pending from now on. */
static void keep_updates(const slot_work *k, const float *rows, int64_t stride, int64_t at, int64_t width) {
    const outrider_span *s = k->plan->span;
    int64_t first = s->kept < 0 ? 0 : s->kept, place = s->kept < 0 ? k->plan->pending : 0;
    for (int64_t i = first; i < s->count; i++, place++)
        memcpy(k->updates + place * k->update_size + at, rows + i * stride, (size_t)width * sizeof(float));
}

static void keep_head(const slot_work *k, const struct recurrent_task *t, int32_t head) {
    const outrider_recurrent *r = k->w->r;
    keep_updates(k, t->value, t->stride, keys_of(r) + (int64_t)head * r->value_dim, r->value_dim);
    keep_updates(k, t->decay, t->gate_stride, keys_of(r) + k->values + head, 1);
}

/* ---- A layer ---------------------------------------------------------------------------------------------------- */

static int32_t value_head(const outrider_recurrent *r, int32_t key_head, int32_t i) {
    return r->tiled ? key_head + i * r->key_heads : key_head * (r->value_heads / r->key_heads) + i;
}

static void recur_item(void *shared, int64_t item, int thread) {
    const recurrent_work *w = shared;
    const outrider_recurrent *r = w->r;
    const recurrent_plan *plan = &w->f->recurrent;
    int32_t key_head = (int32_t)(item % r->key_heads), group = r->value_heads / r->key_heads;
    slot_work k = slot_of(w, plan->span + item / r->key_heads);
    struct recurrent_task task = task_of(&k, key_head, 0);
    mix_keys(&k, key_head);
    for (int32_t i = 0; i < group; i++) {
        int32_t next = i + 1 < group ? value_head(r, key_head, i + 1)
                     : key_head + 1 < r->key_heads ? value_head(r, key_head + 1, 0) : -1;
        run_head(&k, key_head, value_head(r, key_head, i), next, plan->scratch + thread * plan->scratch_size);
    }
    keep_updates(&k, task.key, task.stride, (int64_t)key_head * r->key_dim, r->key_dim); /* all heads have read the old */
    for (int32_t i = 0; i < group; i++) {
        task = task_of(&k, key_head, value_head(r, key_head, i));
        keep_head(&k, &task, value_head(r, key_head, i));
    }
}

int prepare_recurrent(forward_ctx *f) {
    recurrent_plan *plan = &f->recurrent;
    if (!plan->sizes) return OUTRIDER_OK;
    plan->scratch_size = (f->k->recur_scratch(plan->copies, plan->sizes->key_dim) + 1023) / 1024 * 1024;
    size_t size = (size_t)(f->context->pool.count * plan->scratch_size) * sizeof(float);
    plan->scratch = scratch_memory(f->context, MEMORY_STATES, size);
    return plan->scratch || !size ? OUTRIDER_OK : OUTRIDER_NO_MEMORY;
}

static void quantise_gated(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    quantise_some(f, f->work.z, f->batch.asked->rows, values_of(l->recurrent), &l->recurrent->out, NULL, first, last);
}

void run_recurrent(forward_ctx *f, const outrider_layer *l) {
    const outrider_recurrent *r = l->recurrent;
    workspace *w = &f->work;
    int64_t rows = f->batch.asked->rows, d = f->model.whole->hidden, values = values_of(r);
    int whole = r->value_dim % 32 == 0; /* groups of codes: whoever computes a head can give them */
    recurrent_work work = {f, l, r, whole ? &r->out : NULL};
    activations normed = rows_of(&w->codes, w->normed, rows, d), gated = rows_of(&w->codes, w->z, rows, values);
    run_linear(f->context, &normed, 4, (product[]){{&r->qkv, w->channels, channels_of(r)},
                                                   {&r->z, w->z, values},
                                                   {&r->a, w->decay, r->value_heads},
                                                   {&r->b, w->write, r->value_heads}});
    run_items(&f->context->pool, (int64_t)f->batch.asked->spans * r->key_heads, recur_item, &work);
    if (!whole) run_rows(f, l, rows, quantise_gated);
    run_linear(f->context, &gated, 1, (product[]){{&r->out, w->y, d}});
}
