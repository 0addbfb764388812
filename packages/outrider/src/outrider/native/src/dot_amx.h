/* Products of a block with sixteen rows at once, by the tiles of AMX. Fewer rows use VNNI (dot_avx512.h).
 *
 *     activations  tile 1 or 3: [16 rows][group] int8
 *     weights      tile 2 or 4: [group / 4][16 outputs][4 inputs] uint8, as a block's codes lie in memory
 *     sums         tile 0: [16 rows][16 outputs] int32, exact
 */
#define MULTIPLIES_BLOCKS(count) ((count) == 16)

/* What ldtilecfg reads: a palette, then bytes of a row and rows of each tile. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

static const tile_shapes shapes = {1, 0, {0}, {64, 32, 64, 16, 64}, {16, 16, 8, 16, 4}};

FORCE_INLINE void multiply_block(const uint8_t *codes, lookup table, const int8_t *x, int64_t stride, const int first,
                                 const int steps, const int bits, const int has_table, const int count, isum *sums) {
    quad weights[8];
    (void)count;
    for (int s = 0; s < steps; s++) weights[s] = weights_of_step(codes, table, first + s, bits, has_table);
    __asm__ volatile("" : : "r"(weights) : "memory"); /* compilers may not know that the tile reads the weights */
    x += 4 * first;
    _tile_zero(0);
    if (steps == 8) {
        _tile_loadd(1, x, stride);
        _tile_loadd(2, weights, sizeof(quad));
        _tile_dpbsud(0, 1, 2);
    } else {
        _tile_loadd(3, x, stride);
        _tile_loadd(4, weights, sizeof(quad));
        _tile_dpbsud(0, 3, 4);
    }
    _tile_stored(0, sums, sizeof(isum));
}
