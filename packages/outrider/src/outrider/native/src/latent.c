/* Attention on latents (multi-head latent attention, DeepSeek-V2): the cache has a row's latent alone, and no head's
 * keys or values.
 *
 * A head's query is multiplied by the matrix that would make its keys of latents, and what it has attended to, a sum of
 * latents, by the one that would make its values. One row and many take the same steps, so that no bit depends on it.
 */
#include "latent.h"

#include <string.h>

#include "forward.h"
#include "linear.h"
#include "panels.h"

/* ---- Rows ------------------------------------------------------------------------------------------------------- */

static const float *rotation_of(const forward_ctx *f, const outrider_layer *l, int64_t r) {
    return l->rotations ? l->rotations + f->batch.asked->positions[r] * l->latent->rotated : NULL;
}

/* Numbers and scale of a part of row ``row`` of the cache, from number ``at`` on. */
static void store_part(const forward_ctx *f, int64_t row, int64_t at, int64_t count, const float *x,
                       float *const *scales) {
    const outrider_cache *c = f->batch.cache;
    char *to = (char *)c->keys[f->ordinal] + (row * c->head_dim + at) * number_bytes(c);
    f->k->store(c->type, 1, count, x + at, to, scales ? scales[f->ordinal] + row : NULL);
}

/* Latents, normed, and the keys' rotated parts, to the cache. */
static void write_latent(forward_ctx *f, const outrider_layer *l, int64_t r) {
    const outrider_latent *t = l->latent;
    const outrider_cache *c = f->batch.cache;
    float *x = f->work.keys + r * c->head_dim;
    f->k->norm(t->rank, x, t->norm, t->eps, x);
    f->k->rotate(t->rotated, x + t->rank, rotation_of(f, l, r), NULL, 0);
    store_part(f, f->batch.place[r], 0, t->rank, x, c->value_scales);
    store_part(f, f->batch.place[r], t->rank, t->rotated, x, c->key_scales);
}

static void read_inputs(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const outrider_latent *t = l->latent;
    for (int64_t r = first; r < last; r++) {
        float *q = f->work.query_latent + r * t->query_rank;
        write_latent(f, l, r);
        if (t->query_rank) f->k->norm(t->query_rank, q, t->query_norm, t->eps, q);
    }
    if (t->query_rank)
        quantise_some(f, f->work.query_latent, f->batch.asked->rows, t->query_rank, &t->q_b, NULL, first, last);
}

/* Of each head's query the rotated part to its place in q, the rest to the rows that k_b reads, head by head. */
static void split_queries(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const outrider_latent *t = l->latent;
    const outrider_model *m = f->model.whole;
    int64_t rows = f->batch.asked->rows;
    activations all = rows_of(&f->work.codes, f->work.plain, rows * m->heads, t->plain);
    for (int64_t r = first; r < last; r++)
        for (int64_t h = 0; h < m->heads; h++) {
            float *from = f->work.query_parts + (r * m->heads + h) * query_of(t);
            float *to = f->work.q + (r * m->heads + h) * m->head_dim + t->rank;
            activations part = some_rows(&all, h * rows + r, 1);
            f->k->rotate(t->rotated, from + t->plain, rotation_of(f, l, r), NULL, 0);
            if (l->query_scales) scale_row(query_of(t), from, l->query_scales[f->batch.asked->positions[r]]);
            memcpy(f->work.plain + (h * rows + r) * t->plain, from, (size_t)t->plain * sizeof(float));
            memcpy(to, from + t->plain, (size_t)t->rotated * sizeof(float));
            if (is_quantised(&t->k_b)) f->k->quantise(&part, 0, 1);
        }
}

static void quantise_outputs(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    int64_t rows = f->batch.asked->rows, width = outputs_of(f->model.whole, l->latent);
    quantise_some(f, f->work.outputs, rows, width, &l->latent->out, NULL, first, last);
}

/* ---- Heads ------------------------------------------------------------------------------------------------------ */

/* A product for each head, of its own rows, with its own outputs of a weight, which are whole panels. */
typedef struct {
    const kernels *k;
    const outrider_weight *weight;
    activations in; /* [heads * rows] */
    int64_t rows, panels, gap; /* panels of a head; floats between the outputs of two heads */
    float *y;
    int64_t stride;
} head_work;

/* Panels first .. last - 1 of all heads' together. */
static void head_share(void *shared, int64_t first, int64_t last, int thread) {
    const head_work *w = shared;
    (void)thread;
    for (int64_t next; first < last; first = next) {
        int64_t head = first / w->panels, end = (head + 1) * w->panels;
        next = end < last ? end : last;
        activations in = some_rows(&w->in, head * w->rows, w->rows);
        w->k->linear(w->weight, &in, first, next, w->y + head * w->gap, w->stride);
    }
}

