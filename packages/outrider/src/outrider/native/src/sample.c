/* The exported functions of sample.h, and what their kernels have in common. */
#include "sample.h"

#include <math.h> /* INFINITY */
#include <stdlib.h>

#include "context.h"
#include "simd.h"

/* Radix sort, eight bits at a time from the lowest: stable, and as fast for any values. */
void sort_keys(int64_t count, uint32_t *keys, uint32_t *spare) {
    for (int shift = 0; shift < 32; shift += 8) {
        int64_t place[257] = {0};
        for (int64_t i = 0; i < count; i++) place[(keys[i] >> shift & 255) + 1]++;
        for (int digit = 0; digit < 256; digit++) place[digit + 1] += place[digit];
        for (int64_t i = 0; i < count; i++) spare[place[keys[i] >> shift & 255]++] = keys[i];
        uint32_t *sorted = spare;
        spare = keys, keys = sorted;
    }
}

static int is_finite(float x) { return x - x == 0; }

static int are_rows(const outrider_context *c, int64_t rows, int64_t width, int64_t stride, const float *x) {
    return is_context(c) && rows >= 0 && width >= 1 && width <= UINT32_MAX && stride >= width &&
           (!rows || is_array(x, sizeof *x));
}

int outrider_first_largest(const outrider_context *context, int64_t rows, int64_t width, int64_t stride,
                           const float *x, int64_t *index, float *value) {
    if (!are_rows(context, rows, width, stride, x)) return OUTRIDER_BAD_ARGUMENT;
    if (rows && (!is_array(index, sizeof *index) || !is_array(value, sizeof *value)))
        return OUTRIDER_BAD_ARGUMENT;
    for (int64_t i = 0; i < rows; i++) index[i] = context->k->first_largest(width, x + i * stride, &value[i]);
    return OUTRIDER_OK;
}

int outrider_most_likely(const outrider_context *context, int64_t rows, int64_t width, int64_t stride,
                         const float *logits, float temperature, int64_t count, int64_t *index, float *score,
                         int64_t *found) {
    if (!are_rows(context, rows, width, stride, logits) || count < 1 || !(temperature > 0) || !is_finite(temperature))
        return OUTRIDER_BAD_ARGUMENT;
    if (rows && (!is_array(index, sizeof *index) || !is_array(score, 4) || !is_array(found, sizeof *found)))
        return OUTRIDER_BAD_ARGUMENT;
    for (int64_t i = 0; i < rows; i++) {
        weight_row row = {width, logits + i * stride, 0, temperature, -INFINITY};
        context->k->first_largest(width, row.x, &row.largest);
        found[i] = -1;
        if (is_finite(row.largest))
            found[i] = context->k->most_likely(&row, count, index + i * count, score + i * count);
    }
    return OUTRIDER_OK;
}

int outrider_gumbel(const outrider_context *context, int64_t width, const uint32_t *keys, float *out) {
    if (!is_context(context) || width < 0 || width > UINT32_MAX || !keys || (width && !is_array(out, 4)))
        return OUTRIDER_BAD_ARGUMENT;
    context->k->gumbel(width, keys, out);
    return OUTRIDER_OK;
}

int outrider_gumbel_of_tokens(const outrider_context *context, int64_t count, const int64_t *tokens,
                              const uint32_t *keys, float *out) {
    if (!is_context(context) || count < 0 || !keys) return OUTRIDER_BAD_ARGUMENT;
    if (count && (!is_array(tokens, sizeof *tokens) || !is_array(out, sizeof *out)))
        return OUTRIDER_BAD_ARGUMENT;
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] > UINT32_MAX) return OUTRIDER_BAD_ARGUMENT;
    context->k->gumbel_of_tokens(count, tokens, keys, out);
    return OUTRIDER_OK;
}

int outrider_gumbel_of(const outrider_context *context, int64_t count, const float *v, float *out) {
    if (!is_context(context) || count < 0 || (count && (!is_array(v, sizeof *v) || !is_array(out, 4))))
        return OUTRIDER_BAD_ARGUMENT;
    for (int64_t i = 0; i < count; i++)
        if (!(v[i] >= 0x1p-65f && v[i] < 1)) return OUTRIDER_BAD_ARGUMENT;
    context->k->gumbel_of(count, v, out);
    return OUTRIDER_OK;
}

int truncate_row(const outrider_context *context, weight_row *row, const outrider_sampling *sampling) {
    row->temperature = sampling->temperature;
    if (sampling->top_k > 0 || sampling->top_p < 1) {
        uint32_t *scratch = malloc((size_t)row->width * 2 * sizeof *scratch);
        if (!scratch) return OUTRIDER_NO_MEMORY;
        row->least = context->k->least_weight(row, sampling->top_k, sampling->top_p, scratch);
        free(scratch);
    }
    if (sampling->least > row->least) row->least = sampling->least;
    return OUTRIDER_OK;
}

int is_sampling(const outrider_sampling *s) {
    return is_array(s, _Alignof(outrider_sampling)) && s->top_k >= 0 && s->top_p > 0 && s->top_p <= 1 &&
           s->temperature > 0 && is_finite(s->temperature) && s->least <= 0;
}

static int valid(const outrider_context *c, int64_t width, const float *logits, const outrider_sampling *sampling) {
    return are_rows(c, 1, width, width, logits) && is_sampling(sampling);
}

int outrider_log_weights(const outrider_context *context, int64_t width, const float *logits,
                         const outrider_sampling *sampling, float *out, float *largest) {
    if (!valid(context, width, logits, sampling) || !is_array(out, sizeof *out) || !is_array(largest, sizeof *largest))
        return OUTRIDER_BAD_ARGUMENT;
    weight_row row = {width, logits, 0, 1, -INFINITY};
    context->k->first_largest(width, logits, largest);
    if (!is_finite(row.largest = *largest)) return OUTRIDER_OK;
    int status = truncate_row(context, &row, sampling);
    if (status == OUTRIDER_OK) context->k->log_weights(&row, out);
    return status;
}

int outrider_draw(const outrider_context *context, int64_t width, const float *log_weights, const uint32_t *keys,
                  int64_t *token, float *score) {
    if (!are_rows(context, 1, width, width, log_weights) || !keys || !is_array(token, sizeof *token) ||
        !is_array(score, sizeof *score))
        return OUTRIDER_BAD_ARGUMENT;
    const weight_row row = {width, log_weights, 0, 1, -INFINITY};
    *token = context->k->draw(&row, keys, score);
    return OUTRIDER_OK;
}

int outrider_sample(const outrider_context *context, int64_t width, const float *logits,
                    const outrider_sampling *sampling, const uint32_t *keys, int64_t *token, float *largest) {
    if (!valid(context, width, logits, sampling) || !keys || !is_array(token, sizeof *token) ||
        !is_array(largest, sizeof *largest))
        return OUTRIDER_BAD_ARGUMENT;
    weight_row row = {width, logits, 0, 1, -INFINITY};
    *token = context->k->first_largest(width, logits, largest);
    if (!is_finite(row.largest = *largest)) return OUTRIDER_OK;
    int status = truncate_row(context, &row, sampling);
    float score;
    if (status == OUTRIDER_OK) *token = context->k->draw(&row, keys, &score);
    return status;
}
