/* Products of a block with pairs of rows, by Arm's matrix instructions: 2 rows x 8 inputs times 8 inputs x 2 outputs.
 * An odd number of rows uses the dot products of dot_neon.h.
 */
#define MULTIPLIES_BLOCKS(count) ((count) % 2 == 0)

typedef struct {
    int8x16_t part[8];
} pair_quad; /* [16 outputs][8 inputs] */

static inline pair_quad join_quads(quad first, quad second) {
    pair_quad both;
    EACH_PART {
        int32x4_t a = vreinterpretq_s32_u8(first.part[i]), b = vreinterpretq_s32_u8(second.part[i]);
        both.part[2 * i] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
        both.part[2 * i + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    }
    return both;
}

/* Two rows; each register of sums holds two outputs of the first row, then the same of the second. */
FORCE_INLINE void multiply_pair(const pair_quad *weights, const int8_t *x, int64_t stride, const int steps, isum *sums) {
    int32x4_t both[8];
    for (int i = 0; i < 8; i++) both[i] = vdupq_n_s32(0);
    for (int s = 0; s < steps / 2; s++) {
        int8x16_t rows = vcombine_s8(vld1_s8(x + 8 * s), vld1_s8(x + stride + 8 * s));
        for (int i = 0; i < 8; i++) both[i] = vmmlaq_s32(both[i], rows, weights[s].part[i]);
    }
    EACH_PART {
        int64x2_t a = vreinterpretq_s64_s32(both[2 * i]), b = vreinterpretq_s64_s32(both[2 * i + 1]);
        sums[0].part[i] = vreinterpretq_s32_s64(vzip1q_s64(a, b));
        sums[1].part[i] = vreinterpretq_s32_s64(vzip2q_s64(a, b));
    }
}

FORCE_INLINE void multiply_block(const uint8_t *codes, lookup table, const int8_t *x, int64_t stride, const int first,
                                 const int steps, const int bits, const int has_table, const int count, isum *sums) {
    pair_quad joined[4];
    for (int s = 0; s < steps / 2; s++)
        joined[s] = join_quads(weights_of_step(codes, table, first + 2 * s, bits, has_table),
                               weights_of_step(codes, table, first + 2 * s + 1, bits, has_table));
    for (int r = 0; r < count; r += 2)
        multiply_pair(joined, x + 4 * first + r * stride, stride, steps, sums + r);
}
