"""Views of a finished request: ``Output.table()``, ``Output.plot()`` and ``Output.tree(step)``."""

from __future__ import annotations

from outrider.errors import InvalidRequestError
from outrider.output import Output
from outrider_lab.pictures.run import run_plot
from outrider_lab.pictures.steps import Step, StepTable, steps_of
from outrider_lab.pictures.svg import Picture
from outrider_lab.pictures.tree import draft_tree


def table(output: Output) -> StepTable:
    """A table of the target's forward passes: tokens drafted and accepted, and the emitted text."""
    return StepTable(_steps(output))


def plot(output: Output) -> Picture:
    """A plot of the tokens of each forward pass, and of τ over the answer."""
    return run_plot(_steps(output))


def tree(output: Output, step: int) -> Picture:
    """The draft tree of a step, by its number in ``table``.

    Raises:
        InvalidRequestError: there is no such step, or the request did not report its drafts.
    """
    steps = _steps(output)
    if not 0 <= step < len(steps):
        raise InvalidRequestError(f"step={step} is not there: use 0 to {len(steps) - 1}", param="step")
    report = steps[step].report
    if report is None:
        raise InvalidRequestError(f"step={step} has no draft on record: ask with reports_drafts=True", param="step")
    return draft_tree(steps[step], report, lambda token: output.token_texts.get(token, str(token)))


def _steps(output: Output) -> list[Step]:
    return steps_of(output.steps, output.stats.rounds)
