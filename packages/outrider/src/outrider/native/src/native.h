/* Outrider's native library: a forward pass of a model on a CPU: Llama, and what other families do otherwise.
 *
 * Every function gives the same bits for a row whatever its company, the number of threads and the instruction set:
 * sums inside a group of weights are exact integers, and every floating-point operation is written out in one order.
 * docs/native.md explains the layouts and the orders.
 *
 * Matrices are row-major. No function keeps a pointer after it returns. The library has no state of its own: what lasts
 * from one call to the next belongs to a context.
 */
#ifndef OUTRIDER_NATIVE_H
#define OUTRIDER_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define OUTRIDER_ABI 26 /* counts up with every change of a struct or a signature below */

#if defined(_WIN32)
#define OUTRIDER_API __declspec(dllexport)
#else
#define OUTRIDER_API __attribute__((visibility("default")))
#endif

/* ---- Contexts ------------------------------------------------------------------------------------------------- */

/* An instruction set, threads and scratch memory. Contexts know nothing of each other, and several can be used at once.
 * One call at a time uses a context's threads and memory, others wait for it. */
typedef struct outrider_context outrider_context;

enum outrider_isa_state {
    OUTRIDER_ISA_ABSENT = 0,   /* the library or the processor does not have it */
    OUTRIDER_ISA_WORKS = 1,
    OUTRIDER_ISA_DIFFERS = 2,  /* it gives other bits than the portable one: it must not be used */
    OUTRIDER_ISA_UNTRIED = 3   /* no memory to try it with */
};

/* Instruction sets: "portable", "avx2", "avxvnni", "avx512", "amx", "neon", "i8mm". Tries one, in a
 * millisecond or two. */
OUTRIDER_API int outrider_isa_state(const char *name);

/* Threads from 1 to 256, the caller's included; fewer are started where the system has no more. ``isa``: one that
 * works. OUTRIDER_BAD_ARGUMENT if there is no such set, or the processor does not have it. */
OUTRIDER_API int outrider_create(int threads, const char *isa, outrider_context **context);

/* Ends the threads, and frees all memory. No call may be using the context. */
OUTRIDER_API int outrider_destroy(outrider_context *context);

OUTRIDER_API int outrider_threads(const outrider_context *context);     /* 0: it is none */
OUTRIDER_API const char *outrider_isa(const outrider_context *context); /* NULL: it is none */

/* Times that the threads have shared out work, and waited for its end, since they were started; 0: it is none. */
OUTRIDER_API int64_t outrider_syncs(outrider_context *context);

/* ---- Weights ------------------------------------------------------------------------------------------------- */

enum outrider_layout {
    OUTRIDER_F32 = 0,  /* panel: [inputs][16] float */
    OUTRIDER_BF16 = 1, /* panel: [inputs][16] bfloat16 */
    OUTRIDER_F16 = 2,  /* panel: [inputs][16] float16 */
    OUTRIDER_CODES = 3 /* panel: scales of groups of inputs, and integer codes */
};

/* How the scales and minima of groups are stored. A super-block of several groups has a float16 for each output; with
 * K-quants it is multiplied by a small integer of each group: that product is exact in float32. */
enum outrider_scales {
    OUTRIDER_SCALES_F16 = 0,       /* each group: scales [16] float16; minima [16] float16 */
    OUTRIDER_SCALES_BLOCK_F16 = 1, /* each super-block: scales [16] float16, of all its groups */
    OUTRIDER_SCALES_I8 = 2,        /* each super-block: d [16] float16; then for each group: [16] int8 */
    OUTRIDER_SCALES_U8 = 3,        /* each super-block: d [16], least [16] float16; each group: [16] uint8, minima [16] */
    OUTRIDER_SCALES_U4 = 4,        /* the same with both in a byte [16]: scale in the low half, minimum in the high */
    OUTRIDER_SCALES_E8M0 = 5,      /* each group: [16] bytes e, for 2^(e - 128) */
    OUTRIDER_SCALES_E4M3 = 6       /* each group: [16] bytes, for half of an unsigned E4M3 number */
};

