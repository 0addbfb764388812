/* The kernels for one instruction set: those for AVX-512, with tiles for integer products of many rows. */
#define _GNU_SOURCE /* syscall */
#if defined(__AMX_INT8__)
#define ISA_AVX512
#define ISA_AMX
#include "attention_kernels.h"
#include "linear_kernels.h"
#include "processor.h"
#include "recurrent_kernels.h"
#include "row_kernels.h"
#include "sample_kernels.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

/* A process may use tiles once it has asked for them. */
static int supported(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return has_amx() && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
static int supported(void) { return 0; }
#endif

/* Tiles belong to a thread, and are given back at once: nothing else of this process finds them in use, and the system
 * need not keep them when it switches threads. */
static void linear_with_tiles(const outrider_weight *w, const activations *a, int64_t first, int64_t last, float *y,
                              int64_t stride) {
    int tiled = a->rows >= 16;
    if (tiled) _tile_loadconfig(&shapes);
    linear(w, a, first, last, y, stride);
    if (tiled) _tile_release();
}

const kernels amx_kernels = {
    "amx", supported, quantise, linear_with_tiles, ROW_KERNELS, attend, attend_scratch, merge, SAMPLE_KERNELS,
    RECURRENT_KERNELS};

#else /* a compiler that does not know them */
#include "kernels.h"

static int supported(void) { return 0; }
const kernels amx_kernels = {.name = "amx", .supported = supported};
#endif
