/* The check of an instruction set goes on: what is done with rows, attention, and sampling. */
#include "attention.h"
#include "selfcheck.h"
#include "system.h"

/* A row is no multiple of 16. KEYS go into a second chunk; HEADS rows and query heads are one more than are computed
 * together. */
enum { WIDTH = 77, VOCABULARY = 300, TOKENS = 20, LIKELY = 5, ROWS = 2, GROUP = 4, HEADS = ROWS * GROUP };
enum { KEYS = 141, WINDOW = 110, CACHE_ROWS = 144, KV_HEADS = 2, DIM = 64, NUMBERS = CACHE_ROWS * KV_HEADS * DIM };
enum { SCRATCH = 1 << 15 }; /* floats: more than attention needs for these dimensions */

/* Of one instruction set. Zeros where it writes nothing. */
typedef struct {
    float rows[10][WIDTH], product;
    float rotated[2][DIM];
    float stored[3][KV_HEADS * DIM], scales[3][KV_HEADS];
    float attended[HEADS * (2 + DIM)];
    float noise[3][VOCABULARY], weights[VOCABULARY], least, scores[LIKELY + 2];
    int64_t tokens[LIKELY + 3];
    recurrent_results recurrent;
} results;

typedef struct {
    float x[VOCABULARY], y[VOCABULARY], q[HEADS * DIM], scales[CACHE_ROWS * KV_HEADS];
    _Alignas(64) uint8_t keys[NUMBERS * 4], values[NUMBERS * 4];
    uint32_t spare[2 * VOCABULARY];
    _Alignas(64) float scratch[SCRATCH];
    results expected, found;
} numbers;

static void try_row_kernels(const kernels *k, const numbers *n, results *r) {
    for (int i = 2; i < 10; i++) memcpy(r->rows[i], n->x, sizeof r->rows[i]);
    k->norm(WIDTH, n->x, n->y, 1e-5f, r->rows[0]);
    k->layer_norm(WIDTH, n->x, n->y, n->y + WIDTH, 1e-5f, r->rows[1]);
    k->add(WIDTH, r->rows[2], n->y);
    k->silu_mul(WIDTH, r->rows[3], n->y);
    k->gelu_mul(WIDTH, r->rows[4], n->y);
    k->gelu_mul(WIDTH, r->rows[5], NULL);
    k->cap(WIDTH, r->rows[6], 0.5f, 3.0f);
    k->softmax(WIDTH, r->rows[7]);
    k->sigmoid_mul(WIDTH, r->rows[8], n->y);
    k->clamped_swiglu(WIDTH, r->rows[9], n->y, 1.5f, 2.0f);
    r->product = k->dot(WIDTH, n->x, n->y);
    for (int i = 0; i < 2; i++) memcpy(r->rotated[i], n->x, sizeof r->rotated[i]);
    k->rotate(DIM, r->rotated[0], n->y, n->q, 1e-5f);
    k->rotate(42, r->rotated[1], n->y, NULL, 1e-5f);
    for (int type = OUTRIDER_CACHE_F32; type <= OUTRIDER_CACHE_I8; type++)
        k->store(type, KV_HEADS, type == OUTRIDER_CACHE_F32 ? DIM : 42, n->x, r->stored[type], r->scales[type]);
}

static void try_sampling(const kernels *k, numbers *n, results *r) {
    static const uint32_t keys[6] = {1, 22, 333, 4444, 55555, 666666};
    int64_t some[TOKENS];
    for (int i = 0; i < TOKENS; i++) some[i] = (int64_t)i * i * 1000;
    weight_row row = {VOCABULARY, n->x, 0, 0.7f, -__builtin_inff()};
    r->tokens[0] = k->first_largest(VOCABULARY, n->x, &row.largest);
    k->gumbel(VOCABULARY, keys, r->noise[0]);
    k->gumbel_of_tokens(TOKENS, some, keys, r->noise[1]);
    for (int i = 0; i < TOKENS; i++) r->noise[2][TOKENS + i] = 1.0f / (float)(2 + i * i);
    k->gumbel_of(TOKENS, r->noise[2] + TOKENS, r->noise[2]);
    r->least = k->least_weight(&row, 40, 0.9, n->spare);
    r->tokens[1] = k->most_likely(&row, LIKELY, r->tokens + 3, r->scores + 2);
    r->tokens[2] = k->draw(&row, keys, &r->scores[0]);
    row.least = r->least;
    k->log_weights(&row, r->weights);
    r->scores[1] = row.largest;
}

