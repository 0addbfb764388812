#include "plan.h"

#include <string.h>

#include "panels.h"
#include "quantise.h"

int64_t outrider_panel_bytes(int32_t layout, int32_t group, int32_t half_scales, int32_t has_minimum, int64_t inputs) {
    if (inputs < 1 || inputs > MAX_INPUTS) return 0;
    if (layout == OUTRIDER_F32) return inputs * PANEL_OUTPUTS * 4;
    if (layout == OUTRIDER_BF16) return inputs * PANEL_OUTPUTS * 2;
    if ((layout != OUTRIDER_Q8 && layout != OUTRIDER_Q4) || (group != 16 && group != 32)) return 0;
    return padded_inputs(inputs) / group * block_bytes(layout, group, half_scales, has_minimum);
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
    if (format && format->grid_bytes && (!s->grid || s->grid_bytes != format->grid_bytes)) return OUTRIDER_BAD_SIZE;
    return OUTRIDER_OK;
}

static void count_up(int first, int8_t *values) {
    for (int code = 0; code < 16; code++) values[code] = (int8_t)(first + code);
}

static void keep_as_stored(pack_plan *p) {
    const block_format *format = p->format;
    outrider_weight *w = &p->weight;
    if (!format) {
        w->layout = p->source->type == OUTRIDER_FILE_BF16 ? OUTRIDER_BF16 : OUTRIDER_F32;
        return;
    }
    w->layout = format->layout;
    w->group = format->group;
    w->half_scales = format->half_scales;
    w->has_minimum = format->has_minimum;
    memcpy(w->values, p->stored_values, sizeof w->values);
}

static int plan_target(pack_plan *p) {
    outrider_weight *w = &p->weight;
    switch (p->source->target) {
    case OUTRIDER_AS_STORED: keep_as_stored(p); return OUTRIDER_OK;
    case OUTRIDER_TO_F32: w->layout = OUTRIDER_F32; return OUTRIDER_OK;
    case OUTRIDER_TO_BF16: w->layout = OUTRIDER_BF16; return OUTRIDER_OK;
    case OUTRIDER_TO_Q8_0: w->layout = OUTRIDER_Q8; break;
    case OUTRIDER_TO_Q4_0: w->layout = OUTRIDER_Q4, count_up(-8, w->values); break;
    case OUTRIDER_TO_Q4_1: w->layout = OUTRIDER_Q4, w->has_minimum = 1, count_up(0, w->values); break;
    default: return OUTRIDER_BAD_ARGUMENT;
    }
    w->group = QUANTISED_GROUP;
    w->half_scales = 1;
    return OUTRIDER_OK;
}

int make_plan(pack_plan *p, const outrider_source *s) {
    memset(p, 0, sizeof *p);
    if (!is_array(s, _Alignof(outrider_source))) return OUTRIDER_BAD_ARGUMENT;
    p->source = s;
    p->format = find_format(s->type);
    if (!p->format && !bytes_of_float_type(s->type)) return OUTRIDER_UNKNOWN_TYPE;
    int status = check_sizes(s, p->format, &p->row_bytes);
    if (status != OUTRIDER_OK) return status;
    if (p->format && p->format->layout == OUTRIDER_Q4) {
        count_up(p->format->first, p->stored_values);
        if (p->format->first == VALUES_GIVEN) memcpy(p->stored_values, s->values, sizeof p->stored_values);
    }
    status = plan_target(p);
    if (status != OUTRIDER_OK) return status;
    outrider_weight *w = &p->weight;
    w->outputs = s->outputs;
    w->inputs = s->inputs;
    w->groups = w->group ? padded_inputs(s->inputs) / w->group : 0;
    w->panel_bytes = outrider_panel_bytes(w->layout, w->group, w->half_scales, w->has_minimum, w->inputs);
    return OUTRIDER_OK;
}

int outrider_plan_weight(const outrider_source *source, outrider_weight *weight) {
    pack_plan p;
    int status = make_plan(&p, source);
    if (!is_array(weight, _Alignof(outrider_weight))) return OUTRIDER_BAD_ARGUMENT;
    if (status == OUTRIDER_OK) *weight = p.weight;
    return status;
}
