/* Feeds random types, sizes and bytes to the packing of weights; a sanitizer watches what it reads and writes.
 *
 *     make fuzz-native FUZZ_SECONDS=600
 *     fuzz_pack SECONDS [SEED]
 *
 * Every buffer is allocated at exactly the size that is announced. Whatever packs must read back as finite numbers.
 */
#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pack.h"

enum { MOST_ROWS = 40, MOST_BLOCKS = 5, STATUSES = 20 };

static uint64_t state;

static uint64_t next_random(void) { /* xorshift64* (Marsaglia; Vigna) */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
}

static int64_t below(int64_t limit) { return (int64_t)(next_random() % (uint64_t)limit); }

/* ``tame`` bytes make no infinite scales, in any format. */
static uint8_t *random_bytes(int64_t size, int tame) {
    uint8_t *bytes = malloc(size ? (size_t)size : 1);
    if (!bytes) abort();
    for (int64_t i = 0; i < size; i++) bytes[i] = (uint8_t)(next_random() >> 32) & (tame ? 0xbf : 0xff);
    return bytes;
}

typedef struct {
    int32_t type;
    int64_t inputs, bytes; /* of a block */
    int64_t grid_bytes;
} file_type;

static const file_type types[] = {
    {OUTRIDER_FILE_F32, 1, 4, 0},         {OUTRIDER_FILE_F16, 1, 2, 0},          {OUTRIDER_FILE_BF16, 1, 2, 0},
    {OUTRIDER_FILE_Q4_0, 32, 18, 0},      {OUTRIDER_FILE_Q4_1, 32, 20, 0},       {OUTRIDER_FILE_Q5_0, 32, 22, 0},
    {OUTRIDER_FILE_Q5_1, 32, 24, 0},      {OUTRIDER_FILE_Q8_0, 32, 34, 0},       {OUTRIDER_FILE_Q2_K, 256, 84, 0},
    {OUTRIDER_FILE_Q3_K, 256, 110, 0},    {OUTRIDER_FILE_Q4_K, 256, 144, 0},     {OUTRIDER_FILE_Q5_K, 256, 176, 0},
    {OUTRIDER_FILE_Q6_K, 256, 210, 0},    {OUTRIDER_FILE_IQ4_NL, 32, 18, 0},     {OUTRIDER_FILE_IQ4_XS, 256, 136, 0},
    {OUTRIDER_FILE_TQ1_0, 256, 54, 0},    {OUTRIDER_FILE_TQ2_0, 256, 66, 0},     {OUTRIDER_FILE_MXFP4, 32, 17, 0},
    {OUTRIDER_FILE_NVFP4, 64, 36, 0},     {OUTRIDER_FILE_IQ1_S, 256, 50, 16384}, {OUTRIDER_FILE_IQ1_M, 256, 56, 16384},
    {OUTRIDER_FILE_IQ2_XXS, 256, 66, 2048}, {OUTRIDER_FILE_IQ2_XS, 256, 74, 4096},
    {OUTRIDER_FILE_IQ2_S, 256, 82, 8192}, {OUTRIDER_FILE_IQ3_XXS, 256, 98, 1024},
    {OUTRIDER_FILE_IQ3_S, 256, 110, 2048}, {OUTRIDER_FILE_Q1_0, 128, 18, 0},    {OUTRIDER_FILE_Q2_0, 64, 18, 0},
};

static int64_t strange_size(void) {
    static const int64_t sizes[] = {0, -1, 1, 15, 31, INT32_MAX, INT64_MAX, INT64_MIN, (int64_t)1 << 26, (int64_t)1 << 40};
    return sizes[below(sizeof sizes / sizeof sizes[0])];
}

/* Mostly a good source; one time in eight something about it is not. */
static void make_source(outrider_source *s) {
    file_type t = types[below(sizeof types / sizeof types[0])];
    memset(s, 0, sizeof *s);
    s->type = t.type;
    s->target = (int32_t)below(6);
    s->rows = s->outputs = 1 + below(MOST_ROWS);
    s->inputs = t.inputs == 1 ? 1 + below(100) : t.inputs * (1 + below(MOST_BLOCKS));
    s->data_bytes = s->rows * (s->inputs / t.inputs) * t.bytes;
    s->grid_bytes = t.grid_bytes;
    s->transposed = t.inputs == 1 && below(2);
    if (t.type == OUTRIDER_FILE_MXFP4 && below(2)) {
        s->scale_bytes = s->rows * (s->inputs / 32);
        s->data_bytes -= s->scale_bytes;
        s->scales = random_bytes(s->scale_bytes, 0);
    }
    for (int i = 0; i < 16; i++) s->values[i] = (int8_t)next_random();
    switch (below(8 * 10)) {
    case 0: s->type = (int32_t)below(64) - 8; break;
    case 1: s->target = (int32_t)strange_size(); break;
    case 2: s->rows = strange_size(); break;
    case 3: s->inputs = strange_size(); break;
    case 4: s->inputs += 1 + below(31); break;
    case 5: s->outputs = strange_size(); break;
    case 6: s->data_bytes = below(s->data_bytes + 1); break;
    case 7: s->grid_bytes = below(s->grid_bytes + 1); break;
    case 8: s->transposed = 1; break;
    case 9: s->rows = s->outputs = strange_size(), s->inputs = strange_size(); break;
    }
    s->data = random_bytes(s->data_bytes, below(4) != 0);
    s->grid = random_bytes(s->grid_bytes, 0);
}

