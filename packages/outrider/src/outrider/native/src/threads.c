/* A pool of threads for work that takes microseconds: idle threads spin briefly, then sleep.
 *
 * A caller does not wait for threads, only for items: those that no other thread has begun it does itself. So a
 * processor that another process keeps busy costs its share of the work and no more.
 *
 *     ticket   | generation: 16 | items: 24 | next: 24 |      one word, so that claiming an item is one exchange
 *
 * A thread that claims an item has seen the ticket of the current work, whatever it saw before, as the whole word is
 * compared. ``work`` may only change when all claimed items are done.
 */
#define _GNU_SOURCE /* clock_gettime, pthread_atfork */
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "native.h"

#define FIELD 24
#define MASK ((UINT64_C(1) << FIELD) - 1)
#define SPIN_NANOSECONDS 60000
#define MOST_THREADS 256

static struct {
    item_function function;
    void *context;
    int64_t first; /* item of the ticket's first */
} work;

static _Atomic uint64_t ticket;
static _Atomic int64_t done;
static _Atomic int sleeping;
static _Atomic int wanted = 1; /* threads, the caller's included */
static int started = 1;
static pthread_mutex_t pass = PTHREAD_MUTEX_INITIALIZER, sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, recruit = PTHREAD_COND_INITIALIZER;

void lock_threads(void) { pthread_mutex_lock(&pass); }
void unlock_threads(void) { pthread_mutex_unlock(&pass); }

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int has_items(uint64_t t) { return (t & MASK) < ((t >> FIELD) & MASK); }

/* Does one item if there is one. */
static int do_item(void) {
    uint64_t t = atomic_load_explicit(&ticket, memory_order_acquire);
    while (has_items(t))
        if (atomic_compare_exchange_weak_explicit(&ticket, &t, t + 1, memory_order_acq_rel, memory_order_acquire)) {
            work.function(work.context, work.first + (int64_t)(t & MASK));
            atomic_fetch_add_explicit(&done, 1, memory_order_release);
            return 1;
        }
    return 0;
}

static int is_wanted(int number) { return number < atomic_load_explicit(&wanted, memory_order_relaxed); }

static void sleep_until_work(void) {
    pthread_mutex_lock(&sleep_lock);
    atomic_fetch_add(&sleeping, 1);
    while (!has_items(atomic_load(&ticket))) pthread_cond_wait(&wake, &sleep_lock);
    atomic_fetch_sub(&sleeping, 1);
    pthread_mutex_unlock(&sleep_lock);
}

/* Such a sleeper is not counted: new work need not wake it. */
static void sleep_until_wanted(int number) {
    pthread_mutex_lock(&sleep_lock);
    while (!is_wanted(number)) pthread_cond_wait(&recruit, &sleep_lock);
    pthread_mutex_unlock(&sleep_lock);
}

/* Whether there is work within the time that is worth waiting for it. */
static int spin_until_work(void) {
    int64_t until = nanoseconds() + SPIN_NANOSECONDS;
    while (nanoseconds() < until)
        for (int i = 0; i < 64; i++) {
            pause_briefly();
            if (has_items(atomic_load_explicit(&ticket, memory_order_relaxed))) return 1;
        }
    return 0;
}

static void *serve(void *argument) {
    int number = (int)(intptr_t)argument;
    for (;;)
        if (!is_wanted(number))
            sleep_until_wanted(number);
        else if (!do_item() && !spin_until_work())
            sleep_until_work();
    return NULL;
}

/* Items from ``first`` on, as many as a ticket holds at most. */
static void run_ticket(int64_t first, int64_t items, item_function function, void *context) {
    work.function = function;
    work.context = context;
    work.first = first;
    atomic_store_explicit(&done, 0, memory_order_relaxed);
    uint64_t generation = (atomic_load_explicit(&ticket, memory_order_relaxed) >> 2 * FIELD) + 1;
    atomic_store(&ticket, generation << 2 * FIELD | (uint64_t)items << FIELD);
    if (atomic_load(&sleeping)) { /* in one order with the store above and the sleeper's test: none is missed */
        pthread_mutex_lock(&sleep_lock);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&sleep_lock);
    }
    while (do_item()) {
    }
    for (int tries = 0; atomic_load_explicit(&done, memory_order_acquire) < items; tries++) {
        if (tries < 20000)
            pause_briefly();
        else
            sched_yield(); /* whoever holds the last item may be waiting for this processor */
    }
}

void run_items(int64_t items, item_function function, void *context) {
    if (items <= 1 || atomic_load_explicit(&wanted, memory_order_relaxed) == 1) {
        for (int64_t i = 0; i < items; i++) function(context, i);
        return;
    }
    for (int64_t first = 0; first < items; first += (int64_t)MASK)
        run_ticket(first, items - first < (int64_t)MASK ? items - first : (int64_t)MASK, function, context);
}

/* A forked child has none of its parent's threads. */
static void forget_threads(void) {
    pthread_mutex_init(&pass, NULL);
    pthread_mutex_init(&sleep_lock, NULL);
    pthread_cond_init(&wake, NULL);
    pthread_cond_init(&recruit, NULL);
    atomic_store(&sleeping, 0);
    atomic_store(&ticket, 0);
    int count = atomic_load(&wanted);
    started = 1;
    atomic_store(&wanted, 1);
    outrider_set_threads(count);
}

OUTRIDER_API int outrider_set_threads(int count) {
    static int registered;
    if (count < 1 || count > MOST_THREADS) return OUTRIDER_BAD_ARGUMENT;
    lock_threads();
    if (!registered) registered = pthread_atfork(NULL, NULL, forget_threads) == 0;
    for (; started < count; started++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)started)) break;
        pthread_detach(thread);
    }
    pthread_mutex_lock(&sleep_lock);
    atomic_store(&wanted, count < started ? count : started);
    pthread_cond_broadcast(&recruit);
    pthread_mutex_unlock(&sleep_lock);
    unlock_threads();
    return OUTRIDER_OK;
}

OUTRIDER_API int outrider_threads(void) { return atomic_load(&wanted); }
