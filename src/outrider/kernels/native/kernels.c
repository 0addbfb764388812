/* A decoder layer in bfloat16, around the matrix products of a library.
 *
 * torch composes each of these of several operations, and on a few rows an operation's start costs more than its
 * work. Every row is computed by itself in one order of additions, so its bits do not depend on other rows or on the
 * number of threads. Sizes are in elements, matrices are row-major and contiguous.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SERIAL 32768 /* elements below which one thread is faster than several */

typedef uint16_t bf16;

static inline float bf16_to_f32(bf16 b) {
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Rounds to nearest, ties to even. */
static inline bf16 f32_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return f != f ? 0x7fc0 : (bf16)rounded;
}

/* 1 / sqrt(mean(x^2) + eps); the compiler picks the order of additions, the same for every row */
static inline float inverse_rms(int64_t d, const bf16 *restrict x, float eps) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < d; i++) sum += bf16_to_f32(x[i]) * bf16_to_f32(x[i]);
    return 1.0f / sqrtf(sum / (float)d + eps);
}

static inline void norm(int64_t d, const bf16 *restrict x, const bf16 *restrict weight, float eps, bf16 *restrict out) {
    float scale = inverse_rms(d, x, eps);
    for (int64_t i = 0; i < d; i++) out[i] = f32_to_bf16(bf16_to_f32(x[i]) * scale * bf16_to_f32(weight[i]));
}

/* sum = x + y and out = its RMS norm, [rows, d] each; without y (NULL) sum is x and is not written. */
void add_rmsnorm(int64_t rows, int64_t d, const bf16 *x, const bf16 *y, const bf16 *weight, float eps, bf16 *sum,
                 bf16 *out) {
#pragma omp parallel for schedule(static) if (rows * d > SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *own = x + r * d;
        if (y) {
            const bf16 *restrict other = y + r * d;
            bf16 *restrict to = sum + r * d;
            for (int64_t i = 0; i < d; i++) to[i] = f32_to_bf16(bf16_to_f32(own[i]) + bf16_to_f32(other[i]));
            own = to;
        }
        norm(d, own, weight, eps, out + r * d);
    }
}

/* out = silu(gate) * up. gate_up: [rows, 2 * d], gates first; silu: of every bf16 by its bits. */
void silu_mul(int64_t rows, int64_t d, const bf16 *gate_up, const float *silu, bf16 *out) {
#pragma omp parallel for schedule(static) if (rows * d > SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *restrict gate = gate_up + 2 * r * d, *restrict other = gate + d;
        bf16 *restrict to = out + r * d;
        for (int64_t i = 0; i < d; i++) to[i] = f32_to_bf16(silu[gate[i]] * bf16_to_f32(other[i]));
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
        float a = bf16_to_f32(x[i]), b = bf16_to_f32(x[i + 1]), c = rotation[i], s = rotation[i + 1];
        out[i] = f32_to_bf16(a * c - b * s);
        out[i + 1] = f32_to_bf16(a * s + b * c);
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
                            to[j] = f32_to_bf16(bias ? from[j] + bf16_to_f32(bias[block * BLOCK + j]) : from[j]);
                    }
                }
            }
        done(1);
    }
}

#define KEYS 256 /* keys of a part */

static inline float larger(float a, float b) { return a > b ? a : b; }