/* A matrix [outputs, inputs], cut into panels of 16 outputs; missing outputs and inputs are zero.
 *
 * A panel of OUTRIDER_CODES has a block for each 32 inputs, in runs of 16: the run's scales as ``scales`` says, zeros
 * up to a multiple of 64 bytes, and then its blocks. The last run may have fewer. A block is one bit plane or two, the lower bits first, and a plane of b bits is
 *
 *     [b / 8 * 8][16][4]    byte [v][o][i]: b bits of input 4 s + i of output o for each s = v * 8 / b + k, at bit b k
 *
 * with planes of 1, 2, 4, 2 + 1, 4 + 1, 4 + 2 and 8 bits. A single bit stands for code 0 or 2. A number is  scale * value + minimum,  where
 *
 *     value = code + first, or values[code] with has_table
 *     scale = d * unit * (the group's integer),  minimum = - least * (the group's integer);  or as stored
 */
typedef struct {
    int32_t layout;
    int32_t bits;        /* of a code: 1 to 6, or 8 */
    int32_t group;       /* inputs per scale: 16 or 32 */
    int32_t scales;      /* enum outrider_scales */
    int32_t has_minimum;
    int32_t has_table;   /* with 4 bits */
    int32_t first;       /* the value of code 0; with 8 bits -128 */
    float unit;          /* a power of two, for OUTRIDER_SCALES_I8 */
    int32_t super_block; /* its inputs: 64, 128 or 256; 0: none */
    int32_t reserved;
    int64_t outputs;
    int64_t inputs;      /* as the matrix has them; with super-blocks a multiple of theirs */
    int64_t groups;      /* OUTRIDER_CODES: groups a panel holds, ceil(inputs / 32) * 32 / group */
    int64_t panel_bytes;
    const uint8_t *panels; /* aligned to 64 bytes */
    const float *bias;     /* [outputs], or NULL */
    int8_t values[16];     /* has_table: what each code stands for */
} outrider_weight;

/* Bytes of a panel of ``weight``, by its layout, bits, group, scales, has_minimum, super_block and inputs; 0 if there is no such
 * layout. */
OUTRIDER_API int64_t outrider_panel_bytes(const outrider_weight *weight);

/* y = x W' + bias. x: [rows, inputs], y: [rows, outputs]. Quantised layouts round x to 8 bits by groups of 32. */
OUTRIDER_API int outrider_linear(outrider_context *context, const outrider_weight *weight, int64_t rows,
                                 const float *x, float *y);

/* Rows ``ids`` of a matrix, as numbers: out [count, inputs]. */
OUTRIDER_API int outrider_rows(const outrider_weight *weight, int64_t count, const int64_t *ids, float *out);

/* ---- A model and its cache ------------------------------------------------------------------------------------ */

/* Two linear layers with an activation between them. Without ``up`` (panels of NULL) nothing gates. */
typedef struct {
    outrider_weight gate, up, down;
} outrider_mlp;

/* Norms: RMS norm by a weight [hidden]; with a bias, layer norm. A block whose norm is NULL reads x as it is. */
typedef struct {
    const float *weight, *bias;
} outrider_norm_weights;

enum outrider_recurrence {
    OUTRIDER_DELTA = 0,             /* Gated DeltaNet (Yang et al. 2024) */
    OUTRIDER_SHORT_CONVOLUTION = 1, /* a gated convolution and no state: one key head of no dimension, one value head */
    OUTRIDER_MAMBA2 = 2             /* Mamba-2 (Dao and Gu 2024) */
};

/* A recurrent layer, in place of a layer's attention; all of a model are of one kind. See docs/hybrid.md.
 *
 * The channels of a row are its queries and keys [key_heads, key_dim], and its values [value_heads, value_dim]. Value
 * head h belongs to key head  h / (value_heads / key_heads). */
typedef struct {
    outrider_weight qkv;  /* [channels, hidden]; of a short convolution [3 * channels, hidden]: a factor of the values,
                             the gate of the output, and the values */
    outrider_weight z;    /* [value_heads * value_dim, hidden]: the gate of the output */
    outrider_weight a, b; /* [value_heads, hidden]: how much is kept, and how much is written; Mamba-2 has no b */
    outrider_weight out;  /* [hidden, value_heads * value_dim] */
    int32_t key_heads, value_heads, key_dim, value_dim;
    int32_t convolution; /* rows that a channel's convolution reads, 2 to 8 */
    int32_t tiled;       /* value head h belongs to key head  h % key_heads  instead */
    int32_t kind, reserved; /* kind: enum outrider_recurrence */
    const float *taps;      /* [convolution][channels], the last of them for the row itself */
    const float *taps_bias; /* [channels], or NULL */
    const float *decay;     /* [value_heads]: -exp(A_log) */
    const float *dt_bias;   /* [value_heads] */
    const float *skip;      /* [value_heads], of Mamba-2: times the value, added to the output */
    const float *norm;      /* [value_dim], of Mamba-2 [value_heads * value_dim] */
} outrider_recurrent;

