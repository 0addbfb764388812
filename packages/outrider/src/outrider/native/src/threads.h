/* Threads that share out numbered items. */
#ifndef OUTRIDER_THREADS_H
#define OUTRIDER_THREADS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#define MOST_THREADS 256
#define PAIR_OF_LINES 128 /* that processors fetch together */

/* ``thread``: which of the pool's threads does the item, from 0 up. */
typedef void item_function(void *work, int64_t item, int thread);
/* Items first .. last - 1. */
typedef void share_function(void *work, int64_t first, int64_t last, int thread);

/* Items that a thread claims at once. */
typedef struct {
    int64_t least, most;
} share_size;

typedef struct thread_pool thread_pool;

typedef struct {
    _Alignas(PAIR_OF_LINES) thread_pool *pool;
    pthread_t id;
    int number;
    int64_t caution; /* how much less than the others it claims at once, in units of 1 / CAUTION */
} pool_thread;

struct thread_pool {
    int count; /* the caller's included */
    int crowded; /* more threads than processors that this process may use */
    struct {
        share_function *function;
        void *work;
        int64_t first; /* item of the ticket's first */
        /* Read before it is known whether the job is still this one: */
        _Atomic int64_t least, most, parts; /* see share_size and share_of */
    } job;
    int64_t syncs; /* jobs that were shared out */
    _Alignas(PAIR_OF_LINES) _Atomic uint64_t ticket;
    _Alignas(PAIR_OF_LINES) _Atomic int64_t done;
    _Atomic int64_t none_left; /* when the last items of the job were claimed, in nanoseconds */
    _Alignas(PAIR_OF_LINES) _Atomic int sleeping;
    _Atomic int ends; /* the threads are to end */
    pthread_mutex_t sleep_lock;
    pthread_cond_t wake;
    pool_thread threads[MOST_THREADS]; /* the first is the caller */
};

/* Starts as many of ``count`` threads as the system allows, the caller's included. */
void start_threads(thread_pool *pool, int count);

/* Waits until all have ended. No item may be left. */
void stop_threads(thread_pool *pool);

/* Calls function(work, item, thread) for each item from 0 to items - 1, in any order and on any thread.
 *
 * Returns when all have been done. One caller at a time (see ``lock_context``).
 */
void run_items(thread_pool *pool, int64_t items, item_function *function, void *work);

/* The same for items that are small: a thread claims a part of what is left, so that shares become smaller towards the
 * end and all threads end together, however fast each of them is. Up to ``least`` items are the caller's alone. */
void run_shares(thread_pool *pool, int64_t items, share_size size, share_function *function, void *work);

/* Between two looks at what another thread is to do; ``looks``: those before. Not before long, the processor is offered
 * to others. */
void wait_briefly(const thread_pool *pool, int looks);

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
