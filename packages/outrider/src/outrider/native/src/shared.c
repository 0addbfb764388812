/* Gathers between the processes of one machine, through memory that they share.
 *
 *     process 0   write slot, epoch 7 | wait for epoch 7 of all | read slots | write slot, epoch 8 ...
 *     process 1        write slot, epoch 7 | wait for epoch 7 of all | read slots | write ...
 *
 * A process that has announced an epoch has read everything of the epoch before. So two sets of slots, for even and odd
 * epochs, are enough: a slot is written again only after its process has seen all others one epoch further.
 */
#define _GNU_SOURCE /* nanosleep */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "threads.h"

#define LINE 64
#define SPINS 20    /* looks at another's epoch before the processor is given up: another process may need it */
#define YIELDS 2000 /* about a millisecond where nobody does */
#define NAP_NANOSECONDS 50000

static _Atomic uint8_t *lost_of(const outrider_shared *s) { return (_Atomic uint8_t *)s->memory; }

static _Atomic int64_t *epoch_of(const outrider_shared *s, int rank) {
    return (_Atomic int64_t *)(s->memory + LINE + (int64_t)rank * LINE);
}

static uint8_t *slot_of(const outrider_shared *s, int rank) {
    return s->memory + LINE + (int64_t)s->size * LINE + ((s->epoch & 1) * s->size + rank) * s->slot_bytes;
}

/* Until a process has reached this epoch. Not 0: one is gone. */
static int wait_for(const outrider_shared *s, int rank) {
    const struct timespec nap = {0, NAP_NANOSECONDS};
    for (int64_t tries = 0; atomic_load_explicit(epoch_of(s, rank), memory_order_acquire) < s->epoch; tries++) {
        if (atomic_load_explicit(lost_of(s), memory_order_relaxed)) return 1;
        if (tries < SPINS)
            pause_briefly();
        else if (tries < SPINS + YIELDS)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
    return 0;
}

static int gather_piece(outrider_shared *s, const uint8_t *own, uint8_t *all, int64_t bytes, int64_t step) {
    s->epoch++;
    memcpy(slot_of(s, s->rank), own, (size_t)bytes);
    atomic_store_explicit(epoch_of(s, s->rank), s->epoch, memory_order_release);
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank) continue;
        if (wait_for(s, r)) return 1;
        if (all) memcpy(all + r * step, slot_of(s, r), (size_t)bytes);
    }
    return 0;
}

OUTRIDER_API int outrider_shared_gather(void *context, const void *own, void *all, int64_t bytes, int32_t first_only) {
    outrider_shared *s = context;
    if (!is_array(s, _Alignof(outrider_shared)) || !is_array(s->memory, sizeof s->epoch) || s->slot_bytes < 1) return 1;
    if (s->size < 1 || s->rank < 0 || s->rank >= s->size || bytes < 0) return 1;
    if (bytes && (!own || (!all && (!first_only || s->rank == 0)))) return 1;
    int reads = !first_only || s->rank == 0;
    for (int64_t at = 0; at < bytes; at += s->slot_bytes) {
        int64_t piece = bytes - at < s->slot_bytes ? bytes - at : s->slot_bytes;
        if (gather_piece(s, (const uint8_t *)own + at, reads ? (uint8_t *)all + at : NULL, piece, bytes)) return 1;
    }
    return 0;
}
