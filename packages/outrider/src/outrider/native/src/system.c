/* Memory and processors, of Windows, Linux and other systems. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "system.h"

#include <stdlib.h>

#if defined(_WIN32)
#include <malloc.h>
#include <windows.h>

void *allocate_aligned(size_t alignment, size_t size) { return _aligned_malloc(size, alignment); }
void free_aligned(void *memory) { _aligned_free(memory); }

int usable_processors(void) {
    DWORD_PTR own = 0, all = 0;
    GetProcessAffinityMask(GetCurrentProcess(), &own, &all); /* 0: the process is in several groups of processors */
    DWORD usable = own ? (DWORD)__builtin_popcountll(own) : GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return usable ? (int)usable : 1;
}

#else
#include <sched.h>
#include <unistd.h>

void *allocate_aligned(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
void free_aligned(void *memory) { free(memory); }

int usable_processors(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : (int)online;
}
#endif
