/* The kernels for one instruction set. */
#define ISA_AVX2
#include "attention_kernels.h"
#include "linear_kernels.h"
#include "row_kernels.h"
#include "sample_kernels.h"

static int supported(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

const kernels avx2_kernels = {
    "avx2", supported, quantise, linear, norm, add, silu_mul, rotate, store, attend, attend_scratch,
    merge, SAMPLE_KERNELS};
