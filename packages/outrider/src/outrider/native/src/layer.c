/* One layer of a forward pass: linear layers, and between them work on rows. */
#include "forward.h"
#include "linear.h"

/* ---- Rows ------------------------------------------------------------------------------------------------------- */

/* What reads a layer's normed input may be stored in different ways: one that reads codes, if any does. */
static const outrider_weight *quantised_of(const outrider_layer *l) {
    const outrider_recurrent *r = l->recurrent;
    const outrider_latent *t = l->latent;
    if (t) return is_quantised(&t->kv_a) ? &t->kv_a : t->query_rank ? &t->q_a : &t->q_b;
    if (r && r->kind == OUTRIDER_SHORT_CONVOLUTION) return &r->qkv;
    if (r && r->kind == OUTRIDER_MAMBA2) return is_quantised(&r->qkv) ? &r->qkv : is_quantised(&r->z) ? &r->z : &r->a;
    if (r) return is_quantised(&r->qkv) ? &r->qkv : is_quantised(&r->z) ? &r->z : is_quantised(&r->a) ? &r->a : &r->b;
    return is_quantised(&l->q) ? &l->q : is_quantised(&l->k) ? &l->k : &l->v;
}

/* x += what a block adds, of its output y. */
static void add_block(const forward_ctx *f, int64_t r, const outrider_norm_weights *norm) {
    const outrider_model *m = f->model.whole;
    int64_t d = m->hidden;
    float *y = f->work.y + r * d;
    if (norm->weight) norm_row(f->k, d, y, norm, m->eps, y);
    scale_row(d, y, m->residual_scale);
    f->k->add(d, f->work.x + r * d, y);
}

/* Inputs of q, k and v. */
static int64_t attention_inputs(const forward_ctx *f, const outrider_layer *l) {
    return l->embedding_norm ? 2 * (int64_t)f->model.whole->hidden : f->model.whole->hidden;
}

static void norm_for_attention(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const outrider_batch *b = f->batch.asked;
    int64_t d = f->model.whole->hidden, wide = attention_inputs(f, l);
    for (int64_t r = first; r < last; r++) {
        float *out = f->work.normed + r * wide;
        if (l->embedding_norm) f->k->norm(d, b->embeddings + r * d, l->embedding_norm, f->model.whole->eps, out);
        norm_or_copy(f, f->work.x + r * d, &l->attention_norm, out + wide - d);
    }
    quantise_some(f, f->work.normed, b->rows, wide, quantised_of(l), NULL, first, last);
}

static void quantise_attended(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    activations all = rows_of(&f->work.codes, f->work.attended, f->batch.asked->rows, f->model.queries.all);
    activations some = some_rows(&all, first, last - first);
    quantise_columns(f, &some, &f->model.queries, &l->out, 0, f->model.queries.count);
}

static void norm_for_mlp(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    int64_t d = f->model.whole->hidden;
    for (int64_t r = first; r < last; r++)
        norm_or_copy(f, f->work.x + r * d, &l->mlp_norm, f->work.normed + r * d);
    const outrider_weight *one = l->experts && !l->beside ? &l->router : &l->mlp.gate;
    quantise_some(f, f->work.normed, f->batch.asked->rows, d, one, &l->mlp.up, first, last);
}

static void add_and_norm(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) add_block(f, r, &l->attention_output_norm);
    norm_for_mlp(f, l, first, last);
}

static void norm_for_layer(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    if (l->lacks == OUTRIDER_LACKS_MIXER)
        norm_for_mlp(f, l, first, last);
    else
        norm_for_attention(f, l, first, last);
}

static void gate_rows(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const columns *c = &f->model.inner;
    activations all = rows_of(&f->work.gated, f->work.gate, f->batch.asked->rows, c->all);
    activations some = some_rows(&all, first, last - first);
    float *gate = local_columns(f->work.gate, c), *up = local_columns(f->work.up, c);
    for (int64_t r = first; r < last; r++)
        activate(f, c->count, gate + r * c->all, l->mlp.up.panels ? up + r * c->all : NULL);
    quantise_columns(f, &some, c, &l->mlp.down, 0, c->count);
}

/* The next layer's input as well: it is the same rows. */
static void end_rows(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    int64_t d = f->model.whole->hidden;
    for (int64_t i = first * d; l->output_scale && i < last * d; i++) f->work.x[i] *= *l->output_scale;
    if (f->next) norm_for_layer(f, f->next, first, last);
}

static void add_rows(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) {
        if (l->beside) add_beside(f, l, r);
        add_block(f, r, l->lacks == OUTRIDER_LACKS_MLP ? &l->attention_output_norm : &l->mlp_output_norm);
    }
    if (l->input)
        quantise_some(f, f->work.x, f->batch.asked->rows, f->model.whole->hidden, &l->input->gate, NULL, first, last);
    else
        end_rows(f, l, first, last);
}

static void add_input_rows(forward_ctx *f, const outrider_layer *l, int64_t first, int64_t last) {
    const outrider_norm_weights norm = {l->input->norm, NULL};
    for (int64_t r = first; r < last; r++) add_block(f, r, &norm);
    end_rows(f, l, first, last);
}

/* ---- A layer ---------------------------------------------------------------------------------------------------- */

/* What a linear layer of this process's columns writes to x. */
static product to_columns(const outrider_weight *w, float *x, const columns *c) {
    return (product){w, local_columns(x, c), c->all};
}

