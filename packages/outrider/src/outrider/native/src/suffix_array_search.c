/* Places of a sorted text whose context is nearest to the end of another: outrider.drafters.datastore. */
#include "check.h"

#define SORTED 12 /* tokens before a place that it is sorted by, the nearest first */
#define LONGEST 16
#define MOST 64 /* places looked at on either side */

/* Whether the context that ends before ``text`` comes before the one that ends before ``tail`` [length]. */
static int is_before(const int32_t *text, const int32_t *tail, int64_t length) {
    for (int64_t i = 1; i <= length && i <= SORTED; i++)
        if (text[-i] != tail[-i]) return text[-i] < tail[-i];
    return 0;
}

static int32_t agreement(const int32_t *text, const int32_t *tail, int64_t length) {
    int32_t count = 0;
    while (count < length && count < LONGEST && text[-1 - count] == tail[-1 - count]) count++;
    return count;
}

/* Whether a place has as many tokens before it as are looked at. */
static int is_place(int32_t place, int64_t tokens) { return place >= LONGEST && place < tokens; }

int64_t outrider_suffix_array_search(int64_t places, const int32_t *order, int64_t tokens, const int32_t *text,
                                     int64_t length, const int32_t *tail, int64_t limit, int32_t *place,
                                     int32_t *match) {
    if (places < 0 || tokens < 0 || length < 0 || limit < 0) return -1;
    if (limit > MOST) limit = MOST;
    if (places && (!is_array(order, 4) || !is_array(text, 4))) return -1;
    if ((length && !is_array(tail, 4)) || (limit && (!is_array(place, 4) || !is_array(match, 4)))) return -1;
    if (!places || !length || !limit) return 0;
    const int32_t *end = tail + length;
    int64_t low = 0, high = places;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (!is_place(order[middle], tokens)) return -1;
        if (is_before(text + order[middle], end, length))
            low = middle + 1;
        else
            high = middle;
    }
    int64_t first = low > limit ? low - limit : 0, last = places - low > limit ? low + limit : places;
    int32_t known[2 * MOST];
    for (int64_t i = first; i < last; i++) {
        if (!is_place(order[i], tokens)) return -1;
        known[i - first] = agreement(text + order[i], end, length);
    }
    int64_t found = 0;
    for (int32_t m = LONGEST; m > 0; m--) {
        for (int64_t i = first; i < last && found < limit; i++) {
            if (known[i - first] != m) continue;
            place[found] = order[i];
            match[found++] = m;
        }
    }
    return found;
}
