/* Recurrent layers. Included once by each instruction set.
 *
 * A state S is [key_dim][value_dim]. A row has a query q, a key k, a value v, and two numbers: its decay, and how much of
 * it is written. With the state of the row before it:
 *
 *     memory = decay * S'k        change = (v - memory) * write        out = decay * S'q + (q'k) * change
 *     S      = k change' + decay * S
 *
 * Mamba-2 has no memory (change = v * write), and adds skip * v to the output.
 *
 * Sums over the key's dimensions are by fmaf in their order. Each of S's columns is by itself, and so is each row: nothing
 * depends on how rows are cut into passes, nor on which of them may still be dropped.
 */
#ifndef OUTRIDER_RECURRENT_KERNELS_H
#define OUTRIDER_RECURRENT_KERNELS_H

#include "kernels.h"
#include "recurrent.h"
#include "simd.h"

/* Columns of a state that are computed together, so that they stay in the first cache while all rows pass. */
#if defined(ISA_AVX512)
enum { STATE_VECTORS = 4 };
#else
enum { STATE_VECTORS = 2 };
#endif
enum { STATE_BLOCK = STATE_VECTORS * LANES };

/* All lanes, or the first n, of which the compiler knows whether they are all. */
static inline vec load_lanes(const float *p, int n) { return n == LANES ? vec_load(p) : vec_load_some(p, n); }
static inline void store_lanes(float *p, vec v, int n) {
    if (n == LANES)
        vec_store(p, v);
    else
        vec_store_some(p, v, n);
}

/* ---- Before the state ------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void convolve_lanes(int64_t i, int n, const struct convolution_task *c) {
    vec one = vec_set(1.0f), zero = vec_set(0), least = vec_set(-88.0f);
    vec sum = c->bias ? load_lanes(c->bias + i, n) : zero;
    for (int32_t t = 0; t < c->count; t++)
        sum = vec_fma(load_lanes(c->rows[t] + i, n), load_lanes(c->taps + t * c->stride + i, n), sum);
    if (c->gate)
        sum = vec_mul(load_lanes(c->gate + i, n), sum);
    else
        sum = vec_div(sum, vec_add(one, vec_exp(vec_sub(zero, vec_max(least, sum)))));
    store_lanes(c->out + i, sum, n);
}

static void convolve(int64_t width, const struct convolution_task *task) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) convolve_lanes(i, LANES, task);
    if (i < width) convolve_lanes(i, (int)(width - i), task);
}

/* x * scale / |x|, in place. */
static void unit(int64_t width, float *x, float scale) {
    vec squares = vec_set(0);
    for (int64_t i = 0; i < width; i += LANES) {
        vec v = vec_load_some(x + i, width - i < LANES ? (int)(width - i) : LANES);
        squares = vec_fma(v, v, squares);
    }
    vec factor = vec_set(scale / __builtin_sqrtf(sum_lanes(squares) + 1e-6f));
    for (int64_t i = 0; i < width; i += LANES) {
        int n = width - i < LANES ? (int)(width - i) : LANES;
        vec_store_some(x + i, vec_mul(vec_load_some(x + i, n), factor), n);
    }
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + t), t = exp(-|x|); the last with 1 + t's own rounding made good. */
static inline vec softplus(vec x) {
    vec one = vec_set(1.0f), zero = vec_set(0), scale;
    vec t = vec_exp(vec_sub(zero, vec_abs(x))), sum = vec_add(one, t), k = vec_exponent(sum, &scale);
    vec rest = vec_div(vec_sub(t, vec_sub(sum, one)), sum);
    vec logarithm = vec_add(log_of(k, vec_sub(vec_mul(sum, scale), one)), rest);
    return vec_add(vec_max(zero, x), logarithm); /* NaN stays: see vec_max */
}

/* Of some heads: a becomes exp(decay * softplus(a + bias)), b its sigmoid. */
static void recurrent_gates(int64_t heads, float *a, float *b, const float *decay, const float *bias) {
    vec one = vec_set(1.0f), zero = vec_set(0), least = vec_set(-88.0f);
    for (int64_t i = 0; i < heads; i += LANES) {
        int n = heads - i < LANES ? (int)(heads - i) : LANES;
        vec plus = softplus(vec_add(vec_load_some(a + i, n), vec_load_some(bias + i, n)));
        vec_store_some(a + i, vec_exp(vec_mul(vec_load_some(decay + i, n), plus)), n);
        vec gate = vec_max(least, vec_load_some(b + i, n));
        vec_store_some(b + i, vec_div(one, vec_add(one, vec_exp(vec_sub(zero, gate)))), n);
    }
}

/* Of some heads: the step becomes softplus(a + bias), and a exp(decay * step). */
static void time_steps(int64_t heads, float *a, float *step, const float *decay, const float *bias) {
    for (int64_t i = 0; i < heads; i += LANES) {
        int n = heads - i < LANES ? (int)(heads - i) : LANES;
        vec plus = softplus(vec_add(vec_load_some(a + i, n), vec_load_some(bias + i, n)));
        vec_store_some(step + i, plus, n);
        vec_store_some(a + i, vec_exp(vec_mul(vec_load_some(decay + i, n), plus)), n);
    }
}

/* ---- The state -------------------------------------------------------------------------------------------------- */

static int64_t recur_scratch(int32_t copies, int32_t key_dim) { return (int64_t)copies * key_dim * STATE_BLOCK; }

/* Columns of a state. */
typedef struct {
    float *at;
    int64_t stride;
} state_columns;

