"""Figures of trained heads."""

from __future__ import annotations

from draw import BLUE, DIM, VIOLET, Drawing


def medusa() -> Drawing:
    d = Drawing(720, 216)
    d.box(16, 84, 92, 40, "target", color=BLUE)
    d.arrow(108, 104, 150, 104)
    d.box(150, 88, 62, 32, "hidden", color=BLUE, size=12)
    heads = [
        ("LM head", "it", BLUE),
        ("head 0", "is  was", VIOLET),
        ("head 1", "a  the", VIOLET),
        ("head 2", "good", VIOLET),
    ]
    for i, (name, guesses, color) in enumerate(heads):
        y = 16 + 48 * i
        d.arrow(212, 104, 262, y + 16)
        d.box(262, y, 76, 32, name, color=color, size=12)
        d.arrow(338, y + 16, 362, y + 16)
        d.text(368, y + 16, guesses, mono=True, size=12)
    d.tree(
        440, 88, ["is", "was", "a", "the", "a", "good"], [-1, -1, 0, 0, 1, 2],
        [(1, -0.7), (1, 1.4), (2, -1.4), (2, -0.1), (2, 1.4), (3, -1.4)], root="it", width=46, step=72,
    )  # fmt: skip
    d.text(440, 184, "likely tokens of each place, as a tree", size=12, color=DIM)
    return d


def eagle() -> Drawing:
    d = Drawing(720, 234)
    d.text(16, 18, "the target's forward pass", size=12, color=DIM)
    features = ["f1", "f2", "f3"]
    tokens = ["cat", "sat", "on"]
    for i, feature in enumerate(features):
        d.box(16 + 74 * i, 34, 62, 28, feature, color=BLUE, mono=True, size=12)
        d.box(16 + 74 * i, 74, 62, 28, tokens[i], color=BLUE, mono=True, size=12)
    d.text(16, 122, "a feature, and the token after it", size=12, color=DIM)
    d.line(238, 48, 262, 48)
    d.line(238, 88, 262, 88)
    d.line(262, 48, 262, 88)
    x = 290
    for i, (feature, token) in enumerate([("f4'", "the"), ("f5'", "mat"), ("f6'", ".")]):
        d.arrow(x - 28, 68, x, 68)
        d.box(x, 48, 66, 40, "layer", color=VIOLET)
        d.arrow(x + 33, 88, x + 33, 132, color=VIOLET)
        d.box(x, 132, 66, 28, token, color=VIOLET, mono=True, size=12)
        d.text(x + 82, 58, feature, mono=True, size=12, anchor="middle", color=DIM)
        if i < 2:
            d.line(x + 66, 68, x + 120, 68)
            d.line(x + 66, 146, x + 96, 146)
            d.arrow(x + 96, 146, x + 96, 72)
        x += 146
    d.text(290, 182, "one small layer drafts; its own feature, and the token that", size=12, color=DIM)
    d.text(290, 199, "the LM head makes of it, are its next input", size=12, color=DIM)
    d.text(290, 216, "trees take several tokens at each place", size=12, color=DIM)
    return d


def mtp() -> Drawing:
    d = Drawing(720, 250)
    d.text(16, 18, "the target's", size=12, color=DIM)
    for y, label in ((34, "hidden state at t, normed"), (84, "embedding of token t + 1")):
        d.box(16, y, 176, 30, label, color=BLUE, size=12)
        d.arrow(192, y + 15, 220, y + 15)
        d.box(220, y, 56, 30, "norm", color=VIOLET, size=12)
        d.line(276, y + 15, 292, y + 15)
    d.line(292, 49, 292, 99)
    d.arrow(292, 74, 316, 74)
    for x, width, label in ((316, 44, "fc"), (384, 96, "decoder layer"), (504, 56, "norm")):
        d.box(x, 56, width, 36, label, color=VIOLET, size=12)
    d.arrow(360, 74, 384, 74)
    d.arrow(480, 74, 504, 74)
    d.line(560, 74, 584, 74)
    d.arrow(584, 74, 584, 132)
    d.text(598, 104, "h'", size=12, color=DIM)
    d.box(420, 132, 248, 30, "a part of the target's LM head", color=BLUE, size=12)
    d.arrow(544, 162, 544, 186)
    d.box(496, 186, 96, 28, "token t + 2", color=VIOLET, mono=True, size=12)
    d.text(16, 160, "the next level reads h' in place of the hidden state,", size=12, color=DIM)
    d.text(16, 177, "and token t + 2 in place of token t + 1", size=12, color=DIM)
    d.text(16, 204, "blue: shared with the target; violet: the head's own", size=12, color=DIM)
    d.text(16, 230, "its keys and values: one layer's, of its own cache", size=12, color=DIM)
    return d


