"""``Output``: a finished request, and how it looks in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from outrider.engine.request import Origin, Request, StepOutput
from outrider.engine.stats import RequestStats
from outrider.engine.stopping import FinishReason
from outrider.extensions import extension

_SHOWN = 60  # characters of the text in a repr
_ELSEWHERE = {
    "prompt": "prompt_token_ids, or the prompt that was given",
    "cumulative_logprob": "sum(row[token] for row, token in zip(out.logprobs, out.token_ids))",
    "usage": "len(prompt_token_ids) and len(token_ids), or stats",
    "choices": "outputs, or the output itself",
    "generated_text": "text",
    "metrics": "stats",
}
"""What other libraries call an output's parts, and where those are here."""
_COLOURS: Mapping[Origin, str] = {
    "accepted": "rgba(46, 160, 67, 0.30)",
    "recovered": "rgba(230, 160, 0, 0.30)",
    "bonus": "rgba(20, 160, 190, 0.30)",
}
"""Backgrounds that can be read on white and on black; the terminal's green, yellow and cyan."""


@dataclass(frozen=True)
class Output:
    """A finished request. A notebook shows its text coloured by where each token came from.

    ``table()`` shows its steps, ``plot()`` how much each gave, and ``tree(step)`` what was drafted for one.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    seed: int  # with which the same tokens come again
    prompt_token_ids: list[int]
    prompt_logprobs: list[Mapping[int, float]]  # of every prompt token but the first, if asked for
    stats: RequestStats
    steps: list[StepOutput] = field(repr=False)  # token by token: text, origin, log-probabilities
    token_texts: Mapping[int, str] = field(default_factory=dict, repr=False)  # of the tokens in reported drafts
    sum_logprobs: float | None = None  # of an output that a beam search found
    score: float | None = None  # by which that ranked it

    @classmethod
    def of(cls, request: Request, steps: list[StepOutput], token_text: Callable[[int], str] = str) -> Output:
        """What a finished request gave; raises the error it ended with, if it did.

        ``token_text`` gives the text of a drafted token, for drawings.
        """
        if request.error is not None:
            raise request.error
        assert request.finish_reason is not None
        return cls(
            text=request.text,
            token_ids=list(request.output),
            finish_reason=request.finish_reason,
            seed=request.seed,
            prompt_token_ids=list(request.prompt),
            prompt_logprobs=list(request.prompt_report.logprobs),
            stats=request.stats,
            score=None if request.ranked is None else request.ranked.score,
            sum_logprobs=None if request.ranked is None else request.ranked.sum_logprobs,
            steps=steps,
            token_texts={i: token_text(i) for i in _reported(steps)},
        )

    @property
    def outputs(self) -> list[Output]:
        """This output alone, where vLLM keeps those of a prompt: ``out.outputs[0].text``."""
        return [self]

    @property
    def logprobs(self) -> list[Mapping[int, float]] | None:
        """Of each token: its log-probability, and those of the alternatives that were asked for. None: none were."""
        found = [step.logprobs for step in self.steps]
        return [one for one in found if one is not None] if found and found[0] is not None else None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Only called for what is not there."""
            hint = f": use {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def table(self) -> Any:
        """Each forward pass of the target: tokens drafted and accepted, and the text it gave.

        This and the two pictures come with ``outrider[lab]``; without it they raise MissingExtensionError.
        """
        return extension("outputs", "table", "Output.table()")(self)

    def plot(self) -> Any:
        """Tokens of each forward pass, and τ over the answer, as a picture that a notebook shows."""
        return extension("outputs", "plot", "Output.plot()")(self)

    def tree(self, step: int) -> Any:
        """The draft tree of a step, by its number in ``table()``, as a picture that a notebook shows.

        Raises:
            InvalidRequestError: there is no such step, or the request did not report its drafts.
        """
        return extension("outputs", "tree", "Output.tree()")(self, step)

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


def _reported(steps: list[StepOutput]) -> set[int]:
    """Ids of all drafted and generated tokens, if the request reported its drafts."""
    drafts = [step.draft.tokens for step in steps if step.draft is not None]
    return {token for draft in drafts for token in draft} | ({step.token_id for step in steps} if drafts else set())


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


def tokens_per_run(stats: Iterable[RequestStats]) -> str:
    """The tokens of all requests, and how many of them each forward pass gave."""
    counts = [(one.completion_tokens, one.target_runs) for one in stats]
    tokens, runs = sum(token for token, _ in counts), sum(run for _, run in counts)
    return f"{tokens} tokens, {tokens / max(1, runs):.2f} a run"
