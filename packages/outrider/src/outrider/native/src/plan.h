/* What packing a source comes to: checked sizes and the layout of the result. */
#ifndef OUTRIDER_PLAN_H
#define OUTRIDER_PLAN_H

#include "unpack.h"

typedef struct {
    const outrider_source *source;
    const block_format *format; /* of the file's blocks, or NULL: floats */
    outrider_weight weight;
    int64_t row_bytes;        /* in the file */
    int8_t stored_values[16]; /* what the file's codes of 4 bits stand for */
} pack_plan;

/* Returns an outrider_status or outrider_pack_status. */
int make_plan(pack_plan *p, const outrider_source *source);

#endif
