/* Several contexts at once, and several threads that share one: each gives the bits that it gives alone.
 *
 *     make race-native
 *
 * Built once for the thread sanitizer, which sees what threads do to each other, and once for the leak sanitizer, which
 * sees what a context leaves behind.
 */
#include <pthread.h>

#include "driver_model.h"

enum { JOBS = 5, ROUNDS = 3, PROMPT = 140, STEPS = 12, BLOCK = 16, CACHE_ROWS = 160, ENTRIES = CACHE_ROWS / BLOCK };

static outrider_model model;

typedef struct {
    int threads;
    const char *isa;
    outrider_context *shared; /* or NULL: the job has a context of its own */
    uint64_t digest;
    int status; /* of the first call that failed */
} job;

static void add(job *j, int status, const float *x, int64_t count) {
    if (status && !j->status) j->status = status;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        j->digest = (j->digest ^ bits) * UINT64_C(0x100000001b3);
    }
}

/* A prompt, then token after token: many passes of few items, between which threads spin and sleep. */
static void run_model(job *j, outrider_context *context, const outrider_cache *cache) {
    float *logits = allocate((size_t)model.head->outputs * sizeof(float));
    int32_t table[ENTRIES];
    int64_t tokens[PROMPT], positions[PROMPT];
    for (int i = 0; i < ENTRIES; i++) table[i] = ENTRIES - 1 - i;
    for (int32_t start = 0, rows = PROMPT; start < PROMPT + STEPS; start += rows, rows = 1) {
        int64_t last = rows - 1;
        for (int32_t r = 0; r < rows; r++) {
            tokens[r] = (start + r) * 7 % model.embedding->outputs;
            positions[r] = start + r;
        }
        outrider_span span = {.start = start, .count = rows, .entries = ENTRIES, .table = table};
        outrider_batch batch = {.rows = rows, .spans = 1, .layers = model.layers, .logit_rows = 1, .tokens = tokens,
                                .positions = positions, .span = &span, .logit_row = &last, .logits = logits};
        add(j, outrider_forward(context, &model, cache, &batch), logits, model.head->outputs);
    }
    free_aligned(logits);
}

static void *run_job(void *argument) {
    job *j = argument;
    void *keys[8], *values[8];
    size_t bytes = (size_t)CACHE_ROWS * (size_t)(model.kv_heads * model.head_dim) * 2;
    outrider_cache cache = {.type = OUTRIDER_CACHE_BF16, .block = BLOCK, .rows = CACHE_ROWS, .layers = model.layers,
                            .kv_heads = model.kv_heads, .head_dim = model.head_dim, .keys = keys, .values = values};
    for (int i = 0; i < model.layers; i++) keys[i] = allocate(bytes), values[i] = allocate(bytes);
    for (int round = 0; round < ROUNDS; round++) { /* threads end, and others begin */
        outrider_context *context = j->shared;
        j->digest = UINT64_C(0xcbf29ce484222325);
        if (!context) add(j, outrider_create(j->threads, j->isa, &context), NULL, 0);
        if (context) run_model(j, context, &cache);
        if (!j->shared) add(j, outrider_destroy(context), NULL, 0);
    }
    for (int i = 0; i < model.layers; i++) free_aligned(keys[i]), free_aligned(values[i]);
    return NULL;
}

static const char *best_isa(void) {
    static const char *const every[] = {"amx", "avx512", "avxvnni", "avx2", "i8mm", "neon"};
    for (size_t i = 0; i < sizeof every / sizeof *every; i++)
        if (outrider_isa_state(every[i]) == OUTRIDER_ISA_WORKS) return every[i];
    return "portable";
}

int main(void) {
    const char *best = best_isa();
    outrider_context *shared;
    model = random_model(0);
    add_experts(&model, 1, 0, 9, 3);
    add_experts(&model, 2, 0, 12, 5);
    if (outrider_create(2, best, &shared)) return 2;
    job alone = {.threads = 1, .isa = "portable"};
    run_job(&alone);
    job jobs[JOBS] = {{.threads = 2, .isa = "portable"}, {.threads = 3, .isa = best}, {.threads = 1, .isa = best},
                      {.shared = shared}, {.shared = shared}};
    pthread_t threads[JOBS];
    for (int i = 0; i < JOBS; i++)
        if (pthread_create(threads + i, NULL, run_job, jobs + i)) return 2;
    int wrong = alone.status != 0;
    for (int i = 0; i < JOBS; i++) {
        pthread_join(threads[i], NULL);
        int same = jobs[i].digest == alone.digest && !jobs[i].status;
        if (!same) printf("job %d: status %d, digest %016llx\n", i, jobs[i].status, (unsigned long long)jobs[i].digest);
        wrong |= !same;
    }
    outrider_destroy(shared);
    printf("%d jobs, portable and %s: %s\n", JOBS, best, wrong ? "DIFFERENT" : "the same bits as alone");
    return wrong;
}