/* What a token's own embedding of a layer adds behind the layer's MLP (Gemma 4): x += norm(out (activation(gate x) * e))
 * with e of ``layer_inputs`` numbers. */
typedef struct {
    outrider_weight gate; /* [layer_inputs, hidden] */
    outrider_weight out;  /* [hidden, layer_inputs] */
    const float *norm;    /* [hidden] */
} outrider_layer_input;

/* Experts beside the layer's MLP (Gemma 4). Router and experts read the residual stream, by norms of their own. What the
 * MLP gives and what the experts give are normed, added, and then go on as the output of an MLP does. */
typedef struct {
    const float *router_norm, *expert_norm;              /* [hidden]: of what they read */
    const float *mlp_output_norm, *expert_output_norm;   /* [hidden]: of what they give */
    const float *expert_scale;                           /* [experts]: factors of the weights of those used */
} outrider_beside;

/* Attention on latents (multi-head latent attention, DeepSeek-V2), in place of a layer's q, k, v and out.
 *
 * A row's latent, [rank], and one key part for all heads, [rotated], are what the cache has of it: head_dim is the sum of
 * both, and kv_heads 1. A head's query has ``plain`` numbers, and behind them ``rotated`` ones. */
typedef struct {
    outrider_weight q_a;  /* [query_rank, hidden]; unused if query_rank is 0 */
    outrider_weight q_b;  /* [heads * (plain + rotated), query_rank, or hidden if that is 0] */
    outrider_weight kv_a; /* [rank + rotated, hidden] */
    outrider_weight k_b;  /* [heads * rank, plain] */
    outrider_weight v_b;  /* [heads * value_dim, rank] */
    outrider_weight out;  /* [hidden, heads * value_dim] */
    int32_t query_rank, rank, plain, rotated, value_dim; /* rank and value_dim: multiples of 16 */
    float eps;               /* of the norms of latents */
    const float *query_norm; /* [query_rank] */
    const float *norm;       /* [rank] */
} outrider_latent;

/* What a layer is without: of these it has nothing, norms included. */
enum outrider_lack { OUTRIDER_LACKS_NOTHING = 0, OUTRIDER_LACKS_MIXER = 1, OUTRIDER_LACKS_MLP = 2 };

enum outrider_router { OUTRIDER_SOFTMAX = 0, OUTRIDER_SIGMOID = 1, OUTRIDER_SOFTMAX_OF_USED = 2 };

/* How a router's numbers choose a row's experts and become their weights: by default its softmax does both.
 *
 * Scores are the softmax or the sigmoid of the numbers; chosen are the experts with the best scores, bias included. With
 * OUTRIDER_SOFTMAX_OF_USED those with the best numbers are chosen, and their softmax is over them alone. A weight is the
 * score without bias; normalised, over the larger of  sum + sum_added  and least_sum; then times scale. */
typedef struct {
    int32_t kind;
    int32_t scales_inputs;       /* the weight is of an expert's input, not of its output */
    int32_t groups, groups_used; /* only the best groups of experts that stand together are chosen from; 0: from all */
    int32_t best_of_group;       /* 1 or 2: experts whose scores' sum is their group's */
    float sum_added, least_sum, scale;
    const float *bias;      /* [experts], of OUTRIDER_SOFTMAX and OUTRIDER_SIGMOID; or NULL */
} outrider_routing;

