"""Figures of draft sources that need no model of their own."""

from __future__ import annotations

from draw import AMBER, BLUE, DIM, GREEN, GREY, VIOLET, Drawing


def lookup() -> Drawing:
    d = Drawing(720, 132)
    text = ["class", "Point", ":", "def", "init", "(", "self", ",", "x", ")", "…", "def", "init", "("]
    spans = d.tokens(
        16, 46, text, colors={3: BLUE, 4: BLUE, 5: BLUE, 11: BLUE, 12: BLUE, 13: BLUE, 6: VIOLET, 7: VIOLET, 8: VIOLET}
    )
    d.text((spans[3][0] + spans[5][1]) / 2, 30, "the same ending, earlier", size=12, color=DIM, anchor="middle")
    d.text((spans[11][0] + spans[13][1]) / 2, 30, "the text ends", size=12, color=DIM, anchor="middle")
    drafted = d.tokens(spans[13][1] + 12, 46, ["self", ",", "x"], color=VIOLET, dashed=True)
    y = 96
    d.line((spans[6][0] + spans[8][1]) / 2, 72, (spans[6][0] + spans[8][1]) / 2, y, color=VIOLET)
    d.line((spans[6][0] + spans[8][1]) / 2, y, (drafted[0][0] + drafted[2][1]) / 2, y, color=VIOLET)
    d.arrow((drafted[0][0] + drafted[2][1]) / 2, y, (drafted[0][0] + drafted[2][1]) / 2, 74, color=VIOLET)
    d.text(430, 112, "what followed there is the draft", size=12, color=DIM, anchor="middle")
    return d


def suffix() -> Drawing:
    d = Drawing(720, 222)
    d.text(16, 20, "this text and earlier responses", size=12, color=DIM)
    for i, (source, follows) in enumerate(
        [("this text", ["towns", "and"]), ("this text", ["square"]), ("a response", ["towns", "in"])]
    ):
        y = 36 + 34 * i
        spans = d.tokens(16, y, ["the", "old", "market"], color=BLUE)
        spans = d.tokens(spans[-1][1] + 5, y, follows, color=VIOLET)
        d.text(spans[-1][1] + 10, y + 12, source, size=11, color=DIM)
    d.text(16, 152, "the text ends", size=12, color=DIM)
    d.tokens(16, 166, ["the", "old", "market"], color=BLUE)
    d.arrow(160, 178, 400, 110)
    d.text(296, 168, "every occurrence votes", size=12, color=DIM)
    d.tree(
        408, 84, ["towns", "square", "and", "in"], [-1, -1, 0, 0], [(1, -0.7), (1, 1.0), (2, -1.3), (2, -0.1)],
        width=64, step=100, root="market",
    )  # fmt: skip
    d.text(408, 196, "best first, by the product of shares", size=12, color=DIM)
    return d


def recycling() -> Drawing:
    d = Drawing(720, 176)
    d.text(16, 20, "kept from rows that were scored anyway", size=12, color=DIM)
    rows = [("of the", "world 0.5   sun 0.2   ..."), ("the world", "is 0.6   . 0.2   ..."), ("·  sun", "was 0.3   ...")]
    for i, (context, likely) in enumerate(rows):
        d.box(16, 36 + 34 * i, 92, 26, context, color=BLUE, mono=True, size=12)
        d.box(112, 36 + 34 * i, 210, 26, likely, color=GREY, mono=True, size=12)
    d.text(16, 156, "·: any token before, where the pair is not known", size=11, color=DIM)
    d.text(352, 20, "the text ends in “of the”: the tree", size=12, color=DIM)
    d.tree(
        360, 66, ["world", "sun", "is", ".", "was"], [-1, -1, 0, 0, 1],
        [(1, -0.4), (1, 1.7), (2, -0.8), (2, 0.4), (2, 1.7)], width=62, step=98,
        notes={2: "0.30", 3: "0.10", 4: "0.06"},
    )  # fmt: skip
    return d


def ngram() -> Drawing:
    d = Drawing(700, 186)
    steps = [
        (["the", "cat", "sat"], "4-gram:  on 47, down 3", "on"),
        (["cat", "sat", "on"], "4-gram:  the 31", "the"),
        (["sat", "on", "the"], "4-gram not known, 3-gram (on, the):  mat 8", "mat"),
    ]
    d.text(16, 18, "context", size=12, color=DIM)
    d.text(200, 18, "the longest known one wins", size=12, color=DIM)
    d.text(590, 18, "drafted", size=12, color=DIM)
    for i, (context, counts, token) in enumerate(steps):
        y = 34 + 44 * i
        d.tokens(16, y, context, colors=dict.fromkeys(range(3 - i, 3), VIOLET), color=BLUE)
        d.text(200, y + 12, counts, mono=True, size=12)
        d.arrow(540, y + 12, 580, y + 12)
        d.tokens(590, y, [token], color=VIOLET)
    d.text(16, 166, "each drafted token is appended to the context of the next", size=12, color=DIM)
    return d


