/* Contexts: see native.h. The library has no other memory that lasts from one call to the next. */
#include "context.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "system.h"

int outrider_create(int threads, const char *isa, outrider_context **context) {
    const kernels *k = find_kernels(isa);
    if (!is_array(context, sizeof *context)) return OUTRIDER_BAD_ARGUMENT;
    *context = NULL;
    if (threads < 1 || threads > MOST_THREADS || !k || !k->supported()) return OUTRIDER_BAD_ARGUMENT;
    outrider_context *c = allocate_aligned(_Alignof(outrider_context), sizeof *c);
    if (!c) return OUTRIDER_NO_MEMORY;
    memset(c, 0, sizeof *c);
    c->k = k;
    pthread_mutex_init(&c->in_use, NULL);
    atomic_store(&c->process, getpid());
    start_threads(&c->pool, threads);
    *context = c;
    return OUTRIDER_OK;
}

int outrider_destroy(outrider_context *c) {
    if (!is_context(c)) return OUTRIDER_BAD_ARGUMENT;
    if (atomic_load(&c->process) == getpid()) { /* a forked child has none of its parent's threads */
        stop_threads(&c->pool);
        pthread_mutex_destroy(&c->in_use);
    }
    for (int i = 0; i < MEMORY_KINDS; i++) free_aligned(c->memory[i]);
    free_aligned(c);
    return OUTRIDER_OK;
}

int outrider_threads(const outrider_context *c) { return is_context(c) ? c->pool.count : 0; }
const char *outrider_isa(const outrider_context *c) { return is_context(c) ? c->k->name : NULL; }

int64_t outrider_syncs(outrider_context *c) {
    if (!is_context(c)) return 0;
    lock_context(c);
    int64_t syncs = c->pool.syncs;
    unlock_context(c);
    return syncs;
}

/* In a forked child, where the threads are not and the locks may be held by one of them: the first call makes new ones,
 * others wait for it. */
static void renew_after_fork(outrider_context *c) {
    int64_t here = getpid(), seen = atomic_load(&c->process);
    while (seen != here) {
        if (seen != -here && atomic_compare_exchange_strong(&c->process, &seen, -here)) {
            pthread_mutex_init(&c->in_use, NULL);
            start_threads(&c->pool, c->pool.count);
            atomic_store(&c->process, here);
            return;
        }
        sched_yield();
        seen = atomic_load(&c->process);
    }
}

void lock_context(outrider_context *c) {
    renew_after_fork(c);
    pthread_mutex_lock(&c->in_use);
}

void unlock_context(outrider_context *c) { pthread_mutex_unlock(&c->in_use); }

void *scratch_memory(outrider_context *c, int which, size_t size) {
    if (c->memory_size[which] < size) {
        free_aligned(c->memory[which]);
        size = (size + 4095) / 4096 * 4096;
        c->memory[which] = allocate_aligned(64, size);
        c->memory_size[which] = c->memory[which] ? size : 0;
    }
    return c->memory[which];
}
