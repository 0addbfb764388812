/* A chain of draft tokens by a head that goes on from the target's features. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "context.h"
#include "latent.h"
#include "sample.h"

typedef struct {
    outrider_context *context;
    const outrider_feature_head *head;
    const outrider_cache *cache;
    outrider_chain *chain;
    float *normed;     /* [rows, inputs of fc] */
    float *inputs;     /* [rows, hidden] */
    float *embeddings; /* [rows, hidden] */
    float *residual;   /* [rows, hidden] */
    float *logits;     /* [outputs], of the levels behind the first */
    float *weights;    /* [outputs], log-weights of a row, and behind them [outputs] of those that are possible */
    float *noise;      /* [outputs] */
    int64_t *columns;  /* [outputs], that are possible, and behind them [outputs] of their tokens */
} drafting;

#define MOST_PARTS 64

static int64_t fc_width(const outrider_feature_head *h) {
    return (h->parts + (h->embedding_norm != NULL)) * (int64_t)h->layers->hidden;
}

/* The tokens that a row of logits scores. */
static int64_t scored(const outrider_feature_head *h) {
    return h->layers->head->outputs + (h->more ? h->more->outputs : 0);
}

/* What a head has of its own; outrider_forward looks at its layers. */
static int is_head(const outrider_feature_head *h) {
    if (!is_array(h, _Alignof(outrider_feature_head)) || !is_model(h->layers)) return 0;
    int64_t d = h->layers->hidden;
    int fits = is_weight(h->layers->head) && h->parts >= 1 && h->parts <= MOST_PARTS && is_weight(h->fc) &&
               h->fc->inputs == fc_width(h) && h->fc->outputs == d && is_array_or_null(h->output_norm, 4) &&
               is_array_or_null(h->ids, 8) && (!h->embedding || (is_weight(h->embedding) && h->embedding->inputs == d));
    if (h->embedding_norm) fits = fits && is_array(h->embedding_norm, 4) && h->fc_norm && h->parts == 1;
    if (h->more) fits = fits && is_weight(h->more) && h->more->inputs == d && h->output_norm && h->ids;
    for (int32_t i = 0; fits && h->fc_norm && i < h->parts; i++) fits = is_array(h->fc_norm[i], 4);
    return fits;
}

static int is_chain(const outrider_feature_head *h, const outrider_chain *c) {
    if (!is_array(c, _Alignof(outrider_chain)) || c->rows < 1 || c->rows > MOST_BATCH_ROWS) return 0;
    return c->levels >= 1 && c->start >= 0 && (int64_t)c->start + c->rows + c->levels <= INT32_MAX && c->found &&
           is_array(c->table, 4) && is_array(c->features, 4) && is_array(c->tokens, 8) && is_array(c->positions, 8) &&
           is_array_or_null(c->keys, 4) && is_array_or_null(c->embeddings, 4) && (h->embedding || c->embeddings) &&
           is_array(c->output, 4) && is_array(c->logits, 4) && is_sampling(c->sampling);
}

static int reserve(drafting *g) {
    int64_t d = g->head->layers->hidden, rows = g->chain->rows, outputs = scored(g->head), width = fc_width(g->head);
    size_t noisy = g->chain->keys ? (size_t)outputs : 0;
    g->columns = malloc(2 * sizeof(int64_t) * noisy + sizeof(float) * (size_t)(rows * (width + 3 * d) + 4 * outputs));
    if (!g->columns) return OUTRIDER_NO_MEMORY;
    g->normed = (float *)(g->columns + 2 * noisy);
    g->inputs = g->normed + rows * width;
    g->embeddings = g->inputs + rows * d;
    g->residual = g->embeddings + rows * d;
    g->logits = g->residual + rows * d;
    g->weights = g->logits + outputs;
    g->noise = g->weights + 2 * outputs;
    return OUTRIDER_OK;
}

/* inputs = fc(features), each part of which may have a norm, and before which the normed embedding may stand. */
static int fuse(const drafting *g, int64_t rows, const float *features) {
    const outrider_feature_head *h = g->head;
    int64_t d = h->layers->hidden;
    float *out = g->normed;
    if (!h->fc_norm) return outrider_linear(g->context, h->fc, rows, features, g->inputs);
    for (int64_t r = 0; r < rows; r++) {
        if (h->embedding_norm) {
            g->context->k->norm(d, g->embeddings + r * d, h->embedding_norm, h->layers->eps, out);
            out += d;
        }
        for (int32_t i = 0; i < h->parts; i++, features += d, out += d)
            g->context->k->norm(d, features, h->fc_norm[i], h->layers->eps, out);
    }
    return outrider_linear(g->context, h->fc, rows, g->normed, g->inputs);
}

static int embed(const drafting *g, int64_t rows, const int64_t *tokens) {
    int64_t numbers = rows * g->head->layers->hidden;
    float scale = g->head->embedding_scale;
    if (!g->head->embedding) {
        memcpy(g->embeddings, g->chain->embeddings, (size_t)numbers * sizeof(float));
        return OUTRIDER_OK;
    }
    int status = outrider_rows(g->head->embedding, rows, tokens, g->embeddings);
    for (int64_t i = 0; scale > 0 && i < numbers; i++) g->embeddings[i] *= scale;
    return status;
}

