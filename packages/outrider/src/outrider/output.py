"""``Output``: a finished request, and how it looks in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from outrider.engine.request import Origin, Request, StepOutput
from outrider.engine.request_state import FinishReason
from outrider.engine.stats import RequestStats
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
"""Attributes of other libraries' outputs, and their equivalents here."""
_COLOURS: Mapping[Origin, str] = {
    "accepted": "rgba(46, 160, 67, 0.30)",
    "recovered": "rgba(230, 160, 0, 0.30)",
    "bonus": "rgba(20, 160, 190, 0.30)",
}
"""Background colours that are legible on white and on black: the terminal's green, yellow and cyan."""


@dataclass(frozen=True)
class Output:
    """A finished request. A notebook shows its text coloured by each token's origin.

    ``table()`` shows its forward passes, ``plot()`` the tokens of each pass, and ``tree(step)`` the draft of one step.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    seed: int  # reproduces the same tokens
    prompt_token_ids: list[int]
    prompt_logprobs: list[Mapping[int, float]]  # of every prompt token but the first; empty unless requested
    stats: RequestStats
    steps: list[StepOutput] = field(repr=False)  # token by token: text, origin, log-probabilities
    token_texts: Mapping[int, str] = field(default_factory=dict, repr=False)  # texts of the tokens in reported drafts
    sum_logprobs: float | None = None  # beam search only
    score: float | None = None  # beam search only: the ranking score

    @classmethod
    def of(cls, request: Request, steps: list[StepOutput], token_text: Callable[[int], str] = str) -> Output:
        """The output of a finished request; raises the request's error, if it ended with one.

        ``token_text``: from a token id to its text, for drawings of drafts.
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
        """A list of this output, for vLLM's ``out.outputs[0].text``."""
        return [self]

    @property
    def logprobs(self) -> list[Mapping[int, float]] | None:
        """Per token, its log-probability and those of the requested number of alternatives; None if not requested."""
        found = [step.logprobs for step in self.steps]
        return [one for one in found if one is not None] if found and found[0] is not None else None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Called for missing attributes only."""
            hint = f": use {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def table(self) -> Any:
        """A table of the target's forward passes: tokens drafted, tokens accepted, and their text.

        ``table``, ``plot`` and ``tree`` need ``outrider[lab]``; without it they raise MissingExtensionError.
        """
        return extension("outputs", "table", "Output.table()")(self)

    def plot(self) -> Any:
        """A figure for notebooks: the tokens of each forward pass, and τ over the answer."""
        return extension("outputs", "plot", "Output.plot()")(self)

    def tree(self, step: int) -> Any:
        """A figure for notebooks: the draft tree of a step, by its number in ``table()``.

        Raises:
            InvalidRequestError: the step does not exist, or the request did not report its drafts.
        """
        return extension("outputs", "tree", "Output.tree()")(self, step)

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN else self.text[: _SHOWN - 1] + "…"
        return (
            f"Output({text!r}, {len(self.token_ids)} tokens, finish_reason={self.finish_reason!r}, seed={self.seed}, "
            f"{self.stats.mean_acceptance_length or 0:.2f} tokens a run)"
        )

    def _repr_html_(self) -> str:
        """Accepted draft tokens green, recovered tokens amber, bonus tokens cyan."""
        tokens = "".join(map(_token, self.steps)) or escape(self.text)
        legend = " · ".join(f'<span style="background: {colour}">{name}</span>' for name, colour in _COLOURS.items())
        return (
            f'<div><div style="white-space: pre-wrap">{tokens}</div>'
            f'<div style="opacity: 0.7; font-size: smaller">{legend} · {escape(statistics(self.stats))}</div></div>'
        )


def _reported(steps: list[StepOutput]) -> set[int]:
    """The ids of all drafted and generated tokens; empty if the request did not report its drafts."""
    drafts = [step.draft.tokens for step in steps if step.draft is not None]
    return {token for draft in drafts for token in draft} | ({step.token_id for step in steps} if drafts else set())


def one_or_all(outputs: list[Output]) -> Output | list[Output]:
    """The output itself if there is one, else the list of outputs."""
    return outputs[0] if len(outputs) == 1 else outputs


def _token(step: StepOutput) -> str:
    colour = _COLOURS.get(step.origin)
    if colour is None or not step.text:
        return escape(step.text)
    title = escape(f"{step.origin}, {step.source}")
    return f'<span title="{title}" style="background: {colour}">{escape(step.text)}</span>'


def statistics(stats: RequestStats, draft: str = "") -> str:
    """A request's time, forward passes and acceptance in one line. ``draft``: its draft sources, "" for none."""
    seconds = stats.prefill_s + stats.decode_s
    line = f"{stats.completion_tokens} tokens in {seconds:.2f} s ({stats.tokens_per_s or 0:.0f} tokens/s)"
    line += f" · {stats.target_runs} target runs, {stats.mean_acceptance_length or 0:.2f} tokens a run"
    rate = stats.draft_acceptance_rate
    if rate is None:
        return f"{line} · {draft}: nothing drafted" if draft else line
    return f"{line} · {draft}{': ' if draft else ''}{rate:.0%} of {stats.num_draft_tokens} draft tokens accepted"


def tokens_per_run(stats: Iterable[RequestStats]) -> str:
    """The number of tokens of all requests, and the tokens per forward pass, as text."""
    counts = [(one.completion_tokens, one.target_runs) for one in stats]
    tokens, runs = sum(token for token, _ in counts), sum(run for _, run in counts)
    return f"{tokens} tokens, {tokens / max(1, runs):.2f} a run"