typedef struct {
    outrider_weight q, k, v, out; /* unused if the layer is recurrent, or attends to latents; k and v too if it ``reads``,
                                     and v if values_are_keys */
    outrider_mlp mlp;                               /* unused if there are experts */
    outrider_norm_weights attention_norm, mlp_norm; /* of what a block reads */
    outrider_norm_weights attention_output_norm, mlp_output_norm; /* of what it adds */
    const float *q_norm, *k_norm; /* [head_dim], or of all heads together if whole_qk_norm; or NULL */
    const float *rotations;       /* [positions][2][head_dim / 2], of latents [positions][2][rotated / 2]: cosines, then
                                     sines; or NULL: nothing is rotated */
    int32_t window;               /* positions a row looks back at, itself included; 0: all */
    int32_t whole_qk_norm;
    /* A mixture of experts: each row goes through the experts_used that the router likes best, weighted by its softmax;
     * normalised: the weights of those used sum to 1. */
    int32_t experts, experts_used, normalised;
    int32_t gated; /* q has 2 * heads * head_dim outputs, of each head its query and then its gate: what the head has
                      attended to is multiplied by the sigmoid of the gate */
    outrider_weight router;       /* [experts, hidden] */
    const outrider_mlp *expert;   /* [experts] */
    const outrider_mlp *shared_expert; /* of every row, beside its experts; or NULL */
    const float *shared_expert_gate;   /* [hidden]: its weight is the sigmoid of their product; NULL: 1 */
    const outrider_routing *routing;     /* NULL: by softmax */
    const outrider_recurrent *recurrent; /* NULL: the layer attends */
    const outrider_latent *latent;       /* NULL: to keys and values */
    const float *embedding_norm; /* [hidden], or NULL. With it attention reads the row's embedding, normed by it, and
                                    behind that the normed x: q, k and v have 2 * hidden inputs (EAGLE-3) */
    const float *sinks; /* [heads]: a score of each head that takes part in the softmax and has no value; or NULL */
    int32_t kv_heads, head_dim; /* of this layer; 0: those of the model */
    int32_t reads;              /* the layer has no keys and values: it attends to those of layer ``reads`` - 1 of the
                                   cache; 0: it has its own */
    int32_t values_are_keys;    /* values are the keys before these are normed and rotated */
    const float *v_norm;        /* [head_dim]: of each head's values; or NULL */
    const outrider_layer_input *input; /* or NULL */
    const outrider_beside *beside;     /* the layer has an MLP, and experts beside it; NULL: one of them */
    const float *output_scale;         /* [1]: of the residual stream behind the layer; or NULL */
    const float *query_scales; /* [positions]: factors of queries, behind the rotation; or NULL: 1 */
    int32_t rotated_qk_norm;   /* q_norm and k_norm come behind the rotation */
    int32_t chunked;           /* the window begins at the last position that is a multiple of it */
    int32_t lacks;             /* enum outrider_lack; a mixer is attention, on latents or not, or recurrence */
    int32_t reserved;
} outrider_layer;

/* Gives every process what each of them has: ``own``, of ``bytes`` bytes, side by side in ``all`` [size][bytes]. With
 * first_only the first process alone reads ``all``. Not 0: a process is gone. The thread that called outrider_forward
 * calls it, at the same places of a pass in every process. */
typedef int outrider_gather(void *context, const void *own, void *all, int64_t bytes, int32_t first_only);

/* A process's share of a model: some outputs of every matrix, and the cache of some key heads.
 *
 * Process r has the outputs  bounds[r] .. bounds[r + 1] - 1  of what bounds [size + 1] are of. Each output is computed
 * as without a shard, from an input that is gathered whole, so that no bit depends on the number of processes.
 */
typedef struct {
    int32_t rank, size;
    int32_t group, reserved; /* query heads of a key head */
    const int64_t *key_heads, *hidden, *inner, *expert_inner, *vocabulary; /* bounds */
    outrider_gather *gather;
    void *context;
    int64_t gathers, bytes; /* counted up: calls, and bytes received by this process */
} outrider_shard;

/* Memory that the processes of one machine share, for outrider_shared_gather. Zeros at first, and then:
 *
 *     lost         [64]             byte 0: not 0 once a process is known to be gone
 *     epochs       [size][64]       int64: gathers that this process has written its part for
 *     slots        [2][size][slot_bytes]    parts of the gathers with even and with odd numbers
 */
typedef struct {
    int32_t rank, size;
    int64_t slot_bytes;
    uint8_t *memory;
    int64_t epoch; /* gathers done */
} outrider_shared;

/* An outrider_gather with an outrider_shared as its context. */
OUTRIDER_API int outrider_shared_gather(void *context, const void *own, void *all, int64_t bytes, int32_t first_only);

/* OUTRIDER_CLAMPED_SWIGLU: g sigmoid(swiglu_alpha g) (u + 1), where g is at most swiglu_limit and u within +- of it.
 * OUTRIDER_RELU_SQUARED: max(g, 0) squared, never with ``up``. */
enum outrider_activation {
    OUTRIDER_SILU = 0,
    OUTRIDER_GELU_TANH = 1,
    OUTRIDER_CLAMPED_SWIGLU = 2,
    OUTRIDER_RELU_SQUARED = 3
};

