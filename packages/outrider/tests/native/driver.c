/* Prints digests for each instruction set of this machine and number of threads: of all results of models like Llama, of
 * hybrids', of models with attention sinks, of models that attend to latents, of routers of all kinds, of a model whose
 * layers differ, of models with short convolutions or Mamba-2, and of models whose layers are a mixer or an MLP alone.
 *
 *     driver [-v] [-t THREADS] [ISA ...]      (-v: also by model and type of cache; otherwise 1, 2, 4 and 8 threads)
 *
 * All lines must end in the same digests, on every processor. The program also fails by itself if a result is not finite
 * or if a prompt cut into pieces gives other bits than in one piece.
 */
#include "driver_model.h"

enum { BLOCK = 8, CACHE_ROWS = 1024, ENTRIES = CACHE_ROWS / BLOCK, MOST_ROWS = 320, PROMPT = 150 };

static uint64_t digest; /* FNV-1a, by 32 bits */
static int failures, verbose;
static outrider_context *context; /* of the instruction set and number of threads that are looked at */

static void add_floats(const char *what, const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        if ((bits & 0x7f800000) == 0x7f800000 && !failures++) fprintf(stderr, "%s: not finite\n", what);
        digest = (digest ^ bits) * UINT64_C(0x100000001b3);
    }
}

static void require(int status, const char *what) {
    if (status == OUTRIDER_OK) return;
    fprintf(stderr, "%s: status %d\n", what, status);
    exit(2);
}

/* ---- A cache ------------------------------------------------------------------------------------------------------ */

typedef struct {
    outrider_cache cache;
    void *keys[8], *values[8];
    float *key_scales[8], *value_scales[8];
} memory;

/* Stale rows hold garbage that must not matter. */
static void make_cache(memory *m, const outrider_model *model, int32_t type) {
    size_t rows = (size_t)CACHE_ROWS * (size_t)model->kv_heads, bytes = rows * (size_t)model->head_dim * 4;
    for (int i = 0; i < model->layers; i++) {
        m->keys[i] = memset(allocate(bytes), 0x2a, bytes);
        m->values[i] = memset(allocate(bytes), 0x2a, bytes);
        m->key_scales[i] = allocate(rows * sizeof(float));
        m->value_scales[i] = allocate(rows * sizeof(float));
    }
    int scaled = type == OUTRIDER_CACHE_I8;
    m->cache = (outrider_cache){.type = type, .block = BLOCK, .rows = CACHE_ROWS, .layers = model->layers,
                                .kv_heads = model->kv_heads, .head_dim = model->head_dim, .keys = m->keys, .values = m->values,
                                .key_scales = scaled ? m->key_scales : NULL,
                                .value_scales = scaled ? m->value_scales : NULL};
}

static void free_cache(memory *m, const outrider_model *model) {
    for (int i = 0; i < model->layers; i++) {
        free_aligned(m->keys[i]);
        free_aligned(m->values[i]);
        free_aligned(m->key_scales[i]);
        free_aligned(m->value_scales[i]);
    }
}

/* The table of a sequence: every seventh block from ``first`` on, so that neighbours are not next to each other. */
static const int32_t *table_of(int first) {
    static int32_t tables[8][ENTRIES];
    for (int i = 0; i < ENTRIES; i++) tables[first][i] = (first * 40 + 7 * i) % ENTRIES;
    return tables[first];
}

/* Rows of one of the sequences: the last mask_rows of them on paths of a tree. */
static outrider_span tree_of(int32_t start, int32_t count, int32_t mask_rows, int32_t mask_keys, int sequence,
                             const uint8_t *mask) {
    return (outrider_span){.start = start, .count = count, .mask_rows = mask_rows, .mask_keys = mask_keys,
                           .entries = ENTRIES, .table = table_of(sequence), .mask = mask};
}

static outrider_span chain_of(int32_t start, int32_t count, int sequence) {
    return tree_of(start, count, 0, 0, sequence, NULL);
}

/* ---- Batches ------------------------------------------------------------------------------------------------------ */

static int64_t tokens[MOST_ROWS], positions[MOST_ROWS], logit_rows[MOST_ROWS];
static float *logits, *features, *hidden, *residual, *layer_embeddings;

/* Embeddings of layers, of a model that has them: each number by token and place. */
static const float *embed_layers(const outrider_model *model, int64_t rows) {
    int64_t width = (int64_t)model->layers * model->layer_inputs;
    for (int64_t r = 0; r < rows && width; r++) {
        random_state = 31337 + (uint64_t)tokens[r];
        for (int64_t i = 0; i < width; i++) layer_embeddings[r * width + i] = random_float(2.0f);
    }
    return width ? layer_embeddings : NULL;
}

