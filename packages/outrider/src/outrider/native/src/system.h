/* What operating systems do differently, beside the C library and POSIX threads (Windows: those of MinGW-w64). */
#ifndef OUTRIDER_SYSTEM_H
#define OUTRIDER_SYSTEM_H

#include <stddef.h>

/* ``size`` bytes, a multiple of ``alignment``, for free_aligned alone; NULL if there are none. */
void *allocate_aligned(size_t alignment, size_t size);
void free_aligned(void *memory);

/* Processors that this process may use; on a system that does not say so, all. */
int usable_processors(void);

#endif
