/* Before a forward pass: memory laid out, each row's keys found, attention planned. */
#include "forward.h"

static void take_pass(arena *a, forward_ctx *f) {
    take_workspace(a, &f->work, &f->model, f->batch.asked->rows, f->batch.asked->logit_rows);
    take_places(a, &f->batch);
}

int prepare_pass(forward_ctx *f) {
    arena a = {NULL, 0};
    take_pass(&a, f);
    a = (arena){scratch_memory(f->context, MEMORY_ROWS, a.used), 0};
    if (!a.base) return OUTRIDER_NO_MEMORY;
    take_pass(&a, f);
    find_places(&f->batch);
    return prepare_attention(f);
}

int prepare_codes(outrider_context *c, act_codes *codes, int64_t rows, int64_t inputs) {
    arena a = {NULL, 0};
    take_codes(&a, rows, inputs);
    a = (arena){scratch_memory(c, MEMORY_ROWS, a.used), 0};
    if (!a.base) return OUTRIDER_NO_MEMORY;
    *codes = take_codes(&a, rows, inputs);
    return OUTRIDER_OK;
}
