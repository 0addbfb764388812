/* A pool of threads for work that takes microseconds: idle threads spin briefly, then yield, then sleep.
 *
 * A caller does not wait for threads, only for items: those that no other thread has begun it does itself. So a
 * processor that another process keeps busy costs its share of the work and no more.
 *
 *     ticket   | generation: 16 | items: 24 | next: 24 |      one word, so that claiming items is one exchange
 *
 * A thread that claims items has seen the ticket of the current job, whatever it saw before, as the whole word is
 * compared. ``job`` may only change when all claimed items are done.
 *
 * A claim takes one part in so many threads of what is left (guided self-scheduling, Polychronopoulos and Kuck 1987), so
 * that long runs are read, and all threads end together:
 *
 *     two threads, 64 items     32 | 16  8  4  2  1  1
 *
 * A thread that is slower than the others comes last with a share that should have been smaller. It claims half as much
 * from then on, and comes back to what others claim in some shares.
 */
#define _GNU_SOURCE /* clock_gettime */
#include "threads.h"

#include <sched.h>
#include <time.h>

#include "system.h"

#define FIELD 24
#define MASK ((UINT64_C(1) << FIELD) - 1)
#define CAUTION 1024
#define MOST_CAUTION (16 * CAUTION)
#define SPIN_NANOSECONDS 60000 /* that an idle thread looks for work: longer than what stands between two jobs */
#define SPINS 100              /* looks at the ticket or the count before the processor is offered to others */

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int has_items(uint64_t t) { return (t & MASK) < ((t >> FIELD) & MASK); }

/* How many of the items left a thread takes. If the job is another one meanwhile, its claim fails. */
static int64_t share_of(const thread_pool *pool, int64_t left, int64_t caution) {
    int64_t share = left * CAUTION / (atomic_load_explicit(&pool->job.parts, memory_order_relaxed) * caution);
    int64_t least = atomic_load_explicit(&pool->job.least, memory_order_relaxed);
    int64_t most = atomic_load_explicit(&pool->job.most, memory_order_relaxed);
    if (share > most) share = most;
    if (share < least) share = least;
    return share < left ? share : left;
}

/* Whether the others had to wait for a good part of a share that began at ``start``, as nothing was left to claim. */
static int was_late(thread_pool *pool, int64_t start) {
    int64_t end = nanoseconds(), waited_from = atomic_load_explicit(&pool->none_left, memory_order_relaxed);
    return end - waited_from > (end - start) / 4;
}

/* Does some of the current job's items, which this thread has claimed, and learns from it. */
static void do_claimed(thread_pool *pool, pool_thread *own, int64_t items, int64_t next, int64_t share) {
    int large = share > atomic_load_explicit(&pool->job.least, memory_order_relaxed), last = next + share == items;
    int64_t first = pool->job.first + next, start = large || last ? nanoseconds() : 0;
    if (last) atomic_store_explicit(&pool->none_left, start, memory_order_relaxed);
    pool->job.function(pool->job.work, first, first + share, own->number);
    int64_t done = atomic_fetch_add_explicit(&pool->done, share, memory_order_acq_rel) + share;
    if (!large) return;
    if (done == items && was_late(pool, start))
        own->caution = own->caution < MOST_CAUTION ? 2 * own->caution : MOST_CAUTION;
    else
        own->caution -= (own->caution - CAUTION) / 32;
}

/* Does some items if there are any. */
static int do_share(thread_pool *pool, pool_thread *own) {
    uint64_t t = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while (has_items(t)) {
        int64_t next = (int64_t)(t & MASK), items = (int64_t)(t >> FIELD & MASK);
        int64_t share = share_of(pool, items - next, own->caution);
        if (atomic_compare_exchange_weak_explicit(&pool->ticket, &t, t + (uint64_t)share, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            do_claimed(pool, own, items, next, share);
            return 1;
        }
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

/* A processor is offered at once if the threads have none each: another may need it for what this one waits for. */
void wait_briefly(const thread_pool *pool, int looks) {
    if (looks < SPINS && !pool->crowded)
        pause_briefly();
    else
        sched_yield();
}

/* Whether there is work within the time that is worth waiting for it. */
static int spin_until_work(const thread_pool *pool) {
    int64_t until = nanoseconds() + SPIN_NANOSECONDS;
    for (int looks = 0; looks % 64 || nanoseconds() < until; looks++) {
        if (has_items(atomic_load_explicit(&pool->ticket, memory_order_relaxed))) return 1;
        wait_briefly(pool, looks);
    }
    return 0;
}

static void *serve(void *argument) {
    pool_thread *own = argument;
    while (!atomic_load_explicit(&own->pool->ends, memory_order_relaxed))
        if (!do_share(own->pool, own) && !spin_until_work(own->pool)) sleep_until_work(own->pool);
    return NULL;
}

/* All sleepers look again, at what was stored before the call. */
static void wake_sleepers(thread_pool *pool) {
    pthread_mutex_lock(&pool->sleep_lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->sleep_lock);
}

void start_threads(thread_pool *pool, int count) {
    pool->crowded = count > usable_processors();
    atomic_store(&pool->job.parts, 1);
    pthread_mutex_init(&pool->sleep_lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    atomic_store(&pool->ticket, 0);
    atomic_store(&pool->done, 0);
    atomic_store(&pool->sleeping, 0);
    atomic_store(&pool->ends, 0);
    int started = 0;
    for (; started < count && started < MOST_THREADS; started++) {
        pool_thread *own = pool->threads + started;
        own->pool = pool;
        own->number = started;
        own->caution = CAUTION;
        if (started && pthread_create(&own->id, NULL, serve, own)) break;
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
static void run_ticket(thread_pool *pool, int64_t first, int64_t items) {
    pool->job.first = first;
    pool->syncs++;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    uint64_t generation = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 2 * FIELD) + 1;
    atomic_store(&pool->ticket, generation << 2 * FIELD | (uint64_t)items << FIELD);
    /* In one order with the store above and the sleeper's test: none is missed. */
    if (atomic_load(&pool->sleeping)) wake_sleepers(pool);
    while (do_share(pool, pool->threads)) {
    }
    for (int looks = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < items; looks++)
        wait_briefly(pool, looks); /* whoever holds the last item may be waiting for this processor */
}

void run_shares(thread_pool *pool, int64_t items, share_size size, share_function *function, void *work) {
    if (items <= size.least || pool->count == 1) {
        for (int64_t first = 0, last; first < items; first = last) {
            last = items - first < size.most ? items : first + size.most;
            function(work, first, last, 0);
        }
        return;
    }
    pool->job.function = function;
    pool->job.work = work;
    atomic_store_explicit(&pool->job.least, size.least, memory_order_relaxed);
    atomic_store_explicit(&pool->job.most, size.most, memory_order_relaxed);
    atomic_store_explicit(&pool->job.parts, pool->count, memory_order_relaxed);
    for (int64_t first = 0; first < items; first += (int64_t)MASK)
        run_ticket(pool, first, items - first < (int64_t)MASK ? items - first : (int64_t)MASK);
}

typedef struct {
    item_function *function;
    void *work;
} single_items;

static void do_items(void *shared, int64_t first, int64_t last, int thread) {
    const single_items *items = shared;
    for (int64_t i = first; i < last; i++) items->function(items->work, i, thread);
}

void run_items(thread_pool *pool, int64_t items, item_function *function, void *work) {
    single_items single = {function, work};
    run_shares(pool, items, (share_size){1, 1}, do_items, &single);
}
