/* Where things lie in the panels of a quantised weight; native.h draws them. */
#ifndef OUTRIDER_PANELS_H
#define OUTRIDER_PANELS_H

#include "check.h"

#define PANEL_OUTPUTS 16
#define MAX_INPUTS ((int64_t)1 << 26)
#define MAX_OUTPUTS ((int64_t)1 << 32) /* products of sizes stay far below 2^63 */

static inline int64_t scale_bytes(int32_t half_scales) { return PANEL_OUTPUTS * (half_scales ? 2 : 4); }

/* Of one group: scales, minima, codes. */
static inline int64_t block_bytes(int32_t layout, int32_t group, int32_t half_scales, int32_t has_minimum) {
    int64_t codes = (layout == OUTRIDER_Q8 ? PANEL_OUTPUTS : PANEL_OUTPUTS / 2) * (int64_t)group;
    return scale_bytes(half_scales) * (has_minimum ? 2 : 1) + codes;
}

static inline int64_t padded_inputs(int64_t inputs) { return (inputs + 31) / 32 * 32; }

static inline int64_t panel_count(int64_t outputs) { return (outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS; }

/* Whether a packed matrix is what its fields say, as far as they can be compared. See rows.c. */
int is_weight(const outrider_weight *w);

#endif
