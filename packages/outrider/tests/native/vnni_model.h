/* The dot product of AVX-VNNI in C, for processors that have AVX2 alone.
 *
 * A test build puts this file before isa_avxvnni.c (-include). VPDPBUSD in Intel's Architectures Software Developer's
 * Manual, volume 2: four products of unsigned and signed bytes are added to a 32-bit sum that wraps.
 */
#if defined(__AVXVNNI__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "processor.h"

static inline __m256i model_dot_products(__m256i sum, __m256i a, __m256i b) {
    uint32_t sums[8];
    uint8_t unsigned_bytes[32];
    int8_t signed_bytes[32];
    memcpy(sums, &sum, sizeof sums);
    memcpy(unsigned_bytes, &a, sizeof unsigned_bytes);
    memcpy(signed_bytes, &b, sizeof signed_bytes);
    for (int i = 0; i < 32; i++) sums[i / 4] += (uint32_t)(unsigned_bytes[i] * signed_bytes[i]);
    memcpy(&sum, sums, sizeof sums);
    return sum;
}

#undef _mm256_dpbusd_avx_epi32
#define _mm256_dpbusd_avx_epi32 model_dot_products

/* The processor says yes. */
#define has_avxvnni has_avx2
#endif
