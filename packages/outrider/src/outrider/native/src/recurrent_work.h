/* What the kinds of recurrent layers share: a span's rows and its slot. See recurrent_slots.c. */
#ifndef OUTRIDER_RECURRENT_WORK_H
#define OUTRIDER_RECURRENT_WORK_H

#include "forward.h"

typedef struct {
    forward_ctx *f;
    const outrider_layer *layer;
    const outrider_recurrent *r;
    const outrider_weight *reader; /* that rows are given codes for, or NULL */
} recurrent_work;

/* A span in a layer: where its rows and its slot begin. */
typedef struct {
    const recurrent_work *w;
    const span_plan *plan;
    float *state, *inputs, *updates;       /* of the slot */
    const float *raw;                      /* of its rows: what the convolution reads, [channels] each */
    int64_t channels, values, update_size; /* numbers of a row, of a pending row's update */
} slot_work;

/* ``raw``: of all rows of the batch. */
slot_work slot_of(const recurrent_work *w, const span_plan *p, const float *raw);

/* Convolves channels first .. first + width - 1 of all rows to ``out`` [rows][channels], times those of ``gate``
 * [rows][gate_stride], or their silu without one; and keeps what the next pass reads of them before its own rows. */
void mix_channels(const slot_work *k, int64_t first, int64_t width, float *out, const float *gate,
                  int64_t gate_stride);

/* Keeps ``width`` numbers of the rows that are pending from now on, at ``at`` of their updates. */
void keep_updates(const slot_work *k, const float *rows, int64_t stride, int64_t at, int64_t width);

/* A value head's task, without what its kind adds. */
struct recurrent_task task_of(const slot_work *k, int32_t key_head, int32_t head);

/* Columns first .. last - 1 of a span's rows of ``x`` [rows][values], which the layer's output reads: their codes. */
void quantise_values(const slot_work *k, const float *x, int64_t first, int64_t last);

/* The recurrence of a value head, and changes and decays of rows that are pending from now on. ``next``: a state that
 * will be wanted, or NULL. */
void recur_rows(const slot_work *k, struct recurrent_task *task, const float *next, int thread);
void keep_changes(const slot_work *k, const struct recurrent_task *t, int32_t head);

/* The layer's kinds, of all rows, from ``channels`` on to z. */
void run_short_convolution(recurrent_work *w);
void run_mamba2(recurrent_work *w);

#endif
