/* Times that threads wait for each other, in a layer: of a model that is wide enough for each phase to be shared out.
 *
 * Prints, for one row and for sixteen, the waits of a layer with an MLP, and with 4 and with 16 experts a row.
 */
#include "driver_model.h"

enum { HIDDEN = 1024, INNER = 1024, HEADS = 8, KV_HEADS = 4, HEAD_DIM = 128, EXPERTS = 16, ROWS = 16 };

static outrider_layer layer_of(int experts_used) {
    outrider_layer l = {
        .q = random_weight(2, HIDDEN, HIDDEN, 0),
        .k = random_weight(2, KV_HEADS * HEAD_DIM, HIDDEN, 0),
        .v = random_weight(2, KV_HEADS * HEAD_DIM, HIDDEN, 0),
        .out = random_weight(2, HIDDEN, HIDDEN, 0),
        .mlp = {.gate = random_weight(2, INNER, HIDDEN, 0),
                .up = random_weight(2, INNER, HIDDEN, 0),
                .down = random_weight(2, HIDDEN, INNER, 0)},
        .attention_norm = {random_floats(HIDDEN, 1.0f)},
        .mlp_norm = {random_floats(HIDDEN, 1.0f)},
    };
    if (!experts_used) return l;
    outrider_mlp *expert = allocate(EXPERTS * sizeof *expert);
    for (int e = 0; e < EXPERTS; e++) expert[e] = l.mlp;
    l.router = random_weight(8, EXPERTS, HIDDEN, 0);
    l.expert = expert;
    l.experts = EXPERTS;
    l.experts_used = experts_used;
    return l;
}

static int64_t waits(outrider_context *c, outrider_layer *layers, int count, int rows) {
    void *keys[2], *values[2];
    int64_t positions[ROWS];
    const int32_t table = 0;
    float *x = random_floats(ROWS * HIDDEN, 1.0f);
    outrider_model m = {.layers = count, .hidden = HIDDEN, .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM,
                        .inner = INNER, .positions = ROWS, .eps = 1e-5f, .layer = layers};
    outrider_cache cache = {.type = OUTRIDER_CACHE_F32, .block = ROWS, .rows = ROWS, .layers = 2, .kv_heads = KV_HEADS,
                            .head_dim = HEAD_DIM, .keys = keys, .values = values};
    for (int i = 0; i < 2; i++)
        keys[i] = random_floats(ROWS * KV_HEADS * HEAD_DIM, 1.0f), values[i] = random_floats(ROWS * KV_HEADS * HEAD_DIM, 1.0f);
    for (int r = 0; r < rows; r++) positions[r] = r;
    outrider_span span = {.count = rows, .entries = 1, .table = &table};
    outrider_batch batch = {.rows = rows, .spans = 1, .layers = count, .positions = positions, .inputs = x, .span = &span,
                            .residual = x};
    int64_t before = outrider_syncs(c);
    if (outrider_forward(c, &m, &cache, &batch)) exit(2);
    return outrider_syncs(c) - before;
}

int main(void) {
    outrider_context *c;
    if (outrider_create(2, "portable", &c)) return 2;
    for (int used = 0; used <= EXPERTS; used = used ? 4 * used : 4) {
        outrider_layer layer = layer_of(used), layers[2] = {layer, layer};
        for (int rows = 1; rows <= ROWS; rows += ROWS - 1)
            printf("%d experts, %d rows: %d\n", used, rows,
                   (int)(waits(c, layers, 2, rows) - waits(c, layers, 1, rows)));
    }
    return outrider_destroy(c);
}
