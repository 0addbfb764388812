/* Models with attention sinks, windows in every second layer, and experts with biases and a clamped activation. */
#ifndef OUTRIDER_DRIVER_SINKS_H
#define OUTRIDER_DRIVER_SINKS_H

static outrider_model random_sinking(void) {
    outrider_model m = random_model(2);
    random_state = 4242;
    m.activation = OUTRIDER_CLAMPED_SWIGLU;
    m.swiglu_alpha = 1.702f;
    m.swiglu_limit = 0.75f; /* that many numbers reach */
    for (int i = 0; i < m.layers; i++) {
        outrider_layer *l = (outrider_layer *)m.layer + i;
        l->window = i % 2 ? 0 : 40;
        l->sinks = random_floats(m.heads, 4.0f);
        if (i != 1) continue;
        add_experts(&m, i, 2, 6, 3);
        l->router.bias = random_floats(l->experts, 1.0f);
    }
    return m;
}

static uint64_t digest_of_sinks(const outrider_model *model) {
    digest = UINT64_C(0xcbf29ce484222325);
    for (int32_t type = OUTRIDER_CACHE_F32; type <= OUTRIDER_CACHE_BF16; type++) {
        memory m;
        make_cache(&m, model, type);
        run_prompts(model, &m);
        run_trees(model, &m);
        free_cache(&m, model);
    }
    return digest;
}

#endif
