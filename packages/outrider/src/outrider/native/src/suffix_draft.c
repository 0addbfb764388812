/* The tokens that are likeliest to come, copied from places where the last ones occurred before.
 *
 * The same steps as outrider.drafters.text.suffix_tree, in the same order, so that both draft the same bit for bit. */
#include <stdlib.h>

#include "retrieval.h"

#define REUSED 4       /* agreeing tokens from which an answer counts as used */
#define MOST_COPIES 16
#define MOST_NODES 1024
#define MOST_WEIGHTS 255
#define MOST_PLACES (3 * MOST_OCCURRENCES + MOST_COPIES)
#define LEFT 0.03 /* of the probability, below which less confident places are not looked at */

/* A place that a text goes on from as this one may. */
typedef struct {
    const int32_t *text;
    int64_t end, stop; /* the next token, and the first that is not there */
    int32_t own;       /* whether behind its stop it goes on with the draft */
    int32_t match, table;
} place;

/* A token that may come, behind a node; ``places[first]`` to ``places[first + count - 1]`` went on with it. */
typedef struct {
    double probability, share; /* on the whole path, and given its parent */
    int64_t order;             /* in which it was offered: of equals the first is drafted */
    int64_t first;
    int32_t count, token, parent, level;
} candidate;

typedef struct {
    const outrider_retrieval *r;
    place *places;     /* behind all candidates so far */
    candidate *heap;   /* the likeliest first */
    int64_t num_places, num_heap, offered;
    int32_t *tokens, *parents; /* the draft so far */
} growth;

static int comes_first(const candidate *a, const candidate *b) {
    return a->probability != b->probability ? a->probability > b->probability : a->order < b->order;
}

static void push(growth *g, candidate entry) {
    int64_t at = g->num_heap++;
    for (; at && comes_first(&entry, &g->heap[(at - 1) / 2]); at = (at - 1) / 2) g->heap[at] = g->heap[(at - 1) / 2];
    g->heap[at] = entry;
}

static candidate pop(growth *g) {
    candidate top = g->heap[0], last = g->heap[--g->num_heap];
    int64_t at = 0;
    for (int64_t child = 1; child < g->num_heap; child = 2 * at + 1) {
        if (child + 1 < g->num_heap && comes_first(&g->heap[child + 1], &g->heap[child])) child++;
        if (!comes_first(&g->heap[child], &last)) break;
        g->heap[at] = g->heap[child];
        at = child;
    }
    if (g->num_heap) g->heap[at] = last;
    return top;
}

/* The token number ``back`` of the path down to a node of ``level`` tokens, from 0. */
static int32_t on_path(const growth *g, int32_t node, int32_t level, int64_t back) {
    for (; level - 1 > back; level--) node = g->parents[node];
    return g->tokens[node];
}

/* The token that a place goes on with behind a node; negative if it ends there. */
static int32_t next_token(const growth *g, const place *p, int32_t node, int32_t level) {
    if (p->end < p->stop) return p->text[p->end];
    int64_t beyond = p->end - p->stop;
    return p->own && beyond < level ? on_path(g, node, level, beyond) : -1;
}

/* Number of the weights of a place: the less, the more confident. */
static int32_t weights_of(const growth *g, const place *p) {
    return g->r->kinds[p->table * (LONGEST_CONTEXT + 1) + p->match];
}

/* Prediction by partial matching: the tokens that come behind ``places``, with probabilities whose sum is less than 1.
 *
 * found: [count], the tokens in the order of their first place, the most confident places first; their places are put
 * behind all others. Returns how many tokens there are. */
