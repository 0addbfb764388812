/* Whether the arguments of a forward pass can be: nothing is read or written that they do not describe.
 *
 * Sizes are compared with each other, and no pointer may be missing or misaligned. How long an array is that a pointer
 * leads to, the caller alone knows.
 */
#include "arguments.h"
#include "attention.h"
#include "latent.h"

#define MOST_RANK (1 << 16)
#define MOST_PROCESSES 4096

/* ---- A model ---------------------------------------------------------------------------------------------------- */

/* Bounds of shares: from 0 up, and no wider than a row. */
static int are_bounds(const int64_t *bounds, int32_t size) {
    if (!is_array(bounds, sizeof *bounds) || bounds[0] != 0) return 0;
    for (int32_t r = 0; r < size; r++)
        if (bounds[r + 1] < bounds[r]) return 0;
    return bounds[size] <= MOST_WIDTH;
}

static int is_shard(const outrider_model *m) {
    const outrider_shard *s = m->shard;
    int fine = s->size >= 1 && s->size <= MOST_PROCESSES && s->rank >= 0 && s->rank < s->size && s->gather &&
               are_bounds(s->key_heads, s->size) && are_bounds(s->hidden, s->size) && are_bounds(s->inner, s->size) &&
               are_bounds(s->expert_inner, s->size) && are_bounds(s->vocabulary, s->size);
    return fine && s->hidden[s->size] == m->hidden && s->group >= 1 && m->heads == (int64_t)m->kv_heads * s->group &&
           s->key_heads[s->rank + 1] - s->key_heads[s->rank] == m->kv_heads &&
           s->key_heads[s->size] * s->group <= MOST_WIDTH / m->head_dim;
}

int is_model(const outrider_model *m) {
    if (!is_array(m, _Alignof(outrider_model)) || m->layers < 0 || m->positions < 0) return 0;
    if (m->hidden < 1 || m->hidden > MOST_WIDTH || m->inner < 0 || m->inner > MOST_WIDTH) return 0;
    if (m->head_dim < 1 || m->head_dim > MOST_HEAD_DIM || m->heads > MOST_WIDTH / m->head_dim) return 0;
    int none = m->shard && m->heads == 0 && m->kv_heads == 0; /* all are others' */
    if (!none && (m->kv_heads < 1 || m->heads < 1 || m->heads % m->kv_heads)) return 0;
    return (!m->layers || is_array(m->layer, _Alignof(outrider_layer))) && (!m->shard || is_shard(m));
}

/* ---- A cache ---------------------------------------------------------------------------------------------------- */

/* Whether a layer of the cache has these heads. */
static int has_heads(const outrider_cache *c, int64_t layer, int32_t kv_heads, int32_t head_dim) {
    if (!c->heads) return c->kv_heads == kv_heads && c->head_dim == head_dim;
    return c->heads[2 * layer] == kv_heads && c->heads[2 * layer + 1] == head_dim;
}

/* Whether there are so many layers. */
static int has_layers(const outrider_cache *c, int64_t layers, int32_t kv_heads, int32_t value_dim) {
    if (!is_array(c, _Alignof(outrider_cache)) || c->type < OUTRIDER_CACHE_F32 || c->type > OUTRIDER_CACHE_I8) return 0;
    if (c->block < 1 || c->rows < 0 || c->layers < layers || c->value_dim != value_dim) return 0;
    if (!is_array_or_null(c->heads, sizeof *c->heads)) return 0;
    int scaled = c->type == OUTRIDER_CACHE_I8;
    uintptr_t size = (uintptr_t)number_bytes(c);
    if (layers && (!c->keys || !c->values || (scaled && (!c->key_scales || !c->value_scales)))) return 0;
    for (int64_t i = 0; kv_heads && i < layers; i++) {
        if (!is_array(c->keys[i], size) || !is_array(c->values[i], size)) return 0;
        if (scaled && (!is_array(c->key_scales[i], 4) || !is_array(c->value_scales[i], 4))) return 0;
    }
    return 1;
}

int is_cache(const outrider_cache *c, int64_t layers, int32_t kv_heads, int32_t head_dim, int32_t value_dim) {
    if (!has_layers(c, layers, kv_heads, value_dim)) return 0;
    if (!layers && !c->heads && !has_heads(c, 0, kv_heads, head_dim)) return 0;
    for (int64_t i = 0; i < layers; i++)
        if (!has_heads(c, i, kv_heads, head_dim)) return 0;
    return 1;
}

