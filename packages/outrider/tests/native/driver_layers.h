/* A model whose layers differ in heads, share keys and values, and read embeddings of their own (Gemma 4). */
#ifndef OUTRIDER_DRIVER_LAYERS_H
#define OUTRIDER_DRIVER_LAYERS_H

enum { LAYER_INPUTS = 20 };

static outrider_layer_input *random_layer_input(const outrider_model *m, int which) {
    outrider_layer_input *made = allocate(sizeof *made);
    made->gate = random_weight(which, LAYER_INPUTS, m->hidden, 0);
    made->out = random_weight(which + 1, m->hidden, LAYER_INPUTS, 0);
    made->norm = random_floats(m->hidden, 1.0f);
    return made;
}

/* The second layer's heads: one of keys, twice as wide; its values are its keys. */
static void widen(const outrider_model *m, outrider_layer *l, int which, const float *rotations) {
    int64_t width = (int64_t)m->heads * 48;
    l->kv_heads = 1;
    l->head_dim = 48;
    l->values_are_keys = 1;
    l->window = 0;
    l->rotations = rotations;
    l->q = random_weight(which, width, m->hidden, 0);
    l->k = random_weight(which + 1, 48, m->hidden, 0);
    l->out = random_weight(which + 2, m->hidden, width, 0);
    l->q_norm = random_floats(48, 1.0f);
    l->k_norm = random_floats(48, 1.0f);
}

static void put_beside(outrider_model *m, int layer) {
    outrider_layer *l = (outrider_layer *)m->layer + layer;
    outrider_beside *made = allocate(sizeof *made);
    const float **norms[] = {&made->router_norm, &made->expert_norm, &made->mlp_output_norm, &made->expert_output_norm};
    add_experts(m, layer, 0, 5, 2);
    for (int i = 0; i < 4; i++) *norms[i] = random_floats(m->hidden, 1.0f);
    made->expert_scale = random_floats(l->experts, 1.0f);
    l->beside = made;
}

static outrider_model random_layers(void) {
    outrider_model m = random_model(0);
    random_state = 9090;
    float *rotations = random_rotations(24), *ones = allocate(48 * sizeof *ones);
    for (int i = 0; i < 48; i++) ones[i] = 1;
    outrider_weight *projection = allocate(sizeof *projection);
    *projection = random_weight(7, (int64_t)m.layers * LAYER_INPUTS, m.hidden, 0);
    m.activation = OUTRIDER_GELU_TANH;
    m.attention_scale = 1;
    m.layer_inputs = LAYER_INPUTS;
    m.layer_projection = projection;
    m.layer_projection_norm = random_floats(LAYER_INPUTS, 1.0f);
    for (int i = 0; i < m.layers; i++) {
        outrider_layer *l = (outrider_layer *)m.layer + i;
        l->window = 40;
        l->v_norm = ones;
        l->output_scale = random_floats(1, 1.0f);
        l->input = random_layer_input(&m, i);
        if (i % 2) widen(&m, l, 2 * i, rotations);
        if (i >= 2) l->reads = i - 1;
    }
    put_beside(&m, 0);
    return m;
}

static uint64_t digest_of_layers(const outrider_model *model) {
    static const int32_t heads[] = {2, 24, 1, 48};
    digest = UINT64_C(0xcbf29ce484222325);
    for (int32_t type = OUTRIDER_CACHE_F32; type <= OUTRIDER_CACHE_I8; type++) {
        memory m;
        make_cache(&m, model, type);
        m.cache.layers = 2;
        m.cache.heads = heads;
        run_prompts(model, &m);
        run_trees(model, &m);
        free_cache(&m, model);
    }
    return digest;
}

#endif
