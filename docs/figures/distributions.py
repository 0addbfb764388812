"""Figures of randomness and distributions, and of the rules that change them."""

from __future__ import annotations

from math import exp, log

from draw import AMBER, BLUE, DIM, GREEN, GREY, RED, VIOLET, Drawing
from verifying import NAMES, P, Q


def noise() -> Drawing:
    """The Gumbel race: one row of noise for target and draft."""
    d = Drawing(720, 252)
    gumbel = (0.15, 1.10, 0.45, 1.35, -0.35)
    scores_p = (1.6, 1.2, 0.9, 0.3, -0.3)  # log-weights, up to a constant, as the bars below them
    scores_q = (1.3, 1.4, 0.6, 0.0, 0.5)
    base, scale = 200, 46
    for panel, (title, scores, color) in enumerate([("target", scores_p, BLUE), ("draft", scores_q, VIOLET)]):
        x0 = 40 + panel * 350
        best = max(range(5), key=lambda i: scores[i] + gumbel[i])
        d.text(x0 + 130, 18, f"the {title} draws", bold=True, anchor="middle")
        for i, name in enumerate(NAMES):
            x = x0 + i * 56
            height = (scores[i] + 0.8) * scale
            d.bar(x, base, 34, height, color, strength=0.7)
            top = base - height
            shift = gumbel[i] * scale
            d.bar(x + 10, top if shift > 0 else top - shift, 14, abs(shift), AMBER, strength=0.8)
            d.text(x + 17, base + 12, name, mono=True, size=12, anchor="middle", bold=i == best)
            if i == best:
                d.text(x + 17, min(top, top - shift) - 9, "largest", size=11, color=DIM, anchor="middle")
        d.line(x0 - 8, base, x0 + 270, base)
    d.legend(40, 236, {"log p": BLUE, "log q": VIOLET, "noise of (seed, position, token): the same for both": AMBER})
    return d


def distribution() -> Drawing:
    d = Drawing(760, 104)
    steps = ["logits", "penalties, bias", "form, bans", "temperature", "top-k, top-p, min-p", "p"]
    x = 16.0
    for i, step in enumerate(steps):
        wide = len(step) * 7 + 22
        d.box(x, 24, wide, 32, step, color=BLUE if i in (0, 5) else GREY, size=12)
        if i < 5:
            d.arrow(x + wide + 3, 40, x + wide + 19, 40)
        x += wide + 22
    d.text(
        16,
        82,
        "row by row, each with the tokens that its place in the draft implies; for target and draft alike",
        size=12,
        color=DIM,
    )
    return d


def lenient() -> Drawing:
    d = Drawing(700, 200)
    base, scale, lenience = 150, 260, 0.5
    for i, (p, q, name) in enumerate(zip(P, Q, NAMES, strict=True)):
        x = 44 + i * 74
        raised = p / lenience
        d.bar(x, base, 22, p * scale / 2, BLUE)
        d.bar(x, base - p * scale / 2, 22, (raised - p) * scale / 2, BLUE, strength=0.25)
        d.bar(x + 26, base, 22, q * scale / 2, GREEN if q <= raised else RED, strength=0.6)
        d.text(x + 24, base + 13, name, mono=True, anchor="middle", size=12)
    d.line(36, base, 420, base)
    kept = sum(min(p / lenience, q) for p, q in zip(P, Q, strict=True))
    d.box(444, 34, 14, 14, color=BLUE, strength=0.75)
    d.text(466, 41, "p", size=12)
    d.box(444, 60, 14, 14, color=BLUE, strength=0.25)
    d.text(466, 67, "p / l, with l = 0.5", size=12)
    d.box(444, 86, 14, 14, color=GREEN, strength=0.6)
    d.text(466, 93, "q below p / l: always accepted", size=12)
    d.box(444, 112, 14, 14, color=RED, strength=0.6)
    d.text(466, 119, "q above it: with probability p / (l q)", size=12)
    d.text(444, 148, f"accepted: {kept:.2f} instead of {sum(map(min, P, Q)):.2f}", size=12, bold=True)
    d.text(36, 184, "Not exact: tokens come out with up to 1 / l times their probability.", size=12, color=DIM)
    return d


def typical() -> Drawing:
    """The threshold min(eps, alpha exp(-H)) for a sure and an unsure row, with the defaults 0.09 and 0.3."""
    d = Drawing(700, 214)
    base, scale = 158, 150
    rows = [("a confident row", (0.86, 0.08, 0.03, 0.02, 0.01)), ("an uncertain row", (0.26, 0.22, 0.2, 0.17, 0.15))]
    for panel, (title, row) in enumerate(rows):
        x0 = 40 + panel * 330
        threshold = min(0.09, 0.3 * exp(sum(p * log(p) for p in row)))
        d.text(x0 + 120, 18, title, bold=True, anchor="middle")
        for i, p in enumerate(row):
            x = x0 + i * 50
            d.bar(x, base, 30, p * scale, GREEN if p > threshold else RED)
            top = max(p, threshold)  # clear of the dashed line
            d.text(x + 15, base - top * scale - 9, f"{p:.2f}", size=11, color=DIM, anchor="middle")
            d.text(x + 15, base + 12, NAMES[i], mono=True, size=12, anchor="middle")
        d.line(x0 - 8, base, x0 + 250, base)
        y = base - threshold * scale
        d.line(x0 - 8, y, x0 + 250, y, color=AMBER, dashed=True)
        d.text(x0 + 254, y, f"{threshold:.2f}", size=11, color=AMBER)
    d.legend(40, 198, {"accepted": GREEN, "refused": RED, "min(eps, alpha exp(-entropy))": AMBER})
    return d


FIGURES = {figure.__name__: figure for figure in (noise, distribution, lenient, typical)}