/* exp(x) for x <= 0 within two units in the last place; exactly 0 far below. Cephes' polynomial. */
static inline float exponential(float x) {
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounded to an integer: the sum has no more bits */
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits = (uint32_t)(((int32_t)(x < -87.0f ? 0.0f : n) + 127) << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    return x < -87.0f ? 0.0f : p * power;
}

/* Attention of tiles of queries over keys and values of one layer. */
typedef struct {
    int64_t tiles, rows, d, kv_heads, group; /* rows: of a tile, each of one query head */
    float scale;
    const bf16 *q;        /* [tiles, kv_heads, rows, d] */
    const int64_t *index; /* [orders, keys]: the cache row of each key */
    int64_t keys, orders; /* of the mask's rows; 1, or one for each tile */
    const int64_t *seen;  /* [tiles]: keys that a tile looks at, a multiple of 64 */
    const bf16 *mask;     /* [tiles, rows, keys]: 0 or -inf */
} attention;

/* Of a block of keys: each row's largest score, its sum of exponentials, and its values weighted by them. */
typedef struct {
    float *most, *sum, *values; /* [rows], [rows], [rows, d] */
} part;

static part part_at(const attention *a, float *memory) {
    return (part){memory, memory + a->rows, memory + 2 * a->rows};
}

static int64_t part_size(const attention *a) { return a->rows * (a->d + 2); }

/* Memory of this thread that lasts; ``which``: 0 or 1, two pieces that are in use together. */
static float *scratch(int which, int64_t floats) {
    static _Thread_local struct {
        float *at;
        int64_t size;
    } held[2];
    if (held[which].size < floats) {
        free(held[which].at);
        held[which].size = (floats + 15) / 16 * 16;
        held[which].at = aligned_alloc(64, held[which].size * sizeof(float));
    }
    return held[which].at;
}

/* Of one part for one head: keys as [d / 2, KEYS] and values as [KEYS / 2, d], two numbers in each place. */
static int64_t packed_size(const attention *a) { return KEYS * a->d; }

static void pack(const attention *a, const bf16 *k, const bf16 *v, int64_t order, int64_t first, int64_t count,
                 uint32_t *to) {
    const int64_t *index = a->index + order * a->keys + first;
    int64_t d = a->d, stride = a->kv_heads * d;
    for (int64_t j = 0; j < count; j += 16) {
        const bf16 *from[16];
        for (int64_t i = 0; i < 16; i++) from[i] = k + index[j + i] * stride;
        for (int64_t c = 0; c < d / 2; c++)
            for (int64_t i = 0; i < 16; i++) memcpy(to + c * KEYS + j + i, from[i] + 2 * c, 4);
    }
    to += KEYS * d / 2;
    for (int64_t j = 0; j < count; j += 2) {
        const bf16 *restrict one = v + index[j] * stride, *restrict two = v + index[j + 1] * stride;
        uint32_t *restrict pairs = to + j / 2 * d;
        for (int64_t c = 0; c < d; c++) pairs[c] = (uint32_t)two[c] << 16 | one[c];
    }
}

static int64_t scratch_size(const attention *a) { return KEYS * (a->rows + a->rows / 2); }

static void score(const attention *a, multiply product, int64_t tile, int64_t head, int64_t first,
                  const uint32_t *packed, part into, float *memory) {
    int64_t count = a->seen[tile] - first < KEYS ? a->seen[tile] - first : KEYS, d = a->d;
    bf16 *weights = (bf16 *)(memory + KEYS * a->rows);
    const bf16 *q = a->q + (tile * a->kv_heads + head) * a->rows * d;
    product(a->rows, count, d, d, KEYS, count, 0, q, (const bf16 *)packed, memory, 1);
    for (int64_t r = 0; r < a->rows; r++) {
        const bf16 *restrict mask = a->mask + (tile * a->rows + r) * a->keys + first;
        float *restrict own = memory + r * count, most = -INFINITY, sum = 0;
        bf16 *restrict to = weights + r * count;
#pragma omp simd reduction(max : most)
        for (int64_t j = 0; j < count; j++) {
            own[j] = own[j] * a->scale + bf16_to_f32(mask[j]);
            most = larger(own[j], most);
        }
        float from = most == -INFINITY ? 0 : most; /* a row that sees nothing here has weights of zero */
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < count; j++) { /* lane by lane: zeros behind a row's last key change no bit */
            float weight = exponential(own[j] - from);
            sum += weight;
            to[j] = f32_to_bf16(weight);
        }
        into.most[r] = most;
        into.sum[r] = sum;
    }
    product(a->rows, d, count, count, d, d, 0, weights, (const bf16 *)(packed + KEYS * d / 2), into.values, 1);
}

/* ``total`` over the keys before and those of ``more``. */
static void merge(const attention *a, part total, part more) {
    for (int64_t r = 0; r < a->rows; r++) {
        if (more.most[r] == -INFINITY) continue;
        float most = larger(total.most[r], more.most[r]);
        float old = exponential(total.most[r] - most), fresh = exponential(more.most[r] - most);
        float *restrict to = total.values + r * a->d;
        const float *restrict from = more.values + r * a->d;
        for (int64_t i = 0; i < a->d; i++) to[i] = to[i] * old + from[i] * fresh;
        total.sum[r] = total.sum[r] * old + more.sum[r] * fresh;
        total.most[r] = most;
    }
}

static void write_rows(const attention *a, int64_t tile, int64_t head, part total, const slot *slot_of, bf16 *out) {
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t row = slot_of[tile * (a->rows / a->group) + r / a->group].row;
        if (row < 0) continue;
        bf16 *restrict to = out + ((row * a->kv_heads + head) * a->group + r % a->group) * a->d;
        const float *restrict from = total.values + r * a->d;
        float share = 1.0f / total.sum[r];
        for (int64_t i = 0; i < a->d; i++) to[i] = f32_to_bf16(from[i] * share);
    }
}

/* k, v: rows of the cache, [.., kv_heads, d]; out: [.., kv_heads * group * d], the rows of ``slot_of``.
 *
 * Keys come in parts counted from the first; parts are merged in their order, so a row's bits depend neither on who
 * computes which nor on other rows. Where few tiles would leave threads idle, these share out the parts.
 */
