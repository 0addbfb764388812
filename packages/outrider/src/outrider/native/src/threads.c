/* A pool of threads for work that takes microseconds: idle threads spin briefly, then sleep.
 *
 * A caller does not wait for threads, only for items: those that no other thread has begun it does itself. So a
 * processor that another process keeps busy costs its share of the work and no more.
 *
 *     ticket   | generation: 16 | items: 24 | next: 24 |      one word, so that claiming an item is one exchange
 *
 * A thread that claims an item has seen the ticket of the current job, whatever it saw before, as the whole word is
 * compared. ``job`` may only change when all claimed items are done.
 */
#define _GNU_SOURCE /* clock_gettime */
#include "threads.h"

#include <sched.h>
#include <time.h>

#define FIELD 24
#define MASK ((UINT64_C(1) << FIELD) - 1)
#define SPIN_NANOSECONDS 60000

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int has_items(uint64_t t) { return (t & MASK) < ((t >> FIELD) & MASK); }

/* Does one item if there is one. */
static int do_item(thread_pool *pool, int thread) {
    uint64_t t = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while (has_items(t))
        if (atomic_compare_exchange_weak_explicit(&pool->ticket, &t, t + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            pool->job.function(pool->job.work, pool->job.first + (int64_t)(t & MASK), thread);
            atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
            return 1;
        }
    return 0;
}

static void sleep_until_work(thread_pool *pool) {
    pthread_mutex_lock(&pool->sleep_lock);
    atomic_fetch_add(&pool->sleeping, 1);
    while (!has_items(atomic_load(&pool->ticket)) && !atomic_load(&pool->ends))
        pthread_cond_wait(&pool->wake, &pool->sleep_lock);
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->sleep_lock);
}

/* Whether there is work within the time that is worth waiting for it. */
static int spin_until_work(const thread_pool *pool) {
    int64_t until = nanoseconds() + SPIN_NANOSECONDS;
    while (nanoseconds() < until)
        for (int i = 0; i < 64; i++) {
            pause_briefly();
            if (has_items(atomic_load_explicit(&pool->ticket, memory_order_relaxed))) return 1;
        }
    return 0;
}

static void *serve(void *argument) {
    pool_thread *own = argument;
    while (!atomic_load_explicit(&own->pool->ends, memory_order_relaxed))
        if (!do_item(own->pool, own->number) && !spin_until_work(own->pool)) sleep_until_work(own->pool);
    return NULL;
}

/* All sleepers look again, at what was stored before the call. */
static void wake_sleepers(thread_pool *pool) {
    pthread_mutex_lock(&pool->sleep_lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->sleep_lock);
}

void start_threads(thread_pool *pool, int count) {
    pthread_mutex_init(&pool->sleep_lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    atomic_store(&pool->ticket, 0);
    atomic_store(&pool->done, 0);
    atomic_store(&pool->sleeping, 0);
    atomic_store(&pool->ends, 0);
    int started = 1;
    for (; started < count && started < MOST_THREADS; started++) {
        pool_thread *own = pool->threads + started;
        own->pool = pool;
        own->number = started;
        if (pthread_create(&own->id, NULL, serve, own)) break;
    }
    pool->count = started;
}

void stop_threads(thread_pool *pool) {
    atomic_store(&pool->ends, 1);
    wake_sleepers(pool);
    for (int i = 1; i < pool->count; i++) pthread_join(pool->threads[i].id, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->sleep_lock);
}

/* Items from ``first`` on, as many as a ticket holds at most. */
static void run_ticket(thread_pool *pool, int64_t first, int64_t items, item_function *function, void *work) {
    pool->job.function = function;
    pool->job.work = work;
    pool->job.first = first;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    uint64_t generation = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 2 * FIELD) + 1;
    atomic_store(&pool->ticket, generation << 2 * FIELD | (uint64_t)items << FIELD);
    /* In one order with the store above and the sleeper's test: none is missed. */
    if (atomic_load(&pool->sleeping)) wake_sleepers(pool);
    while (do_item(pool, 0)) {
    }
    for (int tries = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < items; tries++) {
        if (tries < 20000)
            pause_briefly();
        else
            sched_yield(); /* whoever holds the last item may be waiting for this processor */
    }
}

void run_items(thread_pool *pool, int64_t items, item_function *function, void *work) {
    if (items <= 1 || pool->count == 1) {
        for (int64_t i = 0; i < items; i++) function(work, i, 0);
        return;
    }
    for (int64_t first = 0; first < items; first += (int64_t)MASK)
        run_ticket(pool, first, items - first < (int64_t)MASK ? items - first : (int64_t)MASK, function, work);
}