/* Runs what the spans ask for; rows stand at ``positions``, and every row is wanted. */
static void run(const char *what, const outrider_model *model, const memory *m, int32_t spans,
                const outrider_span *span, const float *inputs) {
    static const int32_t after[2] = {0, 2};
    outrider_batch b = {.spans = spans, .layers = model->layers, .features = 2, .inputs = inputs, .positions = positions,
                        .tokens = inputs ? NULL : tokens, .span = span, .feature_layers = after, .feature = features,
                        .hidden_out = hidden, .logit_row = logit_rows, .logits = logits, .residual = residual};
    for (int32_t i = 0; i < spans; i++) b.rows += span[i].count;
    b.logit_rows = b.rows;
    b.layer_embeddings = embed_layers(model, b.rows);
    for (int32_t i = 0; i < b.rows; i++) logit_rows[i] = b.rows - 1 - i;
    require(outrider_forward(context, model, &m->cache, &b), what);
    add_floats(what, logits, (int64_t)b.rows * model->head->outputs);
    add_floats(what, hidden, (int64_t)b.rows * model->hidden);
    add_floats(what, features, (int64_t)b.rows * 2 * model->hidden);
    add_floats(what, residual, (int64_t)b.rows * model->hidden);
}

static void place_chain(int64_t row, int64_t start, int64_t count, const outrider_model *model, uint64_t seed) {
    for (int64_t i = 0; i < count; i++) {
        random_state = seed * 1000003 + (uint64_t)(start + i); /* the same tokens, however they are cut */
        tokens[row + i] = random_below(model->embedding->outputs);
        positions[row + i] = start + i;
    }
}

/* A prompt in one piece and in pieces of different lengths: the last row's logits are the same. */
static void run_prompts(const outrider_model *model, const memory *m) {
    static const int32_t lengths[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 21};
    size_t bytes = (size_t)model->head->outputs * sizeof(float);
    float *whole = allocate(bytes);
    place_chain(0, 0, PROMPT, model, 1);
    run("prompt", model, m, 1, (outrider_span[]){chain_of(0, PROMPT, 0)}, NULL);
    memcpy(whole, logits, bytes); /* of the last row, as they come in reverse */
    int32_t start = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; start += lengths[i++]) {
        place_chain(0, start, lengths[i], model, 1);
        run("pieces", model, m, 1, (outrider_span[]){chain_of(start, lengths[i], 1)}, NULL);
    }
    if (start != PROMPT || memcmp(whole, logits, bytes)) {
        fprintf(stderr, "%s: a prompt in pieces differs from one in one piece\n", outrider_isa(context));
        failures++;
    }
    free_aligned(whole);
}

/* Nine nodes below one another at random, then one of each kind of row in one batch. */
static void run_trees(const outrider_model *model, const memory *m) {
    enum { NODES = 9 };
    uint8_t mask[NODES * NODES] = {0};
    int64_t depth[NODES];
    for (int i = 0; i < NODES; i++) {
        int parent = i ? (i * 5 + 3) % i : -1;
        if (parent >= 0) memcpy(mask + i * NODES, mask + parent * NODES, NODES);
        mask[i * NODES + i] = 1;
        depth[i] = parent < 0 ? 0 : depth[parent] + 1;
    }
    place_chain(0, PROMPT, NODES, model, 2);
    for (int i = 0; i < NODES; i++) positions[i] = PROMPT + depth[i];
    run("tree", model, m, 1, (outrider_span[]){tree_of(PROMPT, NODES, NODES, NODES, 0, mask)}, NULL);

    /* The last four nodes again, behind five cached ones; a chain of one; a prompt; a chain before a tree. */
    int64_t row = 0;
    outrider_span spans[4] = {tree_of(PROMPT + 5, 4, 4, NODES, 0, mask + 5 * NODES), chain_of(PROMPT, 1, 1),
                              chain_of(0, 17, 2), tree_of(0, 2 + NODES, NODES, NODES, 3, mask)};
    for (int i = 0; i < 4; i++) {
        place_chain(row, spans[i].start, spans[i].count, model, (uint64_t)i + 3);
        row += spans[i].count;
    }
    for (int i = 0; i < 4; i++) positions[i] = PROMPT + depth[5 + i];
    for (int i = 0; i < NODES; i++) positions[4 + 1 + 17 + 2 + i] = 2 + depth[i];
    run("mixed", model, m, 4, spans, NULL);
}

static void run_inputs(const outrider_model *model, const memory *m) {
    random_state = 77;
    float *inputs = random_floats(5 * model->hidden, 4.0f);
    memset(inputs, 0, (size_t)model->hidden * sizeof(float)); /* a row of zeros */
    for (int64_t i = 0; i < model->hidden; i++) inputs[model->hidden + i] *= 0x1p-140f;
    inputs[2 * model->hidden] = 0x1p60f; /* one number that dwarfs its group */
    place_chain(0, 17, 5, model, 9);
    run("inputs", model, m, 1, (outrider_span[]){chain_of(17, 5, 2)}, inputs);
    free_aligned(inputs);
}