static int64_t predict(growth *g, const place *places, int64_t count, int32_t node, int32_t level, candidate *found) {
    int32_t token[MOST_PLACES], kind[MOST_PLACES], order[MOST_PLACES];
    int64_t num_found = 0, num_order = 0;
    for (int64_t i = 0; i < count; i++) {
        token[i] = next_token(g, &places[i], node, level);
        kind[i] = token[i] < 0 ? MOST_WEIGHTS : weights_of(g, &places[i]);
    }
    double left = 1.0;
    for (int32_t group = -1; left >= LEFT;) {
        int32_t next = MOST_WEIGHTS;
        for (int64_t i = 0; i < count; i++)
            if (kind[i] > group && kind[i] < next) next = kind[i];
        if (next == MOST_WEIGHTS) break;
        group = next;
        int32_t seen[MOST_PLACES], times[MOST_PLACES], distinct = 0, all = 0;
        for (int64_t i = 0; i < count; i++) {
            if (kind[i] != group) continue;
            int32_t at = 0;
            while (at < distinct && seen[at] != token[i]) at++;
            if (at == distinct) seen[distinct] = token[i], times[distinct++] = 0;
            times[at]++;
            all++;
            order[num_order++] = (int32_t)i;
        }
        const double *weights = g->r->weights + 3 * group, total = all + weights[2];
        for (int32_t i = 0; i < distinct; i++) {
            double share = left * (times[i] - weights[1]) / total;
            int64_t at = 0;
            while (at < num_found && found[at].token != seen[i]) at++;
            if (at == num_found) found[num_found++] = (candidate){.share = 0.0, .token = seen[i]};
            found[at].share = found[at].count ? found[at].share + share : share;
            found[at].count += times[i];
        }
        left *= (weights[2] + weights[1] * distinct) / total;
    }
    for (int64_t i = 0; i < num_found; i++) {
        found[i].first = g->num_places;
        g->num_places += found[i].count;
        found[i].count = 0;
    }
    for (int64_t i = 0; i < num_order; i++) {
        int64_t at = 0;
        while (found[at].token != token[order[i]]) at++;
        g->places[found[at].first + found[at].count++] = places[order[i]];
    }
    return num_found;
}

/* Offer the tokens that may come behind a node of ``level`` tokens. */
static void offer(growth *g, const place *places, int64_t count, int32_t node, int32_t level, double probability) {
    candidate found[MOST_PLACES];
    int64_t first = 0, last = predict(g, places, count, node, level, found);
    if (!g->r->branching && last) {
        for (int64_t i = 1; i < last; i++)
            if (found[i].share > found[first].share) first = i;
        last = first + 1;
    }
    for (int64_t i = first; i < last; i++) {
        candidate *c = &found[i];
        c->probability = probability * c->share;
        if (c->probability <= g->r->least_ever) continue;
        c->order = g->offered++;
        c->parent = node;
        c->level = level + 1;
        push(g, *c);
    }
}

/* The places of a candidate, one token further. */
static int64_t further(const growth *g, const candidate *c, place *places) {
    for (int32_t i = 0; i < c->count; i++) {
        places[i] = g->places[c->first + i];
        places[i].end++;
        if (places[i].match < LONGEST_CONTEXT) places[i].match++;
    }
    return c->count;
}

static int64_t grow(growth *g, const place *root, int64_t count, double *scores) {
    const outrider_retrieval *r = g->r;
    int32_t nodes = 0;
    if (r->nodes > 0 && r->depth > 0) offer(g, root, count, -1, 0, 1.0);
    while (g->num_heap && nodes < r->nodes) {
        candidate best = pop(g);
        if (best.probability < r->least && nodes >= r->free_nodes) break;
        g->tokens[nodes] = best.token;
        g->parents[nodes] = best.parent;
        scores[nodes++] = best.share;
        if (best.level < r->depth && nodes < r->nodes) {
            place places[MOST_PLACES];
            offer(g, places, further(g, &best, places), nodes - 1, best.level, best.probability);
        }
    }
    return nodes;
}

/* Table of the places in ``text``, ``answers`` and ``stored``. */
enum { TEXT, ANSWERS, STORED };

