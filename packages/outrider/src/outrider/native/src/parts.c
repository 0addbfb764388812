/* Parts of a forward pass by themselves. */
#include "arguments.h"
#include "forward.h"
#include "linear.h"

OUTRIDER_API int outrider_norm(const outrider_context *context, int64_t rows, int64_t width, const float *x,
                               const float *weight, const float *bias, float eps, float *out) {
    outrider_norm_weights norm = {weight, bias};
    if (!is_context(context) || rows < 0 || rows > MOST_BATCH_ROWS || width < 1 || width > MOST_WIDTH)
        return OUTRIDER_BAD_ARGUMENT;
    if (rows == 0) return OUTRIDER_OK;
    if (!is_array(x, sizeof *x) || !is_array(weight, sizeof *x) || !is_array_or_null(bias, sizeof *x) ||
        !is_array(out, sizeof *x))
        return OUTRIDER_BAD_ARGUMENT;
    for (int64_t r = 0; r < rows; r++) norm_row(context->k, width, x + r * width, &norm, eps, out + r * width);
    return OUTRIDER_OK;
}

OUTRIDER_API int outrider_linear(outrider_context *context, const outrider_weight *weight, int64_t rows, const float *x,
                                 float *y) {
    if (!is_context(context) || rows < 0 || rows > MOST_BATCH_ROWS || !is_weight(weight)) return OUTRIDER_BAD_ARGUMENT;
    if (rows == 0) return OUTRIDER_OK;
    if (!is_array(x, sizeof *x) || !is_array(y, sizeof *y)) return OUTRIDER_BAD_ARGUMENT;
    act_codes codes;
    lock_context(context);
    int status = prepare_codes(context, &codes, rows, weight->inputs);
    if (status == OUTRIDER_OK) {
        activations a = rows_of(&codes, x, rows, weight->inputs);
        if (is_quantised(weight)) context->k->quantise(&a, 0, rows);
        run_linear(context, &a, 1, (product[]){{weight, y, weight->outputs}});
    }
    unlock_context(context);
    return status;
}
