"""Figures of draft models, of trees, of the cache, and of the idea itself."""

from __future__ import annotations

from draw import AMBER, BLUE, DIM, GREEN, GREY, RED, VIOLET, Drawing


def draft_model() -> Drawing:
    d = Drawing(720, 140)
    d.text(16, 40, "draft model", size=12, color=DIM)
    d.text(16, 84, "target", size=12, color=DIM)
    x = 110.0
    for kept in (3, 1):
        for i in range(4):
            d.box(x, 28, 34, 24, "q", color=VIOLET, size=12)
            x += 37
            if i == 3:
                d.arrow(x - 2, 52, x + 10, 72)
        d.box(x + 6, 72, 112, 24, "p of 5 rows", color=BLUE, size=12)
        d.text(x + 62, 112, f"{kept} accepted, 1 more", size=12, color=DIM, anchor="middle")
        x += 128
    d.arrow(110, 126, 690, 126)
    d.text(694, 126, "t", size=12, color=DIM)
    return d


def hierarchical() -> Drawing:
    d = Drawing(720, 176)
    d.text(16, 26, "model: five forward passes of A", size=12, color=DIM)
    x = 250.0
    for token in "abcde":
        d.box(x, 14, 70, 24, token, color=VIOLET, mono=True, size=12)
        x += 76
    d.text(16, 82, "hierarchical: B proposes,", size=12, color=DIM)
    d.text(16, 98, "two passes of A score", size=12, color=DIM)
    x = 250.0
    for guesses, drawn in ((["a", "b", "x"], ["a", "b", "c"]), (["d", "e"], ["d", "e"])):
        for guess in guesses:
            d.box(x, 60, 24, 20, guess, color=RED if guess == "x" else GREY, mono=True, size=11)
            x += 28
        d.box(x + 4, 82, 96, 24, " ".join(drawn), color=VIOLET, mono=True, size=12)
        x += 116
    d.text(16, 146, "the same proposals, in fewer passes", size=12, color=DIM)
    d.legend(300, 146, {"drawn by A": VIOLET, "guessed by B": GREY, "refused by A": RED})
    return d


def universal() -> Drawing:
    """One text in two vocabularies: the request's on the left, the draft on the right."""
    d = Drawing(720, 180)
    for y, name in ((36, "target"), (84, "text"), (132, "draft model")):
        d.text(16, y, name, size=12, color=DIM)
    d.tokens(110, 24, ["Spec", "ulative", " de", "coding"], color=GREY)
    d.tokens(110, 120, ["Spe", "cul", "ative", " decoding"], color=GREY)
    d.text(110, 84, "Speculative decoding", mono=True)
    d.text(400, 84, "drafts tok", mono=True, color=DIM)
    d.arrow(196, 50, 196, 74)
    d.arrow(196, 94, 196, 118)
    d.tokens(396, 120, [" draf", "ts", " tok"], color=VIOLET)
    d.arrow(440, 118, 440, 94)
    d.tokens(396, 24, [" draft", "s", " tok"], colors={0: GREEN, 1: GREEN, 2: RED}, struck=[2])
    d.arrow(440, 74, 440, 50)
    d.legend(110, 168, {"the request": GREY, "drafted": VIOLET, "proposed": GREEN, "left out: half a word": RED})
    return d


def layer_skip() -> Drawing:
    d = Drawing(720, 216)
    rows = ["the", "cat", "sat", "on", "a", "mat"]
    layers, kept, own = 6, 4, 2
    x0, y0 = 150, 30
    for i, token in enumerate(rows):
        x = x0 + 58 * i
        d.text(x + 26, y0 + layers * 22 + 12, token, mono=True, size=12, anchor="middle")
        for layer in range(layers):
            y = y0 + (layers - 1 - layer) * 22
            if i < kept:
                d.box(x, y, 52, 18, color=BLUE, strength=0.5)
            elif layer < own:
                d.box(x, y, 52, 18, color=VIOLET, strength=0.5)
            else:
                d.box(x, y, 52, 18, color=GREY, dashed=True, strength=0.03)
    d.text(16, y0 + 4 * 22 + 10, "first L = 2 layers", size=12, color=DIM)
    d.text(16, y0 + 10, "layer 6", size=12, color=DIM)
    d.text(x0 + 58 * 2, 14, "committed", size=12, color=DIM, anchor="middle")
    d.text(x0 + 58 * 5, 14, "draft", size=12, color=DIM, anchor="middle")
    d.text(520, 54, "the draft reads the target's", size=12)
    d.text(520, 70, "own keys and values in its", size=12)
    d.text(520, 86, "first layers, and adds its own", size=12)
    d.text(520, 102, "behind them; the target", size=12)
    d.text(520, 118, "then writes all layers", size=12)
    d.legend(16, 198, {"keys and values of the target": BLUE, "of the draft": VIOLET, "not touched by drafts": GREY})
    return d


def trees() -> Drawing:
    """A tree with its ancestor mask, which is computed from the parents."""
    d = Drawing(720, 218)
    tokens, parents = ["a", "b", "c", "d", "e"], [-1, -1, 0, 0, 2]
    d.text(16, 18, "parents = (-1, -1, 0, 0, 2)", mono=True, size=12)
    d.tree(
        16,
        86,
        tokens,
        parents,
        [(1, -0.7), (1, 1.2), (2, -1.2), (2, 0.1), (3, -1.2)],
        width=44,
        step=84,
    )
    d.text(16, 196, "one forward pass scores six rows", size=12, color=DIM)
    x0, y0, size = 470, 36, 26
    d.text(x0 + 78, 14, "may attend to", size=12, color=DIM, anchor="middle")
    names = ["root", *tokens]
    for j, name in enumerate(names):
        d.text(x0 + j * size + 13, y0 - 6, name if j else "r", size=11, mono=True, anchor="middle")
    for i, name in enumerate(names):
        y = y0 + 6 + i * size
        d.text(x0 - 8, y + 12, name if i else "r", size=11, mono=True, anchor="end")
        seen, node = {0}, i
        while node > 0:
            seen.add(node)
            node = parents[node - 1] + 1
        for j in range(6):
            d.box(x0 + j * size, y, 23, 23, color=GREEN if j in seen else GREY, strength=0.6 if j in seen else 0.04)
    d.text(x0 + 168, 100, "and all tokens", size=11, color=DIM)
    d.text(x0 + 168, 115, "before r", size=11, color=DIM)
    return d