void attend(multiply product, release done, const attention *a, const bf16 *k, const bf16 *v, const slot *slot_of,
            bf16 *out) {
    int64_t most = 0, size = part_size(a), heads = a->kv_heads, pairs = a->tiles * heads;
    for (int64_t t = 0; t < a->tiles; t++) most = a->seen[t] > most ? a->seen[t] : most;
    int64_t parts = (most + KEYS - 1) / KEYS, blocks = a->orders * heads * parts;
    int shared = pairs < 16 && parts > 1;
    float *kept = scratch(1, blocks * packed_size(a) + (shared ? pairs * parts * size : 0));
    uint32_t *packed = (uint32_t *)kept; /* [orders, heads, parts] */
    kept += blocks * packed_size(a);     /* [tiles, heads, parts] */
#pragma omp parallel
    {
        float *memory = scratch(0, scratch_size(a) + 2 * size), *own = memory + scratch_size(a);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t first = b % parts * KEYS, count = most - first < KEYS ? most - first : KEYS;
            int64_t head = b / parts % heads;
            pack(a, k + head * a->d, v + head * a->d, b / parts / heads, first, count, packed + b * packed_size(a));
        }
#pragma omp for schedule(static)
        for (int64_t b = 0; b < (shared ? pairs * parts : 0); b++) {
            int64_t i = b / parts, p = b % parts, order = a->orders == 1 ? i % heads : i;
            if (p * KEYS < a->seen[i / heads])
                score(a, product, i / heads, i % heads, p * KEYS, packed + (order * parts + p) * packed_size(a),
                      part_at(a, kept + b * size), memory);
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < pairs; i++) {
            int64_t tile = i / heads, head = i % heads, order = a->orders == 1 ? head : i;
            part total = part_at(a, shared ? kept + i * parts * size : own);
            for (int64_t p = 0; p * KEYS < a->seen[tile]; p++) {
                part more = part_at(a, shared ? kept + (i * parts + p) * size : p ? own + size : own);
                if (!shared)
                    score(a, product, tile, head, p * KEYS, packed + (order * parts + p) * packed_size(a), more,
                          memory);
                if (p) merge(a, total, more);
            }
            write_rows(a, tile, head, total, slot_of, out);
        }
        done(1);
    }
}

typedef struct {
    const bf16 *weight, *bias;
    int64_t in, out;
} dense;

typedef struct {
    const bf16 *attention_norm, *mlp_norm, *q_norm, *k_norm; /* the last two may be NULL */
    dense qkv, out, gate_up, down;
    float eps;
} layer;

/* What the layers of a run share. */
typedef struct {
    int64_t rows, placed, slots, pieces; /* rows, and those of them that are no padding */
    const int64_t *places;
    const slot *slot_of; /* of all pieces */
    const float *rotation, *silu;
    const attention *piece;
    const slot *const *slot_of_piece;
    bf16 *q, *sum, *normed, *qkv, *attended, *gates, *inner; /* to write to */
} run;

static void dense_of(multiply product, release done, int64_t rows, const dense *of, const bf16 *x, bf16 *y) {
    linear(product, done, rows, of->in, of->out, x, of->weight, of->bias, y);
}

/* A decoder layer, fused: the functions above, one after the other. x and y (or NULL) are its input, x + y; x_out and y_out
 * that of the next one, and may be the same memory. */
void decoder_layer(multiply product, release done, const layer *l, const run *r, const bf16 *x, const bf16 *y,
                   bf16 *keys, bf16 *values, bf16 *x_out, bf16 *y_out) {
    const attention *a = r->piece;
    add_rmsnorm(r->rows, l->qkv.in, x, y, l->attention_norm, l->eps, r->sum, r->normed);
    if (y) x = r->sum;
    dense_of(product, done, r->rows, &l->qkv, r->normed, r->qkv);
    place_heads(r->placed, a->kv_heads, a->group, a->d, r->qkv, r->rotation, l->q_norm, l->k_norm, l->eps, r->places,
                keys, values, r->slots, r->slot_of, r->q);
    for (int64_t p = 0; p < r->pieces; p++)
        attend(product, done, a + p, keys, values, r->slot_of_piece[p], r->attended);
    dense_of(product, done, r->rows, &l->out, r->attended, y_out);
    add_rmsnorm(r->rows, l->qkv.in, x, y_out, l->mlp_norm, l->eps, x_out, r->normed);
    dense_of(product, done, r->rows, &l->gate_up, r->normed, r->gates);
    silu_mul(r->rows, l->down.in, r->gates, r->silu, r->inner);
    dense_of(product, done, r->rows, &l->down, r->inner, y_out);
}
