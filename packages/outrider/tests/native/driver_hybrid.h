/* Small hybrids of random weights: recurrent layers beside gated attention, experts with a shared one. Included by
 * driver.c behind its own functions; their digest is one of its own. */
#ifndef DRIVER_HYBRID_H
#define DRIVER_HYBRID_H

enum { HYBRIDS = 2, RECURRENCES = 3, ALONE = 2, SLOTS = 4, PENDING = 16, TREE_NODES = 9 };

typedef struct {
    int32_t key_heads, value_heads, key_dim, value_dim, convolution, tiled, kind;
} state_sizes;

static const state_sizes hybrid_sizes[HYBRIDS] = {
    {2, 4, 32, 96, 4, 0, OUTRIDER_DELTA}, /* whole blocks of columns, and one vector more; whole groups of codes */
    {2, 6, 23, 20, 3, 1, OUTRIDER_DELTA}, /* neither; heads in GGUF's order */
};
/* Of models that the second hybrid's sizes are replaced in. */
static const state_sizes recurrence_sizes[RECURRENCES] = {
    {1, 1, 0, 150, 3, 0, OUTRIDER_SHORT_CONVOLUTION}, /* a block of channels, and a part of one */
    {1, 6, 32, 64, 4, 0, OUTRIDER_MAMBA2},
    {2, 6, 23, 20, 3, 0, OUTRIDER_MAMBA2},
};

/* ---- Models ------------------------------------------------------------------------------------------------------- */

static const outrider_recurrent *random_recurrent(const state_sizes *s, int64_t hidden, int f) {
    outrider_recurrent *r = allocate(sizeof *r);
    int64_t values = (int64_t)s->value_heads * s->value_dim, channels = 2 * (int64_t)s->key_heads * s->key_dim + values;
    float *decay = random_floats(s->value_heads, 2.0f);
    for (int32_t i = 0; i < s->value_heads; i++) decay[i] = decay[i] > 0 ? -decay[i] : decay[i];
    *r = (outrider_recurrent){.qkv = random_weight(f, channels, hidden, 0), .z = random_weight(f + 1, values, hidden, 0),
                              .a = random_weight(8, s->value_heads, hidden, 0),
                              .b = random_weight(f + 3, s->value_heads, hidden, 0),
                              .out = random_weight(f + 4, hidden, values, 0),
                              .key_heads = s->key_heads, .value_heads = s->value_heads, .key_dim = s->key_dim,
                              .value_dim = s->value_dim, .convolution = s->convolution, .tiled = s->tiled,
                              .taps = random_floats(s->convolution * channels, 1.0f), .decay = decay,
                              .dt_bias = random_floats(s->value_heads, 2.0f), .norm = random_floats(s->value_dim, 1.0f)};
    return r;
}

/* A short convolution, or Mamba-2. */
static const outrider_recurrent *random_recurrence(const state_sizes *s, int64_t hidden, int f) {
    outrider_recurrent *r = allocate(sizeof *r);
    int64_t values = (int64_t)s->value_heads * s->value_dim, channels = 2 * (int64_t)s->key_heads * s->key_dim + values;
    int mamba = s->kind == OUTRIDER_MAMBA2;
    *r = (outrider_recurrent){.key_heads = s->key_heads, .value_heads = s->value_heads, .key_dim = s->key_dim,
                              .value_dim = s->value_dim, .convolution = s->convolution, .kind = s->kind};
    r->qkv = random_weight(f, mamba ? channels : 3 * values, hidden, !mamba);
    r->out = random_weight(f + 4, hidden, values, 0);
    r->taps = random_floats(s->convolution * channels, 1.0f);
    r->taps_bias = f % 2 ? random_floats(channels, 0.5f) : NULL;
    if (!mamba) return r;
    r->z = random_weight(f + 1, values, hidden, 0);
    r->a = random_weight(8, s->value_heads, hidden, 0);
    float *decay = random_floats(s->value_heads, 2.0f);
    for (int32_t i = 0; i < s->value_heads; i++) decay[i] = decay[i] > 0 ? -decay[i] : decay[i];
    r->decay = decay;
    r->dt_bias = random_floats(s->value_heads, 2.0f);
    r->skip = random_floats(s->value_heads, 1.0f);
    r->norm = random_floats(values, 1.0f);
    return r;
}

