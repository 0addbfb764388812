"""What one request accepts of its draft, once the target has scored it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.engine.runner import ScheduledRequest, TargetOutput
from outrider.verify.distribution import TargetRows
from outrider.verify.draft import Verdict
from outrider_drafters.beams.scheduled import BeamSteps, ScheduledBeams


@dataclass(frozen=True)
class Decision:
    """What verification decided for one request, and from which distribution."""

    verdict: Verdict
    p: TargetRows


Decided = Decision | BeamSteps | None


def decide(
    scheduled: ScheduledRequest, output: TargetOutput, stop_ids: Sequence[int], vocab_size: int
) -> Decision | BeamSteps:
    """What one request accepts, or how far a beam search comes.

    Raises:
        NumericalError: the target's distribution is none.
        GrammarError: the request's grammar breaks off.
    """
    if isinstance(scheduled, ScheduledBeams):
        return scheduled.advance(output, vocab_size, stop_ids)
    request = scheduled.request
    p = TargetRows(
        output.logits,
        request.params,
        request.context,
        scheduled.draft,
        stop_ids=stop_ids,
        vocab_size=vocab_size,
        constraint=request.constraint,
        first=output.first,
        largest=output.largest,
    )
    return Decision(request.verifier(scheduled.draft, p, request.noise, len(request.tokens)), p)
