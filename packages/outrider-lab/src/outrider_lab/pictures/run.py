"""Plots a request's steps: draft tokens accepted and refused, and the mean acceptance length so far."""

from __future__ import annotations

from collections.abc import Sequence

from outrider_lab.pictures import svg
from outrider_lab.pictures.steps import Step

_LEFT, _TOP, _HIGH = 44, 40, 150
_WIDEST = 860.0


def run_plot(steps: Sequence[Step]) -> svg.Picture:
    """Bars: tokens of each step, those accepted in green, the target's own in grey. Line: τ so far."""
    most = max([1, *(len(step.tokens) for step in steps)])
    wide = min(18.0, _WIDEST / max(1, len(steps)))
    unit = _HIGH / most
    right = _LEFT + max(240.0, wide * len(steps))
    floor = _TOP + _HIGH
    parts = []
    for tick in range(0, most + 1, max(1, most // 4)):
        y = floor - tick * unit
        parts += [
            svg.line([(_LEFT, y), (right, y)], svg.GRID),
            svg.text(_LEFT - 6, y, str(tick), colour=svg.DIM, anchor="end"),
        ]
    total, points = 0, []
    for step in steps:
        x = _LEFT + wide * step.number
        hint = f"step {step.number}, {step.source}: {step.accepted} of {step.drafted} draft tokens accepted"
        own = len(step.tokens) - step.accepted
        parts.append(svg.bar(x, floor - step.accepted * unit, wide * 0.86, step.accepted * unit, svg.GREEN, hint=hint))
        parts.append(svg.bar(x, floor - len(step.tokens) * unit, wide * 0.86, own * unit, "#b6bdc9", hint=hint))
        total += len(step.tokens)
        points.append((x + wide / 2, floor - total / (step.number + 1) * unit))
    parts.append(svg.line(points, "#0072B2", wide=2))
    tau = total / len(steps) if steps else 0.0
    parts.append(svg.text(_LEFT, 18, f"{total} tokens in {len(steps)} forward passes: τ = {tau:.2f}", bold=True))
    parts.append(
        svg.text((_LEFT + right) / 2, floor + 18, "forward pass of the target", colour=svg.DIM, anchor="middle")
    )
    legend = (("accepted", svg.GREEN), ("the target's own", "#b6bdc9"), ("τ so far", "#0072B2"))
    x = _LEFT
    for name, colour in legend:
        parts += [svg.bar(x, floor + 34, 10, 10, colour), svg.text(x + 15, floor + 39, name, colour=svg.DIM)]
        x += 30 + 7 * len(name)
    return svg.picture(right + 16, floor + 56, "tokens of each forward pass", parts)