static void run_heads(forward_ctx *f, const outrider_weight *weight, const float *x, int64_t outputs, int64_t gap,
                      float *y) {
    int64_t rows = f->batch.asked->rows, heads = f->model.whole->heads;
    head_work w = {f->k, weight, rows_of(&f->work.codes, x, heads * rows, weight->inputs), rows, outputs / 16, gap, y,
                   heads * (outputs + gap)};
    share_size size = share_of_panels(weight, rows, 1);
    run_shares(&f->context->pool, heads * w.panels, size, head_share, &w);
}

/* ---- The block -------------------------------------------------------------------------------------------------- */

static void project_queries(forward_ctx *f, const outrider_layer *l) {
    const outrider_latent *t = l->latent;
    workspace *w = &f->work;
    int64_t rows = f->batch.asked->rows, d = f->model.whole->hidden, wide = f->model.whole->heads * query_of(t);
    activations normed = rows_of(&w->codes, w->normed, rows, d);
    product q = t->query_rank ? (product){&t->q_a, w->query_latent, t->query_rank}
                              : (product){&t->q_b, w->query_parts, wide};
    run_linear(f->context, &normed, 2, (product[]){q, {&t->kv_a, w->keys, f->model.whole->head_dim}});
    run_rows(f, l, rows, read_inputs);
    if (!t->query_rank) return;
    activations latents = rows_of(&w->codes, w->query_latent, rows, t->query_rank);
    run_linear(f->context, &latents, 1, (product[]){{&t->q_b, w->query_parts, wide}});
}

void run_latent(forward_ctx *f, const outrider_layer *l) {
    const outrider_latent *t = l->latent;
    workspace *w = &f->work;
    int64_t rows = f->batch.asked->rows;
    project_queries(f, l);
    run_rows(f, l, rows, split_queries);
    run_heads(f, &t->k_b, w->plain, t->rank, t->rotated, w->q);
    set_window(&f->batch, l->window, l->chunked);
    f->gates = f->sinks = NULL;
    run_attention(f, f->ordinal, &t->v_b);
    run_heads(f, &t->v_b, w->attended, t->value_dim, 0, w->outputs);
    run_rows(f, l, rows, quantise_outputs);
    activations outputs = rows_of(&w->codes, w->outputs, rows, outputs_of(f->model.whole, t));
    run_linear(f->context, &outputs, 1, (product[]){{&t->out, w->y, f->model.whole->hidden}});
}

/* ---- Whether it can be ------------------------------------------------------------------------------------------ */

static int have_sizes(const outrider_model *m, const outrider_latent *t) {
    int fine = t->query_rank >= 0 && t->query_rank <= MOST_WIDTH && t->rank >= 16 && t->rank % 16 == 0 &&
               t->plain >= 1 && t->plain <= MOST_WIDTH / m->heads && t->rotated >= 2 && t->rotated % 2 == 0 &&
               t->value_dim >= 16 && t->value_dim % 16 == 0 && t->value_dim <= MOST_WIDTH / m->heads;
    return fine && m->kv_heads == 1 && t->rank <= m->head_dim && t->rotated == m->head_dim - t->rank;
}

static int is_projection(const outrider_weight *w, int64_t outputs, int64_t inputs) {
    return is_weight(w) && w->outputs == outputs && w->inputs == inputs;
}

int fits_latent(const local_model *local, const outrider_layer *l) {
    const outrider_model *m = local->whole;
    const outrider_latent *t = l->latent, *all = find_latent(m);
    if (!is_array(t, _Alignof(outrider_latent)) || !is_array(all, _Alignof(outrider_latent)) || m->shard ||
        l->embedding_norm || l->gated || l->sinks || l->window < 0 || !is_array_or_null(l->rotations, sizeof(float)) ||
        !is_array_or_null(l->query_scales, sizeof(float)))
        return 0;
    if (!have_sizes(m, t) || t->query_rank != all->query_rank || t->rank != all->rank || t->plain != all->plain ||
        t->value_dim != all->value_dim)
        return 0;
    int64_t d = m->hidden, heads = m->heads, inputs = t->query_rank ? t->query_rank : d;
    if (t->query_rank && (!is_projection(&t->q_a, t->query_rank, d) || !is_array(t->query_norm, sizeof(float)))) return 0;
    return is_projection(&t->q_b, heads * query_of(t), inputs) && is_projection(&t->kv_a, m->head_dim, d) &&
           is_projection(&t->k_b, heads * t->rank, t->plain) && is_projection(&t->v_b, heads * t->value_dim, t->rank) &&
           is_projection(&t->out, d, heads * t->value_dim) && is_array(t->norm, sizeof(float));
}
