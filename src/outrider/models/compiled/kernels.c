/* The arithmetic of a layer in bfloat16, around the matrix products of a library.
 *
 * torch composes each of these of several operations, and on a few rows an operation's start costs more than its
 * work. Every row is computed by itself in one order of additions, so its bits do not depend on its company or on the
 * number of threads. Sizes are in elements, matrices are row-major and contiguous.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define SERIAL 32768 /* elements below which one thread is faster than several */

typedef uint16_t bf16;

static inline float up(bf16 b) {
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Rounds to nearest, ties to even. */
static inline bf16 down(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return f != f ? 0x7fc0 : (bf16)rounded;
}

/* 1 / sqrt(mean(x^2) + eps); the compiler picks the order of additions, the same for every row */
static inline float inverse_rms(int64_t d, const bf16 *restrict x, float eps) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < d; i++) sum += up(x[i]) * up(x[i]);
    return 1.0f / sqrtf(sum / (float)d + eps);
}

static inline void norm(int64_t d, const bf16 *restrict x, const bf16 *restrict weight, float eps, bf16 *restrict out) {
    float scale = inverse_rms(d, x, eps);
    for (int64_t i = 0; i < d; i++) out[i] = down(up(x[i]) * scale * up(weight[i]));
}

/* sum = x + y and out = its RMS norm, [rows, d] each; without y (NULL) sum is x and is not written. */
void add_norm(int64_t rows, int64_t d, const bf16 *x, const bf16 *y, const bf16 *weight, float eps, bf16 *sum,
              bf16 *out) {
#pragma omp parallel for schedule(static) if (rows * d > SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *own = x + r * d;
        if (y) {
            const bf16 *restrict other = y + r * d;
            bf16 *restrict to = sum + r * d;
            for (int64_t i = 0; i < d; i++) to[i] = down(up(own[i]) + up(other[i]));
            own = to;
        }
        norm(d, own, weight, eps, out + r * d);
    }
}

/* out = silu(gate) * up. gate_up: [rows, 2 * d], gates first; silu: of every bf16 by its bits. */
void gated(int64_t rows, int64_t d, const bf16 *gate_up, const float *silu, bf16 *out) {
#pragma omp parallel for schedule(static) if (rows * d > SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *restrict gate = gate_up + 2 * r * d, *restrict other = gate + d;
        bf16 *restrict to = out + r * d;
        for (int64_t i = 0; i < d; i++) to[i] = down(silu[gate[i]] * up(other[i]));
    }
}

/* One head: normed if there is a weight, each pair of neighbours rotated by (cos, sin). */
static inline void rotate(int64_t d, const bf16 *restrict x, const float *restrict rotation, const bf16 *weight,
                          float eps, bf16 *restrict out) {
    bf16 normed[d];
    if (weight) {
        norm(d, x, weight, eps, normed);
        x = normed;
    }
#pragma omp simd
    for (int64_t i = 0; i < d; i += 2) {
        float a = up(x[i]), b = up(x[i + 1]), c = rotation[i], s = rotation[i + 1];
        out[i] = down(a * c - b * s);
        out[i + 1] = down(a * s + b * c);
    }
}

/* Where a row of queries is among those that attention takes: that of key head h begins at base + h * step. */
typedef struct {
    int64_t row, base, step; /* row: of the run, or -1 for padding */
} slot;

/* Keys and values into the cache's rows ``places``, queries into ``q`` slot by slot.
 *
 * qkv: [rows, (kv_heads * group + 2 * kv_heads) * d]; rotation: [rows, d], cos and sin in turns.
 */
void place_heads(int64_t rows, int64_t kv_heads, int64_t group, int64_t d, const bf16 *qkv, const float *rotation,
                 const bf16 *q_norm, const bf16 *k_norm, float eps, const int64_t *places, bf16 *keys, bf16 *values,
                 int64_t slots, const slot *slot_of, bf16 *q) {
    int64_t own = kv_heads * d, width = own * (group + 2);
#pragma omp parallel for schedule(static) if (rows * width > SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *k = qkv + r * width + own * group;
        for (int64_t h = 0; h < kv_heads; h++)
            rotate(d, k + h * d, rotation + r * d, k_norm, eps, keys + places[r] * own + h * d);
        memcpy(values + places[r] * own, k + own, own * sizeof(bf16));
    }
#pragma omp parallel for schedule(static) if (slots * width > SERIAL)
    for (int64_t s = 0; s < slots; s++) {
        slot at = slot_of[s];
        for (int64_t h = 0; h < kv_heads; h++) {
            bf16 *to = q + at.base + h * at.step;
            if (at.row < 0) {
                memset(to, 0, group * d * sizeof(bf16));
                continue;
            }
            const bf16 *from = qkv + at.row * width + h * group * d;
            for (int64_t g = 0; g < group; g++)
                rotate(d, from + g * d, rotation + at.row * d, q_norm, eps, to + g * d);
        }
    }
}

/* What attention returned for the slots, laid out as ``q`` is, back to rows: [rows, kv_heads * width]. */
void collect_heads(int64_t slots, const slot *slot_of, int64_t kv_heads, int64_t width, const bf16 *attended,
                   bf16 *out) {
#pragma omp parallel for schedule(static) if (slots * kv_heads * width > SERIAL)
    for (int64_t s = 0; s < slots; s++) {
        slot at = slot_of[s];
        if (at.row >= 0)
            for (int64_t h = 0; h < kv_heads; h++)
                memcpy(out + (at.row * kv_heads + h) * width, attended + at.base + h * at.step, width * sizeof(bf16));
    }
}

/* Of torch: c[m, n] = a[m, k] * b, where b holds pairs of inputs, [k / 2, n, 2]; then what a thread has to let go. */
typedef void (*multiply)(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, _Bool add,
                         const bf16 *a, const bf16 *b, float *c, _Bool pairs);
typedef void (*release)(_Bool pairs);

#define BLOCK 64  /* outputs of a product */
#define ROWS 128  /* rows of a product; any number gives a row the same bits */
#define SHARE 256 /* rows that a thread keeps in its cache while it reads weights */

/* y = x Wt + bias for x: [rows, in], y: [rows, out]; weight: [out / BLOCK, in / 2, BLOCK, 2], bias: [out] or NULL. */
void linear(multiply product, release done, int64_t rows, int64_t in, int64_t out, const bf16 *x, const bf16 *weight,
            const bf16 *bias, bf16 *y) {
    int64_t shares = (rows + SHARE - 1) / SHARE, blocks = out / BLOCK;
#pragma omp parallel
    {
        float sums[ROWS * BLOCK] __attribute__((aligned(64)));
#pragma omp for schedule(static) collapse(2) nowait
        for (int64_t share = 0; share < shares; share++)
            for (int64_t block = 0; block < blocks; block++) {
                int64_t end = rows < (share + 1) * SHARE ? rows : (share + 1) * SHARE;
                for (int64_t at = share * SHARE; at < end; at += ROWS) {
                    int64_t some = end - at < ROWS ? end - at : ROWS;
                    product(some, BLOCK, in, in, BLOCK, BLOCK, 0, x + at * in, weight + block * BLOCK * in, sums, 1);
                    for (int64_t r = 0; r < some; r++) {
                        bf16 *restrict to = y + (at + r) * out + block * BLOCK;
                        const float *restrict from = sums + r * BLOCK;
                        for (int64_t j = 0; j < BLOCK; j++)
                            to[j] = down(bias ? from[j] + up(bias[block * BLOCK + j]) : from[j]);
                    }
                }
            }
        done(1);
    }
}
