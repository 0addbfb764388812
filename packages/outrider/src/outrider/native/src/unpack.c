#include "unpack.h"

/* first, where codes count up from a smallest value: Q4_0 is -8 to 7, ternary types -1 to 1. */
static const block_format formats[] = {
    /* type, inputs, bytes, layout, group, half_scales, has_minimum, grid_bytes, first, unpack */
    {OUTRIDER_FILE_Q4_0, 32, 18, OUTRIDER_Q4, 32, 1, 0, 0, -8, unpack_q4_0},
    {OUTRIDER_FILE_Q4_1, 32, 20, OUTRIDER_Q4, 32, 1, 1, 0, 0, unpack_q4_1},
    {OUTRIDER_FILE_Q5_0, 32, 22, OUTRIDER_Q8, 32, 1, 0, 0, 0, unpack_q5_0},
    {OUTRIDER_FILE_Q5_1, 32, 24, OUTRIDER_Q8, 32, 1, 1, 0, 0, unpack_q5_1},
    {OUTRIDER_FILE_Q8_0, 32, 34, OUTRIDER_Q8, 32, 1, 0, 0, 0, unpack_q8_0},
    {OUTRIDER_FILE_Q2_K, 256, 84, OUTRIDER_Q4, 16, 0, 1, 0, 0, unpack_q2_k},
    {OUTRIDER_FILE_Q3_K, 256, 110, OUTRIDER_Q4, 16, 0, 0, 0, -4, unpack_q3_k},
    {OUTRIDER_FILE_Q4_K, 256, 144, OUTRIDER_Q4, 32, 0, 1, 0, 0, unpack_q4_k},
    {OUTRIDER_FILE_Q5_K, 256, 176, OUTRIDER_Q8, 32, 0, 1, 0, 0, unpack_q5_k},
    {OUTRIDER_FILE_Q6_K, 256, 210, OUTRIDER_Q8, 16, 0, 0, 0, 0, unpack_q6_k},
    {OUTRIDER_FILE_IQ2_XXS, 256, 66, OUTRIDER_Q4, 32, 0, 0, 256 * 8, VALUES_GIVEN, unpack_iq2_xxs},
    {OUTRIDER_FILE_IQ2_XS, 256, 74, OUTRIDER_Q4, 16, 0, 0, 512 * 8, VALUES_GIVEN, unpack_iq2_xs},
    {OUTRIDER_FILE_IQ2_S, 256, 82, OUTRIDER_Q4, 16, 0, 0, 1024 * 8, VALUES_GIVEN, unpack_iq2_s},
    {OUTRIDER_FILE_IQ3_XXS, 256, 98, OUTRIDER_Q4, 32, 0, 0, 256 * 4, VALUES_GIVEN, unpack_iq3_xxs},
    {OUTRIDER_FILE_IQ3_S, 256, 110, OUTRIDER_Q4, 32, 0, 0, 512 * 4, VALUES_GIVEN, unpack_iq3_s},
    {OUTRIDER_FILE_IQ1_S, 256, 50, OUTRIDER_Q4, 32, 0, 0, 2048 * 8, VALUES_GIVEN, unpack_iq1_s},
    {OUTRIDER_FILE_IQ1_M, 256, 56, OUTRIDER_Q4, 16, 0, 0, 2048 * 8, VALUES_GIVEN, unpack_iq1_m},
    {OUTRIDER_FILE_IQ4_NL, 32, 18, OUTRIDER_Q4, 32, 1, 0, 0, VALUES_GIVEN, unpack_iq4_nl},
    {OUTRIDER_FILE_IQ4_XS, 256, 136, OUTRIDER_Q4, 32, 0, 0, 0, VALUES_GIVEN, unpack_iq4_xs},
    {OUTRIDER_FILE_TQ1_0, 256, 54, OUTRIDER_Q4, 32, 1, 0, 0, -1, unpack_tq1_0},
    {OUTRIDER_FILE_TQ2_0, 256, 66, OUTRIDER_Q4, 32, 1, 0, 0, -1, unpack_tq2_0},
    {OUTRIDER_FILE_MXFP4, 32, 17, OUTRIDER_Q4, 32, 0, 0, 0, VALUES_GIVEN, unpack_mxfp4},
    {OUTRIDER_FILE_NVFP4, 64, 36, OUTRIDER_Q4, 16, 1, 0, 0, VALUES_GIVEN, unpack_nvfp4},
};

const block_format *find_format(int32_t type) {
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].type == type) return &formats[i];
    return NULL;
}