/* The layers over rows at cache row ``start``; the last one's logits, and its output in ``output``. */
static int run(const drafting *g, int32_t start, int32_t rows, const int64_t *positions, float *logits, float *output) {
    const outrider_model *m = g->head->layers;
    int64_t last = rows - 1, d = m->hidden;
    outrider_span span = {.start = start, .count = rows, .entries = g->chain->entries, .table = g->chain->table};
    outrider_batch batch = {.rows = rows, .spans = 1, .layers = m->layers, .logit_rows = 1, .positions = positions,
                            .inputs = g->inputs, .span = &span, .logit_row = &last, .logits = logits,
                            .residual = g->residual, .embeddings = g->embeddings};
    int status = outrider_forward(g->context, m, g->cache, &batch);
    if (status != OUTRIDER_OK) return status;
    const float *out = g->residual + last * d;
    if (g->head->output_norm)
        g->context->k->norm(d, out, g->head->output_norm, m->eps, output);
    else
        memcpy(output, out, (size_t)d * sizeof(float));
    return g->head->more ? outrider_linear(g->context, g->head->more, 1, output, logits + m->head->outputs) : status;
}

/* Columns of the log-weights that are possible: how many. Their log-weights move to ``weights``. */
static int64_t find_possible(const drafting *g, int64_t width, const float *all, float *weights) {
    const int64_t *ids = g->head->ids;
    int64_t count = 0, *tokens = g->columns + width;
    for (int64_t i = 0; i < width; i++) { /* no branch, which would be a guess */
        weights[count] = all[i];
        g->columns[count] = i;
        tokens[count] = ids ? ids[i] : i;
        count += all[i] > -INFINITY;
    }
    return count;
}

/* The best of log-weights with noise. Noise of tokens that cannot win is not worked out. */
static int find_winner(const drafting *g, const weight_row *row, int64_t *column, float *score) {
    const kernels *k = g->context->k;
    float *weights = g->weights + row->width;
    int64_t found = 0;
    k->log_weights(row, g->weights);
    int64_t count = find_possible(g, row->width, g->weights, weights);
    k->gumbel_of_tokens(count, g->columns + row->width, g->chain->keys, g->noise);
    for (int64_t i = 0; i < count; i++) weights[i] += g->noise[i];
    int status = outrider_most_likely(g->context, 1, count, count, weights, 1, 1, column, score, &found);
    if (status != OUTRIDER_OK || found < 1) return status == OUTRIDER_OK ? OUTRIDER_NOT_FINITE : status;
    *column = g->columns[*column];
    return OUTRIDER_OK;
}

/* The best column of a row and its log-probability. */
static int find_best(const drafting *g, const float *logits, int64_t *column, float *score) {
    const outrider_chain *c = g->chain;
    weight_row row = {scored(g->head), logits, 0, 1, -INFINITY};
    g->context->k->first_largest(row.width, logits, &row.largest);
    if (!(row.largest > -INFINITY && row.largest < INFINITY)) return OUTRIDER_NOT_FINITE;
    int status = truncate_row(g->context, &row, c->sampling);
    if (status != OUTRIDER_OK) return status;
    if (c->keys) return find_winner(g, &row, column, score);
    if (row.least > -INFINITY) {
        g->context->k->log_weights(&row, g->weights);
        row = (weight_row){row.width, g->weights, 0, 1, -INFINITY};
    }
    g->context->k->most_likely(&row, 1, column, score);
    return OUTRIDER_OK;
}

/* Whether the table has an entry for every row that a chain may write. */
static int holds_chain(const outrider_model *m, const outrider_cache *cache, const outrider_chain *c) {
    if (!is_cache(cache, m->layers, m->kv_heads, m->head_dim, latent_rank(m))) return 0;
    return (int64_t)c->entries * cache->block >= (int64_t)c->start + c->rows + c->levels - 1;
}

int outrider_draft_chain(outrider_context *context, const outrider_feature_head *head, const outrider_cache *cache,
                         outrider_chain *chain) {
    if (!is_context(context) || !is_head(head) || !is_chain(head, chain) || !holds_chain(head->layers, cache, chain))
        return OUTRIDER_BAD_ARGUMENT;
    drafting g = {.context = context, .head = head, .cache = cache, .chain = chain};
    int status = reserve(&g);
    if (status != OUTRIDER_OK) return status;
    int64_t d = head->layers->hidden, column = 0, position = chain->positions[chain->rows - 1];
    float score = 0;
    status = embed(&g, chain->rows, chain->tokens);
    if (status == OUTRIDER_OK) status = fuse(&g, chain->rows, chain->features);
    if (status == OUTRIDER_OK)
        status = run(&g, chain->start, chain->rows, chain->positions, chain->logits, chain->output);
    const float *logits = chain->logits;
    for (int32_t level = 1; status == OUTRIDER_OK; level++) {
        status = find_best(&g, logits, &column, &score);
        if (status != OUTRIDER_OK) break;
        int64_t token = head->ids ? head->ids[column] : column;
        if (!chain->found(token, score) || level == chain->levels) break;
        if (level == 1) memcpy(g.inputs, chain->output, (size_t)d * sizeof(float));
        position++;
        status = embed(&g, 1, &token);
        if (status == OUTRIDER_OK && head->embedding_norm) status = fuse(&g, 1, g.inputs);
        if (status == OUTRIDER_OK)
            status = run(&g, chain->start + chain->rows + level - 1, 1, &position, g.logits, g.inputs);
        logits = g.logits;
    }
    free(g.columns);
    return status;
}
