/* A span's slot in a recurrent layer: inputs of its convolution, and rows that may be dropped. */
#include "recurrent_work.h"

#include <string.h>

slot_work slot_of(const recurrent_work *w, const span_plan *p, const float *raw) {
    const outrider_recurrent *r = w->r;
    const outrider_states *s = w->f->batch.cache->states;
    int32_t layer = w->f->ordinal;
    slot_work k = {w, p, NULL, NULL, NULL, raw + p->row * channels_of(r), channels_of(r), values_of(r), update_of(r)};
    k.inputs = s->inputs[layer] + p->span->slot * (int64_t)(r->convolution - 1 + s->pending) * k.channels;
    if (!r->key_dim) return k; /* the slot has inputs alone */
    k.state = s->state[layer] + p->span->slot * values_of(r) * r->key_dim;
    k.updates = s->updates[layer] + p->span->slot * (int64_t)s->pending * k.update_size;
    return k;
}

/* ---- Channels --------------------------------------------------------------------------------------------------- */

static void convolve_rows(const slot_work *k, int64_t first, int64_t width, float *out, const float *gate,
                          int64_t gate_stride) {
    const outrider_recurrent *r = k->w->r;
    const int32_t *window = k->plan->window;
    struct convolution_task c = {.count = r->convolution, .taps = r->taps + first, .stride = k->channels,
                                 .bias = r->taps_bias ? r->taps_bias + first : NULL};
    for (int64_t i = 0; i < k->plan->span->count; i++, window += r->convolution) {
        int64_t row = k->plan->row + i;
        for (int32_t t = 0; t < r->convolution; t++)
            c.rows[t] = (window[t] < 0 ? k->inputs + (-1 - window[t]) * k->channels : k->raw + window[t] * k->channels) +
                        first;
        c.gate = gate ? gate + row * gate_stride + first : NULL;
        c.out = out + row * k->channels + first;
        k->w->f->k->convolve(width, &c);
    }
}

/* What the next pass reads before its own rows: inputs of the last settled rows, and of those that are pending. */
static void keep_inputs(const slot_work *k, int64_t first, int64_t width) {
    const outrider_span *s = k->plan->span;
    int64_t held = k->w->r->convolution - 1 + k->plan->pending, all = held + s->count;
    int64_t from = s->kept < 0 ? held : k->plan->pending + s->kept, to = s->kept < 0 ? held : 0;
    const float *raw = k->raw + first;
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

void mix_channels(const slot_work *k, int64_t first, int64_t width, float *out, const float *gate,
                  int64_t gate_stride) {
    if (k->plan->span->start == 0) clear_inputs(k, first, width);
    convolve_rows(k, first, width, out, gate, gate_stride);
    keep_inputs(k, first, width);
}

/* ---- A value head ----------------------------------------------------------------------------------------------- */

struct recurrent_task task_of(const slot_work *k, int32_t key_head, int32_t head) {
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

void recur_rows(const slot_work *k, struct recurrent_task *task, const float *next, int thread) {
    const recurrent_plan *plan = &k->w->f->recurrent;
    task->next = next;
    if (k->plan->span->start == 0)
        memset(task->state, 0, (size_t)(task->key_dim * task->value_dim) * sizeof(float));
    k->w->f->k->recur(task, plan->scratch + thread * plan->scratch_size);
}

void quantise_values(const slot_work *k, const float *x, int64_t first, int64_t last) {
    const recurrent_work *w = k->w;
    if (!w->reader) return;
    columns c = {0, k->values, k->values, NULL, 1};
    activations all = rows_of(&w->f->work.codes, x, w->f->batch.asked->rows, k->values);
    activations written = some_rows(&all, k->plan->row, k->plan->span->count);
    quantise_columns(w->f, &written, &c, w->reader, first, last);
}

/* ---- Rows that may be dropped ----------------------------------------------------------------------------------- */

void keep_updates(const slot_work *k, const float *rows, int64_t stride, int64_t at, int64_t width) {
    const outrider_span *s = k->plan->span;
    int64_t first = s->kept < 0 ? 0 : s->kept, place = s->kept < 0 ? k->plan->pending : 0;
    for (int64_t i = first; i < s->count; i++, place++)
        memcpy(k->updates + place * k->update_size + at, rows + i * stride, (size_t)width * sizeof(float));
}

void keep_changes(const slot_work *k, const struct recurrent_task *t, int32_t head) {
    const outrider_recurrent *r = k->w->r;
    keep_updates(k, t->value, t->stride, keys_of(r) + (int64_t)head * r->value_dim, r->value_dim);
    keep_updates(k, t->decay, t->gate_stride, keys_of(r) + k->values + head, 1);
}
