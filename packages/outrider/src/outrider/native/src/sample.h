/* Drawing tokens: the largest of a row, Gumbel noise, and draws that need neither a row of noise nor one of weights.
 *
 * Results are those of outrider.core (noise.py, shaping.py, truncation.py), whose docstrings say what they mean.
 */
#ifndef OUTRIDER_SAMPLE_H
#define OUTRIDER_SAMPLE_H

#include "native.h"

/* How logits become log-weights: (x - largest) / temperature, -inf where top-k, then top-p, then min-p exclude. */
typedef struct outrider_sampling {
    int64_t top_k;     /* 0: all */
    double top_p;      /* 1: all */
    float temperature; /* above 0 */
    float least;       /* log of min-p; -inf: all */
} outrider_sampling;

/* Of each row of x [rows, stride]: the first largest of ``width`` numbers, where NaN counts as the largest. */
OUTRIDER_API int outrider_first_largest(const outrider_context *context, int64_t rows, int64_t width, int64_t stride,
                                        const float *x, int64_t *index, float *value);

/* Gumbel noise of tokens 0 to width - 1 under six key words: out [width]. */
OUTRIDER_API int outrider_gumbel(const outrider_context *context, int64_t width, const uint32_t *keys, float *out);

/* The same noise of some tokens, 0 to UINT32_MAX each: out [count]. */
OUTRIDER_API int outrider_gumbel_of_tokens(const outrider_context *context, int64_t count, const int64_t *tokens,
                                           const uint32_t *keys, float *out);

/* -log(-log1p(-v)) for 2^-65 <= v < 1, as outrider_gumbel has it: within 2^-22 + 1 unit in the last place. */
OUTRIDER_API int outrider_gumbel_of(const outrider_context *context, int64_t count, const float *v, float *out);

/* Log-weights of a row of logits [width]; only ``largest`` if that is not finite. */
OUTRIDER_API int outrider_log_weights(const outrider_context *context, int64_t width, const float *logits,
                                      const outrider_sampling *sampling, float *out, float *largest);

/* The first largest of log-weights + noise, and its score: NaN if there is one. */
OUTRIDER_API int outrider_draw(const outrider_context *context, int64_t width, const float *log_weights,
                               const uint32_t *keys, int64_t *token, float *score);

/* outrider_draw of outrider_log_weights, bit for bit; only ``largest`` if that is not finite. */
OUTRIDER_API int outrider_sample(const outrider_context *context, int64_t width, const float *logits,
                                 const outrider_sampling *sampling, const uint32_t *keys, int64_t *token,
                                 float *largest);

/* The ``count`` most likely tokens of each row of logits [rows, stride] at a temperature, the first of equals first.
 *
 * index, score: [rows, count], a token and its log-probability; found: [rows], how many there are: tokens of -inf are
 * left out. -1 if a row's largest logit is not finite. */
OUTRIDER_API int outrider_most_likely(const outrider_context *context, int64_t rows, int64_t width, int64_t stride,
                                      const float *logits, float temperature, int64_t count, int64_t *index,
                                      float *score, int64_t *found);

/* ---- Inside the library --------------------------------------------------------------------------------------- */

/* A row of log-weights: (x - largest) / temperature; smaller ones than ``least`` are impossible. */
typedef struct {
    int64_t width;
    const float *x;
    float largest, temperature, least;
} weight_row;

int is_sampling(const outrider_sampling *sampling);

/* Sets what the options leave of a row whose ``largest`` is known and finite. OUTRIDER_NO_MEMORY, or OUTRIDER_OK. */
int truncate_row(const outrider_context *context, weight_row *row, const outrider_sampling *sampling);

/* Sorts in ascending order; spare: [count]. */
void sort_keys(int64_t count, uint32_t *keys, uint32_t *spare);

#endif
