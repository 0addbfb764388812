"""Figures of verification: what is accepted, what is refused, and what takes its place."""

from __future__ import annotations

from draw import AMBER, BLUE, DIM, GREEN, GREY, RED, VIOLET, Drawing

# Next-token distributions of target and draft over five tokens, used by all figures.
P = (0.40, 0.25, 0.20, 0.10, 0.05)
Q = (0.20, 0.40, 0.10, 0.05, 0.25)
NAMES = "abcde"
Q_OF_CHILDREN = (0.15, 0.40, 0.15, 0.05, 0.25)


def matching() -> Drawing:
    d = Drawing(700, 176)
    d.tree(
        20, 40, ["7", "9", "4", "8"], [-1, 0, 0, 2], [(1, 0), (2, -0.5), (2, 0.8), (3, 0.8)], width=44, step=92,
        colors={0: GREEN, 2: GREEN, 1: GREY, 3: RED}, struck=[3],
    )  # fmt: skip
    d.text(400, 26, "the target's own draws", bold=True)
    for i, (text, after) in enumerate(
        [
            ("at the root: 7", "a child: descend"),
            ("below 7: 4", "a child: descend"),
            ("below 4: 2", "no such child: emit 2, stop"),
        ]
    ):
        y = 52 + 28 * i
        d.text(400, y, text, mono=True, size=12)
        d.text(520, y, after, size=12, color=DIM)
    d.text(20, 146, "emitted", size=12, color=DIM)
    d.tokens(76, 134, ["7", "4", "2"], colors={0: GREEN, 1: GREEN, 2: AMBER})
    d.legend(220, 146, {"accepted": GREEN, "recovered": AMBER, "refused": RED, "never looked at": GREY})
    return d


def rejection() -> Drawing:
    d = Drawing(760, 252)
    base, scale = 196, 330
    for i, (p, q, name) in enumerate(zip(P, Q, NAMES, strict=True)):
        x = 52 + i * 76
        kept = min(p, q)
        d.bar(x, base, 24, kept * scale, GREEN)
        d.bar(x, base - kept * scale, 24, (p - kept) * scale, AMBER)
        d.bar(x + 28, base, 24, kept * scale, GREEN, strength=0.35)
        d.bar(x + 28, base - kept * scale, 24, (q - kept) * scale, RED)
        d.text(x + 12, base - p * scale - 9, f"{p:.2f}", size=11, color=DIM, anchor="middle")
        d.text(x + 40, base - q * scale - 9, f"{q:.2f}", size=11, color=DIM, anchor="middle")
        d.text(x + 12, base + 12, "p", size=11, anchor="middle", color=DIM)
        d.text(x + 40, base + 12, "q", size=11, anchor="middle", color=DIM)
        d.text(x + 26, base + 28, name, mono=True, anchor="middle")
    d.line(40, base, 436, base)
    kept = sum(map(min, P, Q))
    d.box(456, 50, 14, 14, color=GREEN, strength=0.75)
    d.text(478, 57, f"min(p, q), {kept:.2f}: drawn and accepted", size=12)
    d.box(456, 84, 14, 14, color=RED, strength=0.75)
    d.text(478, 91, f"q above p, {1 - kept:.2f}: drawn and refused", size=12)
    d.box(456, 118, 14, 14, color=AMBER, strength=0.75)
    d.text(478, 125, f"p above q, {1 - kept:.2f}: the residual,", size=12)
    d.text(478, 142, "which the recovered token is drawn from", size=12)
    d.text(456, 176, "green + amber = p, for every token", size=12, bold=True)
    return d