/* Scales and caps of 0 are off. With a shard, matrices and heads are those of this process, and inputs are given. */
typedef struct {
    int32_t layers, hidden, heads, kv_heads, head_dim, inner; /* inner: of the widest MLP */
    int32_t positions;       /* rows of every layer's ``rotations`` */
    int32_t activation;
    float eps;
    float embedding_scale, residual_scale, logit_scale; /* residual_scale: of what a block adds */
    float attention_scale;            /* of scores, in place of 1 / sqrt(head_dim) */
    float attention_cap, logit_cap;   /* s becomes cap * tanh(s / cap) */
    float swiglu_alpha, swiglu_limit;
    int32_t layer_inputs;             /* numbers of a token's embedding for each layer; 0: there are none */
    const outrider_layer *layer;
    outrider_norm_weights final_norm; /* NULL: the head reads x as it is */
    const outrider_weight *embedding; /* [vocabulary, hidden], or NULL: inputs are always given */
    const outrider_weight *head;      /* [vocabulary, hidden], or NULL: no logits are asked for */
    outrider_shard *shard;            /* NULL: the model is whole */
    /* With layer_inputs: what a layer's ``input`` reads is  (norm(projection x / sqrt(hidden)) + e) / sqrt(2),  of the
     * row's embedding x and of its layer_embeddings e. */
    const outrider_weight *layer_projection; /* [layers * layer_inputs, hidden] */
    const float *layer_projection_norm;      /* [layer_inputs] */
} outrider_model;

enum outrider_cache_type { OUTRIDER_CACHE_F32 = 0, OUTRIDER_CACHE_BF16 = 1, OUTRIDER_CACHE_I8 = 2 };

/* Recurrent states of sequences, a slot each.
 *
 * A state holds the *settled* rows of its sequence. Rows behind them are *pending*: of these the slot keeps what it takes
 * to apply them to the state, so that they can be dropped. See docs/hybrid.md. */
typedef struct {
    int32_t slots, layers; /* layers: the recurrent ones, in order */
    int32_t key_heads, value_heads, key_dim, value_dim;
    int32_t convolution;
    int32_t pending;        /* rows of a slot, at most */
    float *const *state;    /* [layers]: [slots][value_heads][key_dim][value_dim], of the settled rows */
    float *const *inputs;   /* [layers]: [slots][convolution - 1 + pending][channels], of the convolution: those of the
                               last settled rows, then those of the pending ones */
    float *const *updates;  /* [layers]: [slots][pending][key_heads * key_dim + value_heads * value_dim + value_heads]:
                               key, change of the value, and decay of the pending rows */
} outrider_states;

/* Rows of keys and values, [rows, kv_heads, head_dim] for each layer that has its own, in order. 8-bit rows have a
 * scale for each head. Of latents the value is the beginning of the key: ``values`` are the same pointers as ``keys``, and
 * value_scales are of that beginning, key_scales of the rest. */
typedef struct {
    int32_t type;
    int32_t block; /* rows that one entry of a sequence's table stands for */
    int64_t rows;
    int32_t layers, kv_heads, head_dim;
    int32_t value_dim;   /* of latents: the rank; else 0 */
    void *const *keys;   /* [layers] */
    void *const *values; /* [layers] */
    float *const *key_scales, *const *value_scales; /* [layers]: [rows, kv_heads], or NULL */
    const outrider_states *states; /* NULL: there are none */
    const int32_t *heads; /* [layers][2]: kv_heads and head_dim of each layer; NULL: all have those above */
} outrider_cache;

/* ---- A forward pass ------------------------------------------------------------------------------------------- */

/* What one sequence brings: ``count`` new rows, next to each other in the batch, behind ``start`` cached ones.
 *
 * Row i of the sequence is row  table[i / block] * block + i % block  of the cache. The table has as many entries as
 * that takes, or more.
 * Without a mask rows are causal. With one, the sequence's last mask_rows rows see, of its last mask_keys rows, those
 * marked, and all rows before these.
 *
 * Where layers are recurrent: the slot's state holds ``settled`` rows, and rows settled .. start - 1 are pending. These
 * and the first ``kept`` new rows are settled by the pass, for good; new rows behind those are pending ones from then
 * on, of which there is room for ``pending``. A row's parent is the last marked new row before it, or else the last
 * pending row; the kept rows are a chain. At start 0 with nothing settled the state is cleared. Each span of a batch has
 * a slot of its own. Spans may share a table, if none sees another's new rows: then ``settled`` is start less the slot's
 * pending rows, whatever rows of the table these are.
 */