def paged() -> Drawing:
    d = Drawing(720, 244)
    pool = ["A0", "A1", "B2", "", "A2", "B3", "", ""]
    d.text(16, 14, "one pool of blocks, four tokens each", size=12, color=DIM)
    colors = {"A": BLUE, "B": VIOLET, "": GREY}
    for i, name in enumerate(pool):
        shared = i < 2
        color = GREEN if shared else colors[name[:1]]
        d.box(
            16 + 86 * i, 28, 80, 34, f"block {i}", color=color, size=12, dashed=not name, strength=0.3 if name else 0.03
        )
    tables = [("request A", [0, 1, 4], 3), ("request B", [0, 1, 2, 5], 1)]
    for row, (name, blocks, used) in enumerate(tables):
        y = 84 + 48 * row
        d.text(16, y + 13, name, size=12)
        for j, block in enumerate(blocks):
            d.box(
                96 + 60 * j,
                y,
                54,
                26,
                str(block),
                color=GREEN if block < 2 else (BLUE, VIOLET)[row],
                mono=True,
                size=12,
            )
        last = len(blocks) * 60 + 110
        d.text(last, y + 13, f"last block: {used} of 4 rows kept, draft rows behind them", size=12, color=DIM)
    d.text(
        16,
        186,
        "Refused rows are dropped by lowering a length. Only full blocks of verified tokens can be shared.",
        size=12,
        color=DIM,
    )
    d.legend(16, 216, {"shared: the same beginning": GREEN, "of A": BLUE, "of B": VIOLET, "free": GREY})
    return d


def vision() -> Drawing:
    """An image on its way into a prompt: frames, the tower's features, keys of the prefix cache."""
    d = Drawing(720, 250)
    for y, name in ((46, "image"), (112, "prompt"), (152, "the model reads"), (192, "the cache's keys")):
        d.text(16, y, name, size=12, color=DIM)
    for i in range(4):
        d.box(140 + 30 * (i % 2), 18 + 28 * (i // 2), 28, 26, str(i + 1), color=AMBER, size=12)
    d.box(206, 18, 56, 54, "whole", color=AMBER, size=12)
    d.arrow(270, 46, 318, 46)
    d.box(324, 30, 150, 32, "tower and connector", color=BLUE, size=12)
    d.text(486, 46, "one frame at a time", size=12, color=DIM)
    places, shown = (2, 3, 5, 6), dict.fromkeys((2, 3, 5, 6), AMBER)
    prompt = ["User:", "<1>", "<image>", "<image>", "<2>", "<image>", "<image>", "What?"]
    spans = d.tokens(140, 100, prompt, colors=shown)
    for i, (start, end) in enumerate(spans):
        image = i in places
        number = places.index(i) if image else 0
        d.box(start, 140, end - start, 24, "feature" if image else "emb.", color=AMBER if image else GREY, size=11)
        key = f"#a3, {number}" if image else str(31 + 7 * i)
        d.box(start, 180, end - start, 24, key, color=AMBER if image else GREY, mono=True, size=11)
    d.arrow(400, 64, 400, 96, color=AMBER)
    d.legend(140, 228, {"text": GREY, "of the image: its frames, features, and digest": AMBER})
    return d


def idea() -> Drawing:
    """Plain decoding and speculation beside each other: the same six tokens, in six forward passes and in two."""
    d = Drawing(760, 232)
    words = ["The", "cat", "sat", "on", "the", "mat"]
    d.text(16, 20, "plain decoding: one forward pass for every token", bold=True)
    for i, word in enumerate(words):
        d.box(16 + 122 * i, 36, 112, 26, "forward pass", color=BLUE, size=12)
        d.tokens(16 + 122 * i, 68, [word], color=GREY, width=112)
    d.text(16, 124, "with drafts: guesses cost next to nothing, one forward pass verifies them all", bold=True)
    x = 16.0
    rounds = [(["The", "cat", "sat", "in"], 3, "on"), (["the"], 1, "mat")]
    for drafts, kept, last in rounds:
        d.tokens(x, 140, drafts, color=VIOLET, width=56, dashed=True)
        d.box(x, 168, 61 * (len(drafts) + 1) - 5, 26, "forward pass", color=BLUE, size=12)
        shades = dict.fromkeys(range(kept), GREEN) | {kept: AMBER if kept < len(drafts) else BLUE}
        d.tokens(x, 200, [*drafts[:kept], last], colors=shades, width=56)
        x += 61 * (len(drafts) + 1) + 26
    d.legend(x + 4, 150, {"drafted": VIOLET})
    d.legend(x + 4, 172, {"accepted": GREEN})
    d.legend(x + 4, 194, {"put in place of a refused one": AMBER})
    d.legend(x + 4, 216, {"one more, for free": BLUE})
    return d


FIGURES = {
    figure.__name__.strip("_").replace("_", "-"): figure
    for figure in (draft_model, universal, hierarchical, layer_skip, trees, paged, vision, idea)
}
