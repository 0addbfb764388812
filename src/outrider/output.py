"""``Output``: a finished request, and how it looks in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from outrider.engine.request import Origin, Request, StepOutput
from outrider.engine.stats import RequestStats
from outrider.engine.stopping import FinishReason

_SHOWN = 60  # characters of the text in a repr
_COLOURS: Mapping[Origin, str] = {
    "accepted": "rgba(46, 160, 67, 0.30)",
    "recovered": "rgba(230, 160, 0, 0.30)",
    "bonus": "rgba(20, 160, 190, 0.30)",
}
"""Backgrounds that can be read on white and on black; the terminal's green, yellow and cyan."""


@dataclass(frozen=True)
class Output:
    """A finished request. A notebook shows its text coloured by where each token came from."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    seed: int  # with which the same tokens come again
    prompt_token_ids: list[int]
    prompt_logprobs: list[Mapping[int, float]]  # of every prompt token but the first, if asked for
    stats: RequestStats
    steps: list[StepOutput] = field(repr=False)  # token by token: text, origin, log-probabilities

    @classmethod
    def of(cls, request: Request, steps: list[StepOutput]) -> Output:
        """What a finished request gave; raises the error it ended with, if it did."""
        if request.error is not None:
            raise request.error
        assert request.finish_reason is not None
        return cls(
            text=request.text,
            token_ids=list(request.output),
            finish_reason=request.finish_reason,
            seed=request.seed,
            prompt_token_ids=list(request.prompt),
            prompt_logprobs=list(request.prompt_logprobs),
            stats=request.stats,
            steps=steps,
        )

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN else self.text[: _SHOWN - 1] + "…"
        return (
            f"Output({text!r}, {len(self.token_ids)} tokens, finish_reason={self.finish_reason!r}, seed={self.seed}, "
            f"{self.stats.mean_acceptance_length or 0:.2f} tokens a run)"
        )

    def _repr_html_(self) -> str:
        """Accepted drafts green, tokens in place of a refused draft amber, tokens after a fully accepted one cyan."""
        tokens = "".join(map(_token, self.steps)) or escape(self.text)
        legend = " · ".join(f'<span style="background: {colour}">{name}</span>' for name, colour in _COLOURS.items())
        return (
            f'<div><div style="white-space: pre-wrap">{tokens}</div>'
            f'<div style="opacity: 0.7; font-size: smaller">{legend} · {escape(statistics(self.stats))}</div></div>'
        )


def one_or_all(outputs: list[Output]) -> Output | list[Output]:
    """The outputs of one prompt: itself where there is one, else all of them."""
    return outputs[0] if len(outputs) == 1 else outputs


def _token(step: StepOutput) -> str:
    colour = _COLOURS.get(step.origin)
    if colour is None or not step.text:
        return escape(step.text)
    title = escape(f"{step.origin}, {step.source}")
    return f'<span title="{title}" style="background: {colour}">{escape(step.text)}</span>'


def statistics(stats: RequestStats, draft: str = "") -> str:
    """What a request cost and what its drafts won, in one line. ``draft``: how it drafted, if it did."""
    seconds = stats.prefill_s + stats.decode_s
    line = f"{stats.completion_tokens} tokens in {seconds:.2f} s ({stats.tokens_per_s or 0:.0f} tokens/s)"
    line += f" · {stats.target_runs} target runs, {stats.mean_acceptance_length or 0:.2f} tokens a run"
    rate = stats.draft_acceptance_rate
    if rate is None:
        return f"{line} · {draft}: nothing drafted" if draft else line
    return f"{line} · {draft}{': ' if draft else ''}{rate:.0%} of {stats.num_draft_tokens} draft tokens accepted"