/* Keys and values of a cache, or fixed ones, which need no more room. */
static void fill_cache(numbers *n, int type, uint32_t *state) {
    uint8_t *both[] = {n->keys, n->values};
    for (int i = 0; i < 2; i++) {
        uint8_t *at = both[i], *end = at + NUMBERS * 4;
        while (at < end) {
            if (type == OUTRIDER_CACHE_I8)
                *at++ = (uint8_t)next_random(state);
            else
                at = write_number(at, type == OUTRIDER_CACHE_F32 ? 4 : 2, 0x3f00, state);
        }
    }
}

/* Two rows over two chunks, one of them on a path of a tree. */
static void try_attention(const kernels *k, numbers *n, int type, int32_t head_dim, int fixed, results *r) {
    static const int32_t table[] = {2, 0, 1}, path[] = {KEYS - 3, KEYS - 1};
    const key_range ranges[ROWS] = {{KEYS, fixed ? 0 : WINDOW, KEYS, path},
                                    {KEYS - 1, fixed ? 0 : WINDOW, fixed ? KEYS - 1 : KEYS - 3, path}};
    void *keys = n->keys, *values = n->values;
    float *scales = n->scales;
    outrider_cache cache = {.type = type, .block = CACHE_ROWS / 3, .rows = fixed ? 2 * CHUNK : CACHE_ROWS, .layers = 1,
                            .kv_heads = fixed ? 1 : KV_HEADS, .head_dim = head_dim, .keys = &keys, .values = &values,
                            .key_scales = &scales, .value_scales = &scales};
    struct attention_task task = {.cache = &cache, .table = table, .kv_heads = cache.kv_heads,
                                  .kv_head = cache.kv_heads - 1, .group = GROUP, .head_dim = head_dim, .value_dim = head_dim,
                                  .scale = 0.1f,
                                  .cap = type == OUTRIDER_CACHE_I8 ? 5.0f : 0.0f, .rows = ROWS, .range = ranges,
                                  .q_stride = GROUP * DIM, .q = n->q, .last_chunk = 2, .fixed = fixed,
                                  .result = r->attended};
    k->attend(&task, n->scratch);
    k->merge(head_dim, r->attended, r->attended + 2 + head_dim);
}

int try_rows(const kernels *k) {
    static const struct { int type, head_dim, fixed; } caches[] = {
        {OUTRIDER_CACHE_F32, 40, 0}, {OUTRIDER_CACHE_BF16, 64, 0}, {OUTRIDER_CACHE_BF16, 40, 0},
        {OUTRIDER_CACHE_I8, 40, 0},  {OUTRIDER_CACHE_BF16, 64, 1}, {OUTRIDER_CACHE_F32, 40, 1}};
    numbers *n = allocate_aligned(64, (sizeof *n + 63) / 64 * 64);
    if (!n) return OUTRIDER_ISA_UNTRIED;
    memset(n, 0, sizeof *n);
    uint32_t state = 1;
    for (int i = 0; i < VOCABULARY; i++) n->x[i] = random_float(&state), n->y[i] = random_float(&state);
    for (int i = 0; i < HEADS * DIM; i++) n->q[i] = random_float(&state);
    for (int i = 0; i < CACHE_ROWS * KV_HEADS; i++) n->scales[i] = random_float(&state) * 0x1p-6f;
    try_row_kernels(&portable_kernels, n, &n->expected);
    try_row_kernels(k, n, &n->found);
    try_sampling(&portable_kernels, n, &n->expected);
    try_sampling(k, n, &n->found);
    try_recurrent(&portable_kernels, state, &n->expected.recurrent);
    try_recurrent(k, state, &n->found.recurrent);
    int equal = 1;
    for (size_t i = 0; i < sizeof caches / sizeof *caches && equal; i++) {
        fill_cache(n, caches[i].type, &state);
        try_attention(&portable_kernels, n, caches[i].type, caches[i].head_dim, caches[i].fixed, &n->expected);
        try_attention(k, n, caches[i].type, caches[i].head_dim, caches[i].fixed, &n->found);
        equal = !memcmp(&n->expected, &n->found, sizeof n->found);
    }
    free_aligned(n);
    return equal ? OUTRIDER_ISA_WORKS : OUTRIDER_ISA_DIFFERS;
}
