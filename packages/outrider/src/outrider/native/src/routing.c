/* Which experts a row goes through, and their weights. See outrider_routing. */
#include <float.h>
#include <string.h>

#include "check.h"
#include "forward.h"

enum { OPEN = 0, CHOSEN = 1, SHUT = 2 }; /* of an expert, while experts are chosen */

static const outrider_routing by_softmax = {.kind = OUTRIDER_SOFTMAX, .scale = 1.0f};

/* Scores of the router's numbers, in place; returns what experts are chosen by, which may be ``choice``. */
static const float *score_experts(const forward_ctx *f, const outrider_routing *by, int64_t experts, float *weights,
                                  float *choice) {
    if (by->kind == OUTRIDER_SOFTMAX_OF_USED) return weights;
    if (by->kind == OUTRIDER_SOFTMAX) {
        f->k->softmax(experts, weights);
    } else {
        memcpy(choice, weights, (size_t)experts * sizeof(float));
        for (int64_t e = 0; e < experts; e++) weights[e] = 1.0f;
        f->k->sigmoid_mul(experts, weights, choice);
        if (!by->bias && !by->groups) return choice; /* far from 0 numbers differ where their sigmoids do not */
    }
    if (!by->bias) return weights;
    for (int64_t e = 0; e < experts; e++) choice[e] = weights[e] + by->bias[e];
    return choice;
}

/* The sum of a group's best scores. */
static float score_of_group(const float *scores, int64_t size, int32_t best_of_group) {
    float first = scores[0], second = -FLT_MAX;
    for (int64_t e = 1; e < size; e++) {
        if (scores[e] > first) {
            second = first;
            first = scores[e];
        } else if (scores[e] > second) {
            second = scores[e];
        }
    }
    return best_of_group == 2 && size > 1 ? first + second : first;
}

/* Shuts the groups that are not among the best, the first of equals. */
static void shut_groups(const outrider_routing *by, int64_t experts, const float *scores, uint8_t *state) {
    float of_group[MOST_GROUPS];
    int64_t size = experts / by->groups;
    memset(state, SHUT, (size_t)experts);
    for (int32_t g = 0; g < by->groups; g++) of_group[g] = score_of_group(scores + g * size, size, by->best_of_group);
    for (int32_t n = 0; n < by->groups_used; n++) {
        int32_t best = -1;
        for (int32_t g = 0; g < by->groups; g++)
            if (state[g * size] == SHUT && (best < 0 || of_group[g] > of_group[best])) best = g;
        memset(state + best * size, OPEN, (size_t)size);
    }
}

/* The experts with the best scores, the first of equals; returns the sum of their weights, as they are chosen. */
static float choose(const outrider_layer *l, const float *scores, const float *weights, uint8_t *state) {
    float sum = 0;
    for (int32_t n = 0; n < l->experts_used; n++) {
        int32_t best = -1;
        for (int32_t e = 0; e < l->experts; e++)
            if (state[e] == OPEN && (best < 0 || scores[e] > scores[best])) best = e;
        state[best] = CHOSEN;
        sum += weights[best];
    }
    for (int32_t e = 0; e < l->experts; e++) state[e] = state[e] == CHOSEN;
    return sum;
}

/* The softmax of the chosen experts' numbers, in place: they move together and back. */
static void soften_chosen(const forward_ctx *f, const outrider_layer *l, float *weights, const uint8_t *chosen) {
    int32_t count = 0;
    for (int32_t e = 0; e < l->experts; e++)
        if (chosen[e]) weights[count++] = weights[e];
    f->k->softmax(count, weights);
    for (int32_t e = l->experts - 1; count && e >= 0; e--)
        if (chosen[e]) weights[e] = weights[--count];
}

void route_row(const forward_ctx *f, const outrider_layer *l, int64_t row) {
    const outrider_routing *by = l->routing ? l->routing : &by_softmax;
    float *weights = f->work.router + row * l->experts;
    uint8_t *chosen = f->work.chosen + row * l->experts;
    const float *scores = score_experts(f, by, l->experts, weights, f->work.choice + row * l->experts);
    if (by->groups)
        shut_groups(by, l->experts, scores, chosen);
    else
        memset(chosen, OPEN, (size_t)l->experts);
    float sum = choose(l, scores, weights, chosen) + by->sum_added;
    if (by->kind == OUTRIDER_SOFTMAX_OF_USED) soften_chosen(f, l, weights, chosen);
    if (sum < by->least_sum) sum = by->least_sum;
    for (int32_t e = 0; e < l->experts; e++) {
        if (!chosen[e]) {
            weights[e] = 0;
            continue;
        }
        if (l->normalised && by->kind != OUTRIDER_SOFTMAX_OF_USED) weights[e] /= sum;
        weights[e] *= by->scale;
    }
}