static int attends(const outrider_layer *l) { return !l->recurrent && l->lacks != OUTRIDER_LACKS_MIXER; }

/* Whether it has a layer for each of the first ``layers`` that attends, of that one's heads. */
static int is_cache_of(const local_model *m, const outrider_cache *c, int32_t layers) {
    int64_t own = 0, most = 0;
    for (int32_t i = 0; i < layers; i++) {
        const outrider_layer *l = m->whole->layer + i;
        own += attends(l) && !l->reads;
        most = l->reads > most ? l->reads : most;
    }
    if (!has_layers(c, own > most ? own : most, m->whole->kv_heads, latent_rank(m->whole))) return 0;
    own = 0;
    for (int32_t i = 0; i < layers; i++) {
        const outrider_layer *l = m->whole->layer + i;
        if (!attends(l)) continue;
        local_model of = columns_of_layer(m, l);
        if (!has_heads(c, l->reads ? l->reads - 1 : own++, of.kv_heads, of.head_dim)) return 0;
    }
    return 1;
}

static int check_span(const outrider_cache *cache, const outrider_span *s) {
    if (s->start < 0 || s->count < 1 || s->start > INT32_MAX - s->count || !is_array(s->table, sizeof *s->table))
        return OUTRIDER_BAD_ARGUMENT;
    int32_t end = s->start + s->count, entries = (end - 1) / cache->block + 1;
    if (end > cache->rows || s->entries < entries) return OUTRIDER_BAD_ARGUMENT;
    for (int32_t entry = 0; entry < entries; entry++) {
        int64_t rows = end - (int64_t)entry * cache->block;
        if (rows > cache->block) rows = cache->block;
        if (s->table[entry] < 0 || (int64_t)s->table[entry] * cache->block + rows > cache->rows)
            return OUTRIDER_BAD_ARGUMENT;
    }
    if (!s->mask) return OUTRIDER_OK;
    int fits = s->mask_rows >= 1 && s->mask_rows <= s->count && s->mask_keys >= 1 && s->mask_keys <= end;
    return fits ? OUTRIDER_OK : OUTRIDER_BAD_ARGUMENT;
}

int check_spans(const outrider_cache *cache, const outrider_batch *b) {
    int64_t rows = 0;
    if (b->spans < 0 || b->spans > b->rows) return OUTRIDER_BAD_ARGUMENT;
    if (b->spans && !is_array(b->span, _Alignof(outrider_span))) return OUTRIDER_BAD_ARGUMENT;
    for (int32_t i = 0; i < b->spans; i++) {
        if (check_span(cache, b->span + i) != OUTRIDER_OK) return OUTRIDER_BAD_ARGUMENT;
        rows += b->span[i].count;
    }
    return rows == b->rows && rows <= MOST_BATCH_ROWS ? OUTRIDER_OK : OUTRIDER_BAD_ARGUMENT;
}

/* ---- A batch ---------------------------------------------------------------------------------------------------- */

static int fits_adapter(const local_model *whole, int32_t layers, const outrider_low_rank *list) {
    if (!is_array(list, _Alignof(outrider_low_rank))) return 0;
    for (int64_t i = 0; i < (int64_t)layers * OUTRIDER_ADAPTED; i++) {
        const outrider_low_rank *a = list + i;
        if (!a->rank) continue;
        int kind = (int)(i % OUTRIDER_ADAPTED);
        const outrider_layer *l = whole->whole->layer + i / OUTRIDER_ADAPTED;
        local_model m = columns_of_layer(whole, l);
        int64_t d = m.whole->hidden, q = m.queries.all, kv = m.kv.all, inner = m.inner.all;
        const int64_t inputs[OUTRIDER_ADAPTED] = {d, d, d, q, d, d, inner}, outputs[] = {q, kv, kv, d, inner, inner, d};
        int64_t wide = kind == OUTRIDER_ADAPTED_Q && l->gated ? 2 : 1;
        if ((!attends(l) || l->latent) && kind <= OUTRIDER_ADAPTED_OUT) return 0;
        if (l->lacks == OUTRIDER_LACKS_MLP && kind > OUTRIDER_ADAPTED_OUT) return 0;
        if (l->reads && (kind == OUTRIDER_ADAPTED_K || kind == OUTRIDER_ADAPTED_V)) return 0;
        if (l->values_are_keys && kind == OUTRIDER_ADAPTED_V) return 0;
        if (a->rank < 0 || a->rank > MOST_RANK || a->inputs != inputs[kind] || a->outputs != outputs[kind] * wide)
            return 0;
        if (!is_array(a->down, sizeof(float)) || !is_array(a->up, sizeof(float))) return 0;
    }
    return 1;
}