def block() -> Drawing:
    d = Drawing(700, 236)
    ratios = (0.5, 2.0, 1.5, 0.8)
    product, weight = 1.0, 1.0
    base, scale = 188, 120
    d.text(24, 20, "Chance that a chain of draft tokens is kept up to each place, for p/q as given", bold=True)
    for i, ratio in enumerate(ratios):
        x = 60 + 130 * i
        product *= min(1.0, ratio)
        weight = min(1.0, weight * ratio)
        d.bar(x, base, 34, product * scale, RED, strength=0.6)
        d.bar(x + 40, base, 34, weight * scale, GREEN)
        d.text(x + 17, base - product * scale - 9, f"{product:.2f}", size=11, anchor="middle", color=DIM)
        d.text(x + 57, base - weight * scale - 9, f"{weight:.2f}", size=11, anchor="middle", color=DIM)
        d.text(x + 37, base + 14, f"p/q = {ratio:g}", size=12, anchor="middle", mono=True)
    d.line(40, base, 560, base)
    d.legend(60, 222, {"rejection: product of min(1, p/q)": RED, "block: w = min(1, w p/q)": GREEN})
    return d


def recursive() -> Drawing:
    """Refusing one child after another: what is left of p. The residuals are computed, not drawn by hand."""
    d = Drawing(720, 224)
    q = list(Q_OF_CHILDREN)
    left = list(P)
    base, scale = 156, 125
    captions = ["for child 1, left = p", "child 1 refused", "child 2 refused"]
    for panel in range(3):
        x0 = 30 + panel * 236
        for i, name in enumerate(NAMES):
            x = x0 + i * 38
            d.bar(x, base, 14, left[i] * scale, BLUE)
            d.bar(x + 16, base, 14, q[i] * scale, VIOLET, strength=0.45)
            d.text(x + 15, base + 12, name, mono=True, size=12, anchor="middle")
            if left[i] > 0.005:
                d.text(x + 7, base - left[i] * scale - 8, f"{left[i]:.2f}", size=10, color=DIM, anchor="middle")
        d.line(x0 - 6, base, x0 + 190, base)
        d.text(x0 + 92, 20, captions[panel], bold=True, anchor="middle")
        if panel < 2:
            d.arrow(x0 + 200, 100, x0 + 226, 100)
        rest = [max(0.0, a - b) for a, b in zip(left, q, strict=True)]
        left = [value / sum(rest) for value in rest]
    d.legend(
        30,
        206,
        {
            "left: norm(max(0, left - q)) after each refusal": BLUE,
            "q of independent children: the same each time": VIOLET,
        },
    )
    return d


def sequoia() -> Drawing:
    """Drawn without replacement: a refused token leaves q too."""
    d = Drawing(720, 224)
    q, left = list(Q_OF_CHILDREN), list(P)
    refused = (1, 4)  # tokens that q holds too likely, so that a refusal is possible
    base, scale = 156, 125
    for panel in range(3):
        x0 = 30 + panel * 236
        for i, name in enumerate(NAMES):
            x = x0 + i * 38
            d.bar(x, base, 14, left[i] * scale, BLUE)
            d.bar(x + 16, base, 14, q[i] * scale, VIOLET, strength=0.6)
            d.text(x + 15, base + 12, name, mono=True, size=12, anchor="middle")
        d.line(x0 - 6, base, x0 + 190, base)
        caption = "child 1" if panel == 0 else f"{NAMES[refused[panel - 1]]} was refused: child {panel + 1}"
        d.text(x0 + 92, 20, caption, bold=True, anchor="middle")
        if panel < 2:
            d.arrow(x0 + 200, 100, x0 + 226, 100)
            rest = [max(0.0, a - b) for a, b in zip(left, q, strict=True)]
            left = [value / sum(rest) for value in rest]
            q[refused[panel]] = 0.0
            q = [value / sum(q) for value in q]
    d.legend(
        30, 206, {"left: what p still has to give": BLUE, "q, without the tokens refused, normalised again": VIOLET}
    )
    return d


