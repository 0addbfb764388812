/* Threads that share out numbered items. */
#ifndef OUTRIDER_THREADS_H
#define OUTRIDER_THREADS_H

#include <stdint.h>

typedef void (*item_function)(void *context, int64_t item);

/* Calls function(context, item) for each item from 0 to items - 1, in any order and on any thread.
 *
 * Returns when all have been done. One caller at a time (``lock_threads``).
 */
void run_items(int64_t items, item_function function, void *context);

/* One forward pass at a time uses the threads and the scratch memory. */
void lock_threads(void);
void unlock_threads(void);

#endif
