/* Mamba-2: keys of all rows, then the value heads, then norms of groups of heads. */
#include <string.h>

#include "recurrent_work.h"

static slot_work slot_at(const recurrent_work *w, int64_t span) {
    return slot_of(w, w->f->recurrent.span + span, w->f->work.channels);
}

static void key_item(void *shared, int64_t item, int thread) {
    (void)thread;
    const recurrent_work *w = shared;
    const outrider_recurrent *r = w->r;
    const workspace *work = &w->f->work;
    int64_t d = r->key_dim, head = item % r->key_heads;
    slot_work k = slot_at(w, item / r->key_heads);
    mix_channels(&k, head * d, d, work->mixed, NULL, 0);
    mix_channels(&k, keys_of(r) + head * d, d, work->mixed, NULL, 0);
    for (int64_t row = k.plan->row; row < k.plan->row + k.plan->span->count; row++) {
        const float *query = work->mixed + row * k.channels + head * d;
        work->alike[row * r->key_heads + head] = w->f->k->dot(d, query, query + keys_of(r));
    }
}

static void head_item(void *shared, int64_t item, int thread) {
    const recurrent_work *w = shared;
    const outrider_recurrent *r = w->r;
    const workspace *work = &w->f->work;
    int32_t head = (int32_t)(item % r->value_heads), key_head = head / (r->value_heads / r->key_heads);
    slot_work k = slot_at(w, item / r->value_heads);
    struct recurrent_task task = task_of(&k, key_head, head);
    task.forgets = 1;
    task.skip = r->skip[head];
    mix_channels(&k, 2 * keys_of(r) + (int64_t)head * r->value_dim, r->value_dim, work->mixed, NULL, 0);
    for (int64_t i = k.plan->row; i < k.plan->row + k.plan->span->count; i++)
        w->f->k->time_steps(1, work->decay + i * r->value_heads + head, work->write + i * r->value_heads + head,
                            r->decay + head, r->dt_bias + head);
    recur_rows(&k, &task, head + 1 < r->value_heads ? task.state + (int64_t)r->key_dim * r->value_dim : NULL, thread);
    keep_changes(&k, &task, head);
}

/* Outputs times silu(z), which they replace; normed over the heads of each key head. */
static void gate_and_norm(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const outrider_recurrent *r = l->recurrent;
    int64_t values = values_of(r), group = values / r->key_heads;
    for (int64_t row = first; row < last; row++) {
        float *z = f->work.z + row * values;
        f->k->silu_mul(values, z, f->work.recalled + row * values);
        for (int64_t i = 0; i < values; i += group) f->k->norm(group, z + i, r->norm + i, f->model.whole->eps, z + i);
    }
    quantise_some(f, f->work.z, f->batch.asked->rows, values, &r->out, NULL, first, last);
}

/* Keys of rows that are pending from now on: now all heads have read the old ones. */
static void keep_keys(recurrent_work *w) {
    for (int64_t i = 0; i < w->f->batch.asked->spans; i++) {
        slot_work k = slot_at(w, i);
        struct recurrent_task task = task_of(&k, 0, 0);
        keep_updates(&k, task.key, task.stride, 0, keys_of(w->r));
    }
}

void run_mamba2(recurrent_work *w) {
    const outrider_recurrent *r = w->r;
    int64_t spans = w->f->batch.asked->spans;
    run_items(&w->f->context->pool, spans * r->key_heads, key_item, w);
    run_items(&w->f->context->pool, spans * r->value_heads, head_item, w);
    keep_keys(w);
    run_rows(w->f, w->layer, w->f->batch.asked->rows, gate_and_norm);
}
