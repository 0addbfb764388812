/* The kernels for one instruction set. */
#define ISA_AVX2
#include "attention_kernels.h"
#include "linear_kernels.h"
#include "processor.h"
#include "recurrent_kernels.h"
#include "row_kernels.h"
#include "sample_kernels.h"

const kernels avx2_kernels = {
    "avx2", has_avx2, quantise, linear, ROW_KERNELS, attend, attend_scratch, merge, SAMPLE_KERNELS,
    RECURRENT_KERNELS};
