/* Which instruction set runs. */
#include <string.h>

#include "kernels.h"

/* From best to portable. */
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

#define COUNT ((int)(sizeof every / sizeof every[0]))

static const kernels *chosen;
static enum { UNTRIED, RIGHT, WRONG } state[COUNT];

/* Whether this processor has it, and its first results have the portable one's bits. */
static int works(int i) {
    if (!every[i]->supported()) return 0;
    if (state[i] == UNTRIED)
        state[i] = every[i] == &portable_kernels || has_portable_bits(every[i]) ? RIGHT : WRONG;
    return state[i] == RIGHT;
}

const kernels *current_kernels(void) {
    for (int i = 0; !chosen; i++)
        if (works(i)) chosen = every[i];
    return chosen;
}

static int find(const char *name) {
    for (int i = 0; name && i < COUNT; i++)
        if (!strcmp(every[i]->name, name)) return i;
    return -1;
}

OUTRIDER_API int outrider_abi(void) { return OUTRIDER_ABI; }
OUTRIDER_API const char *outrider_isa(void) { return current_kernels()->name; }

OUTRIDER_API int outrider_has_isa(const char *name) {
    int i = find(name);
    return i >= 0 && works(i);
}

OUTRIDER_API int outrider_isa_failed(const char *name) {
    int i = find(name);
    return i >= 0 && state[i] == WRONG;
}

OUTRIDER_API int outrider_set_isa(const char *name) {
    if (!outrider_has_isa(name)) return OUTRIDER_BAD_ARGUMENT;
    chosen = every[find(name)];
    return OUTRIDER_OK;
}