/* The places that the text's last tokens occurred at, and those that it is being copied from; -1: some cannot be. */
static int64_t collect(const outrider_retrieval *r, place *root, int64_t *used) {
    int64_t count = 0;
    const int32_t *tail = r->text + r->tokens;
    for (int32_t i = 0; i < r->num_copies; i++) {
        const outrider_copy *c = &r->copies[i];
        int64_t stop = c->edited ? r->edited_tokens : r->tokens;
        if (c->table < 0 || c->table >= r->tables || c->match < 0 || c->match > LONGEST_CONTEXT) return -1;
        if (c->end < 0 || c->end > stop) return -1;
        root[count++] = (place){c->edited ? r->edits : r->text, c->end, stop, !c->edited, c->match, c->table};
    }
    occurrence found[MOST_OCCURRENCES];
    int64_t num = find_occurrences(r->text, r->tokens, tail, r->tokens, r->own_limit, found);
    for (int64_t i = 0; i < num; i++) {
        int32_t known = 0;
        for (int32_t c = 0; c < r->num_copies; c++) known |= !r->copies[c].edited && r->copies[c].end == found[i].end;
        if (!known) root[count++] = (place){r->text, found[i].end, r->tokens, 1, found[i].match, TEXT};
    }
    num = find_occurrences(r->answers, r->answered, tail, r->tokens, r->other_limit, found);
    for (int64_t i = 0; i < num; i++) {
        root[count++] = (place){r->answers, found[i].end, r->answered, 0, found[i].match, ANSWERS};
        if (found[i].match >= REUSED) used[++used[0]] = found[i].end;
    }
    int32_t at[MOST_OCCURRENCES], match[MOST_OCCURRENCES];
    int64_t length = r->tokens < LONGEST_CONTEXT ? r->tokens : LONGEST_CONTEXT;
    num = outrider_suffix_array_search(r->places, r->order, r->stored_tokens, r->stored, length, tail - length,
                                       r->other_limit, at, match);
    for (int64_t i = 0; i < num; i++) root[count++] = (place){r->stored, at[i], r->stored_tokens, 0, match[i], STORED};
    return num < 0 ? -1 : count;
}

static int is_wrong(const outrider_retrieval *r) {
    if (!is_array(r, 8) || r->tokens < 1 || r->answered < 0 || r->edited_tokens < 0) return 1;
    if (!is_array(r->text, 4) || (r->answered && !is_array(r->answers, 4))) return 1;
    if (r->edited_tokens && !is_array(r->edits, 4)) return 1;
    if (r->num_copies < 0 || r->num_copies > MOST_COPIES || (r->num_copies && !is_array(r->copies, 8))) return 1;
    if (r->tables <= STORED || r->num_weights < 1 || r->num_weights > MOST_WEIGHTS) return 1;
    if (!is_array(r->weights, 8) || !r->kinds) return 1;
    for (int64_t i = 0; i < (int64_t)r->tables * (LONGEST_CONTEXT + 1); i++)
        if (r->kinds[i] >= r->num_weights) return 1;
    if (r->own_limit < 0 || r->own_limit > MOST_OCCURRENCES) return 1;
    return r->other_limit < 0 || r->other_limit > MOST_OCCURRENCES || r->nodes < 0 || r->nodes > MOST_NODES;
}

int64_t outrider_suffix_draft(const outrider_retrieval *r, int32_t *tokens, int32_t *parents, double *scores,
                              int64_t *used) {
    if (is_wrong(r) || !is_array(used, 8)) return -1;
    if (r->nodes && (!is_array(tokens, 4) || !is_array(parents, 4) || !is_array(scores, 8))) return -1;
    place root[MOST_PLACES];
    used[0] = 0;
    int64_t count = collect(r, root, used);
    if (count <= 0) return count;
    size_t most = (size_t)count * ((size_t)r->nodes + 1);
    growth g = {.r = r, .tokens = tokens, .parents = parents};
    g.places = malloc(most * sizeof *g.places);
    g.heap = malloc(most * sizeof *g.heap);
    int64_t nodes = g.places && g.heap ? grow(&g, root, count, scores) : -2;
    free(g.places);
    free(g.heap);
    return nodes;
}
