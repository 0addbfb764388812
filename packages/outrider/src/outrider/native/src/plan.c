#include "plan.h"

#include <string.h>

#include "panels.h"
#include "quantise.h"

/* Codes that the kernels multiply, with scales that they read. */
static int is_known(const outrider_weight *w) {
    static const struct {
        int8_t bits, group, has_table, has_minimum;
    } forms[] = {{1, 32, 0, 0}, {2, 16, 0, 1}, {2, 32, 0, 0}, {3, 16, 0, 0}, {4, 16, 0, 1}, {4, 16, 1, 0}, {4, 32, 0, 0},
                 {4, 32, 0, 1}, {4, 32, 1, 0}, {5, 32, 0, 0}, {5, 32, 0, 1}, {6, 16, 0, 0}, {8, 16, 0, 0}, {8, 16, 0, 1},
                 {8, 32, 0, 0}, {8, 32, 0, 1}};
    int integers = w->scales == OUTRIDER_SCALES_U8 || w->scales == OUTRIDER_SCALES_U4, known = 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        known |= forms[i].bits == w->bits && forms[i].group == w->group && forms[i].has_table == w->has_table &&
                 forms[i].has_minimum == w->has_minimum;
    if (!known || w->scales < OUTRIDER_SCALES_F16 || w->scales > OUTRIDER_SCALES_E4M3) return 0;
    if (w->has_minimum && w->bits < 8 && w->first) return 0; /* minima take the place of a first value */
    if (integers ? !w->has_minimum : w->has_minimum && w->scales != OUTRIDER_SCALES_F16) return 0;
    if (!is_of_super_blocks(w->scales)) return w->super_block == 0;
    int is_size = w->super_block == 64 || w->super_block == 128 || w->super_block == 256;
    return is_size && w->inputs % w->super_block == 0;
}

int64_t outrider_panel_bytes(const outrider_weight *w) {
    if (!is_array(w, _Alignof(outrider_weight)) || w->inputs < 1 || w->inputs > MAX_INPUTS) return 0;
    if (w->layout == OUTRIDER_F32) return w->inputs * PANEL_OUTPUTS * 4;
    if (w->layout == OUTRIDER_BF16 || w->layout == OUTRIDER_F16) return w->inputs * PANEL_OUTPUTS * 2;
    if (w->layout != OUTRIDER_CODES || !is_known(w)) return 0;
    return coded_panel_bytes(w);
}

static int64_t bytes_of_float_type(int32_t type) {
    if (type == OUTRIDER_FILE_F32) return 4;
    return type == OUTRIDER_FILE_F16 || type == OUTRIDER_FILE_BF16 ? 2 : 0;
}

static int check_sizes(const outrider_source *s, const block_format *format, int64_t *row_bytes) {
    if (s->inputs < 1 || s->inputs > MAX_INPUTS || s->rows < 1 || s->rows > MAX_OUTPUTS) return OUTRIDER_BAD_SIZE;
    if (s->outputs < 1 || s->outputs > MAX_OUTPUTS) return OUTRIDER_BAD_SIZE;
    if (!is_array_or_null(s->order, sizeof *s->order)) return OUTRIDER_BAD_ARGUMENT;
    if (!s->order && s->outputs != s->rows) return OUTRIDER_BAD_SIZE;
    if (format && s->inputs % format->inputs) return OUTRIDER_BAD_SIZE;
    *row_bytes = format ? s->inputs / format->inputs * format->bytes : s->inputs * bytes_of_float_type(s->type);
    if (!s->data || s->data_bytes != s->rows * *row_bytes) return OUTRIDER_BAD_SIZE;
    if (format && s->transposed) return OUTRIDER_BAD_ARGUMENT;
    if (s->scales && s->scale_bytes != s->rows * (s->inputs / format->inputs)) return OUTRIDER_BAD_SIZE;
    if (format && format->grid_bytes && (!s->grid || s->grid_bytes != format->grid_bytes)) return OUTRIDER_BAD_SIZE;
    return OUTRIDER_OK;
}

static void plan_stored(pack_plan *p) {
    const block_format *format = p->format;
    outrider_weight *w = &p->stored;
    if (!format) {
        w->layout = p->source->type == OUTRIDER_FILE_BF16 ? OUTRIDER_BF16
                    : p->source->type == OUTRIDER_FILE_F16 ? OUTRIDER_F16 : OUTRIDER_F32;
        return;
    }
    w->layout = OUTRIDER_CODES;
    w->bits = format->bits;
    w->group = format->group;
    w->scales = format->scales;
    w->has_minimum = format->has_minimum;
    w->unit = format->unit;
    w->super_block = is_of_super_blocks(format->scales) ? format->inputs : 0;
    w->has_table = format->first == VALUES_GIVEN;
    w->first = w->has_table ? 0 : format->first;
    if (w->has_table) memcpy(w->values, p->source->values, sizeof w->values);
}

static int plan_target(pack_plan *p) {
    outrider_weight *w = &p->weight;
    *w = p->stored;
    if (p->source->target == OUTRIDER_AS_STORED) return OUTRIDER_OK;
    *w = (outrider_weight){.layout = OUTRIDER_CODES, .bits = 4, .group = QUANTISED_GROUP,
                           .scales = OUTRIDER_SCALES_F16, .unit = 1};
    switch (p->source->target) {
    case OUTRIDER_TO_F32: *w = (outrider_weight){.layout = OUTRIDER_F32}; break;
    case OUTRIDER_TO_BF16: *w = (outrider_weight){.layout = OUTRIDER_BF16}; break;
    case OUTRIDER_TO_Q8_0: w->bits = 8, w->first = -128; break;
    case OUTRIDER_TO_Q4_0: w->first = -8; break;
    case OUTRIDER_TO_Q4_1: w->has_minimum = 1; break;
    default: return OUTRIDER_BAD_ARGUMENT;
    }
    return OUTRIDER_OK;
}

static void set_sizes(outrider_weight *w, const outrider_source *s) {
    w->outputs = s->outputs;
    w->inputs = s->inputs;
    w->groups = w->group ? padded_inputs(s->inputs) / w->group : 0;
    w->panel_bytes = outrider_panel_bytes(w);
}

int make_plan(pack_plan *p, const outrider_source *s) {
    memset(p, 0, sizeof *p);
    if (!is_array(s, _Alignof(outrider_source))) return OUTRIDER_BAD_ARGUMENT;
    p->source = s;
    p->format = find_format(s->type, s->scales != NULL);
    if (!p->format && (s->scales || !bytes_of_float_type(s->type))) return OUTRIDER_UNKNOWN_TYPE;
    int status = check_sizes(s, p->format, &p->row_bytes);
    if (status != OUTRIDER_OK) return status;
    plan_stored(p);
    status = plan_target(p);
    if (status != OUTRIDER_OK) return status;
    set_sizes(&p->stored, s);
    set_sizes(&p->weight, s);
    return OUTRIDER_OK;
}

int outrider_plan_weight(const outrider_source *source, outrider_weight *weight) {
    pack_plan p;
    int status = make_plan(&p, source);
    if (!is_array(weight, _Alignof(outrider_weight))) return OUTRIDER_BAD_ARGUMENT;
    if (status == OUTRIDER_OK) *weight = p.weight;
    return status;
}
