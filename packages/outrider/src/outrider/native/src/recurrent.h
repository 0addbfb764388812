/* Recurrent layers: what a pass does with the states of its sequences. See docs/hybrid.md. */
#ifndef OUTRIDER_RECURRENT_H
#define OUTRIDER_RECURRENT_H

#include "columns.h"
#include "workspace.h"

#define MOST_CONVOLUTION 8
#define MOST_STATE_DIM 1024 /* of a key or a value */

/* Rows of a span by number: pending ones from 0, then the new ones. Each changes the state that its parent leaves.
 *
 * A step applies one row's change to the state ``from``, which becomes the state ``to``, and computes what another row,
 * its child, reads of it. State 0 is the slot's own; the others are copies, for rows that may be dropped. */
typedef struct {
    int32_t update;   /* the row whose change is applied, or -1 */
    int32_t read;     /* the new row that reads, by its place in the span, or -1 */
    int32_t from, to; /* equal, or there is a change */
} recurrent_step;

/* A row's convolution: times its gate, or without one its silu. */
struct convolution_task {
    int32_t count;
    const float *rows[MOST_CONVOLUTION]; /* [count], from the oldest on */
    const float *taps;                   /* [count], ``stride`` apart */
    int64_t stride;
    const float *bias, *gate; /* or NULL */
    float *out;
};

/* One value head of a span: a task. Rows of new ones are ``stride`` floats apart, those of pending ones
 * ``update_stride``. */
struct recurrent_task {
    int32_t key_dim, value_dim, pending, num_steps;
    const recurrent_step *step;
    float *state;           /* the slot's own, [key_dim][value_dim] */
    const float *next;      /* the state that will be wanted next, or NULL */
    const float *old_key, *old_change, *old_decay; /* of pending rows */
    int64_t update_stride;
    const float *query, *key, *alike; /* of new rows; alike: query times key, ``alike_stride`` apart */
    float *value;                     /* becomes the row's change */
    const float *decay, *write;       /* ``gate_stride`` apart */
    float *out;                       /* ``out_stride`` apart */
    int forgets;                      /* no change depends on what the state has: Mamba-2, with its ``skip`` */
    float skip;
    int64_t stride, alike_stride, gate_stride, out_stride;
};

/* What the rows of a span do to states, the same in every layer. */
typedef struct {
    const outrider_span *span;
    int64_t row;                /* of the batch, the first */
    int32_t pending, num_steps, copies;
    const recurrent_step *step;
    const int32_t *window; /* [count][convolution]: what a row's convolution reads, the row itself last: new rows of the
                              span by their place, rows of the slot's inputs as -1 - place */
} span_plan;

typedef struct {
    const outrider_recurrent *sizes; /* of all layers, or NULL: none is recurrent */
    span_plan *span;
    int32_t copies;        /* of a state, at once */
    float *scratch;        /* [threads][scratch_size] */
    int64_t scratch_size;  /* floats */
} recurrent_plan;

static inline int64_t keys_of(const outrider_recurrent *r) { return (int64_t)r->key_heads * r->key_dim; }
static inline int64_t values_of(const outrider_recurrent *r) { return (int64_t)r->value_heads * r->value_dim; }
static inline int64_t channels_of(const outrider_recurrent *r) { return 2 * keys_of(r) + values_of(r); }

/* Outputs of the projection ``qkv``. */
static inline int64_t projected_of(const outrider_recurrent *r) {
    return r->kind == OUTRIDER_SHORT_CONVOLUTION ? 3 * values_of(r) : channels_of(r);
}

/* Numbers of a pending row's update. */
static inline int64_t update_of(const outrider_recurrent *r) {
    return r->key_dim ? keys_of(r) + values_of(r) + r->value_heads : 0;
}

/* The row of the span, by number, that a row follows: -1 for the first. New rows before the mask's are a chain, and all
 * that follow none of the new rows follow the last pending one. */
static inline int32_t parent_of(const outrider_span *s, int32_t pending, int32_t row) {
    int32_t place = row - pending, first = s->count - s->mask_rows; /* of the mask's rows */
    if (!s->mask || place < first) return row - 1;
    const uint8_t *seen = s->mask + (int64_t)(place - first) * s->mask_keys;
    int32_t before = s->count - s->mask_keys; /* place of the mask's first key */
    int32_t key = place - before - 1;
    while (key >= 0 && before + key >= 0 && !seen[key]) key--;
    if (key < 0) key = -1;
    return before + key < 0 ? pending - 1 : pending + before + key;
}

/* The sizes that the recurrent layers among the first ``layers`` share; NULL: there are none. */
const outrider_recurrent *find_recurrent(const outrider_model *m, int32_t layers);

/* Steps and windows of a batch's spans. */
void take_recurrent(arena *a, recurrent_plan *plan, const outrider_batch *b);

#endif
