/* Does one item more than a ticket of the library's threads holds, each of them once. */
#include <stdio.h>
#include <stdlib.h>

#include "native.h"
#include "threads.h"

static unsigned char *seen;

static void see(void *context, int64_t item) {
    (void)context;
    seen[item]++;
}

int main(void) {
    const int64_t items = ((int64_t)1 << 24) + 4;
    seen = calloc((size_t)items, 1);
    if (!seen || outrider_set_threads(2)) return 2;
    lock_threads();
    run_items(items, see, NULL);
    unlock_threads();
    for (int64_t i = 0; i < items; i++)
        if (seen[i] != 1) return printf("item %lld was done %d times\n", (long long)i, seen[i]), 1;
    return 0;
}
