/* The kernels for one instruction set: those for dot products, with matrix instructions for two rows and more. */
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define ISA_NEON
#define ISA_I8MM
#include "attention_kernels.h"
#include "linear_kernels.h"
#include "processor.h"
#include "recurrent_kernels.h"
#include "row_kernels.h"
#include "sample_kernels.h"

const kernels i8mm_kernels = {
    "i8mm", has_i8mm, quantise, linear, ROW_KERNELS, attend, attend_scratch, merge, SAMPLE_KERNELS,
    RECURRENT_KERNELS};

#else /* a compiler that does not know them */
#include "kernels.h"

static int supported(void) { return 0; }
const kernels i8mm_kernels = {.name = "i8mm", .supported = supported};
#endif
