"""Sampling options of a request, and the options of beam search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from outrider.config import aliases
from outrider.config.fields import as_ids, checks_names, is_finite, is_int, require, short_repr
from outrider.config.structured import StructuredOutput
from outrider.errors import InvalidRequestError

MAX_WIDTH = 64
"""The most beams of a beam search."""
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")
_USUAL = {"length_penalty": 1.0, "early_stopping": False, "num_beam_groups": 1, "diversity_penalty": 0.0}
_REFUSED: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | {
    "stop": (),
    "logprobs": None,
    "prompt_logprobs": None,
}
"""What beam search, which draws nothing and looks at tokens alone, does not take; and its usual value."""


@checks_names(aliases.SAMPLING, InvalidRequestError)
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen, and when it stops.

    The options act on the logits in this order: repetition, presence and frequency penalties, logit bias,
    structured output, allowed and banned tokens, minimum length, temperature, top-k, top-p, min-p
    (``outrider.verify.distribution``). ``temperature=0`` is greedy: all probability on the largest logit.
    """

    max_tokens: int = 256
    """Tokens to generate at most."""
    min_tokens: int = 0
    """No end before this many tokens.

    Neither end-of-text nor a stop token nor a stop string ends the output earlier, unless a structured output is
    complete.
    """
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all.

    Ties with the k-th are kept.
    """
    top_p: float = 1.0
    """Keep the most likely tokens with this probability together.

    The smallest such set; ties are kept.
    """
    min_p: float = 0.0
    """Keep tokens this many times as likely as the most likely."""
    repetition_penalty: float = 1.0
    """Above 1 discourages tokens of prompt and output.

    Divides positive and multiplies negative logits of these tokens (CTRL, Keskar et al. 2019).
    """
    presence_penalty: float = 0.0
    """Subtracted from logits of tokens in the output."""
    frequency_penalty: float = 0.0
    """Subtracted for each occurrence in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """ID:VALUE added to a token's logit; may be repeated."""
    allowed_token_ids: Iterable[int] | None = None
    """If given, only these tokens (and end-of-text, if listed) can appear."""
    banned_token_ids: Iterable[int] = ()
    """Tokens that cannot appear."""
    seed: int | None = None
    """The same seed gives the same tokens.

    Any integer. None: drawn, and reported with the output.
    """
    stop: str | Iterable[str] = ()
    """End before this string; may be repeated."""
    stop_token_ids: Iterable[int] = ()
    """End with one of these tokens."""
    ignore_eos: bool = False
    """Go on after end-of-text."""
    n: int = 1
    """Outputs to generate; output ``i`` is that of a request with ``seed + i``, or the ``i``-th best beam."""
    beam_width: int = 0
    """Beams of a beam search, which finds the ``n`` likeliest outputs it can; 0 is no beam search.

    Nothing is drawn. All tokens come at the end. Penalties, bias and masks act on log-probabilities.
    """
    length_penalty: float = 1.0
    """Beams are ranked by log-probability / length ** this.

    Above 0 favours long outputs, below 0 short ones.
    """
    early_stopping: bool | Literal["never"] = False
    """When beams end: once none is likely to improve (False), as soon as there are enough (True), or never before.

    ``"never"`` goes on until no beam can improve the outputs found, whatever its length.
    """
    num_beam_groups: int = 1
    """Groups that the beams are divided into, each of which avoids what those before it have chosen."""
    diversity_penalty: float = 0.0
    """Subtracted from a token's log-probability for each beam of an earlier group that chose it in this step."""
    prompt_logprobs: int | None = None
    """As ``logprobs``, for the tokens of the prompt."""
    logprobs: int | None = None
    """Report log-probabilities and this many alternatives (--json).

    Of each token, 0 to 20 alternatives.
    """
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = "raw_logprobs"
    """Log-probabilities before any option acts, or of the distribution that tokens are drawn from.

    Of a greedy request, ``processed_logprobs`` are those at temperature 1, without truncation.
    """
    skip_special_tokens: bool = True
    """Leave tokens such as end-of-text out of the text."""
    structured: StructuredOutput | None = None
    """The form the whole output must have: a JSON schema, a regex, one of some strings, or a grammar."""

    def __post_init__(self) -> None:
        put = object.__setattr__  # a frozen dataclass normalises its fields once, here
        require(is_int(self.max_tokens) and self.max_tokens >= 1, "max_tokens", self.max_tokens, "use at least 1")
        require(is_int(self.min_tokens) and self.min_tokens >= 0, "min_tokens", self.min_tokens, "use at least 0")
        require(
            self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"use at most max_tokens={self.max_tokens}",
        )
        require(
            is_finite(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "use 0 (greedy) or a positive finite number",
        )
        require(is_int(self.top_k) and self.top_k >= -1, "top_k", self.top_k, "use 0 (off) or at least 1")
        put(self, "top_k", max(self.top_k, 0))
        require(is_finite(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "use a number in (0, 1]")
        require(is_finite(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "use a number in [0, 1]")
        require(
            is_finite(self.repetition_penalty) and 0.01 <= self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "use a number between 0.01 and 100; 1 is off",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            require(is_finite(value) and -100 <= value <= 100, name, value, "use a number between -100 and 100")
        bias = dict(self.logit_bias)
        for token, value in bias.items():
            require(is_int(token) and token >= 0, "logit_bias", token, "keys are token ids")
            require(is_finite(value) and abs(value) <= 1e6, "logit_bias", value, "use numbers between -1e6 and 1e6")
        put(self, "logit_bias", bias)
        if self.allowed_token_ids is not None:
            put(self, "allowed_token_ids", as_ids("allowed_token_ids", self.allowed_token_ids))
            require(bool(self.allowed_token_ids), "allowed_token_ids", (), "allow at least one token, or leave it out")
        put(self, "banned_token_ids", as_ids("banned_token_ids", self.banned_token_ids))
        put(self, "stop_token_ids", as_ids("stop_token_ids", self.stop_token_ids))
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for s in stop:
            require(isinstance(s, str) and s != "", "stop", s, "stop strings are not empty")
        put(self, "stop", stop)
        if self.seed is not None:
            require(is_int(self.seed), "seed", self.seed, "use an integer")
        require(is_int(self.n) and 1 <= self.n <= 128, "n", self.n, "use 1 to 128")
        _check_logprobs(self)
        _check_beams(self)
        form = self.structured
        require(form is None or isinstance(form, StructuredOutput), "structured", form, "use a StructuredOutput")
        require(form is None or not self.ignore_eos, "ignore_eos", True, "a structured output ends when it is complete")

    __repr__ = short_repr

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def untempered(self) -> SamplingParams:
        """These options with temperature 1 and without truncation."""
        return replace(self, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def _check_logprobs(params: SamplingParams) -> None:
    """Raises InvalidRequestError for log-probabilities that cannot be reported."""
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        require(value is None or (is_int(value) and 0 <= value <= 20), name, value, "use 0 to 20")
    mode = params.logprobs_mode
    require(mode in LOGPROBS_MODES, "logprobs_mode", mode, f"use {' or '.join(LOGPROBS_MODES)}")
    if mode == "processed_logprobs" and params.prompt_logprobs is not None:
        for name in ("presence_penalty", "frequency_penalty", "min_tokens", "structured"):
            remedy = "a prompt has no output that it could act on: leave prompt_logprobs out"
            require(not getattr(params, name), name, getattr(params, name), remedy)


def _check_beams(params: SamplingParams) -> None:
    """Raises InvalidRequestError for options of beam search that are invalid or contradict each other."""
    width, groups = params.beam_width, params.num_beam_groups
    require(is_int(width) and 0 <= width <= MAX_WIDTH, "beam_width", width, f"use 1 to {MAX_WIDTH}, or 0 for no beams")
    penalty = params.length_penalty
    require(is_finite(penalty) and -10 <= penalty <= 10, "length_penalty", penalty, "use a number between -10 and 10")
    stopping = params.early_stopping
    require(isinstance(stopping, bool) or stopping == "never", "early_stopping", stopping, "use True, False or 'never'")
    require(is_int(groups) and groups >= 1, "num_beam_groups", groups, "use at least 1")
    diversity = params.diversity_penalty
    possible = is_finite(diversity) and 0 <= diversity <= 100
    require(possible, "diversity_penalty", diversity, "use a number from 0 to 100")
    for name, usual in (_REFUSED if width else _USUAL).items():
        value = getattr(params, name)
        require(value == usual, name, value, "beam search does not take it" if width else "it needs beam_width")
    if width == 0:
        return
    require(params.n <= width, "n", params.n, f"beam_width={width} finds no more than that many outputs")
    require(width % groups == 0, "num_beam_groups", groups, f"use a divisor of beam_width={width}")
    if groups > 1 and diversity == 0:
        raise InvalidRequestError(
            f"num_beam_groups={groups} without a penalty are {groups} times the same beams: set diversity_penalty",
            param="diversity_penalty",
        )
    require(groups > 1 or diversity == 0, "diversity_penalty", diversity, "it needs groups: set num_beam_groups")
