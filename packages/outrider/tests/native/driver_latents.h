/* Models that attend to latents, with a query's latent and without. */
#ifndef OUTRIDER_DRIVER_LATENTS_H
#define OUTRIDER_DRIVER_LATENTS_H

enum { LATENT_MODELS = 2 };

static outrider_model random_latents(int which) {
    outrider_model m = random_model(which ? 2 : 0);
    random_state = 777 + (uint64_t)which;
    /* A cache row of 72 numbers, no whole vectors; or of 128, which bfloat16 is read from in pairs, for 16 heads. */
    outrider_latent sizes = which ? (outrider_latent){.query_rank = 0, .rank = 96, .plain = 40, .rotated = 32, .value_dim = 16}
                                  : (outrider_latent){.query_rank = 40, .rank = 64, .plain = 24, .rotated = 8, .value_dim = 32};
    sizes.eps = 1e-6f;
    m.heads = which ? 16 : m.heads;
    m.kv_heads = 1;
    m.head_dim = sizes.rank + sizes.rotated;
    m.attention_scale = 0.125f;
    float *rotations = random_rotations(sizes.rotated / 2);
    outrider_latent *latents = allocate((size_t)m.layers * sizeof *latents);
    for (int i = 0; i < m.layers; i++) {
        outrider_layer *l = (outrider_layer *)m.layer + i;
        outrider_latent *t = latents + i;
        int f = 2 * i + which;
        int64_t wide = (int64_t)m.heads * (sizes.plain + sizes.rotated);
        *t = sizes;
        if (t->query_rank) t->q_a = random_weight(f, t->query_rank, m.hidden, i % 2);
        t->q_b = random_weight(f + 1, wide, t->query_rank ? t->query_rank : m.hidden, 0);
        t->kv_a = random_weight(f + 2, m.head_dim, m.hidden, i % 2);
        t->k_b = random_weight(f + 3, (int64_t)m.heads * t->rank, t->plain, 0);
        t->v_b = random_weight(f + 4, (int64_t)m.heads * t->value_dim, t->rank, 0);
        t->out = random_weight(f + 5, m.hidden, (int64_t)m.heads * t->value_dim, 0);
        t->query_norm = random_floats(t->query_rank ? t->query_rank : 1, 1.0f);
        t->norm = random_floats(t->rank, 1.0f);
        l->latent = t;
        l->rotations = rotations;
        l->window = 0;
    }
    return m;
}

/* A value is the beginning of its key. */
static void make_latent_cache(memory *m, const outrider_model *model, int32_t type) {
    make_cache(m, model, type);
    m->cache.value_dim = model->layer->latent->rank;
    m->cache.values = m->keys;
}

static uint64_t digest_of_latents(const outrider_model *models) {
    digest = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < LATENT_MODELS; i++)
        for (int32_t type = OUTRIDER_CACHE_F32; type <= OUTRIDER_CACHE_I8; type++) {
            memory m;
            make_latent_cache(&m, models + i, type);
            run_prompts(models + i, &m);
            run_trees(models + i, &m);
            run_inputs(models + i, &m);
            free_cache(&m, models + i);
        }
    return digest;
}

#endif
