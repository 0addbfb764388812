/* What packing a source comes to: checked sizes and the layout of the result. */
#ifndef OUTRIDER_PLAN_H
#define OUTRIDER_PLAN_H

#include "unpack.h"

typedef struct {
    const outrider_source *source;
    const block_format *format; /* of the file's blocks, or NULL: floats */
    outrider_weight stored;     /* how the file's own codes and scales are packed; of floats only the layout */
    outrider_weight weight;
    int64_t row_bytes; /* in the file */
} pack_plan;

/* Returns an outrider_status or outrider_pack_status. */
int make_plan(pack_plan *p, const outrider_source *source);

#endif
