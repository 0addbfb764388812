/* One of eight threads takes four times as long for everything: how much longer a job takes than it must.
 *
 * Items sleep, so that the threads need no processors. Prints the time over the least, in percent: jobs behind the first
 * few, in which the thread's speed is learnt.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <time.h>

#include "threads.h"

enum { THREADS = 8, ITEMS = 320, JOBS = 12, LEARNT = 4, SLOWER = 4, NANOSECONDS = 500000 };

static thread_pool pool;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void sleep_for(double length) {
    const struct timespec nap = {0, (long)(length * 1e9)};
    nanosleep(&nap, NULL);
}

static void do_share(void *spent, int64_t first, int64_t last, int thread) {
    double start = seconds();
    sleep_for((double)(last - first) * NANOSECONDS * 1e-9 * (thread == 3 ? SLOWER : 1));
    ((double *)spent)[thread] += seconds() - start;
}

int main(void) {
    double spent[THREADS] = {0}, took = 0;
    start_threads(&pool, THREADS);
    for (int job = 0; job < JOBS; job++) {
        double start = seconds();
        run_shares(&pool, ITEMS, (share_size){1, ITEMS}, do_share, spent);
        if (job >= LEARNT) took += seconds() - start;
    }
    stop_threads(&pool);
    double least = (JOBS - LEARNT) * (double)ITEMS * NANOSECONDS * 1e-9 / (THREADS - 1 + 1.0 / SLOWER);
    printf("%.0f\n", 100 * took / least);
    return 0;
}