def assistant() -> Drawing:
    d = Drawing(720, 226)
    for y, label in ((34, "hidden state, normed"), (84, "embedding of the last token")):
        d.box(16, y, 184, 30, label, color=BLUE, size=12)
        d.line(200, y + 15, 216, y + 15)
    d.line(216, 49, 216, 99)
    d.arrow(216, 74, 240, 74)
    for x, width, label in ((240, 104, "projection"), (368, 96, "layers"), (488, 56, "norm"), (568, 76, "LM head")):
        d.box(x, 56, width, 36, label, color=VIOLET, size=12)
    for x in (344, 464, 544):
        d.arrow(x, 74, x + 24, 74)
    d.box(316, 132, 200, 30, "keys and values of two layers", color=BLUE, size=12)
    d.arrow(416, 132, 416, 92, color=BLUE)
    d.text(16, 160, "the layers have queries alone", size=12, color=DIM)
    d.text(
        16, 182, "the next level reads the norm's output, projected, in place of the hidden state", size=12, color=DIM
    )
    d.text(16, 208, "blue: the target's; violet: the assistant's own", size=12, color=DIM)
    return d


def dflash() -> Drawing:
    d = Drawing(720, 250)
    features = [("f1", "cat"), ("f2", "sat"), ("f3", "on")]
    for i, (feature, token) in enumerate(features):
        x = 16 + 70 * i
        d.box(x, 170, 58, 26, feature, color=BLUE, mono=True, size=12)
        d.box(x, 202, 58, 26, token, color=BLUE, mono=True, size=12)
    for i in range(3):
        x = 226 + 70 * i
        d.box(x, 170, 58, 26, f"f3+{i + 1}", color=VIOLET, mono=True, size=12, dashed=True)
        d.box(x, 202, 58, 26, f"on+{i + 1}", color=VIOLET, mono=True, size=12, dashed=True)
    d.box(16, 122, 408, 28, "layers, one pass", color=VIOLET)
    rows = [["the", "a"], ["mat", "floor"], [".", "and"], ["The", "it"]]
    for i, guesses in enumerate(rows):
        x = 185 + 70 * i
        d.arrow(x, 170, x, 152)
        d.arrow(x, 122, x, 98, color=VIOLET)
        d.box(x - 29, 70, 58, 26, guesses[0], color=VIOLET, mono=True, size=12)
        d.box(x - 29, 38, 58, 26, guesses[1], color=VIOLET, mono=True, size=12, strength=0.06)
        if i:
            d.arrow(x - 41, 83, x - 30, 83, color=VIOLET)
    d.text(156, 18, "likely tokens of each place", size=12, color=DIM)
    d.text(450, 83, "the selector: each token by the one before", size=12, color=DIM)
    d.text(450, 136, "new features and the block, together", size=12, color=DIM)
    d.text(450, 183, "a learned offset for each place, on the", size=12, color=DIM)
    d.text(450, 200, "last feature and on the token after it", size=12, color=DIM)
    d.text(16, 240, "the target's features, with the tokens after them", size=12, color=DIM)
    return d


def pass_() -> Drawing:
    d = Drawing(720, 148)
    spans = d.tokens(16, 84, ["the", "cat", "sat"], color=BLUE, width=62)
    marks = d.tokens(spans[-1][1] + 5, 84, ["[la 1]", "[la 2]", "[la 3]"], color=VIOLET, width=62, dashed=True)
    left, right = spans[0][0], marks[-1][1]
    d.box(left, 44, right - left, 28, "target, one pass", color=BLUE)
    for (a, b), token, color in zip([spans[-1], *marks], ["on", "the", "mat", "."], [VIOLET] * 4, strict=True):
        d.arrow((a + b) / 2, 44, (a + b) / 2, 34, color=color)
        d.box(a, 8, 62, 24, token, color=color, mono=True, size=12)
    d.text(440, 20, "the draft: the next token, and those after it", size=12, color=DIM)
    d.text(440, 96, "look-ahead embeddings: trained,", size=12, color=DIM)
    d.text(440, 112, "all else of the target is as it was", size=12, color=DIM)
    return d


def blockwise() -> Drawing:
    d = Drawing(720, 168)
    d.box(16, 62, 62, 32, "hidden", color=BLUE, size=12)
    d.arrow(78, 78, 120, 78)
    d.box(120, 8, 92, 140, "k times", color=VIOLET, size=12)
    d.text(166, 94, "as wide", size=12, anchor="middle")
    for i, guess in enumerate(["is", "a", "good"]):
        y = 12 + 48 * i
        d.arrow(212, y + 16, 250, y + 16)
        d.box(250, y, 84, 32, f"back {i}", color=VIOLET, size=12)
        d.arrow(334, y + 16, 372, y + 16)
        d.text(384, y + 16, "+ hidden", size=12, color=DIM)
        d.arrow(440, y + 16, 478, y + 16)
        d.box(478, y, 76, 32, "LM head", color=BLUE, size=12)
        d.arrow(554, y + 16, 590, y + 16)
        d.text(598, y + 16, guess, mono=True, size=12)
    return d


FIGURES = {
    figure.__name__.strip("_").replace("_", "-"): figure
    for figure in (medusa, eagle, mtp, assistant, dflash, pass_, blockwise)
}
