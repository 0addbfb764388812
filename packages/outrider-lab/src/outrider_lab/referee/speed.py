"""Both sides' speed in the requests that ran alone, by percentile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from outrider_lab.certify.report import Check
from outrider_lab.referee.session import Session
from outrider_lab.referee.sides import Reply

PERCENTILES = (10, 50, 90)


def speed(session: Session) -> Iterator[Check]:
    """Tokens per second of whole requests, or requests per second where the server counts no tokens."""
    answered = [a for a in session.alone if not (a.base.refused or a.found.refused)]
    if not answered:
        yield Check("speed", "note", "not measured: no request was answered")
        return
    counted = all(a.base.tokens and a.found.tokens for a in answered)
    unit = "tokens/s" if counted else "requests/s"
    ours, theirs = (_rates(replies, counted) for replies in ([a.found for a in answered], [a.base for a in answered]))
    middle = [float(np.median(rates)) for rates in (ours, theirs)]
    levels = [{f"p{p}": float(np.percentile(rates, p)) for p in PERCENTILES} for rates in (ours, theirs)]
    shown = [", ".join(f"{name} {rate:.4g}" for name, rate in level.items()) for level in levels]
    summary = (
        f"{middle[0] / middle[1]:.2f} times the baseline's in the median of {len(answered)} requests alone; "
        f"{unit}: {shown[0]}; baseline: {shown[1]}"
    )
    data = {
        "unit": unit,
        "endpoint": ours,
        "baseline": theirs,
        "percentiles": {"endpoint": levels[0], "baseline": levels[1]},
        "ratio_of_medians": middle[0] / middle[1],
    }
    yield Check("speed", "pass", summary, data=data)


def _rates(replies: Sequence[Reply], counted: bool) -> list[float]:
    return [(reply.tokens or 0 if counted else 1) / max(reply.seconds, 1e-9) for reply in replies]
