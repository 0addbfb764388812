#include "unpack.h"

enum {
    F16 = OUTRIDER_SCALES_F16,
    BLOCK = OUTRIDER_SCALES_BLOCK_F16,
    I8 = OUTRIDER_SCALES_I8,
    U8 = OUTRIDER_SCALES_U8,
    U4 = OUTRIDER_SCALES_U4,
    E8M0 = OUTRIDER_SCALES_E8M0,
    E4M3 = OUTRIDER_SCALES_E4M3
};

static const block_format formats[] = {
    /* type, inputs, bytes, bits, group, scales, has_minimum, first, unit, grid_bytes, unpack */
    {OUTRIDER_FILE_Q4_0, 32, 18, 4, 32, F16, 0, -8, 1, 0, unpack_q4_0},
    {OUTRIDER_FILE_Q4_1, 32, 20, 4, 32, F16, 1, 0, 1, 0, unpack_q4_1},
    {OUTRIDER_FILE_Q5_0, 32, 22, 5, 32, F16, 0, -16, 1, 0, unpack_q5_0},
    {OUTRIDER_FILE_Q5_1, 32, 24, 5, 32, F16, 1, 0, 1, 0, unpack_q5_1},
    {OUTRIDER_FILE_Q8_0, 32, 34, 8, 32, F16, 0, -128, 1, 0, unpack_q8_0},
    {OUTRIDER_FILE_Q2_K, 256, 84, 2, 16, U4, 1, 0, 1, 0, unpack_q2_k},
    {OUTRIDER_FILE_Q3_K, 256, 110, 3, 16, I8, 0, -4, 1, 0, unpack_q3_k},
    {OUTRIDER_FILE_Q4_K, 256, 144, 4, 32, U8, 1, 0, 1, 0, unpack_q4_k},
    {OUTRIDER_FILE_Q5_K, 256, 176, 5, 32, U8, 1, 0, 1, 0, unpack_q5_k},
    {OUTRIDER_FILE_Q6_K, 256, 210, 6, 16, I8, 0, -32, 1, 0, unpack_q6_k},
    {OUTRIDER_FILE_IQ2_XXS, 256, 66, 4, 32, I8, 0, VALUES_GIVEN, 0.125f, 256 * 8, unpack_iq2_xxs},
    {OUTRIDER_FILE_IQ2_XS, 256, 74, 4, 16, I8, 0, VALUES_GIVEN, 0.125f, 512 * 8, unpack_iq2_xs},
    {OUTRIDER_FILE_IQ2_S, 256, 82, 4, 16, I8, 0, VALUES_GIVEN, 0.125f, 1024 * 8, unpack_iq2_s},
    {OUTRIDER_FILE_IQ3_XXS, 256, 98, 4, 32, I8, 0, VALUES_GIVEN, 0.25f, 256 * 4, unpack_iq3_xxs},
    {OUTRIDER_FILE_IQ3_S, 256, 110, 4, 32, I8, 0, VALUES_GIVEN, 1, 512 * 4, unpack_iq3_s},
    {OUTRIDER_FILE_IQ1_S, 256, 50, 4, 32, I8, 0, VALUES_GIVEN, 0.125f, 2048 * 8, unpack_iq1_s},
    {OUTRIDER_FILE_IQ1_M, 256, 56, 4, 16, I8, 0, VALUES_GIVEN, 0.125f, 2048 * 8, unpack_iq1_m},
    {OUTRIDER_FILE_IQ4_NL, 32, 18, 4, 32, F16, 0, VALUES_GIVEN, 1, 0, unpack_iq4_nl},
    {OUTRIDER_FILE_IQ4_XS, 256, 136, 4, 32, I8, 0, VALUES_GIVEN, 1, 0, unpack_iq4_xs},
    {OUTRIDER_FILE_TQ1_0, 256, 54, 2, 32, BLOCK, 0, -1, 1, 0, unpack_tq1_0},
    {OUTRIDER_FILE_TQ2_0, 256, 66, 2, 32, BLOCK, 0, -1, 1, 0, unpack_tq2_0},
    {OUTRIDER_FILE_MXFP4, 32, 17, 4, 32, E8M0, 0, VALUES_GIVEN, 1, 0, unpack_mxfp4},
    {OUTRIDER_FILE_NVFP4, 64, 36, 4, 16, E4M3, 0, VALUES_GIVEN, 1, 0, unpack_nvfp4},
    {OUTRIDER_FILE_Q1_0, 128, 18, 1, 32, BLOCK, 0, -1, 1, 0, unpack_q1_0},
    {OUTRIDER_FILE_Q2_0, 64, 18, 2, 32, BLOCK, 0, -1, 1, 0, unpack_q2_0},
};

static const block_format mxfp4_apart = {OUTRIDER_FILE_MXFP4, 32, 16, 4, 32, E8M0, 0, VALUES_GIVEN, 1, 0, unpack_mxfp4_apart};

const block_format *find_format(int32_t type, int apart) {
    if (apart) return type == OUTRIDER_FILE_MXFP4 ? &mxfp4_apart : NULL;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].type == type) return &formats[i];
    return NULL;
}
