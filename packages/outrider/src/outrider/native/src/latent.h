/* Attention on latents (multi-head latent attention): sizes, and what is checked of them. */
#ifndef OUTRIDER_LATENT_H
#define OUTRIDER_LATENT_H

#include "columns.h"

/* Numbers of a head's query as it is projected, and of all heads' outputs. */
static inline int64_t query_of(const outrider_latent *t) { return (int64_t)t->plain + t->rotated; }
static inline int64_t outputs_of(const outrider_model *m, const outrider_latent *t) {
    return (int64_t)m->heads * t->value_dim;
}

/* Latent attention of a model's layers, which all have its sizes; NULL: there is none. */
static inline const outrider_latent *find_latent(const outrider_model *m) {
    for (int32_t i = 0; i < m->layers; i++)
        if (m->layer[i].latent) return m->layer[i].latent;
    return NULL;
}

/* Numbers of a value in the cache of a model that attends to latents; 0: it does not. */
static inline int32_t latent_rank(const outrider_model *m) {
    const outrider_latent *t = find_latent(m);
    return t ? t->rank : 0;
}

/* Whether a layer's latent attention can be; see check.c. */
int fits_latent(const local_model *m, const outrider_layer *l);

#endif
