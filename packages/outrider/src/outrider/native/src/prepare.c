/* Before a forward pass: memory laid out, each row's keys found, attention planned. */
#include "forward.h"

static void take_pass(arena *a, forward_ctx *f) {
    const outrider_batch *b = f->batch.asked;
    take_workspace(a, &f->work, &f->model, f->recurrent.sizes, b->rows, b->logit_rows);
    take_places(a, &f->batch);
    take_recurrent(a, &f->recurrent, b);
}

int prepare_pass(forward_ctx *f) {
    f->recurrent.sizes = find_recurrent(f->model.whole, f->batch.asked->layers);
    arena a = {NULL, 0};
    take_pass(&a, f);
    a = (arena){scratch_memory(f->context, MEMORY_ROWS, a.used), 0};
    if (!a.base) return OUTRIDER_NO_MEMORY;
    take_pass(&a, f);
    find_places(&f->batch);
    int status = prepare_attention(f);
    return status == OUTRIDER_OK ? prepare_recurrent(f) : status;
}

int prepare_codes(outrider_context *c, act_codes *codes, int64_t rows, int64_t inputs) {
    arena a = {NULL, 0};
    take_codes(&a, rows, inputs);
    a = (arena){scratch_memory(c, MEMORY_ROWS, a.used), 0};
    if (!a.base) return OUTRIDER_NO_MEMORY;
    *codes = take_codes(&a, rows, inputs);
    return OUTRIDER_OK;
}
