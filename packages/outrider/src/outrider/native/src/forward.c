/* A forward pass: embeddings, layers, logits. */
#include <string.h>

#include "arguments.h"
#include "forward.h"
#include "linear.h"

static void embed_item(void *shared, int64_t r, int thread) {
    const forward_ctx *f = shared;
    const outrider_model *m = f->model.whole;
    const outrider_batch *b = f->batch.asked;
    int64_t d = m->hidden;
    float *x = f->work.x + r * d;
    (void)thread;
    if (b->inputs)
        memcpy(x, b->inputs + r * d, (size_t)d * sizeof(float));
    else {
        outrider_rows(m->embedding, 1, b->tokens + r, x);
        scale_row(d, x, m->embedding_scale);
    }
}

static void copy_features(const forward_ctx *f, int32_t layers_done) {
    const outrider_batch *b = f->batch.asked;
    int64_t d = f->model.whole->hidden;
    for (int32_t i = 0; i < b->features; i++)
        if (b->feature_layers[i] == layers_done)
            for (int64_t r = 0; r < b->rows; r++)
                memcpy(b->feature + (r * b->features + i) * d, f->work.x + r * d, (size_t)d * sizeof(float));
}

static void cap_item(void *shared, int64_t r, int thread) {
    const forward_ctx *f = shared;
    const outrider_model *m = f->model.whole;
    int64_t width = f->model.vocabulary.all;
    float *row = f->batch.asked->logits + r * width, scale = m->logit_scale > 0 ? m->logit_scale : 1.0f;
    (void)thread;
    if (m->logit_cap > 0)
        f->k->cap(width, row, scale, m->logit_cap);
    else
        scale_row(width, row, scale);
}

static void score_rows(forward_ctx *f) {
    const outrider_batch *b = f->batch.asked;
    const outrider_model *m = f->model.whole;
    const columns *vocabulary = &f->model.vocabulary;
    float *normed = f->work.normed;
    int64_t d = m->hidden;
    for (int64_t i = 0; i < b->logit_rows; i++)
        norm_or_copy(f, f->work.x + b->logit_row[i] * d, &m->final_norm, normed + i * d);
    if (b->hidden_out) memcpy(b->hidden_out, normed, (size_t)(b->logit_rows * d) * sizeof(float));
    if (!b->logits || !b->logit_rows) return;
    activations a = rows_of(&f->work.codes, normed, b->logit_rows, d);
    if (is_quantised(m->head)) f->k->quantise(&a, 0, b->logit_rows);
    int first = !m->shard || m->shard->rank == 0; /* the first process's columns are the first */
    run_linear(f->context, &a, 1, (product[]){{m->head, b->logits, first ? vocabulary->all : vocabulary->count}});
    gather_logits(f, b->logits, b->logit_rows);
    if (first && (m->logit_scale > 0 || m->logit_cap > 0))
        run_items(&f->context->pool, b->logit_rows, cap_item, f);
}

static void run_pass(forward_ctx *f) {
    const outrider_batch *b = f->batch.asked;
    const outrider_model *m = f->model.whole;
    run_items(&f->context->pool, b->rows, embed_item, f);
    int32_t seen[2] = {0, 0}; /* layers that attend, and recurrent ones */
    copy_features(f, 0);
    if (b->experts) memset(b->experts, 0, OUTRIDER_WINDOWS * sizeof *b->experts);
    if (m->layer_inputs) make_layer_inputs(f);
    for (int32_t i = 0; i < b->layers && f->status == OUTRIDER_OK; i++) {
        const outrider_layer *l = m->layer + i;
        if (l->lacks != OUTRIDER_LACKS_MIXER) f->ordinal = l->reads ? l->reads - 1 : seen[l->recurrent != NULL]++;
        run_layer(f, m->layer + i, i + 1 < b->layers ? m->layer + i + 1 : NULL);
        copy_features(f, i + 1);
    }
    if (b->residual) memcpy(b->residual, f->work.x, (size_t)b->rows * (size_t)m->hidden * sizeof(float));
    if (f->status == OUTRIDER_OK) score_rows(f);
}

OUTRIDER_API int outrider_forward(outrider_context *context, const outrider_model *model, const outrider_cache *cache,
                                  const outrider_batch *batch) {
    if (!is_context(context) || !is_model(model) || !is_array(batch, _Alignof(outrider_batch)))
        return OUTRIDER_BAD_ARGUMENT;
    forward_ctx f = {.context = context, .k = context->k, .model = find_columns(model),
                     .batch = {.asked = batch, .cache = cache}};
    int status = check_batch(&f.model, cache, batch);
    if (status != OUTRIDER_OK || batch->rows == 0) return status;
    lock_context(context);
    f.status = prepare_pass(&f);
    if (f.status == OUTRIDER_OK) run_pass(&f);
    unlock_context(context);
    return f.status;
}
