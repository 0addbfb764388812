/* The parts of an instruction set's check: see selfcheck.c. */
#ifndef OUTRIDER_SELFCHECK_H
#define OUTRIDER_SELFCHECK_H

#include <string.h>

#include "kernels.h"

static inline uint32_t next_random(uint32_t *state) { return (*state = *state * 1664525 + 1013904223) >> 8; }

/* Of either sign, from 2^-3 to 2^3. */
static inline float random_float(uint32_t *state) {
    float size = (float)(1 << next_random(state) % 6);
    float magnitude = (float)(1 << 20 | next_random(state) % (1 << 20)) * 0x1p-23f * size;
    return next_random(state) & 1 ? magnitude : -magnitude;
}

/* A float, or with ``size`` 2 a float16 or bfloat16 of about the same size; what lies behind it. */
static inline uint8_t *write_number(uint8_t *at, int size, uint32_t exponent, uint32_t *state) {
    float number = random_float(state);
    uint16_t half = (uint16_t)((next_random(state) & 0x807f) | exponent);
    memcpy(at, size == 4 ? (const void *)&number : &half, (size_t)size);
    return at + size;
}

/* Numbers of recurrent layers, of one instruction set. Keys are of KEY_DIM numbers, values of VALUE_DIM, which are blocks of
 * columns of every set and a part of a vector; NEW_ROWS rows come behind OLD_ROWS that are pending. */
enum { KEY_DIM = 21, VALUE_DIM = 77, OLD_ROWS = 2, NEW_ROWS = 4, ROW = 2 * KEY_DIM + VALUE_DIM };
enum { UPDATE = KEY_DIM + VALUE_DIM + 1, STATE_SCRATCH = KEY_DIM * 128 };

typedef struct {
    float state[KEY_DIM * VALUE_DIM], updates[OLD_ROWS * UPDATE], rows[NEW_ROWS * ROW], out[NEW_ROWS * VALUE_DIM];
    float decay[NEW_ROWS], write[NEW_ROWS], alike[NEW_ROWS], convolved[ROW], gated[ROW];
    float steps[NEW_ROWS], more[NEW_ROWS * VALUE_DIM];
} recurrent_results;

/* What the kernels of recurrent layers make of random numbers, by a state ``seed``. */
void try_recurrent(const kernels *k, uint32_t seed, recurrent_results *r);

/* Whether all functions on rows, of attention and of sampling have the portable bits. OUTRIDER_ISA_UNTRIED without
 * memory, else whether it works or differs. */
int try_rows(const kernels *k);

#endif
