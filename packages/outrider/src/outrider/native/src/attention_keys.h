/* The keys and values of a chunk, from the cache to where attention wants them. Included by attention_kernels.h.
 *
 *     keys, transposed      [head_dim][128]         a vector holds one dimension of 16 keys, or, in
 *                           [head_dim / 2][128]     bfloat16, two dimensions
 *     values                [128][value_dim + pad]  a vector holds 16 dimensions of one key
 *
 * Values that are the beginnings of keys are read from there.
 */
#ifndef OUTRIDER_ATTENTION_KEYS_H
#define OUTRIDER_ATTENTION_KEYS_H

#include "attention.h"
#include "kernels.h"
#include "simd.h"

/* A pair is a row and a query head. As many pairs are computed together, with so many vectors of keys, and then of a
 * value's dimensions, as the registers hold. */
#if defined(ISA_AVX512)
enum { KEY_VECTORS = 4, VALUE_VECTORS = 4 };
#define PAIRS 6
#elif defined(ISA_AVX2)
enum { KEY_VECTORS = 1, VALUE_VECTORS = 1 };
#define PAIRS 6
#else
enum { KEY_VECTORS = 2, VALUE_VECTORS = 2 };
#define PAIRS 3
#endif

typedef struct {
    const struct attention_task *task;
    int32_t padded;         /* head_dim, rounded up to 16 */
    int32_t value_padded;   /* value_dim, likewise */
    int pairs;              /* the cache's bfloat16 keys are transposed in pairs, as they are */
    int in_place;           /* and its values read where they are */
    const float *keys;      /* of the chunk, for the rows that share them: ``transposed``, or where they are fixed */
    float *transposed;
    float *values;          /* unless they are read in place */
    const void **value_at;  /* [CHUNK]: the values of each key, bfloat16 if in place, else float */
    int64_t *heads;         /* [CHUNK]: where the cache has each key, in heads */
    int64_t size, bytes;    /* of a number in the cache, of a head */
    int64_t *ahead;         /* [CHUNK]: where the keys of the chunk after this one begin, in bytes */
    int32_t num_ahead;
    float *scores;          /* [PAIRS][CHUNK], later the weights */
    float *parts;           /* [PAIRS][result_size]: the chunk's results */
    int32_t result_size;
} chunk_work;

/* Where the key head's numbers begin for rows first .. last - 1 of the sequence, in heads. */
static void find_rows(const struct attention_task *t, int32_t first, int32_t last, int64_t *heads) {
    int32_t block = t->cache->block;
    while (first < last) {
        int32_t within = first % block, count = last - first < block - within ? last - first : block - within;
        int64_t head = ((int64_t)t->table[first / block] * block + within) * t->kv_heads + t->kv_head;
        for (int32_t i = 0; i < count; i++) heads[i] = head + (int64_t)i * t->kv_heads;
        first += count;
        heads += count;
    }
}

/* The same for the keys first .. last - 1 that a row sees. */
static void find_keys(const struct attention_task *t, const key_range *r, int32_t first, int32_t last, int64_t *heads) {
    int32_t in_order = last < r->shared ? last : r->shared;
    if (first < in_order) find_rows(t, first, in_order, heads);
    for (int32_t n = first > in_order ? first : in_order; n < last; n++) {
        int32_t row = r->list[n - r->shared];
        find_rows(t, row, row + 1, heads + n - first);
    }
}

static inline void load_f32(int32_t count, const float *from, float *out) {
    for (int32_t i = 0; i < count; i += LANES) {
        int left = count - i < LANES ? count - i : LANES;
        vec_store(out + i, vec_load_some(from + i, left));
    }
}

static inline void load_bf16(int32_t count, const uint16_t *from, float *out) {
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES) vec_store(out + i, vec_load_bf16(from + i));
    if (i < count) {
        uint16_t some[LANES] = {0};
        memcpy(some, from + i, (size_t)(count - i) * sizeof some[0]);
        vec_store(out + i, vec_load_bf16(some));
    }
}

static inline void load_i8(int32_t count, const int8_t *from, float scale, float *out) {
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES) vec_store(out + i, vec_mul(vec_load_i8(from + i), vec_set(scale)));
    if (i < count) {
        int8_t some[LANES] = {0};
        memcpy(some, from + i, (size_t)(count - i));
        vec_store(out + i, vec_mul(vec_load_i8(some), vec_set(scale)));
    }
}

