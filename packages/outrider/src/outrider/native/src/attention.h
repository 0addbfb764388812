/* Attention of some rows of one sequence, for one key head: a task. */
#ifndef OUTRIDER_ATTENTION_H
#define OUTRIDER_ATTENTION_H

#include "check.h"

#define CHUNK 128   /* keys of a partial result */
#define MOST_HEAD_DIM 640       /* with latents */
#define MOST_PLAIN_HEAD_DIM 512 /* without */
#define TILE_ROWS 16 /* rows that share a chunk's keys */

/* Which keys a row sees, in the order of their positions: rows of the sequence first .. first + shared - 1, then those
 * of a list (a path in a tree of drafts). ``from``: keys before it lie behind the window. */
typedef struct {
    int32_t keys, from;
    int32_t shared;      /* keys before the list */
    const int32_t *list; /* [keys - shared], rows of the sequence */
} key_range;

struct attention_task {
    const outrider_cache *cache;
    const int32_t *table; /* of the sequence */
    int32_t layer, kv_heads, kv_head, group, head_dim;
    int32_t value_dim;      /* less than head_dim if values are the beginnings of keys */
    float scale, cap;       /* of scores; a cap of 0 is none */
    int32_t rows;           /* at most TILE_ROWS */
    const key_range *range; /* [rows] */
    int64_t q_stride;       /* floats from a row's queries to the next row's */
    const float *q;         /* of the first row and the key head's first query head: [group, head_dim] */
    int32_t first_chunk, last_chunk;
    int32_t fixed;          /* the cache is of outrider_fixed_keys, and all rows see all of it */
    /* Of each row and query head: the largest score, the sum of exponentials, and the values weighted by them,
     * [rows * group][2 + value_dim], over the chunks in order. */
    float *result;
};

/* How a pass shares out its attention: see attention.c. */
typedef struct {
    struct tile *tiles;
    int64_t num_tiles;
    int32_t parts;         /* 1: a task goes over all chunks; otherwise one for each chunk, the most a tile has */
    float *results;        /* [parts][rows of the batch][heads][2 + value_dim] */
    float *scratch;        /* [threads][scratch_size] */
    int64_t scratch_size;  /* floats */
} attention_plan;

/* Numbers of a value in the cache. */
static inline int32_t value_dim_of(const outrider_cache *c, int32_t head_dim) {
    return c->value_dim ? c->value_dim : head_dim;
}

/* Bytes of a number in the cache. */
static inline int64_t number_bytes(const outrider_cache *c) {
    return c->type == OUTRIDER_CACHE_F32 ? 4 : c->type == OUTRIDER_CACHE_BF16 ? 2 : 1;
}

#endif
