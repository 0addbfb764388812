/* The check of an instruction set goes on: recurrent layers. */
#include "recurrent.h"
#include "selfcheck.h"

/* The pending rows are applied, the first new row is kept, the next two follow it, and the last follows one of these. */
static const recurrent_step steps[] = {{0, -1, 0, 0}, {1, 0, 0, 0}, {2, 1, 0, 0}, {3, 3, 0, 1}, {-1, 2, 0, 0}};

static void fill(float *x, int64_t count, uint32_t *state) {
    for (int64_t i = 0; i < count; i++) x[i] = random_float(state);
}

/* Rows before the gates and norms, that is. */
static void fill_results(recurrent_results *r, uint32_t *state) {
    fill(r->state, KEY_DIM * VALUE_DIM, state);
    fill(r->updates, OLD_ROWS * UPDATE, state);
    fill(r->rows, NEW_ROWS * ROW, state);
    fill(r->decay, NEW_ROWS, state);
    fill(r->write, NEW_ROWS, state);
}

static void mix(const kernels *k, recurrent_results *r, uint32_t *state) {
    float decay[NEW_ROWS], bias[NEW_ROWS], taps[3 * ROW];
    const float *window[3] = {r->rows, r->rows + 2 * ROW, r->rows + ROW};
    fill(bias, NEW_ROWS, state);
    fill(taps, 3 * ROW, state);
    for (int i = 0; i < NEW_ROWS; i++) decay[i] = -0.125f * (float)(i + 1);
    struct convolution_task c = {.count = 3, .rows = {window[0], window[1], window[2]}, .taps = taps, .stride = ROW,
                                 .out = r->convolved};
    k->convolve(ROW, &c);
    c.bias = r->updates;
    c.gate = c.rows[0];
    c.out = r->gated;
    k->convolve(ROW, &c);
    k->recurrent_gates(NEW_ROWS, r->decay, r->write, decay, bias);
    for (int i = 0; i < NEW_ROWS; i++) {
        k->unit(KEY_DIM, r->rows + i * ROW, 0.25f);
        k->unit(KEY_DIM, r->rows + i * ROW + KEY_DIM, 1.0f);
        r->alike[i] = k->dot(KEY_DIM, r->rows + i * ROW, r->rows + i * ROW + KEY_DIM);
    }
}

void try_recurrent(const kernels *k, uint32_t seed, recurrent_results *r) {
    float copies[STATE_SCRATCH];
    fill_results(r, &seed);
    mix(k, r, &seed);
    struct recurrent_task task = {
        .key_dim = KEY_DIM, .value_dim = VALUE_DIM, .pending = OLD_ROWS, .num_steps = sizeof steps / sizeof *steps,
        .step = steps, .state = r->state, .old_key = r->updates, .old_change = r->updates + KEY_DIM,
        .old_decay = r->updates + KEY_DIM + VALUE_DIM, .update_stride = UPDATE, .query = r->rows,
        .key = r->rows + KEY_DIM, .value = r->rows + 2 * KEY_DIM, .stride = ROW, .alike = r->alike, .alike_stride = 1,
        .decay = r->decay, .write = r->write, .gate_stride = 1, .out = r->out, .out_stride = VALUE_DIM};
    k->recur(&task, copies);
    for (int i = 0; i < NEW_ROWS; i++) r->steps[i] = r->decay[i];
    k->time_steps(NEW_ROWS, r->steps, r->write, r->updates, r->state);
    task.forgets = 1;
    task.skip = 0.75f;
    task.out = r->more;
    k->recur(&task, copies);
}