def specinfer() -> Drawing:
    d = Drawing(700, 150)
    d.text(24, 20, "drafted", color=DIM, size=12)
    d.text(424, 20, "verified in random order", color=DIM, size=12)
    drafted = [("the", "model A"), ("a", "model A"), ("the", "model B")]
    for i, (token, source) in enumerate(drafted):
        d.tokens(24, 36 + 34 * i, [token], color=VIOLET, width=56)
        d.text(92, 48 + 34 * i, f"drawn from the row of {source}", size=12, color=DIM)
    for place, (i, color) in enumerate([(2, RED), (0, RED), (1, GREEN)]):
        d.tokens(424, 36 + 34 * place, [drafted[i][0]], color=color, width=56, struck=[0] if color == RED else [])
        d.text(492, 48 + 34 * place, "accepted: descend" if color == GREEN else "refused", size=12, color=DIM)
        d.line(300, 48 + 34 * i, 416, 48 + 34 * place)
    return d


def traversal() -> Drawing:
    """A tree whose nodes are numbered in the order of their verification."""
    d = Drawing(740, 210)
    parents = [-1, 0, 1, 1, 0, -1, 5]
    d.tree(
        24, 84, ["", "3", "1", "2", "4", "", ""], parents,
        [(1, -0.6), (2, -1), (3, -1.5), (3, -0.5), (2, 0.3), (1, 1.4), (2, 1.4)], width=44, step=92,
        colors={0: GREEN, 1: RED, 2: RED, 3: RED, 4: GREEN, 5: GREY, 6: GREY}, struck=[1, 2, 3],
    )  # fmt: skip
    d.text(400, 26, "leaves first, in the order of drawing", bold=True)
    for i, (text, after) in enumerate(
        [
            ("1, 2", "leaves, refused: their parent's weight changes"),
            ("3", "nothing below it is left: refused"),
            ("4", "a leaf: kept, and the path to it"),
        ]
    ):
        d.text(400, 52 + 28 * i, text, mono=True, size=12)
        d.text(440, 52 + 28 * i, after, size=12, color=DIM)
    d.legend(24, 192, {"kept": GREEN, "refused": RED, "its turn did not come": GREY})
    return d


def univer() -> Drawing:
    """One sure child and one drawn: what is kept of each token is the lower of two bounds."""
    d = Drawing(760, 252)
    base, scale = 196, 150
    sure = max(range(len(Q)), key=lambda i: Q[i])
    there = [1.0 if i == sure else q / (1 - Q[sure]) for i, q in enumerate(Q)]
    for i, (p, q, name) in enumerate(zip(P, there, NAMES, strict=True)):
        x = 52 + i * 76
        kept = min(p, q)
        d.bar(x, base, 24, kept * scale, GREEN)
        d.bar(x, base - kept * scale, 24, (p - kept) * scale, AMBER)
        d.bar(x + 28, base, 24, q * scale, BLUE if i == sure else VIOLET, strength=0.6)
        d.text(x + 12, base - p * scale - 9, f"{p:.2f}", size=11, color=DIM, anchor="middle")
        d.text(x + 40, base - q * scale - 9, f"{q:.2f}", size=11, color=DIM, anchor="middle")
        d.text(x + 26, base + 14, name, mono=True, anchor="middle")
    d.line(40, base, 436, base)
    kept = sum(map(min, P, there))
    for i, (color, lines) in enumerate(
        [
            (BLUE, ("a child for sure, verified last", "")),
            (VIOLET, ("the chance to be the drawn child,", "which is verified first")),
            (GREEN, (f"kept as a child, {kept:.2f}: as often as it is in", "the draft, and no more often than p")),
            (AMBER, (f"{1 - kept:.2f}: drawn when no child is kept", "")),
        ]
    ):
        y = 36 + 44 * i
        d.box(456, y, 14, 14, color=color, strength=0.75)
        for k, line in enumerate(lines):
            d.text(478, y + 7 + 17 * k, line, size=12)
    d.text(52, base + 40, "left p, right the chance that a token is in the draft of two children", size=12, color=DIM)
    return d


FIGURES = {
    figure.__name__: figure for figure in (matching, rejection, block, recursive, sequoia, specinfer, traversal, univer)
}
