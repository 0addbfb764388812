/* The order in which the rows of a span change states: depth first, so that a tree needs few copies of a state. */
#include "recurrent.h"

/* Rows that may be dropped, as a tree. Places are one more than a row's number, so that place 0 is the state before. */
typedef struct {
    int32_t *parent, *child, *next; /* places; next: the parent's next child; 0: there is none */
    int32_t *state;                 /* of each place, that it leaves; -1: its change has not been applied yet */
    recurrent_step *step;
    int32_t root, count, copies, pending;
} tree;

static int32_t settled_rows(const outrider_span *s) { return s->kept < 0 ? 0 : s->start - s->settled + s->kept; }

static void add_step(tree *t, int32_t update, int32_t place, int32_t from, int32_t to) {
    int32_t read = place - 1 - t->pending;
    if (update < 0 && read < 0) return;
    t->step[t->count++] = (recurrent_step){update, read < 0 ? -1 : read, from, to};
    if (to > t->copies) t->copies = to;
}

/* The state that a row's change makes: in place, if it is for good or if no other child of the parent needs the copy. */
static int32_t state_after(const tree *t, int32_t place, int32_t from) {
    if (place == t->root) return 0;
    return from > 0 && !t->next[place] ? from : from + 1;
}

/* A row reads the state that its parent leaves. The parent's first child makes it. */
static void visit(tree *t, int32_t place) {
    int32_t parent = t->parent[place], update = -1, from = t->state[parent];
    if (from < 0) {
        from = parent == t->root ? 0 : t->state[t->parent[parent]];
        t->state[parent] = state_after(t, parent, from);
        update = parent - 1;
    }
    add_step(t, update, place, from, t->state[parent]);
}

/* Rows that the state takes in for good: a chain. The last one's change is left to do. */
static void settle(tree *t) {
    for (int32_t place = 1; place <= t->root; place++) add_step(t, place - 2, place, 0, 0);
    t->state[t->root] = t->root ? -1 : 0;
}

static void walk(tree *t) {
    int32_t root = t->root;
    for (int32_t at = t->child[root]; at;) {
        visit(t, at);
        if (t->child[at]) {
            at = t->child[at];
            continue;
        }
        while (at != root && !t->next[at]) at = t->parent[at];
        at = at == root ? 0 : t->next[at];
    }
}

static void plan_steps(span_plan *p, tree *t) {
    const outrider_span *s = p->span;
    int32_t settled = settled_rows(s), rows = p->pending + s->count;
    *t = (tree){t->parent, t->child, t->next, t->state, (recurrent_step *)p->step, settled, 0, 0, p->pending};
    for (int32_t place = settled; place <= rows; place++) t->child[place] = t->next[place] = 0, t->state[place] = -1;
    for (int32_t place = rows; place > settled; place--) {
        int32_t parent = t->parent[place] = parent_of(s, p->pending, place - 1) + 1;
        t->next[place] = t->child[parent];
        t->child[parent] = place;
    }
    settle(t);
    walk(t);
    if (t->state[settled] < 0) add_step(t, settled - 1, 0, 0, 0); /* no row came behind */
    p->num_steps = t->count;
    p->copies = t->copies;
}

static void plan_windows(const span_plan *p, int32_t convolution, int32_t *window) {
    const outrider_span *s = p->span;
    for (int32_t r = 0; r < s->count; r++, window += convolution) {
        int32_t row = p->pending + r;
        for (int32_t t = convolution - 1; t >= 0; t--) {
            /* Inputs begin with those of convolution - 1 settled rows, the last of them before pending row 0. */
            window[t] = row >= p->pending ? row - p->pending : -1 - (convolution - 1 + row);
            row = row > 0 ? parent_of(s, p->pending, row) : row - 1;
        }
    }
}

/* ---- A batch ---------------------------------------------------------------------------------------------------- */

const outrider_recurrent *find_recurrent(const outrider_model *m, int32_t layers) {
    for (int32_t i = 0; i < layers; i++)
        if (m->layer[i].recurrent) return m->layer[i].recurrent;
    return NULL;
}

static tree take_tree(arena *a, int64_t places) {
    tree t = {0};
    t.parent = take(a, places, sizeof(int32_t));
    t.child = take(a, places, sizeof(int32_t));
    t.next = take(a, places, sizeof(int32_t));
    t.state = take(a, places, sizeof(int32_t));
    return t;
}

static tree lay_out(arena *a, recurrent_plan *plan, const outrider_batch *b) {
    int64_t most = 0, row = 0;
    plan->span = take(a, b->spans, sizeof *plan->span);
    for (int32_t i = 0; i < b->spans; i++) {
        const outrider_span *s = b->span + i;
        int64_t rows = (int64_t)s->start - s->settled + s->count;
        span_plan p = {.span = s, .row = row, .pending = s->start - s->settled};
        p.step = take(a, rows + 1, sizeof *p.step);
        p.window = take(a, (int64_t)s->count * plan->sizes->convolution, sizeof *p.window);
        if (a->base) plan->span[i] = p;
        if (rows > most) most = rows;
        row += s->count;
    }
    return take_tree(a, most + 1);
}

void take_recurrent(arena *a, recurrent_plan *plan, const outrider_batch *b) {
    plan->copies = 0;
    if (!plan->sizes) return;
    tree t = lay_out(a, plan, b);
    for (int32_t i = 0; a->base && i < b->spans; i++) {
        plan_steps(plan->span + i, &t);
        plan_windows(plan->span + i, plan->sizes->convolution, (int32_t *)plan->span[i].window);
        if (plan->span[i].copies > plan->copies) plan->copies = plan->span[i].copies;
    }
}