/* Every format by itself, for every number of rows that kernels treat differently. */
static void run_linear(void) {
    static const int64_t counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 33, 260};
    for (int f = 0; f < FORMATS; f++) {
        random_state = 500 + (uint64_t)f;
        outrider_weight w = random_weight(f, 53, 167, f % 2);
        float *x = random_floats(260 * w.inputs, 2.0f), *y = allocate((size_t)(260 * w.outputs) * sizeof(float));
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            require(outrider_linear(context, &w, counts[i], x, y), "linear");
            add_floats("linear", y, counts[i] * w.outputs);
        }
        free_aligned(x);
        free_aligned(y);
        free_aligned((void *)w.panels);
        free_aligned((void *)w.bias);
    }
}

#include "driver_chunks.h"
#include "driver_hybrid.h"
#include "driver_latents.h"
#include "driver_layers.h"
#include "driver_routers.h"
#include "driver_sinks.h"

/* ---- Everything --------------------------------------------------------------------------------------------------- */

static uint64_t digest_of_everything(const outrider_model *models) {
    digest = UINT64_C(0xcbf29ce484222325);
    run_linear();
    if (verbose) printf("    linear %016llx\n", (unsigned long long)digest);
    for (int i = 0; i < MODELS; i++)
        for (int32_t type = OUTRIDER_CACHE_F32; type <= OUTRIDER_CACHE_I8; type++) {
            memory m;
            make_cache(&m, models + i, type);
            run_prompts(models + i, &m);
            run_trees(models + i, &m);
            run_inputs(models + i, &m);
            free_cache(&m, models + i);
            if (verbose) printf("    model %d, cache %d %016llx\n", i, (int)type, (unsigned long long)digest);
        }
    return digest;
}

/* The digests of one instruction set. */
static void print_digests(const char *isa, const outrider_model *models, const outrider_model *hybrids,
                          const outrider_model *sinking, const outrider_model *latents,
                          const outrider_model *routers, const outrider_model *layers, const outrider_model *recurring,
                          const outrider_model *chunked, const outrider_model *alone, int only_threads) {
    static const int threads[] = {1, 2, 4, 8};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        if (only_threads && threads[t] != only_threads) continue;
        require(outrider_create(threads[t], isa, &context), "a context");
        unsigned long long all = digest_of_everything(models), own = digest_of_hybrids(hybrids, HYBRIDS, hybrid_sizes);
        unsigned long long sinks = digest_of_sinks(sinking), latent = digest_of_latents(latents);
        unsigned long long routed = digest_of_routers(routers), layer = digest_of_layers(layers);
        unsigned long long more = digest_of_hybrids(recurring, RECURRENCES, recurrence_sizes);
        unsigned long long chunks = digest_of_sinks(chunked);
        unsigned long long parts = digest_of_hybrids(alone, ALONE, recurrence_sizes + 1);
        printf("%s %d %016llx %016llx %016llx %016llx %016llx %016llx %016llx %016llx %016llx\n", isa, outrider_threads(context),
               all, own, sinks, latent, routed, layer, more, chunks, parts);
        fflush(stdout);
        require(outrider_destroy(context), "its end");
    }
}

int main(int count, char **words) {
    static const char *const every[] = {"portable", "avx2", "avxvnni", "avx512", "amx", "neon", "i8mm"};
    int at = 1, only_threads = 0;
    for (; at < count && words[at][0] == '-'; at++) {
        if (!strcmp(words[at], "-v")) verbose = 1;
        if (!strcmp(words[at], "-t") && at + 1 < count) only_threads = atoi(words[++at]);
    }
    logits = allocate(MOST_ROWS * 512 * sizeof(float));
    features = allocate(MOST_ROWS * 512 * sizeof(float));
    hidden = allocate(MOST_ROWS * 512 * sizeof(float));
    residual = allocate(MOST_ROWS * 512 * sizeof(float));
    layer_embeddings = allocate(MOST_ROWS * 512 * sizeof(float));
    outrider_model models[MODELS], hybrids[HYBRIDS], sinking = random_sinking(), latents[LATENT_MODELS];
    outrider_model routers = random_routers();
    outrider_model layers = random_layers(), chunked = random_chunked();
    outrider_model recurring[RECURRENCES], alone[ALONE];
    for (int i = 0; i < MODELS; i++) models[i] = random_model(i);
    for (int i = 0; i < HYBRIDS; i++) hybrids[i] = random_hybrid(i);
    for (int i = 0; i < LATENT_MODELS; i++) latents[i] = random_latents(i);
    for (int i = 0; i < RECURRENCES; i++) recurring[i] = random_recurring(i);
    for (int i = 0; i < ALONE; i++) alone[i] = random_alone(i);
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
        int asked = at == count;
        for (int w = at; w < count; w++) asked |= !strcmp(words[w], every[i]);
        if (asked && outrider_isa_state(every[i]) == OUTRIDER_ISA_WORKS)
            print_digests(every[i], models, hybrids, &sinking, latents, &routers, &layers, recurring, &chunked, alone,
                          only_threads);
    }
    return failures != 0;
}