/* Numbers first .. last - 1 of one head of a layer's keys or values as floats, from ``out + first`` on. */
static inline void load_head(const struct attention_task *t, const void *numbers, const float *scales, int64_t head,
                             int32_t first, int32_t last, float *out) {
    int64_t at = head * t->head_dim + first;
    out += first;
    switch (t->cache->type) {
    case OUTRIDER_CACHE_F32: load_f32(last - first, (const float *)numbers + at, out); break;
    case OUTRIDER_CACHE_BF16: load_bf16(last - first, (const uint16_t *)numbers + at, out); break;
    default: load_i8(last - first, (const int8_t *)numbers + at, scales[head], out);
    }
}

/* A key: the part that is its value, if any, has the value's scale. */
static inline void load_key(const struct attention_task *t, int64_t head, float *out) {
    const outrider_cache *c = t->cache;
    int32_t value = c->value_dim;
    const void *keys = c->keys[t->layer];
    if (value) load_head(t, keys, c->value_scales ? c->value_scales[t->layer] : NULL, head, 0, value, out);
    load_head(t, keys, c->key_scales ? c->key_scales[t->layer] : NULL, head, value, t->head_dim, out);
}

/* A head of keys or values will be wanted. The next row's are too far for the processor to look for them by itself. A
 * few heads at a time, between other work, as it has only so many requests to memory under way; to the second cache, as
 * the first is too small for a chunk ahead. */
static inline void prefetch_head(const char *at, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

/* Sixteen keys, or fewer, transposed from place ``at`` of the chunk on. */
static void transpose_keys(const chunk_work *s, const int64_t *heads, int32_t count, int32_t at) {
    static const float zeros[MOST_HEAD_DIM];
    const struct attention_task *t = s->task;
    float rows[LANES * MOST_HEAD_DIM];
    const float *from[LANES];
    const char *keys = t->cache->keys[t->layer];
    for (int32_t j = 0; j < LANES; j++) {
        from[j] = j >= count ? zeros : s->pairs ? (const float *)(keys + heads[j] * s->bytes) : rows + j * s->padded;
        if (j < count && !s->pairs) load_key(t, heads[j], rows + j * s->padded);
    }
    for (int32_t i = 0; i < (s->pairs ? t->head_dim / 2 : s->padded); i += LANES)
        transpose16(from, i, s->transposed + (int64_t)i * CHUNK + at, CHUNK);
}

static void copy_values(const chunk_work *s, const int64_t *heads, int32_t count, int32_t at) {
    const struct attention_task *t = s->task;
    const char *values = t->cache->values[t->layer];
    if (s->in_place) {
        const void **value_at = s->value_at + at;
        int64_t bytes = s->bytes;
        for (int32_t j = 0; j < count; j++) value_at[j] = values + heads[j] * bytes;
        return;
    }
    const float *scales = t->cache->value_scales ? t->cache->value_scales[t->layer] : NULL;
    for (int32_t j = 0; j < count; j++) {
        float *staged = s->values + (at + j) * s->value_padded;
        s->value_at[at + j] = staged;
        load_head(t, values, scales, heads[j], 0, t->value_dim, staged);
    }
}

/* Keys and values first .. last - 1 of a row into their places in the chunk that begins at ``begin``. */
static void load_keys(const chunk_work *s, const key_range *range, int32_t begin, int32_t first, int32_t last) {
    const struct attention_task *t = s->task;
    const char *values = t->cache->values[t->layer];
    int32_t ahead = t->cache->value_dim ? 0 : s->num_ahead; /* keys are fetched later */
    int64_t bytes = s->bytes;
    find_keys(t, range, first, last, s->heads);
    for (int32_t n = 0; n < last - first; n += LANES) {
        const int64_t *heads = s->heads + n;
        int32_t count = last - first - n < LANES ? last - first - n : LANES;
        for (int32_t j = n; j < n + count && j < ahead; j++) prefetch_head(values + s->ahead[j], bytes);
        transpose_keys(s, heads, count, first - begin + n);
    }
    copy_values(s, s->heads, last - first, first - begin);
}

#endif
