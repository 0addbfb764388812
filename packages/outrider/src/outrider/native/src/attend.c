/* Attention by itself, of one layer. */
#include <string.h>

#include "arguments.h"
#include "forward.h"

/* ``fixed_length``: keys that every row sees; 0: those that the spans say. */
static int attend_alone(forward_ctx *f, int32_t layer, const float *q, float *out, int32_t fixed_length) {
    int status = prepare_pass(f);
    if (status != OUTRIDER_OK) return status;
    int64_t rows = f->batch.asked->rows;
    for (int64_t r = 0; fixed_length && r < rows; r++)
        f->batch.range[r] = (key_range){.keys = fixed_length, .shared = fixed_length};
    status = prepare_attention(f);
    if (status != OUTRIDER_OK) return status;
    memcpy(f->work.q, q, (size_t)(rows * f->model.queries.all) * sizeof(float));
    f->work.attended = out;
    run_attention(f, layer, NULL);
    return OUTRIDER_OK;
}

/* -1 for spans that no batch has. */
static int32_t rows_of_spans(int32_t spans, const outrider_span *span) {
    int64_t rows = 0;
    if (spans < 0 || spans > MOST_BATCH_ROWS || (spans && !is_array(span, _Alignof(outrider_span)))) return -1;
    for (int32_t i = 0; i < spans; i++) rows += span[i].count;
    return rows < 0 || rows > MOST_BATCH_ROWS ? -1 : (int32_t)rows;
}

int outrider_attend(outrider_context *context, const outrider_cache *cache, int32_t layer, int32_t heads,
                    int32_t kv_heads, int32_t head_dim, float scale, int32_t spans, const outrider_span *span,
                    const float *q, float *out) {
    if (!is_context(context) || heads < 1 || kv_heads < 1 || heads % kv_heads || head_dim < 1 ||
        head_dim > MOST_PLAIN_HEAD_DIM || layer < 0 || heads > MOST_WIDTH / head_dim ||
        !is_cache(cache, (int64_t)layer + 1, kv_heads, head_dim, 0))
        return OUTRIDER_BAD_ARGUMENT;
    outrider_model model = {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .attention_scale = scale};
    outrider_batch batch = {.rows = rows_of_spans(spans, span), .spans = spans, .span = span};
    int status = check_spans(cache, &batch);
    if (status != OUTRIDER_OK || batch.rows == 0) return status;
    if (!is_array(q, sizeof *q) || !is_array(out, sizeof *out)) return OUTRIDER_BAD_ARGUMENT;
    forward_ctx f = {.context = context, .k = context->k, .model = find_columns(&model),
                     .batch = {.asked = &batch, .cache = cache}};
    lock_context(context);
    status = attend_alone(&f, layer, q, out, 0);
    unlock_context(context);
    return status;
}

static int are_fixed_keys(const outrider_fixed_keys *keys) {
    if (!is_array(keys, _Alignof(outrider_fixed_keys))) return 0;
    int halves = keys->type == OUTRIDER_CACHE_BF16;
    return keys->heads >= 1 && keys->head_dim >= 1 && keys->head_dim <= MOST_PLAIN_HEAD_DIM && keys->length >= 1 &&
           keys->heads <= MOST_WIDTH / keys->head_dim && keys->length <= INT32_MAX - CHUNK &&
           is_array(keys->keys, halves ? 2 : 4) && is_array(keys->values, halves ? 2 : 4) &&
           (halves ? keys->head_dim % 2 == 0 : keys->type == OUTRIDER_CACHE_F32);
}

int outrider_attend_fixed(outrider_context *context, const outrider_fixed_keys *keys, int64_t rows, float scale,
                          const float *q, float *out) {
    if (!is_context(context) || !are_fixed_keys(keys) || rows < 0 || rows > 1 << 20) return OUTRIDER_BAD_ARGUMENT;
    if (rows == 0) return OUTRIDER_OK;
    if (!is_array(q, sizeof *q) || !is_array(out, sizeof *out)) return OUTRIDER_BAD_ARGUMENT;
    void *k = (void *)(uintptr_t)keys->keys, *v = (void *)(uintptr_t)keys->values;
    int32_t padded = (keys->length + CHUNK - 1) / CHUNK * CHUNK;
    outrider_cache cache = {.type = keys->type, .block = padded > rows ? padded : (int32_t)rows, .rows = padded,
                            .keys = &k, .values = &v};
    const int32_t table = 0;
    outrider_span span = {.count = (int32_t)rows, .entries = 1, .table = &table};
    outrider_model model = {.heads = keys->heads, .kv_heads = keys->heads, .head_dim = keys->head_dim,
                            .attention_scale = scale};
    outrider_batch batch = {.rows = (int32_t)rows, .spans = 1, .span = &span};
    forward_ctx f = {.context = context, .k = context->k, .model = find_columns(&model),
                     .batch = {.asked = &batch, .cache = &cache, .fixed = 1}};
    lock_context(context);
    int status = attend_alone(&f, 0, q, out, keys->length);
    unlock_context(context);
    return status;
}
