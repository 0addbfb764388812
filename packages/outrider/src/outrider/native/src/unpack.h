/* The block formats of GGUF files: what a block holds, as integer codes, scales and minima. */
#ifndef OUTRIDER_UNPACK_H
#define OUTRIDER_UNPACK_H

#include "pack.h"

/* Scales of a block as the file has them: float16 numbers of the whole block, and an integer or a byte of each group. */
typedef struct {
    uint16_t d, least;
    uint8_t scale[16], minimum[16];
} block_scales;

/* codes: [inputs of a block], from 0 up; those of one bit are 0 and 2. */
typedef void unpack_function(const uint8_t *block, const uint8_t *grid, uint8_t *codes, block_scales *scales);

typedef struct {
    int32_t type;
    int32_t inputs, bytes; /* of a block */
    int32_t bits, group, scales, has_minimum;
    int32_t first;      /* the value of code 0, counting up; VALUES_GIVEN: the source brings the values */
    float unit;         /* see outrider_weight */
    int32_t grid_bytes; /* of the grid the format needs, or 0 */
    unpack_function *unpack;
} block_format;

#define VALUES_GIVEN 127

/* The format of a type, or NULL. ``apart``: with scales that lie elsewhere. */
const block_format *find_format(int32_t type, int apart);

unpack_function unpack_q4_0, unpack_q4_1, unpack_q5_0, unpack_q5_1, unpack_q8_0, unpack_iq4_nl, unpack_mxfp4,
    unpack_mxfp4_apart, unpack_nvfp4, unpack_q1_0, unpack_q2_0;
unpack_function unpack_q2_k, unpack_q3_k, unpack_q4_k, unpack_q5_k, unpack_q6_k, unpack_iq4_xs, unpack_tq1_0,
    unpack_tq2_0;
unpack_function unpack_iq2_xxs, unpack_iq2_xs, unpack_iq2_s, unpack_iq3_xxs, unpack_iq3_s, unpack_iq1_s, unpack_iq1_m;

#endif
