/* Routers of all kinds. Included by driver.c behind its own functions; their digest is one of its own. */
#ifndef DRIVER_ROUTERS_H
#define DRIVER_ROUTERS_H

static outrider_model random_routers(void) {
    outrider_model m = random_model(0);
    add_routers(&m, 0, 12, 5);
    return m;
}

static uint64_t digest_of_routers(const outrider_model *model) {
    memory m;
    digest = UINT64_C(0xcbf29ce484222325);
    make_cache(&m, model, OUTRIDER_CACHE_BF16);
    run_prompts(model, &m);
    run_trees(model, &m);
    free_cache(&m, model);
    return digest;
}

#endif
