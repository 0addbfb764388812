/* The first half of MLPs: gate and up, and what the activation makes of them.
 *
 * Threads share out the columns of all MLPs in one phase. Whoever computes 32 columns of gate and up also activates and
 * quantises them: they are a whole group of what down reads.
 */
#include "forward.h"
#include "linear.h"

#define UNIT 32 /* columns */
#define PANELS (UNIT / 16)
#define AHEAD_BYTES 2048 /* of the next MLP's first panel, which the processor cannot guess */

typedef struct {
    forward_ctx *f;
    const columns *inner;
    const mlp_rows *parts;
    int64_t units; /* of an MLP */
} gate_work;

void fetch_panel(const outrider_weight *w, int64_t panel) {
    for (int64_t at = 0; at < AHEAD_BYTES && at < w->panel_bytes; at += 64)
        __builtin_prefetch(w->panels + panel * w->panel_bytes + at);
}

static void gate_columns(const gate_work *work, const mlp_rows *p, int64_t first_unit, int64_t last_unit) {
    forward_ctx *f = work->f;
    const columns *c = work->inner;
    const outrider_mlp *mlp = p->mlp;
    int64_t from = UNIT * first_unit, to = last_unit < work->units ? UNIT * last_unit : c->count;
    int64_t first = PANELS * first_unit, last = (to + 15) / 16;
    float *gate = local_columns(p->gate, c), *up = local_columns(p->up, c);
    if (mlp->up.panels) fetch_panel(&mlp->up, first);
    f->k->linear(&mlp->gate, &p->in, first, last, gate, c->all);
    if (mlp->up.panels) f->k->linear(&mlp->up, &p->in, first, last, up, c->all);
    for (int64_t r = 0; r < p->in.rows; r++)
        activate(f, to - from, gate + r * c->all + from, mlp->up.panels ? up + r * c->all + from : NULL);
    quantise_columns(f, &p->gated, c, &mlp->down, from, to);
}

/* Units first .. last - 1 of all MLPs' together. */
static void gate_share(void *shared, int64_t first, int64_t last, int thread) {
    const gate_work *work = shared;
    (void)thread;
    while (first < last) {
        const mlp_rows *p = work->parts + first / work->units;
        int64_t at = first % work->units, end = at + last - first;
        if (end > work->units) {
            end = work->units;
            fetch_panel(&p[1].mlp->gate, 0);
        }
        gate_columns(work, p, at, end);
        first += end - at;
    }
}

void run_gates(forward_ctx *f, const columns *inner, int64_t count, const mlp_rows *parts) {
    gate_work work = {f, inner, parts, (inner->count + UNIT - 1) / UNIT};
    share_size size = share_of_panels(&parts->mlp->gate, parts->in.rows, PANELS * (parts->mlp->up.panels ? 2 : 1));
    run_shares(&f->context->pool, count * work.units, size, gate_share, &work);
}