static outrider_model random_recurring(int which) {
    outrider_model m = random_model(1);
    outrider_layer *layers = (outrider_layer *)m.layer;
    random_state = 5151 + (uint64_t)which;
    for (int i = 0; i < m.layers; i++)
        if (i != 1) layers[i].recurrent = random_recurrence(recurrence_sizes + which, m.hidden, 3 * i + which);
    return m;
}

/* Layers that are Mamba-2, attention, and an MLP or experts alone, with squared ReLU without a gate (Nemotron-H). */
static outrider_model random_alone(int which) {
    outrider_model m = random_recurring(which + 1);
    outrider_layer *layers = (outrider_layer *)m.layer, *last = layers + m.layers - 1;
    m.activation = OUTRIDER_RELU_SQUARED;
    if (which) add_experts(&m, m.layers - 1, 1, 5, 2);
    for (int e = 0; e < last->experts; e++) ((outrider_mlp *)last->expert)[e].up = (outrider_weight){0};
    for (int i = 0; i < m.layers; i++) {
        layers[i].mlp.up = (outrider_weight){0};
        layers[i].lacks = i < m.layers - 1 ? OUTRIDER_LACKS_MLP : OUTRIDER_LACKS_MIXER;
    }
    last->recurrent = NULL;
    return m;
}

/* A model of driver_model.h, all of whose layers but the second become recurrent, and the second gated. */
static outrider_model random_hybrid(int which) {
    outrider_model m = random_model(which);
    outrider_layer *layers = (outrider_layer *)m.layer;
    for (int i = 0; i < m.layers; i++)
        if (i != 1) layers[i].recurrent = random_recurrent(hybrid_sizes + which, m.hidden, 2 * i + 3 * which);
    layers[1].gated = 1;
    layers[1].q = random_weight(which + 2, 2 * (int64_t)m.heads * m.head_dim, m.hidden, 0);
    add_experts(&m, 2, which, 5, 2);
    outrider_mlp *shared = allocate(sizeof *shared);
    *shared = (outrider_mlp){.gate = random_weight(which, m.inner - 16, m.hidden, 0),
                             .up = random_weight(which + 3, m.inner - 16, m.hidden, 0),
                             .down = random_weight(which + 5, m.hidden, m.inner - 16, 0)};
    layers[2].shared_expert = shared;
    layers[2].shared_expert_gate = random_floats(m.hidden, 0.5f);
    return m;
}

/* ---- States ------------------------------------------------------------------------------------------------------- */

typedef struct {
    outrider_states states;
    float *state[8], *inputs[8], *updates[8];
} state_memory;

/* What lies there before a sequence begins must not matter. */
static float *spoilt(int64_t count) { return memset(allocate((size_t)count * sizeof(float)), 0xff, (size_t)count * 4); }

static void make_states(state_memory *m, const outrider_model *model, const state_sizes *s) {
    int64_t keys = (int64_t)s->key_heads * s->key_dim, values = (int64_t)s->value_heads * s->value_dim;
    for (int i = 0; i < model->layers; i++) {
        m->state[i] = spoilt(SLOTS * values * (s->key_dim ? s->key_dim : 1));
        m->inputs[i] = spoilt((int64_t)SLOTS * (s->convolution - 1 + PENDING) * (2 * keys + values));
        m->updates[i] = spoilt((int64_t)SLOTS * PENDING * (keys + values + s->value_heads));
    }
    m->states = (outrider_states){.slots = SLOTS, .layers = model->layers, .key_heads = s->key_heads,
                                  .value_heads = s->value_heads, .key_dim = s->key_dim, .value_dim = s->value_dim,
                                  .convolution = s->convolution, .pending = PENDING, .state = m->state,
                                  .inputs = m->inputs, .updates = m->updates};
}

static void free_states(state_memory *m, const outrider_model *model) {
    for (int i = 0; i < model->layers; i++) {
        free_aligned(m->state[i]);
        free_aligned(m->inputs[i]);
        free_aligned(m->updates[i]);
    }
}

/* ---- Passes ------------------------------------------------------------------------------------------------------- */

/* A chain of a sequence, whose slot is its number. */
static outrider_span kept_chain(int32_t start, int32_t count, int sequence, int32_t settled, int32_t kept) {
    outrider_span s = chain_of(start, count, sequence);
    s.slot = sequence;
    s.settled = settled;
    s.kept = kept;
    return s;
}

