/* The kernels for one instruction set. */
#define ISA_AVX512
#include "attention_kernels.h"
#include "linear_kernels.h"
#include "row_kernels.h"
#include "sample_kernels.h"

static int supported(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

const kernels avx512_kernels = {
    "avx512", supported, quantise, linear, norm, add, silu_mul, rotate, store, attend, attend_scratch,
    merge, SAMPLE_KERNELS};
