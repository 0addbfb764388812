/* The tile instructions of AMX in C, for processors that have AVX-512 with VNNI but no AMX.
 *
 * A test build puts this file before isa_amx.c (-include), whose instructions then are these functions. They follow
 * the operations in Intel's Architectures Software Developer's Manual, volume 2: a tile has as many rows and bytes of a
 * row as the configuration says, a load writes zeros behind them, and what the processor would fault on ends the
 * program. It is a model of the manual. It says nothing of speed, nor of the operating system's part.
 */
#if defined(__AMX_TILE__)
#define _GNU_SOURCE /* as isa_amx.c has it */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "processor.h"

#define MODEL_TILES 8
#define MODEL_ROWS 16
#define MODEL_ROW_BYTES 64

/* As ldtilecfg reads it. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} model_configuration;

static _Thread_local model_configuration model;
static _Thread_local uint8_t model_tile[MODEL_TILES][MODEL_ROWS][MODEL_ROW_BYTES];

static inline void model_require(int holds, const char *rule) {
    if (holds) return;
    fprintf(stderr, "a tile instruction would fault: %s\n", rule);
    abort();
}

static inline void model_release(void) {
    memset(&model, 0, sizeof model);
    memset(model_tile, 0, sizeof model_tile);
}

static inline void model_configure(const void *from) {
    model_configuration c;
    memcpy(&c, from, sizeof c);
    int fits = 1, zeros = 1;
    for (int i = 0; i < 16; i++) {
        fits &= c.row_bytes[i] <= (i < MODEL_TILES ? MODEL_ROW_BYTES : 0) && c.rows[i] <= (i < MODEL_TILES ? MODEL_ROWS : 0);
        fits &= !c.row_bytes[i] == !c.rows[i];
    }
    for (int i = 0; i < 14; i++) zeros &= c.reserved[i] == 0;
    model_require(c.palette == 1 && c.start_row == 0 && zeros, "palette 1, and zeros in reserved bytes");
    model_require(fits, "a tile has at most 16 rows of 64 bytes");
    memset(model_tile, 0, sizeof model_tile);
    model = c;
}

static inline void model_known(int tile) {
    model_require(model.palette == 1, "tiles are configured");
    model_require(model.rows[tile] > 0, "the tile is configured");
}

static inline void model_zero(int tile) {
    model_known(tile);
    memset(model_tile[tile], 0, sizeof model_tile[tile]);
}

static inline void model_load(int tile, const void *from, int64_t stride) {
    model_zero(tile);
    for (int r = 0; r < model.rows[tile]; r++)
        memcpy(model_tile[tile][r], (const char *)from + r * stride, model.row_bytes[tile]);
}

static inline void model_store(int tile, void *to, int64_t stride) {
    model_known(tile);
    for (int r = 0; r < model.rows[tile]; r++)
        memcpy((char *)to + r * stride, model_tile[tile][r], model.row_bytes[tile]);
}

/* TDPBSUD: signed bytes of ``a`` times unsigned bytes of ``b``, four products to a 32-bit sum that wraps. */
static inline void model_multiply(int sum, int a, int b) {
    model_known(sum), model_known(a), model_known(b);
    model_require(sum != a && sum != b && a != b, "three different tiles");
    model_require(model.rows[sum] == model.rows[a] && model.row_bytes[sum] == model.row_bytes[b] &&
                      model.row_bytes[a] == 4 * model.rows[b] && model.row_bytes[sum] % 4 == 0,
                  "the shapes of a product");
    for (int m = 0; m < model.rows[sum]; m++)
        for (int k = 0; k < model.row_bytes[a] / 4; k++)
            for (int n = 0; n < model.row_bytes[sum] / 4; n++) {
                uint32_t all;
                memcpy(&all, model_tile[sum][m] + 4 * n, 4);
                for (int i = 0; i < 4; i++)
                    all += (uint32_t)((int8_t)model_tile[a][m][4 * k + i] * model_tile[b][k][4 * n + i]);
                memcpy(model_tile[sum][m] + 4 * n, &all, 4);
            }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig model_configure
#define _tile_release model_release
#define _tile_zero model_zero
#define _tile_loadd model_load
#define _tile_stored model_store
#define _tile_dpbsud model_multiply

/* The processor and the system say yes. */
#define has_amx has_avx512
#define syscall(...) 0
#endif
