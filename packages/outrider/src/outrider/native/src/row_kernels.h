/* What happens to one row between linear layers. Included once by each instruction set. */
#include "kernels.h"
#include "simd.h"

static inline int lanes_left(int64_t width, int64_t at) { return width - at < LANES ? (int)(width - at) : LANES; }

static void norm(int64_t width, const float *x, const float *weight, float eps, float *out) {
    vec squares = vec_set(0);
    for (int64_t i = 0; i < width; i += LANES) {
        vec v = vec_load_some(x + i, lanes_left(width, i));
        squares = vec_fma(v, v, squares);
    }
    float mean = sum_lanes(squares) / (float)width;
    vec inverse = vec_set(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec v = vec_mul(vec_load_some(x + i, n), inverse);
        vec_store_some(out + i, vec_mul(v, vec_load_some(weight + i, n)), n);
    }
}

static void add(int64_t width, float *x, const float *y) {
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec_store_some(x + i, vec_add(vec_load_some(x + i, n), vec_load_some(y + i, n)), n);
    }
}

/* silu(g) = g / (1 + exp(-g)). From -g = 88 on exp grows no more: silu is then below 1e-36 of g. */
static void silu_mul(int64_t width, float *gate, const float *up) {
    vec one = vec_set(1.0f), zero = vec_set(0), least = vec_set(-88.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec g = vec_load_some(gate + i, n);
        vec silu = vec_div(g, vec_add(one, vec_exp(vec_sub(zero, vec_max(least, g))))); /* NaN stays: see vec_max */
        vec_store_some(gate + i, vec_mul(silu, vec_load_some(up + i, n)), n);
    }
}

/* gelu(g) = g / (1 + exp(-2 u)), u = sqrt(2 / pi) (g + 0.044715 g^3): by tanh, as tanh(u) = 2 / (1 + exp(-2 u)) - 1. */
static void gelu_mul(int64_t width, float *gate, const float *up) {
    vec one = vec_set(1.0f), zero = vec_set(0), least = vec_set(-88.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec g = vec_load_some(gate + i, n);
        vec twice = vec_mul(vec_mul(g, vec_set(1.59576912f)), vec_fma(vec_mul(g, g), vec_set(0.044715f), one));
        vec gelu = vec_div(g, vec_add(one, vec_exp(vec_sub(zero, vec_max(least, twice)))));
        vec_store_some(gate + i, up ? vec_mul(gelu, vec_load_some(up + i, n)) : gelu, n);
    }
}

/* By silu's sigmoid; a number that is none stays one, as vec_max gives its second argument then. */
static void clamped_swiglu(int64_t width, float *gate, const float *up, float alpha, float limit) {
    vec one = vec_set(1.0f), zero = vec_set(0), least = vec_set(-88.0f), low = vec_set(-limit);
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec g = vec_sub(zero, vec_max(low, vec_sub(zero, vec_load_some(gate + i, n))));
        vec u = vec_sub(zero, vec_max(low, vec_sub(zero, vec_max(low, vec_load_some(up + i, n)))));
        vec steep = vec_max(least, vec_mul(g, vec_set(alpha)));
        vec swish = vec_div(g, vec_add(one, vec_exp(vec_sub(zero, steep))));
        vec_store_some(gate + i, vec_mul(vec_add(u, one), swish), n);
    }
}

static void cap(int64_t width, float *x, float scale, float most) {
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec_store_some(x + i, capped(vec_mul(vec_load_some(x + i, n), vec_set(scale)), most), n);
    }
}

/* 1 / (1 + exp(-g)), as silu has it. */
static void sigmoid_mul(int64_t width, float *x, const float *gate) {
    vec one = vec_set(1.0f), zero = vec_set(0), least = vec_set(-88.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec g = vec_max(least, vec_load_some(gate + i, n)); /* NaN stays: see vec_max */
        vec_store_some(x + i, vec_div(vec_load_some(x + i, n), vec_add(one, vec_exp(vec_sub(zero, g)))), n);
    }
}

static float dot(int64_t width, const float *x, const float *y) {
    vec sum = vec_set(0);
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        sum = vec_fma(vec_load_some(x + i, n), vec_load_some(y + i, n), sum);
    }
    return sum_lanes(sum);
}

