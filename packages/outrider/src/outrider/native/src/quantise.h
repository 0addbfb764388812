/* Floats to codes of 8 or 4 bits, in groups of 32, rounded as the GGUF formats of these names are. */
#ifndef OUTRIDER_QUANTISE_H
#define OUTRIDER_QUANTISE_H

#include <stdint.h>

#define QUANTISED_GROUP 32

/* To float16: to nearest, ties to even; what is too large becomes infinite. */
uint16_t float_to_half(float f);

/* x: [inputs], finite. codes: [inputs, rounded up to groups]; scales, minima: [groups], of float16's precision.
 * Returns 0, or 1 if a scale or a minimum is too large for float16. */
int quantise_q8_0(int64_t inputs, const float *x, int8_t *codes, float *scales);
int quantise_q4_0(int64_t inputs, const float *x, int8_t *codes, float *scales);
int quantise_q4_1(int64_t inputs, const float *x, int8_t *codes, float *scales, float *minima);

#endif
