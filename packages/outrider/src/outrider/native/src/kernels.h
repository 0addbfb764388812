/* The kernels that every instruction set provides, and what they share with the rest of the library. */
#ifndef OUTRIDER_KERNELS_H
#define OUTRIDER_KERNELS_H

#include "native.h"
#include "sample.h"

struct attention_task;
struct convolution_task;
struct recurrent_task;

/* A group of 32 activations: what its codes stand for, and what is computed from them once for all outputs. */
typedef struct {
    float scale;         /* amax / 127 */
    int32_t sum[3];      /* of the codes: all 32, the first 16, the last 16 */
    float scaled_sum[3]; /* scale * sum */
} act_quant_group;

/* Rows of activations. Quantised weights read codes; the others read the numbers themselves. */
typedef struct {
    int64_t rows, inputs, groups; /* groups of 32 */
    const float *x;               /* [rows, inputs] */
    int8_t *codes;                /* [rows, groups * 32] */
    act_quant_group *quant;       /* [rows, groups] */
} activations;

typedef struct {
    const char *name;
    int (*supported)(void); /* by this processor */

    /* Of the rows [first, last): codes, scales and sums from x. */
    void (*quantise)(const activations *a, int64_t first, int64_t last);
    /* Panels [first, last) of y = x W' + bias; y: [rows, stride]. */
    void (*linear)(const outrider_weight *w, const activations *a, int64_t first, int64_t last, float *y,
                   int64_t stride);
    /* RMS norm of one row. */
    void (*norm)(int64_t width, const float *x, const float *weight, float eps, float *out);
    /* (x - mean) / sqrt(variance + eps) * weight + bias of one row. */
    void (*layer_norm)(int64_t width, const float *x, const float *weight, const float *bias, float eps, float *out);
    /* x += y for one row. */
    void (*add)(int64_t width, float *x, const float *y);
    /* gate = silu(gate) * up for one row. */
    void (*silu_mul)(int64_t width, float *gate, const float *up);
    /* gate = gelu(gate) * up for one row, by tanh; up may be NULL. */
    void (*gelu_mul)(int64_t width, float *gate, const float *up);
    /* gate = gate sigmoid(alpha gate) (up + 1) for one row, of gates at most limit, and ups within +- of it. */
    void (*clamped_swiglu)(int64_t width, float *gate, const float *up, float alpha, float limit);
    /* x = cap * tanh(x * scale / cap) for one row. */
    void (*cap)(int64_t width, float *x, float scale, float cap);
    /* x *= sigmoid(gate) for one row. */
    void (*sigmoid_mul)(int64_t width, float *x, const float *gate);
    /* The product of two rows. */
    float (*dot)(int64_t width, const float *x, const float *y);
    /* Softmax of one row. */
    void (*softmax)(int64_t width, float *x);
    /* One head in place: normed if there is a weight, halves rotated by cosines and sines [2][head_dim / 2], if any. */
    void (*rotate)(int64_t head_dim, float *x, const float *rotation, const float *norm, float eps);
    /* One row of keys or values [kv_heads, head_dim] to the cache; scales [kv_heads] for 8 bits. */
    void (*store)(int32_t type, int64_t kv_heads, int64_t head_dim, const float *x, void *row, float *scales);
    /* See attention.h. */
    void (*attend)(const struct attention_task *task, float *scratch);
    int64_t (*attend_scratch)(int32_t head_dim, int32_t value_dim); /* floats */
    void (*merge)(int32_t value_dim, float *result, const float *part);

    /* See recurrent_kernels.h and recurrent.h. */
    void (*convolve)(int64_t width, const struct convolution_task *task);
    void (*unit)(int64_t width, float *x, float scale);
    void (*recurrent_gates)(int64_t heads, float *a, float *b, const float *decay, const float *bias);
    void (*time_steps)(int64_t heads, float *a, float *step, const float *decay, const float *bias);
    void (*recur)(const struct recurrent_task *task, float *copies);
    int64_t (*recur_scratch)(int32_t copies, int32_t key_dim); /* floats */

    /* See sample_kernels.h. */
    int64_t (*first_largest)(int64_t width, const float *x, float *value);
    void (*gumbel)(int64_t width, const uint32_t *keys, float *out);
    void (*gumbel_of_tokens)(int64_t count, const int64_t *tokens, const uint32_t *keys, float *out);
    void (*gumbel_of)(int64_t count, const float *v, float *out);
    float (*least_weight)(const weight_row *row, int64_t top_k, double top_p, uint32_t *scratch);
    void (*log_weights)(const weight_row *row, float *out);
    int64_t (*most_likely)(const weight_row *row, int64_t count, int64_t *index, float *score);
    int64_t (*draw)(const weight_row *row, const uint32_t *keys, float *score);
} kernels;

extern const kernels portable_kernels, avx2_kernels, avxvnni_kernels, avx512_kernels, amx_kernels;
extern const kernels neon_kernels, i8mm_kernels;

/* Those of an instruction set, which this processor may not have; NULL if the library has none of that name. */
const kernels *find_kernels(const char *name);

#endif