typedef struct {
    int32_t start, count;
    int32_t mask_rows, mask_keys;
    int32_t entries;
    int32_t slot, settled, kept;
    const int32_t *table; /* [entries] */
    const uint8_t *mask; /* [mask_rows, mask_keys], 1: seen; or NULL */
} outrider_span;

/* What a low-rank adapter adds to a linear layer's output y: up' (down' x). A rank of 0 adds nothing. */
typedef struct {
    int32_t rank, reserved;
    int64_t inputs, outputs;
    const float *down; /* [inputs, rank] */
    const float *up;   /* [rank, outputs], scaled */
} outrider_low_rank;

enum outrider_adapted {
    OUTRIDER_ADAPTED_Q, OUTRIDER_ADAPTED_K, OUTRIDER_ADAPTED_V, OUTRIDER_ADAPTED_OUT,
    OUTRIDER_ADAPTED_GATE, OUTRIDER_ADAPTED_UP, OUTRIDER_ADAPTED_DOWN,
    OUTRIDER_ADAPTED /* kinds of linear layers that adapters add to */
};

enum { OUTRIDER_WINDOWS = 7 }; /* of rows that are counted over: the pass, and 1, 2, 4, ... 32 */

typedef struct {
    int32_t rows, spans, layers, features, logit_rows, reserved;
    const int64_t *tokens;     /* [rows], or NULL if inputs are given */
    const int64_t *positions;  /* [rows], below the model's positions */
    const float *inputs;       /* [rows, hidden] in place of embeddings, or NULL */
    const outrider_span *span; /* [spans], in packing order */
    const int32_t *feature_layers; /* [features], ascending: the residual stream after so many of ``layers`` */
    const int64_t *logit_row;      /* [logit_rows]: rows that go through the final norm and the head */
    float *feature;                /* [rows, features * hidden] */
    float *hidden_out;             /* [logit_rows, hidden], after the final norm; or NULL */
    float *logits;                 /* [logit_rows, vocabulary], of a later process its own columns; or NULL */
    float *residual;               /* [rows, hidden]: the last layer's output; or NULL */
    const float *embeddings;       /* [rows, hidden], for layers with an embedding_norm; or NULL: there are none */
    const outrider_low_rank *const *adapters; /* [rows]: each row's adapter, [layers][OUTRIDER_ADAPTED] of the model's
                                                 dimensions, or NULL; or NULL: no row has one. Experts have none. */
    const float *layer_embeddings; /* [rows, layers of the model, layer_inputs], scaled; NULL without layer_inputs */
    int64_t *experts; /* [OUTRIDER_WINDOWS]: distinct experts, summed over layers, without shared ones: of the pass, and
                         behind it of all whole windows of 1, 2, 4, ... neighbouring rows together; or NULL */
} outrider_batch;

enum outrider_status {
    OUTRIDER_OK = 0,
    OUTRIDER_NO_MEMORY = 1,
    OUTRIDER_BAD_ARGUMENT = 2, /* a size, an id or a position out of range: a mistake of the caller */
    OUTRIDER_PEER_LOST = 3,    /* a process of a split model is gone */
    OUTRIDER_NOT_FINITE = 4    /* the largest of a head's logits is no number that could be drawn from */
};

/* Writes keys and values of all rows into the cache, and what the batch asks for. */
OUTRIDER_API int outrider_forward(outrider_context *context, const outrider_model *model, const outrider_cache *cache,
                                  const outrider_batch *batch);

/* Attention of one layer, of rows that are in the cache already: q and out are [rows, heads, head_dim]. */
OUTRIDER_API int outrider_attend(outrider_context *context, const outrider_cache *cache, int32_t layer, int32_t heads,
                                 int32_t kv_heads, int32_t head_dim, float scale, int32_t spans,
                                 const outrider_span *span, const float *q, float *out);

/* Keys and values that never change, as an encoder's do not: laid out once, as attention reads them.
 *
 *     keys     [heads][chunks][head_dim][128], in bfloat16 [heads][chunks][head_dim / 2][128][2]
 *     values   [heads][chunks * 128][head_dim, rounded up to 16]
 *
 * with zeros where there is nothing.
 */
typedef struct {
    int32_t type; /* OUTRIDER_CACHE_F32, or OUTRIDER_CACHE_BF16 if head_dim is even */
    int32_t heads, head_dim, length;
    const void *keys, *values;
} outrider_fixed_keys;

