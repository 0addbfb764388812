/* What can be seen of arguments before they are used. */
#ifndef OUTRIDER_CHECK_H
#define OUTRIDER_CHECK_H

#include "native.h"

#define MOST_BATCH_ROWS (1 << 24)
#define MOST_GROUPS 256 /* of experts */
#define MOST_WIDTH ((int64_t)1 << 26) /* numbers of a row: products of sizes stay far below 2^63 */
#define MOST_FEATURES (1 << 12)

static inline int is_array_or_null(const void *x, uintptr_t alignment) { return (uintptr_t)x % alignment == 0; }
static inline int is_array(const void *x, uintptr_t alignment) { return x && is_array_or_null(x, alignment); }

#endif
