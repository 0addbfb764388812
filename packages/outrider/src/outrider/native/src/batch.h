/* The rows of a batch: where the cache has them, and which keys each sees. */
#ifndef OUTRIDER_BATCH_H
#define OUTRIDER_BATCH_H

#include "attention.h"
#include "workspace.h"

typedef struct {
    const outrider_batch *asked;
    const outrider_cache *cache;
    int64_t *place;   /* [rows]: row of the cache */
    key_range *range; /* [rows] */
    int32_t *lists;   /* what ranges point to */
    int32_t window;   /* that the ranges have now; */
    int chunked;      /* it begins at a multiple of itself */
    int fixed;        /* the cache holds outrider_fixed_keys */
} placed_batch;

void take_places(arena *a, placed_batch *b);

/* Of a batch that has been checked. */
void find_places(placed_batch *b);

/* How far back rows look from now on; 0: to the beginning. Chunked: to the last multiple of ``window``. */
void set_window(placed_batch *b, int32_t window, int chunked);

#endif
