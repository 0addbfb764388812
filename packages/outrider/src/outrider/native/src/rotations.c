/* Tables of rotary positions, the same on every processor: no libm. */
#include "check.h"

/* pi / 2 in three parts, each the nearest double to what is left. */
#define HALF_PI_HIGH 1.5707963267948966
#define HALF_PI_MIDDLE 6.123233995736766e-17
#define HALF_PI_LOW -1.4973849048591833e-33
#define MOST_FREQUENCY 1e9 /* radians; a quadrant's number stays below 2^62 */
#define QUADRANTS 0.6366197723675814 /* in a radian */

/* On [-pi / 4, pi / 4], within one unit in the last place of a double: the polynomials of fdlibm (Sun, 1993). */
static double sine(double x) {
    double z = x * x, p = 1.58969099521155010221e-10;
    p = __builtin_fma(p, z, -2.50507602534068634195e-08);
    p = __builtin_fma(p, z, 2.75573137070700676789e-06);
    p = __builtin_fma(p, z, -1.98412698298579493134e-04);
    p = __builtin_fma(p, z, 8.33333333332248946124e-03);
    p = __builtin_fma(p, z, -1.66666666666666324348e-01);
    return __builtin_fma(p * z, x, x);
}

static double cosine(double x) {
    double z = x * x, p = -1.13596475577881948265e-11;
    p = __builtin_fma(p, z, 2.08757232129817482790e-09);
    p = __builtin_fma(p, z, -2.75573143513906633035e-07);
    p = __builtin_fma(p, z, 2.48015872894767294178e-05);
    p = __builtin_fma(p, z, -1.38888888888741095749e-03);
    p = __builtin_fma(p, z, 4.16666666666666019037e-02);
    return __builtin_fma(p * z, z, __builtin_fma(z, -0.5, 1.0));
}

OUTRIDER_API int outrider_rotations(int64_t positions, int64_t pairs, const double *frequencies, float *out) {
    if (positions < 0 || positions > INT32_MAX || pairs < 1 || pairs > MOST_WIDTH) return OUTRIDER_BAD_ARGUMENT;
    if (!is_array(frequencies, sizeof *frequencies) || (positions && !is_array(out, sizeof *out)))
        return OUTRIDER_BAD_ARGUMENT;
    for (int64_t i = 0; i < pairs; i++)
        if (!(frequencies[i] >= 0 && frequencies[i] <= MOST_FREQUENCY)) return OUTRIDER_BAD_ARGUMENT;
    for (int64_t p = 0; p < positions; p++, out += 2 * pairs)
        for (int64_t i = 0; i < pairs; i++) {
            double angle = (double)p * frequencies[i];
            int64_t quadrant = (int64_t)(angle * QUADRANTS + 0.5);
            double rest = __builtin_fma((double)-quadrant, HALF_PI_HIGH, angle);
            rest = __builtin_fma((double)-quadrant, HALF_PI_MIDDLE, rest);
            rest = __builtin_fma((double)-quadrant, HALF_PI_LOW, rest);
            double s = sine(rest), c = cosine(rest);
            /* Cosines a quarter turn apart; a sine is the cosine one quarter before. */
            double quarters[4] = {c, -s, -c, s};
            out[i] = (float)quarters[quadrant & 3];
            out[pairs + i] = (float)quarters[(quadrant + 3) & 3];
        }
    return OUTRIDER_OK;
}