/* Adapters add to gate and up before the activation, which then has a phase of its own. */
static void run_adapted_gates(forward_ctx *f, const outrider_layer *l, const mlp_rows *part) {
    const columns *inner = &f->model.inner;
    int64_t d = f->model.whole->hidden;
    product gate_up[] = {to_columns(&l->mlp.gate, part->gate, inner), to_columns(&l->mlp.up, part->up, inner)};
    run_linear(f->context, &part->in, l->mlp.up.panels ? 2 : 1, gate_up);
    run_adapters(f, l, OUTRIDER_ADAPTED_GATE, d, part->in.x, inner->all, part->gate);
    run_adapters(f, l, OUTRIDER_ADAPTED_UP, d, part->in.x, inner->all, part->up);
    run_rows(f, l, part->in.rows, gate_rows);
}

static void run_mlp(forward_ctx *f, const outrider_layer *l) {
    const columns *inner = &f->model.inner, *hidden = &f->model.hidden;
    workspace *w = &f->work;
    int64_t rows = f->batch.asked->rows, d = f->model.whole->hidden;
    mlp_rows part = {.mlp = &l->mlp,
                     .in = rows_of(&w->codes, w->normed, rows, d),
                     .gated = rows_of(&w->gated, w->gate, rows, inner->all),
                     .gate = w->gate,
                     .up = w->up};
    if (f->batch.asked->adapters)
        run_adapted_gates(f, l, &part);
    else
        run_gates(f, inner, 1, &part);
    gather_input(f, &part.gated, w->gate, inner, &l->mlp.down);
    run_linear(f->context, &part.gated, 1, (product[]){to_columns(&l->mlp.down, w->y, hidden)});
    run_adapters(f, l, OUTRIDER_ADAPTED_DOWN, inner->all, w->gate, d, w->y);
}

/* Whether the columns of a key head's queries are whole groups, so that whoever attends for it can give them codes. */
static int has_whole_groups(const local_model *m) { return m->whole->heads / m->kv_heads * m->head_dim % 32 == 0; }

static void run_attention_alone(forward_ctx *f, const outrider_layer *l) {
    int whole = f->model.kv_heads && has_whole_groups(&f->model);
    set_window(&f->batch, l->window, l->chunked);
    f->gates = l->gated ? f->work.query_gates : NULL;
    f->sinks = l->sinks;
    run_attention(f, f->ordinal, whole ? &l->out : NULL);
    if (!whole) run_rows(f, l, f->batch.asked->rows, quantise_attended);
}

static void run_attention_block(forward_ctx *f, const outrider_layer *l) {
    const columns *queries = &f->model.queries, *kv = &f->model.kv;
    workspace *w = &f->work;
    int64_t rows = f->batch.asked->rows, d = f->model.whole->hidden;
    activations normed = rows_of(&w->codes, w->normed, rows, attention_inputs(f, l));
    int64_t outputs = queries->all * (l->gated ? 2 : 1);
    product q = l->gated ? (product){&l->q, w->query_gates, outputs} : to_columns(&l->q, w->q, queries);
    product products[] = {q, to_columns(&l->k, w->keys, kv), to_columns(&l->v, w->values, kv)};
    run_linear(f->context, &normed, l->reads ? 1 : l->values_are_keys ? 2 : 3, products);
    run_adapters(f, l, OUTRIDER_ADAPTED_Q, d, w->normed, outputs, l->gated ? w->query_gates : w->q);
    if (!l->reads) {
        run_adapters(f, l, OUTRIDER_ADAPTED_K, d, w->normed, kv->all, w->keys);
        run_adapters(f, l, OUTRIDER_ADAPTED_V, d, w->normed, kv->all, w->values);
    }
    if (l->whole_qk_norm) {
        gather_columns(f, w->q, rows, queries);
        gather_columns(f, w->keys, rows, kv);
    }
    run_rows(f, l, rows, write_kv);
    run_attention_alone(f, l);
    activations attended = rows_of(&w->codes, w->attended, rows, queries->all);
    gather_input(f, &attended, w->attended, queries, &l->out);
    run_linear(f->context, &attended, 1, (product[]){to_columns(&l->out, w->y, &f->model.hidden)});
    run_adapters(f, l, OUTRIDER_ADAPTED_OUT, queries->all, w->attended, d, w->y);
}

static void run_mixer(forward_ctx *f, const outrider_layer *l) {
    if (l->recurrent)
        run_recurrent(f, l);
    else if (l->latent)
        run_latent(f, l);
    else
        run_attention_block(f, l);
    gather_columns(f, f->work.y, f->batch.asked->rows, &f->model.hidden);
}

static void run_mlps(forward_ctx *f, const outrider_layer *l) {
    if (!l->experts || l->beside) run_mlp(f, l);
    if (l->beside) prepare_beside(f, l);
    if (l->experts) run_experts(f, l);
    gather_columns(f, f->work.y, f->batch.asked->rows, &f->model.hidden);
}

void run_layer(forward_ctx *f, const outrider_layer *l, const outrider_layer *next) {
    int64_t rows = f->batch.asked->rows;
    f->next = next;
    f->model = columns_of_layer(&f->model, l);
    if (l == f->model.whole->layer) run_rows(f, l, rows, norm_for_layer);
    if (l->lacks != OUTRIDER_LACKS_MIXER) run_mixer(f, l);
    if (l->lacks == OUTRIDER_LACKS_NOTHING) run_rows(f, l, rows, add_and_norm);
    if (l->lacks != OUTRIDER_LACKS_MLP) run_mlps(f, l);
    run_rows(f, l, rows, add_rows);
    if (!l->input) return;
    run_input(f, l);
    run_rows(f, l, rows, add_input_rows);
}
