/* Sixteen lanes to one number, in the order of simd.h, without a detour over memory. */

#if defined(ISA_AVX512)
static inline __m256 lower_eight(vec v) { return _mm512_castps512_ps256(v); }
static inline __m256 upper_eight(vec v) { return _mm512_extractf32x8_ps(v, 1); }
#else
static inline __m256 lower_eight(vec v) { return v.low; }
static inline __m256 upper_eight(vec v) { return v.high; }
#endif

/* Upper halves onto lower ones; where one is NaN, the second argument of a maximum stays, as in C. */
#define FOLD(name, operation)                                                                                         \
    static inline float name(vec v) {                                                                                 \
        __m256 eight = _mm256_##operation##_ps(upper_eight(v), lower_eight(v));                                       \
        __m128 four = _mm_##operation##_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));           \
        four = _mm_##operation##_ps(_mm_movehl_ps(four, four), four);                                                 \
        return _mm_cvtss_f32(_mm_##operation##_ss(_mm_movehdup_ps(four), four));                                      \
    }
FOLD(sum_lanes, add)
FOLD(max_lanes, max)
#undef FOLD
