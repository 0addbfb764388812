/* Whether the layers of a model can be: see check.c. */
#include "arguments.h"
#include "attention.h"
#include "latent.h"

int is_norm(const outrider_norm_weights *n) {
    return is_array_or_null(n->weight, sizeof(float)) && is_array_or_null(n->bias, sizeof(float)) &&
           (n->weight || !n->bias);
}

static int is_ungated(int32_t activation) {
    return activation == OUTRIDER_GELU_TANH || activation == OUTRIDER_RELU_SQUARED;
}

int fits_mlp(const local_model *m, const outrider_mlp *mlp, const columns *inner) {
    int64_t d = m->whole->hidden;
    return is_product(&mlp->gate, inner->count, d) && is_product(&mlp->down, m->hidden.count, inner->all) &&
           (mlp->up.panels ? m->whole->activation != OUTRIDER_RELU_SQUARED && is_product(&mlp->up, inner->count, d)
                           : is_ungated(m->whole->activation));
}

static int fits_attention(const local_model *m, const outrider_layer *l) {
    int64_t d = m->whole->hidden, wide = l->embedding_norm ? 2 * d : d;
    const float *vectors[] = {l->q_norm, l->k_norm, l->v_norm, l->rotations, l->embedding_norm, l->sinks};
    for (int i = 0; i < 6; i++)
        if (!is_array_or_null(vectors[i], sizeof(float))) return 0;
    return is_product(&l->q, m->queries.count * (l->gated ? 2 : 1), wide) &&
           (l->reads || is_product(&l->k, m->kv.count, wide)) &&
           (l->reads || l->values_are_keys || is_product(&l->v, m->kv.count, wide)) &&
           is_product(&l->out, m->hidden.count, m->queries.all) && l->window >= 0 &&
           (!l->rotations || m->head_dim % 2 == 0) && !(m->whole->shard && l->gated);
}

/* Heads of a layer's own. None that is split, whole normed, or recurrent has them. */
static int has_fitting_heads(const outrider_model *m, const outrider_layer *l) {
    if (!l->kv_heads && !l->head_dim && !l->reads) return 1;
    int32_t kv_heads = l->kv_heads ? l->kv_heads : m->kv_heads, head_dim = l->head_dim ? l->head_dim : m->head_dim;
    return !m->shard && !l->recurrent && !l->latent && kv_heads >= 1 && m->heads % kv_heads == 0 && head_dim >= 1 &&
           head_dim <= MOST_PLAIN_HEAD_DIM && m->heads <= MOST_WIDTH / head_dim && l->reads >= 0;
}

static int fits_beside(const outrider_layer *l) {
    const outrider_beside *b = l->beside;
    if (!b) return 1;
    if (!l->experts || !is_array(b, _Alignof(outrider_beside))) return 0;
    const float *vectors[] = {b->router_norm, b->expert_norm, b->mlp_output_norm, b->expert_output_norm,
                              b->expert_scale};
    for (int i = 0; i < 5; i++)
        if (!is_array(vectors[i], sizeof(float))) return 0;
    return 1;
}

static int fits_input(const outrider_model *m, const outrider_layer *l) {
    const outrider_layer_input *input = l->input;
    if (!input) return 1;
    return m->layer_inputs && is_array(input, _Alignof(outrider_layer_input)) &&
           is_product(&input->gate, m->layer_inputs, m->hidden) && is_product(&input->out, m->hidden, m->layer_inputs) &&
           is_array(input->norm, sizeof(float));
}

/* What all layers' inputs are made of. */
int has_layer_inputs(const outrider_model *m, const float *embeddings) {
    if (!m->layer_inputs) return 1;
    return !m->shard && m->layer_inputs > 0 && m->layers >= 1 && m->layer_inputs <= MOST_WIDTH / m->layers &&
           is_array(embeddings, sizeof(float)) && is_array(m->layer_projection, _Alignof(outrider_weight)) &&
           is_product(m->layer_projection, (int64_t)m->layers * m->layer_inputs, m->hidden) &&
           is_array(m->layer_projection_norm, sizeof(float));
}

static int is_routing(const outrider_routing *r, int32_t experts, int32_t used) {
    if (!r) return 1;
    if (!is_array(r, _Alignof(outrider_routing))) return 0;
    int grouped = r->groups >= 1 && r->groups <= MOST_GROUPS && experts % r->groups == 0 && r->groups_used >= 1 &&
                  r->groups_used <= r->groups && r->groups_used * (experts / r->groups) >= used &&
                  (r->best_of_group == 1 || r->best_of_group == 2);
    int of_used = r->kind == OUTRIDER_SOFTMAX_OF_USED;
    return r->kind >= OUTRIDER_SOFTMAX && r->kind <= OUTRIDER_SOFTMAX_OF_USED && (!r->groups || grouped) &&
           is_array_or_null(r->bias, sizeof(float)) && !(of_used && (r->bias || r->groups));
}

static int fits_experts(const local_model *m, const outrider_layer *l) {
    return l->experts > 0 && l->experts <= MOST_WIDTH && l->experts_used >= 1 && l->experts_used <= l->experts &&
           is_product(&l->router, l->experts, m->whole->hidden) && is_array(l->expert, _Alignof(outrider_mlp)) &&
           is_routing(l->routing, l->experts, l->experts_used) &&
           is_array_or_null(l->shared_expert, _Alignof(outrider_mlp)) && !(m->whole->shard && l->shared_expert) &&
           is_array_or_null(l->shared_expert_gate, sizeof(float));
}

/* Layers that are a mixer or an MLP alone: in models that are whole, without what belongs to the other. */
static int lacks_fit(const outrider_model *m, const outrider_layer *l) {
    if (l->lacks == OUTRIDER_LACKS_NOTHING) return 1;
    if (m->shard || l->input || l->beside || l->reads) return 0;
    return l->lacks == OUTRIDER_LACKS_MIXER ? !l->recurrent && !l->latent : l->lacks == OUTRIDER_LACKS_MLP && !l->experts;
}

int fits_layer(const local_model *whole, const outrider_layer *l) {
    int latent = find_latent(whole->whole) != NULL;
    if (!lacks_fit(whole->whole, l)) return 0;
    if (latent ? l->recurrent || !l->latent : whole->whole->head_dim > MOST_PLAIN_HEAD_DIM) return 0;
    if (!has_fitting_heads(whole->whole, l)) return 0;
    local_model own = columns_of_layer(whole, l), *m = &own;
    int mixes = l->lacks == OUTRIDER_LACKS_MIXER ? 1
                : latent                         ? fits_latent(m, l)
                : l->recurrent                   ? !l->embedding_norm && fits_recurrent(m, l->recurrent)
                               : fits_attention(m, l);
    return mixes && is_norm(&l->attention_norm) && is_norm(&l->mlp_norm) && is_norm(&l->attention_output_norm) &&
           is_norm(&l->mlp_output_norm) && (m->whole->shard || m->inner.all <= m->whole->inner) && (!l->experts || fits_experts(m, l)) &&
           (l->lacks == OUTRIDER_LACKS_MLP || (l->experts && !l->beside) || fits_mlp(m, &l->mlp, &m->inner)) && fits_beside(l) &&
           fits_input(m->whole, l) && is_array_or_null(l->output_scale, sizeof(float));
}