/* Attention of rows that see all of them: q and out are [rows, heads, head_dim]. */
OUTRIDER_API int outrider_attend_fixed(outrider_context *context, const outrider_fixed_keys *keys, int64_t rows,
                                       float scale, const float *q, float *out);

/* RMS norm of x: [rows, width], by weight: [width]; with a bias [width], layer norm. */
OUTRIDER_API int outrider_norm(const outrider_context *context, int64_t rows, int64_t width, const float *x,
                               const float *weight, const float *bias, float eps, float *out);

/* Cosines and sines of position * frequency: out [positions][2][pairs]; frequencies: [pairs], from 0 to 1 radian. */
OUTRIDER_API int outrider_rotations(int64_t positions, int64_t pairs, const double *frequencies, float *out);

/* ---- A chain of drafts ------------------------------------------------------------------------------------------ */

/* A head that goes on from the target's features (EAGLE-3, MTP): what its layers read beside a row is the embedding of
 * the token that follows the row's feature. */
typedef struct {
    const outrider_model *layers;     /* without an embedding; its head is the LM head */
    const outrider_weight *fc;        /* [hidden, parts * hidden], or [hidden, 2 * hidden] with an embedding_norm */
    const float *const *fc_norm;      /* [parts] of [hidden]: norms of the parts of a feature; or NULL */
    const float *output_norm;         /* [hidden], of an output that the next level goes on from; or NULL */
    const outrider_weight *embedding; /* the target's, [vocabulary, hidden]; or NULL: a chain has the rows itself */
    const int64_t *ids;               /* [outputs of the LM head and more]: the tokens that they score; or NULL: all */
    const float *embedding_norm;      /* [hidden], or NULL. With it fc reads, at every level, the row's embedding, normed
                                         by it, and behind that the feature or output, normed by fc_norm (MTP) */
    const outrider_weight *more;      /* [n, hidden]: tokens scored behind those of the LM head, from the normed output;
                                         or NULL */
    int32_t parts;                    /* layers of the target in a feature */
    float embedding_scale;            /* 0 is off */
} outrider_feature_head;

/* Told of each token and its log-probability; 0 ends the chain. For the next level it may change the chain's keys, and
 * puts the token's embedding into the first row of ``embeddings`` if the head has none. */
typedef int outrider_token_found(int64_t token, float score);

typedef struct {
    int32_t rows, levels; /* features that are not in the cache yet; tokens at most */
    int32_t start;        /* the cache row of the first; the table reaches ``rows + levels - 1`` further */
    int32_t entries;
    const int32_t *table; /* [entries], as of outrider_span */
    const float *features;    /* [rows, parts * hidden] */
    const int64_t *tokens;    /* [rows]: the one behind each feature */
    const int64_t *positions; /* [rows] */
    const struct outrider_sampling *sampling; /* how logits become log-weights (sample.h) */
    const uint32_t *keys; /* [6], of the noise added to the log-weights of the level to come (sample.h); or NULL */
    outrider_token_found *found;
    const float *embeddings; /* [rows, hidden], of ``tokens``; or NULL: the head has an embedding */
    float *output; /* [hidden]: what the draft goes on from, of the last feature */
    float *logits; /* [outputs], of the same */
} outrider_chain;

/* Reads the features, and drafts token behind token: each level is a forward pass of one row. Of equally likely tokens
 * the first is taken. OUTRIDER_NOT_FINITE ends a chain, whose earlier tokens have been told. */
OUTRIDER_API int outrider_draft_chain(outrider_context *context, const outrider_feature_head *head,
                                      const outrider_cache *cache, outrider_chain *chain);

/* ---- Retrieval ------------------------------------------------------------------------------------------------ */

/* Places whose context, read backwards, agrees longest with the end of ``tail`` [length]: up to ``limit``, 64 at most.
 *
 * order: [places], sorted by the 12 tokens of ``text`` [tokens] before each place, the nearest first; places are from
 * 16 to tokens - 1.
 * place, match: [limit], the longest agreement first, of equals those first in order; an agreement has 1 to 16 tokens.
 * Returns how many there are; -1 for arguments that cannot be. */
OUTRIDER_API int64_t outrider_suffix_array_search(int64_t places, const int32_t *order, int64_t tokens,
                                                  const int32_t *text, int64_t length, const int32_t *tail,
                                                  int64_t limit, int32_t *place, int32_t *match);

