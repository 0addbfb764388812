/* A model whose layers attend to chunks, but for the last, which rotates nothing and scales its queries; norms without
 * weights behind the rotation, and experts whose weights are of their inputs. */
#ifndef OUTRIDER_DRIVER_CHUNKS_H
#define OUTRIDER_DRIVER_CHUNKS_H

static outrider_model random_chunked(void) {
    outrider_model m = random_model(2);
    random_state = 777;
    float *ones = random_floats(m.head_dim, 1.0f);
    for (int32_t i = 0; i < m.head_dim; i++) ones[i] = 1.0f;
    float *scales = random_floats(m.positions, 0.2f);
    for (int32_t i = 0; i < m.positions; i++) scales[i] += 1.0f;
    for (int i = 0; i < m.layers; i++) {
        outrider_layer *l = (outrider_layer *)m.layer + i;
        int last = i == m.layers - 1;
        l->window = last ? 0 : 24;
        l->chunked = !last;
        l->q_norm = l->k_norm = last ? NULL : ones;
        l->rotated_qk_norm = 1;
        if (last) l->rotations = NULL;
        l->query_scales = last ? scales : NULL;
        if (i != 1) continue;
        add_experts(&m, i, 2, 6, 3);
        outrider_routing *by = allocate(sizeof *by);
        *by = (outrider_routing){.kind = OUTRIDER_SIGMOID, .scales_inputs = 1, .scale = 1.0f};
        l->routing = by;
        l->normalised = 0;
    }
    return m;
}

#endif