/* Rows of the prompt (seed 1), as driver.c has them; ``wrong``: the last so many are others. */
static void run_chain(const char *what, const outrider_model *model, const memory *m, outrider_span s, int32_t wrong) {
    place_chain(0, s.start, s.count, model, 1);
    for (int32_t i = s.count - wrong; i < s.count; i++) tokens[i] = (tokens[i] + 1) % model->embedding->outputs;
    run(what, model, m, 1, &s, NULL);
}

/* The prompt in one pass; then in passes with drafts that are dropped: its last row's logits are the same. */
static void run_drafts(const outrider_model *model, const memory *m) {
    enum { ROWS = 90, DRAFT = 7 };
    size_t bytes = (size_t)model->head->outputs * sizeof(float);
    float *whole = allocate(bytes);
    run_chain("a hybrid's prompt", model, m, kept_chain(0, ROWS, 0, 0, ROWS), 0);
    memcpy(whole, logits, bytes); /* of the last row, as they come in reverse */
    int32_t start = 0, settled = 0;
    for (int32_t kept = 1; start < ROWS - DRAFT - 3; kept = 1 + (kept + 3) % 4) {
        int32_t wrong = (start * 5 + kept) % (DRAFT + 1); /* of the drafts behind ``kept`` rows */
        run_chain("a hybrid's drafts", model, m, kept_chain(start, kept + DRAFT, 1, settled, kept), wrong);
        settled = start + kept;
        start = settled + DRAFT - wrong;
        run_chain("a draft of a draft", model, m, kept_chain(start, 2, 1, settled, -1), 1); /* wholly dropped */
    }
    run_chain("the rest", model, m, kept_chain(start, ROWS - start, 1, settled, ROWS - start), 0);
    if (memcmp(whole, logits, bytes)) {
        fprintf(stderr, "%s: a hybrid that rolls back differs from one that does not\n", outrider_isa(context));
        failures++;
    }
    free_aligned(whole);
}

/* A tree behind a chain beside two other sequences, then a tree whose root is not settled. */
static void run_hybrid_trees(const outrider_model *model, const memory *m) {
    uint8_t mask[TREE_NODES * TREE_NODES] = {0};
    int64_t depth[TREE_NODES], row = 0;
    for (int i = 0; i < TREE_NODES; i++) {
        int parent = i ? (i * 5 + 3) % i : -1;
        if (parent >= 0) memcpy(mask + i * TREE_NODES, mask + parent * TREE_NODES, TREE_NODES);
        mask[i * TREE_NODES + i] = 1;
        depth[i] = parent < 0 ? 0 : depth[parent] + 1;
    }
    outrider_span spans[3] = {tree_of(90, 3 + TREE_NODES, TREE_NODES, TREE_NODES, 0, mask),
                              kept_chain(0, 17, 2, 0, 17), kept_chain(90, 1, 1, 90, 1)};
    spans[0].settled = 90;
    spans[0].kept = 1;
    for (int i = 0; i < 3; i++) {
        place_chain(row, spans[i].start, spans[i].count, model, (uint64_t)i + 3);
        row += spans[i].count;
    }
    for (int i = 0; i < TREE_NODES; i++) positions[3 + i] = 93 + depth[i];
    run("a hybrid's tree", model, m, 3, spans, NULL);
    spans[0] = tree_of(93, TREE_NODES, TREE_NODES, TREE_NODES, 0, mask); /* two rows are pending */
    spans[0].settled = 91;
    place_chain(0, 93, TREE_NODES, model, 4);
    for (int i = 0; i < TREE_NODES; i++) positions[i] = 93 + depth[i];
    run("a tree behind pending rows", model, m, 1, spans, NULL);
}

static uint64_t digest_of_hybrids(const outrider_model *models, int count, const state_sizes *sizes) {
    digest = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < count; i++) {
        memory m;
        state_memory s;
        make_cache(&m, models + i, OUTRIDER_CACHE_BF16);
        make_states(&s, models + i, sizes + i);
        m.cache.states = &s.states;
        run_drafts(models + i, &m);
        run_hybrid_trees(models + i, &m);
        free_states(&s, models + i);
        free_cache(&m, models + i);
        if (verbose) printf("    hybrid %d %016llx\n", i, (unsigned long long)digest);
    }
    return digest;
}

#endif
