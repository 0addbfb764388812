/* The kernels for one instruction set. */

#include "attention_kernels.h"
#include "linear_kernels.h"
#include "recurrent_kernels.h"
#include "row_kernels.h"
#include "sample_kernels.h"

static int supported(void) {
    return 1;
}

const kernels portable_kernels = {
    "portable", supported, quantise, linear, ROW_KERNELS, attend, attend_scratch, merge, SAMPLE_KERNELS,
    RECURRENT_KERNELS};
