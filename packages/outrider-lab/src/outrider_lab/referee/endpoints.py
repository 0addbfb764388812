"""Two OpenAI-compatible servers beside each other: say, one engine with speculation and without."""

from __future__ import annotations

from collections.abc import Sequence

from outrider_lab.certify.report import Certificate
from outrider_lab.data.workloads import Question
from outrider_lab.measure import Tick
from outrider_lab.referee.suite import Suite, run_suite

SAMPLES = 200
SAMPLE_TOKENS = 2
CONCURRENCY = 4  # requests at once


def compare(
    endpoint: str,
    baseline: str,
    questions: Sequence[Question],
    *,
    model: str | None = None,
    tokens: int = 128,
    samples: int = SAMPLES,
    tick: Tick = lambda _: None,
) -> Certificate:
    """Compare greedy and seeded outputs, and frequencies of samples; the baseline against itself is the control.

    It is the part of the referee's suite that needs the completions API alone, without a limit of time.

    Args:
        model: the model's name on both servers; None: the first model that each server lists.
    """
    suite = Suite(
        tokens=tokens,
        short=None,
        loads={"concurrent": CONCURRENCY},
        control=CONCURRENCY,
        samples=samples,
        sample_tokens=SAMPLE_TOKENS,
        sample_prompt=questions[0].text,
        extended=False,
        seconds=None,
    )
    return run_suite(endpoint, baseline, questions, suite, model=model, tick=tick)