static int64_t *make_order(outrider_source *s) {
    if (below(2)) return NULL;
    int64_t count = 1 + below(2 * MOST_ROWS), *order = malloc((size_t)count * sizeof *order);
    if (!order) abort();
    for (int64_t i = 0; i < count; i++) order[i] = s->rows > 0 ? below(s->rows) : 0;
    if (below(16) == 0) order[below(count)] = strange_size();
    s->outputs = count;
    return order;
}

static void check_rows(const outrider_weight *w) {
    int64_t ids[3] = {0, w->outputs - 1, below(w->outputs)}, wrong[2] = {w->outputs, -1};
    size_t count = 3 * (size_t)w->inputs;
    float *out = malloc(count * sizeof *out);
    if (!out || outrider_rows(w, 3, ids, out) != OUTRIDER_OK) abort();
    for (size_t i = 0; i < count; i++)
        if (!(out[i] - out[i] == 0.0f)) abort(); /* NaN or infinity */
    if (outrider_rows(w, 1, &wrong[below(2)], out) != OUTRIDER_BAD_ARGUMENT) abort();
    free(out);
}

/* Whether the checksum changes with one bit. */
static int tells_damage(uint8_t *part, int64_t bytes) {
    int64_t place = below(bytes);
    uint8_t bit = (uint8_t)(1 << below(8));
    uint64_t sums[2];
    if (outrider_checksum(part, bytes, &sums[0]) != OUTRIDER_OK) abort();
    part[place] ^= bit;
    if (outrider_checksum(part, bytes, &sums[1]) != OUTRIDER_OK) abort();
    part[place] ^= bit;
    return sums[0] != sums[1];
}

/* Two ranges of panels, each in memory of its own size; one time in 32 something about a range is wrong. */
static int pack_in_two(const outrider_source *s, outrider_weight *w, int64_t size) {
    int64_t count = size / w->panel_bytes, cut = below(count + 1), ends[3] = {0, cut, count};
    void *panels; /* on a cache line, as the library demands */
    if (posix_memalign(&panels, 64, (size_t)size)) abort();
    int status = OUTRIDER_OK;
    for (int i = 0; i < 2 && status == OUTRIDER_OK; i++) {
        int64_t first = ends[i], last = ends[i + 1], right = (last - first) * w->panel_bytes, told = right;
        if (first == last) continue;
        if (!below(32)) told = below(2 * size);
        if (!below(64)) first = strange_size();
        if (!below(64)) last = strange_size();
        uint8_t *part = malloc(told ? (size_t)told : 1);
        if (!part) abort();
        status = outrider_pack(s, first, last, part, told);
        if (status == OUTRIDER_OK && (last - first) * w->panel_bytes != told) abort();
        if (status == OUTRIDER_OK && told != right) status = OUTRIDER_BAD_SIZE; /* another range, as ours was strange */
        if (status == OUTRIDER_OK && !tells_damage(part, told)) abort();
        if (status == OUTRIDER_OK) memcpy((uint8_t *)panels + ends[i] * w->panel_bytes, part, (size_t)told);
        free(part);
    }
    w->panels = panels;
    if (status == OUTRIDER_OK) check_rows(w);
    free(panels);
    return status;
}

static int try_one(void) {
    outrider_source s;
    outrider_weight w;
    make_source(&s);
    int64_t *order = make_order(&s);
    s.order = order;
    int status = outrider_plan_weight(&s, &w);
    if (status == OUTRIDER_OK) {
        int64_t size = (w.outputs + 15) / 16 * w.panel_bytes;
        if (size <= 0 || size > 1 << 26) abort(); /* small sources make small weights */
        status = pack_in_two(&s, &w, size);
    }
    free((void *)s.data);
    free((void *)s.grid);
    free((void *)s.scales);
    free(order);
    return status;
}

int main(int argc, char **argv) {
    time_t end = time(NULL) + (argc > 1 ? atol(argv[1]) : 10);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    int64_t count = 0, by_status[STATUSES] = {0};
    printf("seed %" PRIu64 "\n", seed);
    fflush(stdout);
    state = seed * 2 + 1;
    while (count % 64 || time(NULL) < end) {
        int status = try_one();
        if (status < 0 || status >= STATUSES) abort();
        by_status[status]++, count++;
    }
    printf("%" PRId64 " tries", count);
    for (int i = 0; i < STATUSES; i++)
        if (by_status[i]) printf(", status %d: %" PRId64, i, by_status[i]);
    printf("\n");
    return 0;
}
