/* The instruction sets that the library has. */
#include <string.h>

#include "kernels.h"

static const kernels *const every[] = {
#if defined(__x86_64__)
    &amx_kernels,
    &avx512_kernels,
    &avxvnni_kernels,
    &avx2_kernels,
#elif defined(__aarch64__)
    &i8mm_kernels,
    &neon_kernels,
#endif
    &portable_kernels,
};

const kernels *find_kernels(const char *name) {
    for (size_t i = 0; name && i < sizeof every / sizeof *every; i++)
        if (!strcmp(every[i]->name, name)) return every[i];
    return NULL;
}

OUTRIDER_API int outrider_abi(void) { return OUTRIDER_ABI; }
