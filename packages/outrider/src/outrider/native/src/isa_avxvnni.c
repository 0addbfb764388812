/* The kernels for one instruction set: those for AVX2, with dot products of bytes in 256 bits. */
#if defined(__AVXVNNI__)
#define ISA_AVX2
#define ISA_AVXVNNI
#include "attention_kernels.h"
#include "linear_kernels.h"
#include "processor.h"
#include "recurrent_kernels.h"
#include "row_kernels.h"
#include "sample_kernels.h"

const kernels avxvnni_kernels = {
    "avxvnni", has_avxvnni, quantise, linear, ROW_KERNELS, attend, attend_scratch, merge, SAMPLE_KERNELS,
    RECURRENT_KERNELS};

#else /* a compiler that does not know them */
#include "kernels.h"

static int supported(void) { return 0; }
const kernels avxvnni_kernels = {.name = "avxvnni", .supported = supported};
#endif
