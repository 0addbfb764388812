/* What functions of the library compute with: an instruction set, threads and scratch memory. */
#ifndef OUTRIDER_CONTEXT_H
#define OUTRIDER_CONTEXT_H

#include <stddef.h>

#include "check.h"
#include "kernels.h"
#include "threads.h"

enum { MEMORY_ROWS, MEMORY_ATTENTION, MEMORY_THREADS, MEMORY_STATES, MEMORY_GATHER, MEMORY_KINDS };

struct outrider_context {
    const kernels *k;
    pthread_mutex_t in_use;   /* of threads and memory, by one call at a time */
    _Atomic int64_t process;  /* that the threads are of; below 0: a forked child's, which is starting its own */
    void *memory[MEMORY_KINDS];
    size_t memory_size[MEMORY_KINDS];
    thread_pool pool;
};

static inline int is_context(const outrider_context *c) { return is_array(c, _Alignof(outrider_context)); }

/* One call at a time uses a context's threads and memory. */
void lock_context(outrider_context *c);
void unlock_context(outrider_context *c);

/* ``size`` bytes, aligned to 64, that stay until the next request for the same ``which``; NULL if there are none. */
void *scratch_memory(outrider_context *c, int which, size_t size);

#endif