/* Lanes beyond the row are zeros when they are read: they must neither be the largest nor be added. */
static void softmax(int64_t width, float *x) {
    float most = x[0];
    for (int64_t i = 1; i < width; i++) most = x[i] > most ? x[i] : most;
    vec sum = vec_set(0);
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec_store_some(x + i, vec_exp(vec_sub(vec_load_some(x + i, n), vec_set(most))), n);
        sum = vec_add(sum, vec_load_some(x + i, n));
    }
    vec total = vec_set(sum_lanes(sum));
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec_store_some(x + i, vec_div(vec_load_some(x + i, n), total), n);
    }
}

static void layer_norm(int64_t width, const float *x, const float *weight, const float *bias, float eps, float *out) {
    vec total = vec_set(0), squares = vec_set(0);
    for (int64_t i = 0; i < width; i += LANES) total = vec_add(total, vec_load_some(x + i, lanes_left(width, i)));
    vec mean = vec_set(sum_lanes(total) / (float)width);
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec_store_some(out + i, vec_sub(vec_load_some(x + i, n), mean), n);
        vec v = vec_load_some(out + i, n);
        squares = vec_fma(v, v, squares);
    }
    vec inverse = vec_set(1.0f / __builtin_sqrtf(sum_lanes(squares) / (float)width + eps));
    for (int64_t i = 0; i < width; i += LANES) {
        int n = lanes_left(width, i);
        vec v = vec_mul(vec_load_some(out + i, n), inverse);
        vec_store_some(out + i, vec_fma(v, vec_load_some(weight + i, n), vec_load_some(bias + i, n)), n);
    }
}

static void rotate(int64_t head_dim, float *x, const float *rotation, const float *weight, float eps) {
    int64_t half = head_dim / 2;
    if (weight) norm(head_dim, x, weight, eps, x);
    if (!rotation) return;
    for (int64_t i = 0; i < half; i += LANES) {
        int n = lanes_left(half, i);
        vec a = vec_load_some(x + i, n), b = vec_load_some(x + half + i, n);
        vec cosine = vec_load_some(rotation + i, n), sine = vec_load_some(rotation + half + i, n);
        vec_store_some(x + i, vec_sub(vec_mul(a, cosine), vec_mul(b, sine)), n);
        vec_store_some(x + half + i, vec_fma(a, sine, vec_mul(b, cosine)), n);
    }
}

static void store_bf16(int64_t count, const float *x, uint16_t *row) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) vec_store_bf16(row + i, vec_load(x + i));
    for (; i < count; i++) row[i] = float_to_bf16(x[i]);
}

/* Numbers of one head by their largest magnitude / 127. Infinity and NaN make the scale NaN. */
static void store_i8(int64_t head_dim, const float *x, int8_t *row, float *scale) {
    vec most = vec_set(0), zero = vec_set(0), spoilt = zero;
    for (int64_t i = 0; i < head_dim; i += LANES) {
        vec v = vec_load_some(x + i, lanes_left(head_dim, i));
        most = vec_max(vec_abs(v), most);
        spoilt = vec_fma(v, zero, spoilt);
    }
    float largest = max_lanes(most);
    *scale = largest / 127.0f + sum_lanes(spoilt);
    vec inverse = vec_set(largest > 1e-36f ? 127.0f / largest : 0.0f);
    for (int64_t i = 0; i < head_dim; i += LANES) {
        int n = lanes_left(head_dim, i);
        int8_t codes[LANES];
        vec_store_i8(codes, vec_mul(vec_load_some(x + i, n), inverse));
        memcpy(row + i, codes, (size_t)n);
    }
}

static void store(int32_t type, int64_t kv_heads, int64_t head_dim, const float *x, void *row, float *scales) {
    int64_t count = kv_heads * head_dim;
    if (type == OUTRIDER_CACHE_F32)
        memcpy(row, x, (size_t)count * sizeof(float));
    else if (type == OUTRIDER_CACHE_BF16)
        store_bf16(count, x, row);
    else
        for (int64_t h = 0; h < kv_heads; h++)
            store_i8(head_dim, x + h * head_dim, (int8_t *)row + h * head_dim, scales + h);
}

#define ROW_KERNELS norm, layer_norm, add, silu_mul, gelu_mul, clamped_swiglu, cap, sigmoid_mul, dot, softmax, rotate, store
