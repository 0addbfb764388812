/* Where the compiler put every field of every structure that callers fill in: see outrider_layout. */
#include "pack.h"
#include "sample.h"

typedef struct {
    const char *name;
    int64_t offset, size;
} place;

#define WHOLE(type) {#type, 0, sizeof(type)}
#define FIELD(type, field) {#type "." #field, offsetof(type, field), sizeof(((type *)0)->field)}

static const place places[] = {
    WHOLE(outrider_weight), FIELD(outrider_weight, layout), FIELD(outrider_weight, bits),
    FIELD(outrider_weight, group), FIELD(outrider_weight, scales), FIELD(outrider_weight, has_minimum),
    FIELD(outrider_weight, has_table), FIELD(outrider_weight, first), FIELD(outrider_weight, unit), FIELD(outrider_weight, super_block),
    FIELD(outrider_weight, reserved),
    FIELD(outrider_weight, outputs), FIELD(outrider_weight, inputs), FIELD(outrider_weight, groups),
    FIELD(outrider_weight, panel_bytes), FIELD(outrider_weight, panels), FIELD(outrider_weight, bias),
    FIELD(outrider_weight, values),
    WHOLE(outrider_mlp), FIELD(outrider_mlp, gate), FIELD(outrider_mlp, up), FIELD(outrider_mlp, down),
    WHOLE(outrider_norm_weights), FIELD(outrider_norm_weights, weight), FIELD(outrider_norm_weights, bias),
    WHOLE(outrider_recurrent), FIELD(outrider_recurrent, qkv), FIELD(outrider_recurrent, z),
    FIELD(outrider_recurrent, a), FIELD(outrider_recurrent, b), FIELD(outrider_recurrent, out),
    FIELD(outrider_recurrent, key_heads), FIELD(outrider_recurrent, value_heads), FIELD(outrider_recurrent, key_dim),
    FIELD(outrider_recurrent, value_dim), FIELD(outrider_recurrent, convolution),
    FIELD(outrider_recurrent, tiled), FIELD(outrider_recurrent, taps), FIELD(outrider_recurrent, decay),
    FIELD(outrider_recurrent, dt_bias), FIELD(outrider_recurrent, norm),
    WHOLE(outrider_latent), FIELD(outrider_latent, q_a), FIELD(outrider_latent, q_b), FIELD(outrider_latent, kv_a),
    FIELD(outrider_latent, k_b), FIELD(outrider_latent, v_b), FIELD(outrider_latent, out),
    FIELD(outrider_latent, query_rank), FIELD(outrider_latent, rank), FIELD(outrider_latent, plain),
    FIELD(outrider_latent, rotated), FIELD(outrider_latent, value_dim), FIELD(outrider_latent, eps),
    FIELD(outrider_latent, query_norm), FIELD(outrider_latent, norm),
    WHOLE(outrider_layer), FIELD(outrider_layer, q), FIELD(outrider_layer, k), FIELD(outrider_layer, v),
    FIELD(outrider_layer, out), FIELD(outrider_layer, mlp), FIELD(outrider_layer, attention_norm),
    FIELD(outrider_layer, mlp_norm), FIELD(outrider_layer, attention_output_norm),
    FIELD(outrider_layer, mlp_output_norm), FIELD(outrider_layer, q_norm), FIELD(outrider_layer, k_norm),
    FIELD(outrider_layer, rotations), FIELD(outrider_layer, window), FIELD(outrider_layer, whole_qk_norm),
    FIELD(outrider_layer, experts), FIELD(outrider_layer, experts_used), FIELD(outrider_layer, normalised),
    FIELD(outrider_layer, gated), FIELD(outrider_layer, router), FIELD(outrider_layer, expert),
    FIELD(outrider_layer, shared_expert), FIELD(outrider_layer, shared_expert_gate), FIELD(outrider_layer, recurrent),
    FIELD(outrider_layer, latent), FIELD(outrider_layer, embedding_norm), FIELD(outrider_layer, sinks),
    WHOLE(outrider_shard), FIELD(outrider_shard, rank), FIELD(outrider_shard, size), FIELD(outrider_shard, group),
    FIELD(outrider_shard, reserved), FIELD(outrider_shard, key_heads), FIELD(outrider_shard, hidden),
    FIELD(outrider_shard, inner), FIELD(outrider_shard, expert_inner), FIELD(outrider_shard, vocabulary),
    FIELD(outrider_shard, gather), FIELD(outrider_shard, context), FIELD(outrider_shard, gathers),
    FIELD(outrider_shard, bytes),
    WHOLE(outrider_shared), FIELD(outrider_shared, rank), FIELD(outrider_shared, size),
    FIELD(outrider_shared, slot_bytes), FIELD(outrider_shared, memory), FIELD(outrider_shared, epoch),
    WHOLE(outrider_model), FIELD(outrider_model, layers), FIELD(outrider_model, hidden), FIELD(outrider_model, heads),
    FIELD(outrider_model, kv_heads), FIELD(outrider_model, head_dim), FIELD(outrider_model, inner),
    FIELD(outrider_model, positions), FIELD(outrider_model, activation), FIELD(outrider_model, eps),
    FIELD(outrider_model, embedding_scale), FIELD(outrider_model, residual_scale), FIELD(outrider_model, logit_scale),
    FIELD(outrider_model, attention_scale), FIELD(outrider_model, attention_cap), FIELD(outrider_model, logit_cap),
    FIELD(outrider_model, swiglu_alpha), FIELD(outrider_model, swiglu_limit),
    FIELD(outrider_model, reserved), FIELD(outrider_model, layer), FIELD(outrider_model, final_norm),
    FIELD(outrider_model, embedding), FIELD(outrider_model, head), FIELD(outrider_model, shard),
    WHOLE(outrider_cache), FIELD(outrider_cache, type), FIELD(outrider_cache, block), FIELD(outrider_cache, rows),
    FIELD(outrider_cache, layers), FIELD(outrider_cache, kv_heads), FIELD(outrider_cache, head_dim),
    FIELD(outrider_cache, value_dim), FIELD(outrider_cache, keys), FIELD(outrider_cache, values),
    FIELD(outrider_cache, key_scales), FIELD(outrider_cache, value_scales), FIELD(outrider_cache, states),
    WHOLE(outrider_states), FIELD(outrider_states, slots), FIELD(outrider_states, layers),
    FIELD(outrider_states, key_heads), FIELD(outrider_states, value_heads), FIELD(outrider_states, key_dim),
    FIELD(outrider_states, value_dim), FIELD(outrider_states, convolution), FIELD(outrider_states, pending),
    FIELD(outrider_states, state), FIELD(outrider_states, inputs), FIELD(outrider_states, updates),
    WHOLE(outrider_span), FIELD(outrider_span, start), FIELD(outrider_span, count), FIELD(outrider_span, mask_rows),
    FIELD(outrider_span, mask_keys), FIELD(outrider_span, entries), FIELD(outrider_span, slot),
    FIELD(outrider_span, settled), FIELD(outrider_span, kept), FIELD(outrider_span, table), FIELD(outrider_span, mask),
    WHOLE(outrider_low_rank), FIELD(outrider_low_rank, rank), FIELD(outrider_low_rank, reserved),
    FIELD(outrider_low_rank, inputs), FIELD(outrider_low_rank, outputs), FIELD(outrider_low_rank, down),
    FIELD(outrider_low_rank, up),
    WHOLE(outrider_batch), FIELD(outrider_batch, rows), FIELD(outrider_batch, spans), FIELD(outrider_batch, layers),
    FIELD(outrider_batch, features), FIELD(outrider_batch, logit_rows), FIELD(outrider_batch, reserved),
    FIELD(outrider_batch, tokens), FIELD(outrider_batch, positions), FIELD(outrider_batch, inputs),
    FIELD(outrider_batch, span), FIELD(outrider_batch, feature_layers), FIELD(outrider_batch, logit_row),
    FIELD(outrider_batch, feature), FIELD(outrider_batch, hidden_out), FIELD(outrider_batch, logits),
    FIELD(outrider_batch, residual), FIELD(outrider_batch, embeddings), FIELD(outrider_batch, adapters),
    WHOLE(outrider_fixed_keys), FIELD(outrider_fixed_keys, type), FIELD(outrider_fixed_keys, heads),
    FIELD(outrider_fixed_keys, head_dim), FIELD(outrider_fixed_keys, length), FIELD(outrider_fixed_keys, keys),
    FIELD(outrider_fixed_keys, values),
    WHOLE(outrider_feature_head), FIELD(outrider_feature_head, layers), FIELD(outrider_feature_head, fc),
    FIELD(outrider_feature_head, fc_norm), FIELD(outrider_feature_head, output_norm),
    FIELD(outrider_feature_head, embedding), FIELD(outrider_feature_head, ids),
    FIELD(outrider_feature_head, embedding_norm), FIELD(outrider_feature_head, more),
    FIELD(outrider_feature_head, parts),
    FIELD(outrider_feature_head, embedding_scale),
    WHOLE(outrider_chain), FIELD(outrider_chain, rows), FIELD(outrider_chain, levels), FIELD(outrider_chain, start),
    FIELD(outrider_chain, temperature), FIELD(outrider_chain, entries), FIELD(outrider_chain, reserved),
    FIELD(outrider_chain, table), FIELD(outrider_chain, features), FIELD(outrider_chain, tokens),
    FIELD(outrider_chain, positions), FIELD(outrider_chain, noise), FIELD(outrider_chain, found),
    FIELD(outrider_chain, embeddings), FIELD(outrider_chain, output), FIELD(outrider_chain, logits),
    WHOLE(outrider_source), FIELD(outrider_source, type), FIELD(outrider_source, target), FIELD(outrider_source, rows),
    FIELD(outrider_source, inputs), FIELD(outrider_source, outputs), FIELD(outrider_source, order),
    FIELD(outrider_source, data), FIELD(outrider_source, data_bytes), FIELD(outrider_source, grid),
    FIELD(outrider_source, grid_bytes), FIELD(outrider_source, values),
    WHOLE(outrider_sampling), FIELD(outrider_sampling, top_k), FIELD(outrider_sampling, top_p),
    FIELD(outrider_sampling, temperature), FIELD(outrider_sampling, least),
};

const char *outrider_layout(int32_t index, int64_t *offset, int64_t *size) {
    if (index < 0 || index >= (int32_t)(sizeof places / sizeof *places) || !offset || !size) return NULL;
    *offset = places[index].offset;
    *size = places[index].size;
    return places[index].name;
}