def tables() -> Drawing:
    d = Drawing(640, 126)
    d.text(16, 18, "bigram: the most frequent follower of the last token", size=12, color=DIM)
    d.tokens(16, 32, ["on"], color=BLUE)
    d.box(56, 32, 220, 24, "the 31   a 12   top 4   ...", color=GREY, mono=True, size=12)
    d.arrow(282, 44, 314, 44)
    d.tokens(320, 32, ["the"], color=VIOLET)
    d.text(16, 76, "unigram: the most frequent token, whatever came before", size=12, color=DIM)
    d.box(56, 88, 220, 24, "the 212   , 180   of 97   ...", color=GREY, mono=True, size=12)
    d.arrow(282, 100, 314, 100)
    d.tokens(320, 88, ["the"], color=VIOLET)
    return d


def prediction() -> Drawing:
    d = Drawing(720, 150)
    d.text(16, 20, "what the caller expects", size=12, color=DIM)
    expected = d.tokens(176, 8, ["def", "area", "(", "self", ")", ":", "return", "w", "*", "h"], color=VIOLET)
    d.text(16, 74, "the answer so far", size=12, color=DIM)
    answer = d.tokens(
        176, 62, ["def", "area", "(", "self", ")", "->", "float", ":"], colors={5: AMBER, 6: AMBER}, color=GREEN
    )
    d.arrow(expected[5][0] + 10, 34, answer[7][0] + 10, 60, color=BLUE)
    d.text(answer[7][1] + 10, 46, "finds its place again", size=12, color=DIM)
    d.text(16, 126, "drafted next", size=12, color=DIM)
    d.tokens(176, 114, ["return", "w", "*", "h"], color=VIOLET, dashed=True)
    d.legend(380, 126, {"as expected": GREEN, "not expected": AMBER})
    return d


def grammar() -> Drawing:
    d = Drawing(720, 122)
    text = ['{"', "name", '":', ' "', "Ada", '",', ' "', "age", '":', " ", "36", "}"]
    free = {4: BLUE, 10: BLUE}
    d.text(16, 20, "a JSON schema with the required fields name and age leaves little to say", size=12, color=DIM)
    d.tokens(16, 40, text, colors=free, color=GREEN)
    d.legend(16, 92, {"forced by the form: drafted, accepted": GREEN, "the model's choice": BLUE})
    return d


def lookahead() -> Drawing:
    d = Drawing(760, 264)
    d.text(16, 18, "one draft tree: the window, and n-grams that begin with the last token", size=12, color=DIM)
    columns = 4
    d.box(16, 40, 62, 26, "last", color=BLUE, mono=True, size=12)
    for i in range(columns):
        x = 116 + 108 * i
        d.box(x, 40, 76, 26, f"(0,{i})", color=VIOLET, mono=True, size=12)
        d.arrow(x - 32 if i else 78, 53, x, 53)
        d.box(x, 92, 76, 26, f"(1,{i})", color=VIOLET, mono=True, size=12, strength=0.3)
        d.arrow(x + 38, 66, x + 38, 92)
        d.box(x, 148, 76, 26, "answer", color=GREEN, mono=True, size=12)
        d.arrow(x + 38, 118, x + 38, 148, color=GREEN, dashed=True)
    d.text(560, 53, "level 0", size=12, color=DIM)
    d.text(560, 105, "level 1 (N - 1 = 2 levels)", size=12, color=DIM)
    d.text(560, 161, "the likeliest next token", size=12, color=DIM)
    d.text(560, 177, "ends its n-gram: to the pool", size=12, color=DIM)
    d.line(47, 66, 47, 217)
    d.arrow(47, 217, 116, 217)
    d.box(116, 204, 76, 26, "g1", color=AMBER, mono=True, size=12)
    d.arrow(192, 217, 224, 217)
    d.box(224, 204, 76, 26, "g2", color=AMBER, mono=True, size=12)
    d.text(312, 217, "an n-gram from the pool, verified like any draft", size=12, color=DIM)
    d.text(16, 248, "W = 4 columns, N = 3; all rows are scored in one forward pass", size=12, color=DIM)
    return d


FIGURES = {
    figure.__name__: figure for figure in (lookup, suffix, recycling, ngram, tables, prediction, grammar, lookahead)
}
