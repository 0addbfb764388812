/* From the tensors of a file to panels of an outrider_weight.
 *
 * Every block format of GGUF is integer codes times a scale, plus a minimum: packing only puts them in another place.
 */
#ifndef OUTRIDER_PACK_H
#define OUTRIDER_PACK_H

#include "native.h"

/* Types of tensors, numbered as in GGUF files. */
enum outrider_file_type {
    OUTRIDER_FILE_F32 = 0,
    OUTRIDER_FILE_F16 = 1,
    OUTRIDER_FILE_Q4_0 = 2,
    OUTRIDER_FILE_Q4_1 = 3,
    OUTRIDER_FILE_Q5_0 = 6,
    OUTRIDER_FILE_Q5_1 = 7,
    OUTRIDER_FILE_Q8_0 = 8,
    OUTRIDER_FILE_Q2_K = 10,
    OUTRIDER_FILE_Q3_K = 11,
    OUTRIDER_FILE_Q4_K = 12,
    OUTRIDER_FILE_Q5_K = 13,
    OUTRIDER_FILE_Q6_K = 14,
    OUTRIDER_FILE_IQ2_XXS = 16,
    OUTRIDER_FILE_IQ2_XS = 17,
    OUTRIDER_FILE_IQ3_XXS = 18,
    OUTRIDER_FILE_IQ1_S = 19,
    OUTRIDER_FILE_IQ4_NL = 20,
    OUTRIDER_FILE_IQ3_S = 21,
    OUTRIDER_FILE_IQ2_S = 22,
    OUTRIDER_FILE_IQ4_XS = 23,
    OUTRIDER_FILE_IQ1_M = 29,
    OUTRIDER_FILE_BF16 = 30,
    OUTRIDER_FILE_TQ1_0 = 34,
    OUTRIDER_FILE_TQ2_0 = 35,
    OUTRIDER_FILE_MXFP4 = 39,
    OUTRIDER_FILE_NVFP4 = 40,
    OUTRIDER_FILE_Q1_0 = 41,
    OUTRIDER_FILE_Q2_0 = 42
};

/* What a tensor becomes. */
enum outrider_target {
    OUTRIDER_AS_STORED = 0, /* without loss */
    OUTRIDER_TO_F32 = 1,
    OUTRIDER_TO_BF16 = 2, /* rounded to nearest, ties to even */
    OUTRIDER_TO_Q8_0 = 3, /* groups of 32, rounded as llama.cpp rounds to the format of that name */
    OUTRIDER_TO_Q4_0 = 4,
    OUTRIDER_TO_Q4_1 = 5
};

enum outrider_pack_status {
    OUTRIDER_DAMAGED = 16,      /* a scale or a weight is NaN or infinite */
    OUTRIDER_UNKNOWN_TYPE = 17, /* a type this library does not unpack */
    OUTRIDER_BAD_SIZE = 18,     /* sizes that do not fit the data, the type's blocks, or this library */
    OUTRIDER_TOO_LARGE = 19     /* a weight that the target cannot represent */
};

/* A tensor [rows, inputs] of a file. */
typedef struct {
    int32_t type;   /* outrider_file_type */
    int32_t target; /* outrider_target */
    int64_t rows, inputs;
    int64_t outputs;      /* rows of the packed matrix: ``rows`` unless there is an order */
    const int64_t *order; /* [outputs]: the file's row for each packed one; or NULL */
    const uint8_t *data;
    int64_t data_bytes;
    const uint8_t *grid; /* IQ1, IQ2, IQ3: [entries][8 or 4] codes 0 to 7; a set sign (IQ1: shift) adds 8 */
    int64_t grid_bytes;
    int8_t values[16]; /* IQ and FP4 types: what each code stands for; others ignore it */
    const uint8_t *scales; /* MXFP4 of safetensors files: [rows][inputs / 32], and ``data`` has codes alone, neighbours in
                              a byte, the first in its low half; or NULL */
    int64_t scale_bytes;
    int32_t transposed, reserved; /* floats: the data are [inputs, rows] */
} outrider_source;

/* Fills ``weight`` but for panels and bias, which become NULL. Its panels take ceil(outputs / 16) * panel_bytes. */
OUTRIDER_API int outrider_plan_weight(const outrider_source *source, outrider_weight *weight);

/* Writes the panels ``first`` to ``last - 1``, which take ``bytes`` as planned, to ``panels``. Threads may share a source.
 *
 * A missing output has scale 0, minimum 0 and a code of value 0 if the format has one; so has a missing input, but for
 * scale and minimum, which are those of its group.
 */
OUTRIDER_API int outrider_pack(const outrider_source *source, int64_t first, int64_t last, uint8_t *panels,
                               int64_t bytes);

/* Of packed weights in a file: one changed byte gives another number, several almost certainly do. */
OUTRIDER_API int outrider_checksum(const uint8_t *data, int64_t bytes, uint64_t *sum);

#endif
