/* The keys and values of a chunk, from the cache to where attention wants them. Included by attention_kernels.h.
 *
 *     keys, turned over     [head_dim][128]         a vector holds one dimension of 16 keys, or, in
 *                           [head_dim / 2][128]     bfloat16, two dimensions
 *     values                [128][head_dim + pad]   a vector holds 16 dimensions of one key
 */
#include "attention.h"
#include "kernels.h"
#include "simd.h"

#define PAIRS 4 /* a pair is a row and a query head; so many are computed together */

typedef struct {
    const struct attention_task *task;
    int32_t padded;         /* head_dim, rounded up to 16 */
    int pairs;              /* the cache's bfloat16 keys are turned over in pairs, as they are */
    int in_place;           /* and its values read where they are */
    float *keys;            /* of the chunk, for the rows that share them */
    float *values;          /* unless they are read in place */
    const void **value_at;  /* [CHUNK]: the values of each key, bfloat16 if in place, else float */
    float *scores;          /* [rows * group][CHUNK], later the weights */
    float *part;            /* [2 + head_dim] of one pair */
    float *total;           /* one vector's worth for each 16 dimensions */
} workspace;

/* Where the key head's numbers of a row of the sequence begin, in heads. */
static inline int64_t head_of_row(const struct attention_task *t, int32_t row) {
    uint32_t block = (uint32_t)t->cache->block, entry = (uint32_t)row / block;
    int64_t cache_row = (int64_t)t->table[entry] * block + ((uint32_t)row - entry * block);
    return cache_row * t->kv_heads + t->kv_head;
}

/* Sequence row of the n-th key that a row sees. */
static inline int32_t key_row(const key_range *r, int32_t n) { return n < r->shared ? n : r->list[n - r->shared]; }

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

/* One head of a layer's keys or values as floats, [padded]. */
static inline void load_head(const struct attention_task *t, const void *numbers, const float *scales, int64_t head,
                             float *out) {
    int32_t d = t->head_dim;
    switch (t->cache->type) {
    case OUTRIDER_CACHE_F32: load_f32(d, (const float *)numbers + head * d, out); break;
    case OUTRIDER_CACHE_BF16: load_bf16(d, (const uint16_t *)numbers + head * d, out); break;
    default: load_i8(d, (const int8_t *)numbers + head * d, scales[head], out);
    }
}

/* A row's heads are far from those of the next row, where the processor does not look for them by itself. */
static inline void prefetch_head(const struct attention_task *t, int64_t head) {
    int64_t size = t->cache->type == OUTRIDER_CACHE_F32 ? 4 : t->cache->type == OUTRIDER_CACHE_BF16 ? 2 : 1;
    const char *key = (const char *)t->cache->keys[t->layer] + head * t->head_dim * size;
    const char *value = (const char *)t->cache->values[t->layer] + head * t->head_dim * size;
    for (int64_t i = 0; i < t->head_dim * size; i += 64) {
        __builtin_prefetch(key + i);
        __builtin_prefetch(value + i);
    }
}

/* Sixteen keys, or fewer, turned over from place ``at`` of the chunk on. */
static void turn_keys(const workspace *s, const int64_t *heads, int32_t count, int32_t at) {
    static const float zeros[LANES];
    const struct attention_task *t = s->task;
    float rows[LANES * MOST_HEAD_DIM];
    const float *from[LANES];
    const float *scales = t->cache->key_scales ? t->cache->key_scales[t->layer] : NULL;
    for (int32_t j = 0; j < count; j++) {
        from[j] = rows + j * s->padded;
        if (s->pairs)
            from[j] = (const float *)((const uint16_t *)t->cache->keys[t->layer] + heads[j] * t->head_dim);
        else
            load_head(t, t->cache->keys[t->layer], scales, heads[j], rows + j * s->padded);
    }
    for (int32_t i = 0; i < (s->pairs ? t->head_dim / 2 : s->padded); i += LANES) {
        const float *some[LANES];
        for (int32_t j = 0; j < LANES; j++) some[j] = j < count ? from[j] + i : zeros;
        vec_turn(some, s->keys + (int64_t)i * CHUNK + at, CHUNK);
    }
}

static void place_values(const workspace *s, const int64_t *heads, int32_t count, int32_t at) {
    const struct attention_task *t = s->task;
    const float *scales = t->cache->value_scales ? t->cache->value_scales[t->layer] : NULL;
    for (int32_t j = 0; j < count; j++) {
        float *staged = s->values + (at + j) * s->padded;
        s->value_at[at + j] = staged;
        if (s->in_place)
            s->value_at[at + j] = (const uint16_t *)t->cache->values[t->layer] + heads[j] * t->head_dim;
        else
            load_head(t, t->cache->values[t->layer], scales, heads[j], staged);
    }
}

/* Keys and values first .. last - 1 of a row into their places in the chunk that begins at ``begin``. */
static void load_keys(const workspace *s, const key_range *range, int32_t begin, int32_t first, int32_t last) {
    int64_t heads[CHUNK];
    for (int32_t n = first; n < last; n++) {
        heads[n - begin] = head_of_row(s->task, key_row(range, n));
        prefetch_head(s->task, heads[n - begin]);
    }
    for (int32_t n = first; n < last; n += LANES) {
        int32_t count = last - n < LANES ? last - n : LANES;
        turn_keys(s, heads + n - begin, count, n - begin);
        place_values(s, heads + n - begin, count, n - begin);
    }
}
