/* The codes of a block of 32 inputs, from bit planes to bytes; native.h draws the planes. A step is four inputs.
 *
 * A set has  quad_load, quad_bits, quad_or_bits, quad_lookup, quad_of_bytes  for the bytes of a step, [16 outputs][4].
 * The compiler knows the step and the number of bits.
 */
#include "panels.h"

FORCE_INLINE quad plane_of_step(const uint8_t *plane, const int s, const int bits) {
    const int steps = 8 / bits;
    return quad_bits(quad_load(plane + 64 * (s / steps)), bits * (s % steps), (1 << bits) - 1);
}

FORCE_INLINE quad codes_of_step(const uint8_t *codes, const int s, const int bits) {
    const int low = low_bits(bits), high = bits - low, steps = high ? 8 / high : 1;
    if (bits == 8) return quad_load(codes + 64 * s);
    if (bits == 1) return quad_bits(quad_load(codes), s - 1, 2);
    quad q = plane_of_step(codes, s, low);
    if (!high) return q;
    quad upper = quad_load(codes + 64 * low + 64 * (s / steps));
    return quad_or_bits(q, upper, high * (s % steps) - low, ((1 << high) - 1) << low);
}

/* What a set multiplies: codes of fewer than 8 bits as they are, others as values plus its WEIGHT_OFFSET. */
FORCE_INLINE quad weights_of_step(const uint8_t *codes, lookup table, const int s, const int bits, const int has_table) {
    quad q = codes_of_step(codes, s, bits);
    if (has_table) return quad_lookup(table, q);
    return bits == 8 ? quad_of_bytes(q) : q;
}
