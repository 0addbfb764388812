/* A recurrent layer of a forward pass: linear layers, and between them tasks; Gated DeltaNet's are of one span and one
 * key head. */
#include "recurrent.h"

#include "linear.h"
#include "recurrent_work.h"

/* ---- Gated DeltaNet --------------------------------------------------------------------------------------------- */

/* Queries and keys of a key head, of length 1 or 1 / sqrt(key_dim). */
static void mix_keys(const slot_work *k, int32_t head) {
    const outrider_recurrent *r = k->w->r;
    const kernels *kernel = k->w->f->k;
    const workspace *work = &k->w->f->work;
    int64_t d = r->key_dim, first = k->plan->row;
    float scale = 1.0f / __builtin_sqrtf((float)d);
    mix_channels(k, head * d, d, work->mixed, NULL, 0);
    mix_channels(k, keys_of(r) + head * d, d, work->mixed, NULL, 0);
    for (int64_t row = first; row < first + k->plan->span->count; row++) {
        float *query = work->mixed + row * k->channels + head * d, *key = query + keys_of(r);
        kernel->unit(d, query, scale);
        kernel->unit(d, key, 1.0f);
        work->alike[row * r->key_heads + head] = kernel->dot(d, query, key);
    }
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
    quantise_values(k, w->f->work.z, head * d, (head + 1) * d);
}

/* ``next``: the head that probably comes next on this thread, or -1. */
static void run_head(const slot_work *k, int32_t key_head, int32_t head, int32_t next, int thread) {
    const outrider_recurrent *r = k->w->r;
    const workspace *work = &k->w->f->work;
    struct recurrent_task task = task_of(k, key_head, head);
    int64_t row = k->plan->row;
    mix_channels(k, 2 * keys_of(r) + (int64_t)head * r->value_dim, r->value_dim, work->mixed, NULL, 0);
    for (int64_t i = row; i < row + k->plan->span->count; i++)
        k->w->f->k->recurrent_gates(1, work->decay + i * r->value_heads + head, work->write + i * r->value_heads + head,
                                    r->decay + head, r->dt_bias + head);
    recur_rows(k, &task, next < 0 ? NULL : k->state + (int64_t)next * r->key_dim * r->value_dim, thread);
    gate_outputs(k, head);
}

static int32_t value_head(const outrider_recurrent *r, int32_t key_head, int32_t i) {
    return r->tiled ? key_head + i * r->key_heads : key_head * (r->value_heads / r->key_heads) + i;
}

static void recur_item(void *shared, int64_t item, int thread) {
    const recurrent_work *w = shared;
    const outrider_recurrent *r = w->r;
    int32_t key_head = (int32_t)(item % r->key_heads), group = r->value_heads / r->key_heads;
    slot_work k = slot_of(w, w->f->recurrent.span + item / r->key_heads, w->f->work.channels);
    struct recurrent_task task = task_of(&k, key_head, 0);
    mix_keys(&k, key_head);
    for (int32_t i = 0; i < group; i++) {
        int32_t next = i + 1 < group ? value_head(r, key_head, i + 1)
                     : key_head + 1 < r->key_heads ? value_head(r, key_head + 1, 0) : -1;
        run_head(&k, key_head, value_head(r, key_head, i), next, thread);
    }
    keep_updates(&k, task.key, task.stride, (int64_t)key_head * r->key_dim, r->key_dim); /* all heads have read the old */
    for (int32_t i = 0; i < group; i++) {
        task = task_of(&k, key_head, value_head(r, key_head, i));
        keep_changes(&k, &task, value_head(r, key_head, i));
    }
}

static void quantise_gated(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    quantise_some(f, f->work.z, f->batch.asked->rows, values_of(l->recurrent), &l->recurrent->out, NULL, first, last);
}

static void run_delta(recurrent_work *w) {
    const outrider_recurrent *r = w->r;
    forward_ctx *f = w->f;
    int whole = r->value_dim % 32 == 0; /* groups of codes: whoever computes a head can give them */
    if (whole) w->reader = &r->out;
    run_items(&f->context->pool, (int64_t)f->batch.asked->spans * r->key_heads, recur_item, w);
    if (!whole) run_rows(f, w->layer, f->batch.asked->rows, quantise_gated);
}

/* ---- A layer ---------------------------------------------------------------------------------------------------- */

int prepare_recurrent(forward_ctx *f) {
    recurrent_plan *plan = &f->recurrent;
    if (!plan->sizes) return OUTRIDER_OK;
    plan->scratch_size = (f->k->recur_scratch(plan->copies, plan->sizes->key_dim) + 1023) / 1024 * 1024;
    size_t size = (size_t)(f->context->pool.count * plan->scratch_size) * sizeof(float);
    plan->scratch = scratch_memory(f->context, MEMORY_STATES, size);
    return plan->scratch || !size ? OUTRIDER_OK : OUTRIDER_NO_MEMORY;
}

void run_recurrent(forward_ctx *f, const outrider_layer *l) {
    const outrider_recurrent *r = l->recurrent;
    workspace *w = &f->work;
    int64_t rows = f->batch.asked->rows, d = f->model.whole->hidden, values = values_of(r);
    recurrent_work work = {f, l, r, NULL};
    activations normed = rows_of(&w->codes, w->normed, rows, d), gated = rows_of(&w->codes, w->z, rows, values);
    product all[] = {{&r->qkv, w->channels, projected_of(r)},
                     {&r->z, w->z, values},
                     {&r->a, w->decay, r->value_heads},
                     {&r->b, w->write, r->value_heads}};
    run_linear(f->context, &normed, r->kind == OUTRIDER_DELTA ? 4 : r->kind == OUTRIDER_MAMBA2 ? 3 : 1, all);
    if (r->kind == OUTRIDER_DELTA)
        run_delta(&work);
    else if (r->kind == OUTRIDER_MAMBA2)
        run_mamba2(&work);
    else
        run_short_convolution(&work);
    run_linear(f->context, &gated, 1, (product[]){{&r->out, w->y, d}});
}
