/* The kernels for one instruction set. */
#define ISA_NEON
#define ISA_I8MM
#include "attention_kernels.h"
#include "linear_kernels.h"
#include "processor.h"
#include "row_kernels.h"
#include "sample_kernels.h"

const kernels i8mm_kernels = {
    "i8mm", has_i8mm, quantise, linear, norm, add, silu_mul, rotate, store, attend, attend_scratch,
    merge, SAMPLE_KERNELS};