/* Places of ``text`` [tokens] whose context agrees with the end of ``tail`` [length]: up to ``limit``, 64 at most.
 *
 * First those that agree in 4 tokens or more, then in 2 or 3, then in 1; of each the latest first. A negative token
 * parts two texts: it is in no context, and no place of it is found.
 * place, match: [limit]; an agreement counts up to 16 tokens.
 * Returns how many there are; -1 for arguments that cannot be. */
OUTRIDER_API int64_t outrider_occurrences(int64_t tokens, const int32_t *text, int64_t length, const int32_t *tail,
                                          int64_t limit, int32_t *place, int32_t *match);

/* The first token from number ``first`` on that ends a copy of 16 tokens of the prompt, the first ``prompt`` tokens of
 * ``text`` [tokens], behind which the prompt goes on.
 *
 * place: [1], the latest such place of the prompt: its token number ``place`` is the next one.
 * Returns the token's number; -1 if there is none, -2 for arguments that cannot be. */
OUTRIDER_API int64_t outrider_copied(int64_t tokens, const int32_t *text, int64_t first, int64_t prompt,
                                     int64_t *place);

/* A place that a text is being copied from. */
typedef struct {
    int32_t table;  /* of ``outrider_retrieval.kinds`` */
    int32_t edited; /* whether ``end`` is of ``edits``, not of ``text`` */
    int32_t match;
    int32_t reserved;
    int64_t end;
} outrider_copy;

/* What the tokens to come may be copied from, and how much is believed of it. */
typedef struct {
    const int32_t *text;    /* [tokens]: the request's */
    const int32_t *answers; /* [answered]: of earlier requests, with a negative token behind each */
    const int32_t *stored;  /* [stored_tokens], with a negative token at the end */
    const int32_t *order;   /* [places]: the suffix array of ``stored``, as of outrider_suffix_array_search */
    const int32_t *edits;   /* [edited_tokens]: texts with expected changes, with a negative token behind each */
    const outrider_copy *copies; /* [num_copies] */
    int64_t tokens, answered, stored_tokens, places, edited_tokens;
    const double *weights;  /* [num_weights, 3]: confidence, discount and strength, the most confident first */
    const uint8_t *kinds;   /* [tables, 17]: the weights of a match of so many tokens; tables: text, answers, stored, ... */
    int32_t num_copies, num_weights, tables;
    int32_t own_limit, other_limit; /* places read in ``text``, and in ``answers`` and ``stored`` each */
    int32_t nodes, depth;  /* of the tree at most */
    int32_t branching;     /* 0: a chain */
    int32_t free_nodes, reserved; /* nodes that need not be likelier than ``least`` */
    double least, least_ever; /* probabilities below which no node is drafted: behind ``free_nodes``, and at all */
} outrider_retrieval;

/* The likeliest tokens to come, as a tree (docs/algorithms/suffix.md).
 *
 * tokens, parents, scores: [nodes], each node's token, its parent (-1: the text's last token), and its probability
 * given its parent.
 * used: [1 + other_limit], how many places of ``answers`` agree in 4 tokens or more, and these places.
 * Returns the number of nodes; -1 for arguments that cannot be, -2 without memory. */
OUTRIDER_API int64_t outrider_suffix_draft(const outrider_retrieval *retrieval, int32_t *tokens, int32_t *parents,
                                           double *scores, int64_t *used);

/* ---- The library itself ----------------------------------------------------------------------------------------- */

OUTRIDER_API int outrider_abi(void);

/* Where the compiler put field ``index`` of the structures above, those of pack.h and sample.h included: its name
 * ("outrider_span.table"), offset and size in bytes; a structure's own name ("outrider_span"), 0 and its size come
 * before its fields. NULL, and nothing written, behind the last. */
OUTRIDER_API const char *outrider_layout(int32_t index, int64_t *offset, int64_t *size);

/* ---- The machine ---------------------------------------------------------------------------------------------- */

/* Bytes read in a second by all threads, over a buffer of so many bytes; 0 if there is no memory for it. */
OUTRIDER_API double outrider_memory_rate(outrider_context *context, int64_t bytes);
/* Multiplications and additions of 8 bits in a second, by all threads, on weights in the cache; 0 without memory. */
OUTRIDER_API double outrider_arithmetic_rate(outrider_context *context);
/* Seconds until all threads have met and the caller has seen the last of them; 0: it is no context. */
OUTRIDER_API double outrider_sync_time(outrider_context *context);

#endif
