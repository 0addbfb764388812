/* Whether recurrent layers, states and what spans do with them can be: see check.c. */
#include "arguments.h"
#include "attention.h"
#include "recurrent.h"

#define is_float_array(x) is_array(x, sizeof(float))

static int have_sizes(const outrider_recurrent *r) {
    if (r->kind < OUTRIDER_DELTA || r->kind > OUTRIDER_MAMBA2) return 0;
    if (r->convolution < 2 || r->convolution > MOST_CONVOLUTION || r->value_dim < 1) return 0;
    if (r->kind == OUTRIDER_SHORT_CONVOLUTION)
        return r->key_heads == 1 && r->value_heads == 1 && r->key_dim == 0 && r->value_dim <= MOST_WIDTH;
    int fine = r->key_heads >= 1 && r->value_heads >= 1 && r->value_heads % r->key_heads == 0 && r->key_dim >= 1 &&
               r->key_dim <= MOST_STATE_DIM && r->value_dim <= MOST_STATE_DIM;
    return fine && channels_of(r) <= MOST_WIDTH;
}

static int is_projection(const outrider_weight *w, int64_t outputs, int64_t inputs) {
    return is_weight(w) && w->outputs == outputs && w->inputs == inputs;
}

int fits_recurrent(const local_model *m, const outrider_recurrent *r) {
    int64_t d = m->whole->hidden;
    if (m->whole->shard || !is_array(r, _Alignof(outrider_recurrent)) || !have_sizes(r)) return 0;
    if (!is_projection(&r->qkv, projected_of(r), d) || !is_projection(&r->out, d, values_of(r)) ||
        !is_float_array(r->taps) || !is_array_or_null(r->taps_bias, sizeof(float)))
        return 0;
    if (r->kind == OUTRIDER_SHORT_CONVOLUTION) return 1;
    return is_projection(&r->z, values_of(r), d) && is_projection(&r->a, r->value_heads, d) &&
           (r->kind == OUTRIDER_DELTA ? is_projection(&r->b, r->value_heads, d) : is_float_array(r->skip)) &&
           is_float_array(r->decay) && is_float_array(r->dt_bias) && is_float_array(r->norm);
}

static int are_states(const outrider_states *s, const outrider_recurrent *r, int64_t layers) {
    if (!is_array(s, _Alignof(outrider_states)) || s->slots < 1 || s->layers < layers || s->pending < 0) return 0;
    if (s->key_heads != r->key_heads || s->value_heads != r->value_heads || s->key_dim != r->key_dim ||
        s->value_dim != r->value_dim || s->convolution != r->convolution || s->pending > MOST_BATCH_ROWS)
        return 0;
    if (!is_array(s->state, sizeof(void *)) || !is_array(s->inputs, sizeof(void *)) ||
        !is_array(s->updates, sizeof(void *)))
        return 0;
    for (int64_t i = 0; i < layers; i++)
        if (!is_float_array(s->inputs[i]) || (r->key_dim && !is_float_array(s->state[i])) ||
            (r->key_dim && s->pending && !is_float_array(s->updates[i])))
            return 0;
    return 1;
}

/* Every path of a mask goes over the new rows that are kept. */
static int are_paths(const outrider_span *s) {
    int32_t before = s->count - s->mask_keys, kept = s->kept > 0 ? s->kept : 0;
    if (s->mask_rows > s->count - kept) return 0;
    for (int32_t r = 0; r < s->mask_rows; r++)
        for (int32_t key = before < 0 ? -before : 0; key < s->mask_keys && before + key < kept; key++)
            if (!s->mask[(int64_t)r * s->mask_keys + key]) return 0;
    return 1;
}

/* ``s``: a span of a batch that has been checked. */
static int fits_states(const outrider_states *states, const outrider_span *s) {
    if (s->slot < 0 || s->slot >= states->slots || s->settled < 0 || s->settled > s->start || s->kept < -1) return 0;
    int32_t pending = s->start - s->settled;
    if (pending > states->pending || s->kept > s->count) return 0;
    int32_t most = states->pending - (s->kept < 0 ? pending : 0); /* rows that can become pending */
    return s->count - (s->kept < 0 ? 0 : s->kept) <= most && (!s->mask || are_paths(s));
}

int check_recurrent(const local_model *m, const outrider_cache *cache, const outrider_batch *b) {
    const outrider_recurrent *first = find_recurrent(m->whole, b->layers);
    int64_t layers = 0;
    if (!first) return OUTRIDER_OK;
    for (int32_t i = 0; i < b->layers; i++) {
        const outrider_recurrent *r = m->whole->layer[i].recurrent;
        if (r && (r->kind != first->kind || !are_states(cache->states, r, ++layers))) return OUTRIDER_BAD_ARGUMENT;
    }
    if (b->spans > cache->states->slots) return OUTRIDER_BAD_ARGUMENT;
    for (int32_t i = 0; i < b->spans; i++) {
        if (!fits_states(cache->states, b->span + i)) return OUTRIDER_BAD_ARGUMENT;
        for (int32_t j = 0; j < i; j++) /* two tasks would write to one state */
            if (b->span[j].slot == b->span[i].slot) return OUTRIDER_BAD_ARGUMENT;
    }
    return OUTRIDER_OK;
}
