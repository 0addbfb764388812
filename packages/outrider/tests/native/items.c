/* Does one item more than a ticket of the library's threads holds, each of them once. */
#include <stdio.h>
#include <stdlib.h>

#include "threads.h"

static thread_pool pool;

static void see(void *seen, int64_t item, int thread) {
    (void)thread;
    ((unsigned char *)seen)[item]++;
}

int main(void) {
    const int64_t items = ((int64_t)1 << 24) + 4;
    unsigned char *seen = calloc((size_t)items, 1);
    if (!seen) return 2;
    start_threads(&pool, 2);
    run_items(&pool, items, see, seen);
    stop_threads(&pool);
    for (int64_t i = 0; i < items; i++)
        if (seen[i] != 1) return printf("item %lld was done %d times\n", (long long)i, seen[i]), 1;
    free(seen);
    return 0;
}
