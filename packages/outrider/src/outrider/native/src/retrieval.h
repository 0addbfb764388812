/* Places of texts where a request's last tokens occurred before. */
#ifndef OUTRIDER_RETRIEVAL_H
#define OUTRIDER_RETRIEVAL_H

#include "check.h"

#define LONGEST_CONTEXT 16  /* tokens; longer matches predict no better */
#define MOST_OCCURRENCES 64 /* found at once in one text */

typedef struct {
    int64_t end;   /* the text goes on with its token number ``end`` */
    int32_t match; /* tokens before it that are equal */
} occurrence;

/* See outrider_occurrences; ``tail`` is behind its last token, and ``limit`` at most MOST_OCCURRENCES. */
int64_t find_occurrences(const int32_t *text, int64_t tokens, const int32_t *tail, int64_t length, int64_t limit,
                         occurrence *found);

#endif
