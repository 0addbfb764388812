#include "batch.h"

static int64_t listed_keys(const outrider_batch *b) {
    int64_t keys = 0;
    for (int32_t i = 0; i < b->spans; i++)
        if (b->span[i].mask) keys += (int64_t)b->span[i].mask_rows * b->span[i].mask_keys;
    return keys;
}

void take_places(arena *a, placed_batch *b) {
    b->place = take(a, b->asked->rows, sizeof *b->place);
    b->range = take(a, b->asked->rows, sizeof *b->range);
    b->lists = take(a, listed_keys(b->asked), sizeof *b->lists);
}

/* The keys of row r of a span, row ``own`` of its sequence. A row's path in a tree is in order as far as it goes on
 * from the rows before the tree. */
static key_range range_of(const outrider_span *s, int32_t r, int32_t **list) {
    int32_t own = s->start + r, keys = own + 1, shared = keys;
    const int32_t *path = *list;
    if (s->mask && r >= s->count - s->mask_rows) {
        int32_t before = s->start + s->count - s->mask_keys;
        const uint8_t *seen = s->mask + (int64_t)(r - (s->count - s->mask_rows)) * s->mask_keys;
        keys = shared = before;
        int32_t listed = 0;
        for (int32_t i = 0; i < s->mask_keys; i++) {
            if (!seen[i]) continue;
            if (shared == keys && before + i == shared) shared++;
            else (*list)[listed++] = before + i;
            keys++;
        }
        *list += listed;
    }
    return (key_range){keys, 0, shared, path};
}

void find_places(placed_batch *b) {
    int32_t *list = b->lists, block = b->cache->block;
    int64_t row = 0;
    for (int32_t i = 0; i < b->asked->spans; i++) {
        const outrider_span *s = b->asked->span + i;
        for (int32_t r = 0; r < s->count; r++, row++) {
            int32_t own = s->start + r;
            b->place[row] = (int64_t)s->table[own / block] * block + own % block;
            b->range[row] = range_of(s, r, &list);
        }
    }
}

void set_window(placed_batch *b, int32_t window, int chunked) {
    if (window == b->window && chunked == b->chunked) return;
    for (int32_t r = 0; r < b->asked->rows; r++) {
        key_range *range = b->range + r;
        int32_t before = range->keys - 1; /* the row's own key is the last */
        range->from = !window                 ? 0
                      : chunked               ? before / window * window
                      : range->keys > window ? range->keys - window
                                              : 0;
    }
    b->window = window;
    b->chunked = chunked;
}