static int fit_adapters(const local_model *m, const outrider_batch *b) {
    if (!b->adapters) return 1;
    if (m->whole->shard || !is_array(b->adapters, sizeof(void *))) return 0;
    const outrider_low_rank *known = NULL; /* rows of a request stand together */
    for (int32_t r = 0; r < b->rows; r++) {
        const outrider_low_rank *list = b->adapters[r];
        if (list && list != known && !fits_adapter(m, b->layers, list)) return 0;
        known = list;
    }
    return 1;
}

/* What a batch of at least one row points to. */
static int has_arrays(const outrider_batch *b) {
    const float *numbers[] = {b->inputs, b->feature, b->hidden_out, b->logits, b->residual, b->embeddings};
    for (int i = 0; i < 6; i++)
        if (!is_array_or_null(numbers[i], sizeof(float))) return 0;
    if (!is_array_or_null(b->experts, sizeof *b->experts)) return 0;
    return is_array(b->positions, sizeof *b->positions) && (b->inputs || is_array(b->tokens, sizeof *b->tokens)) &&
           (!b->features || (is_array(b->feature_layers, sizeof *b->feature_layers) && b->feature)) &&
           (!b->logit_rows || is_array(b->logit_row, sizeof *b->logit_row));
}

static int check_ids(const outrider_model *m, const outrider_batch *b) {
    for (int32_t r = 0; r < b->rows; r++) {
        if (b->positions[r] < 0 || b->positions[r] >= m->positions) return OUTRIDER_BAD_ARGUMENT;
        if (!b->inputs && (b->tokens[r] < 0 || b->tokens[r] >= m->embedding->outputs)) return OUTRIDER_BAD_ARGUMENT;
    }
    for (int32_t i = 0; i < b->logit_rows; i++)
        if (b->logit_row[i] < 0 || b->logit_row[i] >= b->rows) return OUTRIDER_BAD_ARGUMENT;
    for (int32_t i = 0; i < b->features; i++) /* no more layers than are run */
        if (b->feature_layers[i] < 0 || b->feature_layers[i] > b->layers) return OUTRIDER_BAD_ARGUMENT;
    return OUTRIDER_OK;
}

static int are_counts(const outrider_batch *b, const outrider_model *m) {
    return b->rows >= 0 && b->rows <= MOST_BATCH_ROWS && b->layers >= 0 && b->layers <= m->layers &&
           b->features >= 0 && b->features <= MOST_FEATURES && b->logit_rows >= 0 && b->logit_rows <= MOST_BATCH_ROWS;
}

int check_batch(const local_model *local, const outrider_cache *cache, const outrider_batch *b) {
    const outrider_model *m = local->whole;
    if (!are_counts(b, m) || !is_cache_of(local, cache, b->layers)) return OUTRIDER_BAD_ARGUMENT;
    if (check_spans(cache, b) != OUTRIDER_OK) return OUTRIDER_BAD_ARGUMENT;
    if (b->rows == 0) return b->logit_rows ? OUTRIDER_BAD_ARGUMENT : OUTRIDER_OK;
    if (!has_arrays(b) || (!b->inputs && (m->shard || !is_weight(m->embedding) || m->embedding->inputs != m->hidden)))
        return OUTRIDER_BAD_ARGUMENT;
    if ((b->logits && (!m->head || !is_product(m->head, local->vocabulary.count, m->hidden))) ||
        !is_norm(&m->final_norm))
        return OUTRIDER_BAD_ARGUMENT;
    for (int32_t i = 0; i < m->layers; i++)
        if (!fits_layer(local, m->layer + i) || (m->layer[i].embedding_norm && (!b->embeddings || b->adapters)))
            return OUTRIDER_BAD_ARGUMENT;
    if (!has_layer_inputs(m, b->layer_embeddings) || !fit_adapters(local, b)) return OUTRIDER_BAD_ARGUMENT;
    if (check_recurrent(local, cache, b) != OUTRIDER_OK) return OUTRIDER_BAD_ARGUMENT;
    return check_ids(m, b);
}
