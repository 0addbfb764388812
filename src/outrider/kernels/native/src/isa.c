/* Which instruction set runs. */
#include <string.h>

#include "kernels.h"

/* From best to portable. */
static const kernels *const every[] = {
#if defined(__x86_64__)
    &avx512_kernels,
    &avx2_kernels,
#elif defined(__aarch64__)
    &neon_kernels,
#endif
    &portable_kernels,
};

#define COUNT ((int)(sizeof every / sizeof every[0]))

static const kernels *chosen;

const kernels *current_kernels(void) {
    if (!chosen)
        for (int i = COUNT - 1; i >= 0; i--)
            if (every[i]->supported()) chosen = every[i];
    return chosen;
}

static const kernels *find(const char *name) {
    for (int i = 0; i < COUNT; i++)
        if (!strcmp(every[i]->name, name) && every[i]->supported()) return every[i];
    return NULL;
}

OUTRIDER_API int outrider_abi(void) { return OUTRIDER_ABI; }
OUTRIDER_API const char *outrider_isa(void) { return current_kernels()->name; }
OUTRIDER_API int outrider_has_isa(const char *name) { return find(name) != NULL; }

OUTRIDER_API int outrider_set_isa(const char *name) {
    const kernels *found = find(name);
    if (!found) return OUTRIDER_BAD_ARGUMENT;
    chosen = found;
    return OUTRIDER_OK;
}