/* What a step does to ``vectors`` vectors of columns; the compiler knows them, ``changes``, ``reads`` and ``recalls``: a
 * row's change depends on its memory. Of the last vector ``n`` lanes are there. */
static inline __attribute__((always_inline)) void step_columns(const struct recurrent_task *t, const recurrent_step *s,
                                                               state_columns from, state_columns to, int32_t column,
                                                               const int vectors, int n, const int changes,
                                                               const int reads, const int recalls) {
    vec change[STATE_VECTORS], memory[STATE_VECTORS], out[STATE_VECTORS], decay = vec_set(0);
    const float *old_key = NULL, *key = NULL, *query = NULL;
    if (changes) {
        int old = s->update < t->pending;
        int64_t row = old ? s->update : s->update - t->pending;
        const float *at = old ? t->old_change + row * t->update_stride : t->value + row * t->stride;
        old_key = old ? t->old_key + row * t->update_stride : t->key + row * t->stride;
        decay = vec_set(old ? t->old_decay[row * t->update_stride] : t->decay[row * t->gate_stride]);
        for (int v = 0; v < vectors; v++)
            change[v] = load_lanes(at + column + v * LANES, v + 1 < vectors ? LANES : n);
    }
    if (reads) {
        key = t->key + s->read * t->stride;
        query = t->query + s->read * t->stride;
        for (int v = 0; v < vectors; v++) memory[v] = out[v] = vec_set(0);
    }
    for (int32_t i = 0; i < t->key_dim; i++) {
        for (int v = 0; v < vectors; v++) {
            int lanes = v + 1 < vectors ? LANES : n;
            vec state = load_lanes(from.at + i * from.stride + v * LANES, lanes);
            if (changes) {
                state = vec_fma(vec_set(old_key[i]), change[v], vec_mul(state, decay));
                store_lanes(to.at + i * to.stride + v * LANES, state, lanes);
            }
            if (reads) {
                if (recalls) memory[v] = vec_fma(state, vec_set(key[i]), memory[v]);
                out[v] = vec_fma(state, vec_set(query[i]), out[v]);
            }
        }
    }
    if (!reads) return;
    vec own = vec_set(t->decay[s->read * t->gate_stride]), write = vec_set(t->write[s->read * t->gate_stride]);
    vec alike = vec_set(t->alike[s->read * t->alike_stride]);
    float *value = t->value + s->read * t->stride + column, *result = t->out + s->read * t->out_stride + column;
    for (int v = 0; v < vectors; v++) {
        int lanes = v + 1 < vectors ? LANES : n;
        vec old = load_lanes(value + v * LANES, lanes);
        vec written = vec_mul(recalls ? vec_sub(old, vec_mul(own, memory[v])) : old, write);
        vec read = vec_fma(alike, written, vec_mul(own, out[v]));
        store_lanes(value + v * LANES, written, lanes);
        store_lanes(result + v * LANES, recalls ? read : vec_fma(vec_set(t->skip), old, read), lanes);
    }
}

static inline state_columns columns_of(const struct recurrent_task *t, float *copies, int32_t state, int32_t column) {
    if (!state) return (state_columns){t->state + column, t->value_dim};
    return (state_columns){copies + (int64_t)(state - 1) * t->key_dim * STATE_BLOCK, STATE_BLOCK};
}

/* Asks memory for columns of a state before they are computed: with one row a pass they come from there. */
static inline void fetch_columns(const struct recurrent_task *t, const float *state) {
    for (int32_t i = 0; i < t->key_dim; i++)
        for (int v = 0; v < STATE_VECTORS; v++) __builtin_prefetch(state + (int64_t)i * t->value_dim + v * LANES, 1, 2);
}

/* All steps, of ``vectors`` vectors of columns. */
static inline __attribute__((always_inline)) void recur_columns(const struct recurrent_task *t, float *copies,
                                                                int32_t column, const int vectors, int n,
                                                                const int recalls) {
    for (const recurrent_step *s = t->step; s < t->step + t->num_steps; s++) {
        state_columns from = columns_of(t, copies, s->from, column), to = columns_of(t, copies, s->to, column);
        if (s->update < 0)
            step_columns(t, s, from, to, column, vectors, n, 0, 1, recalls);
        else if (s->read < 0)
            step_columns(t, s, from, to, column, vectors, n, 1, 0, recalls);
        else
            step_columns(t, s, from, to, column, vectors, n, 1, 1, recalls);
    }
}

static inline __attribute__((always_inline)) void recur_all(const struct recurrent_task *t, float *copies,
                                                            const int recalls) {
    int32_t column = 0;
    for (; column + STATE_BLOCK <= t->value_dim; column += STATE_BLOCK) {
        const float *next = column + 2 * STATE_BLOCK <= t->value_dim ? t->state + column + STATE_BLOCK : t->next;
        if (next) fetch_columns(t, next);
        recur_columns(t, copies, column, STATE_VECTORS, LANES, recalls);
    }
    for (; column < t->value_dim; column += LANES)
        recur_columns(t, copies, column, 1, t->value_dim - column < LANES ? t->value_dim - column : LANES, recalls);
}

static void recur(const struct recurrent_task *t, float *copies) {
    if (t->forgets)
        recur_all(t, copies, 0);
    else
        recur_all(t, copies, 1);
}

/* The members of ``kernels`` that this file provides. */
#define RECURRENT_KERNELS                                                                                  \
    .convolve = convolve, .unit = unit, .recurrent_gates = recurrent_gates, .time_steps = time_steps, \
    .recur = recur, .recur_scratch = recur_scratch

#endif
