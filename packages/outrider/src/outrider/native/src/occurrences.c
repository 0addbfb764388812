/* Earlier places of a text's last tokens, by looking at the whole text: a token is four bytes, and a store of prompts
 * and answers is read faster than an index of it would be kept. */
#include "retrieval.h"

#define BLOCK 32 /* tokens that are compared at once */
#define SHORT 2
#define LONG 4

/* The tokens before a place and at the end of ``tail`` that are equal, up to ``most`` of them; the first one is. */
static int32_t agreement(const int32_t *before, const int32_t *tail, int64_t most) {
    int32_t count = 1;
    while (count < most && before[-1 - count] == tail[-1 - count]) count++;
    return count;
}

/* Whether one of the BLOCK tokens before a place is this one. */
static int is_in_block(const int32_t *before, int32_t token) {
    int32_t any = 0;
    for (int64_t i = 1; i <= BLOCK; i++) any |= before[-i] == token;
    return any;
}

int64_t find_occurrences(const int32_t *text, int64_t tokens, const int32_t *tail, int64_t length, int64_t limit,
                         occurrence *found) {
    occurrence shorter[MOST_OCCURRENCES], single[MOST_OCCURRENCES];
    int64_t longer = 0, shorts = 0, singles = 0;
    if (length > LONGEST_CONTEXT) length = LONGEST_CONTEXT;
    if (!length || !limit) return 0;
    const int32_t last = tail[-1];
    for (int64_t end = tokens - 1; end > 0 && longer < limit;) {
        if (end > BLOCK && !is_in_block(text + end, last)) {
            end -= BLOCK;
            continue;
        }
        for (int64_t stop = end > BLOCK ? end - BLOCK : 0; end > stop && longer < limit; end--) {
            if (text[end - 1] != last || text[end] < 0) continue;
            occurrence place = {end, agreement(text + end, tail, end < length ? end : length)};
            if (place.match >= LONG)
                found[longer++] = place;
            else if (place.match >= SHORT) {
                if (shorts < limit) shorter[shorts++] = place;
            } else if (singles < limit)
                single[singles++] = place;
        }
    }
    int64_t count = longer;
    for (int64_t i = 0; i < shorts && count < limit; i++) found[count++] = shorter[i];
    for (int64_t i = 0; i < singles && count < limit; i++) found[count++] = single[i];
    return count;
}

int64_t outrider_occurrences(int64_t tokens, const int32_t *text, int64_t length, const int32_t *tail, int64_t limit,
                             int32_t *place, int32_t *match) {
    occurrence found[MOST_OCCURRENCES];
    if (tokens < 0 || length < 0 || limit < 0) return -1;
    if (limit > MOST_OCCURRENCES) limit = MOST_OCCURRENCES;
    if ((tokens && !is_array(text, 4)) || (length && !is_array(tail, 4))) return -1;
    if (limit && (!is_array(place, 4) || !is_array(match, 4))) return -1;
    if (!tokens || !length) return 0;
    int64_t count = find_occurrences(text, tokens, tail + length, length, limit, found);
    for (int64_t i = 0; i < count; i++) {
        place[i] = (int32_t)found[i].end;
        match[i] = found[i].match;
    }
    return count;
}

/* The latest place of the prompt whose last LONGEST_CONTEXT tokens are those before ``text[end]``; -1: none. */
static int64_t latest_copy(const int32_t *text, int64_t end, int64_t prompt) {
    const int32_t last = text[end - 1];
    for (int64_t place = prompt - 1; place >= LONGEST_CONTEXT;) {
        int64_t stop = place - BLOCK, any = stop < LONGEST_CONTEXT;
        if (any)
            stop = LONGEST_CONTEXT - 1;
        else
            any = is_in_block(text + place, last);
        for (; any && place > stop; place--)
            if (text[place - 1] == last && agreement(text + place, text + end, LONGEST_CONTEXT) == LONGEST_CONTEXT)
                return place;
        place = stop;
    }
    return -1;
}

int64_t outrider_copied(int64_t tokens, const int32_t *text, int64_t first, int64_t prompt, int64_t *place) {
    if (tokens < 0 || (tokens && !is_array(text, 4)) || !is_array(place, 8)) return -2;
    if (first < 0 || prompt < 0 || prompt > tokens) return -2;
    for (int64_t i = first < LONGEST_CONTEXT ? LONGEST_CONTEXT - 1 : first; i < tokens; i++) {
        int64_t found = latest_copy(text, i + 1, prompt);
        if (found < 0) continue;
        *place = found;
        return i;
    }
    return -1;
}
