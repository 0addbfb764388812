"""What a caller can ask for: the only home of defaults.

Every class here is frozen and validates itself on construction, so that bad input is refused before
anything is loaded, allocated or queued.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from outrider.errors import ConfigError, InvalidRequestError

VerifierName = Literal["matching", "rejection", "block", "iterative", "specinfer", "sequoia", "lenient", "typical"]
CacheName = Literal["contiguous", "paged"]
DTypeName = Literal["auto", "bfloat16", "float32", "int8"]

VERIFIERS: tuple[str, ...] = get_args(VerifierName)
CACHES: tuple[str, ...] = ("contiguous", "paged")
SOURCES: tuple[str, ...] = ("none", "ngram", "lookup", "model")
DTYPES: tuple[str, ...] = ("auto", "bfloat16", "float32", "int8")

# Parameters of the lossy verifiers where none are given, and the verifier that each is for.
LENIENCE = 0.5
POSTERIOR_THRESHOLD, POSTERIOR_ALPHA = 0.09, 0.3  # those of Medusa (Cai et al. 2024)
_LOSSY = {"lenience": "lenient", "posterior_threshold": "typical", "posterior_alpha": "typical"}


def _require(ok: bool, param: str, value: object, remedy: str) -> None:
    if not ok:
        raise InvalidRequestError(f"{param}={value!r} is not valid: {remedy}", param=param)


def _is_finite(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def _is_int(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _as_ids(param: str, ids: Iterable[int] | None) -> tuple[int, ...]:
    values = tuple(ids or ())
    for i in values:
        _require(_is_int(i) and i >= 0, param, i, "token ids are integers of at least 0")
    return values


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen, and when it stops.

    The options act on the logits in this order: repetition, presence and frequency penalties, logit bias,
    allowed and banned tokens, minimum length, temperature, top-k, top-p, min-p
    (``outrider.core.distribution``). ``temperature=0`` is greedy: all probability on the largest logit.
    """

    max_tokens: int = 256
    """Tokens to generate at most, at least 1."""
    min_tokens: int = 0
    """No end-of-text or stop token before this many tokens."""
    temperature: float = 0.0
    top_k: int = 0
    """Keep the k most likely tokens (ties with the k-th are kept); 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens with at least this probability (ties are kept)."""
    min_p: float = 0.0
    """Keep tokens at least this many times as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Divide positive and multiply negative logits of tokens in prompt or output (CTRL, Keskar et al. 2019)."""
    presence_penalty: float = 0.0
    """Subtract once from the logit of every token in the output so far."""
    frequency_penalty: float = 0.0
    """Subtract for every occurrence in the output so far."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id to a number added to its logit."""
    allowed_token_ids: Iterable[int] | None = None
    """If given, only these tokens (and end-of-text, if listed) can appear."""
    banned_token_ids: Iterable[int] = ()
    seed: int | None = None
    """Any integer; the same request with the same seed gives the same tokens. None: drawn, and reported."""
    stop: str | Iterable[str] = ()
    """Strings that end the output; the text is cut just before them."""
    stop_token_ids: Iterable[int] = ()
    ignore_eos: bool = False
    n: int = 1
    """Outputs to generate; output ``i`` is that of a request with ``seed + i``."""
    prompt_logprobs: int | None = None
    """As ``logprobs``, for the tokens of the prompt."""
    logprobs: int | None = None
    """Report log-probabilities of each token and this many alternatives (0 to 20), before any option acts."""
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        put = object.__setattr__  # a frozen dataclass normalises its fields once, here
        _require(_is_int(self.max_tokens) and self.max_tokens >= 1, "max_tokens", self.max_tokens, "use at least 1")
        _require(_is_int(self.min_tokens) and self.min_tokens >= 0, "min_tokens", self.min_tokens, "use at least 0")
        _require(
            self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"use at most max_tokens={self.max_tokens}",
        )
        _require(
            _is_finite(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "use 0 (greedy) or a positive finite number",
        )
        _require(_is_int(self.top_k) and self.top_k >= -1, "top_k", self.top_k, "use 0 (off) or at least 1")
        put(self, "top_k", max(self.top_k, 0))
        _require(_is_finite(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "use a number in (0, 1]")
        _require(_is_finite(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "use a number in [0, 1]")
        _require(
            _is_finite(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            self.repetition_penalty,
            "use a positive number; 1 is off",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(_is_finite(value) and -100 <= value <= 100, name, value, "use a number between -100 and 100")
        bias = dict(self.logit_bias)
        for token, value in bias.items():
            _require(_is_int(token) and token >= 0, "logit_bias", token, "keys are token ids")
            _require(_is_finite(value), "logit_bias", value, "values are finite numbers")
        put(self, "logit_bias", bias)
        if self.allowed_token_ids is not None:
            put(self, "allowed_token_ids", _as_ids("allowed_token_ids", self.allowed_token_ids))
            _require(bool(self.allowed_token_ids), "allowed_token_ids", (), "allow at least one token, or leave it out")
        put(self, "banned_token_ids", _as_ids("banned_token_ids", self.banned_token_ids))
        put(self, "stop_token_ids", _as_ids("stop_token_ids", self.stop_token_ids))
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for s in stop:
            _require(isinstance(s, str) and s != "", "stop", s, "stop strings are not empty")
        put(self, "stop", stop)
        if self.seed is not None:
            _require(_is_int(self.seed), "seed", self.seed, "use an integer")
        _require(_is_int(self.n) and 1 <= self.n <= 128, "n", self.n, "use 1 to 128")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(value is None or (_is_int(value) and 0 <= value <= 20), name, value, "use 0 to 20")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


AUTO_LENGTH = 16  # nodes that spec_length="auto" may score for a request
FIXED_LENGTH = 5  # what it stands for where it cannot adapt


@dataclass(frozen=True, kw_only=True)
class SpeculationParams:
    """How drafts are made and checked.

    Shared by the engine (its defaults) and a request (its own choice). ``draft`` names a draft source:
    ``none``, ``ngram``, ``lookup`` or ``model``.
    """

    draft: str = "none"
    spec_length: int | Literal["auto"] = "auto"
    """K: draft tokens proposed per step at most. ``auto``: as many as pay, by measured costs and acceptance, for
    verifiers whose output cannot depend on it; the others use 5, so that a seed gives the same tokens again."""
    verifier: VerifierName = "matching"
    draft_temperature: float | None = None
    """Sampling temperature of a draft model; None follows the request."""
    ngram_counts_as_q: bool = False
    """Draw n-gram drafts from their counts (as q) instead of taking the most frequent continuation."""
    lenience: float | None = None
    """l of ``verifier="lenient"``, in (0, 1]: no token more than 1/l times as likely as it should be; None: 0.5."""
    posterior_threshold: float | None = None
    """Of ``verifier="typical"``, in (0, 1]: tokens likelier than this are always accepted; None: 0.09."""
    posterior_alpha: float | None = None
    """Of ``verifier="typical"``, in (0, 1]: accept tokens likelier than alpha exp(-entropy); None: 0.3."""

    def __post_init__(self) -> None:
        if self.spec_length != "auto" and (not _is_int(self.spec_length) or self.spec_length < 1):
            raise ConfigError(f"spec_length={self.spec_length!r} is not valid: use at least 1, auto, or draft='none'")
        if self.verifier not in VERIFIERS:
            raise ConfigError(f"verifier={self.verifier!r} is unknown: use one of {', '.join(VERIFIERS)}")
        if self.draft_temperature is not None and not (
            _is_finite(self.draft_temperature) and self.draft_temperature >= 0
        ):
            raise ConfigError(f"draft_temperature={self.draft_temperature!r} is not valid: use 0 or a positive number")
        for name, verifier in _LOSSY.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not _is_finite(value) or not 0 < value <= 1:
                raise ConfigError(f"{name}={value!r} is not valid: use a number above 0 and at most 1")
            if self.verifier != verifier:
                raise ConfigError(
                    f"{name}={value!r} would do nothing with verifier={self.verifier!r}: "
                    f"use verifier={verifier!r}, or leave it out"
                )


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is loaded and run."""

    dtype: DTypeName = "auto"
    """``auto`` is bfloat16 where the machine computes in it, else float32; ``int8`` quantises linear weights."""
    device: str = "auto"
    max_seq_len: int | None = None
    """Positions per sequence; None is the model's own context length."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r} is unknown: use one of {', '.join(DTYPES)}")
        if self.max_seq_len is not None and (not _is_int(self.max_seq_len) or self.max_seq_len < 2):
            raise ConfigError(f"max_seq_len={self.max_seq_len!r} is not valid: use at least 2")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything an engine is built from. ``LLM(model, **options)`` takes the same names."""

    model: str
    draft: str | None = None
    """A draft source; None is ``model`` if a draft model is named, else ``none``."""
    draft_model: str | None = None
    use_speculative_decoding: bool | None = None
    """True insists on a draft source, False does without; None leaves it to ``draft`` and ``draft_model``."""
    spec_length: int | Literal["auto"] = SpeculationParams.spec_length
    verifier: VerifierName = SpeculationParams.verifier
    lenience: float | None = None
    posterior_threshold: float | None = None
    posterior_alpha: float | None = None
    draft_temperature: float | None = None
    dtype: DTypeName = ModelOptions.dtype
    draft_dtype: DTypeName = ModelOptions.dtype
    device: str = ModelOptions.device
    threads: int | None = None
    """CPU threads; None leaves torch's choice, one per core."""
    kv_cache: CacheName = "contiguous"
    """``contiguous``: a stretch of memory per sequence; ``paged``: blocks, shared between sequences."""
    block_size: int = 16
    """Tokens in a block of the paged cache."""
    prefix_reuse: bool = True
    """Keep verified tokens of finished requests for later ones that begin alike."""
    kv_tokens: int | None = None
    """Tokens the paged cache holds altogether; None: as many as a full batch can use, if memory lasts."""
    max_batch_size: int = 8
    """Requests that run at once."""
    max_seq_len: int | None = None
    """Tokens of one sequence, prompt and output; None: the model's context length."""
    max_batched_tokens: int = 512
    """Tokens of one run: prompt chunks, last tokens and drafts together."""

    def __post_init__(self) -> None:
        for name in ("block_size", "max_batch_size", "max_batched_tokens"):
            value = getattr(self, name)
            if not _is_int(value) or value < 1:
                raise ConfigError(f"{name}={value!r} is not valid: use at least 1")
        for name in ("threads", "kv_tokens"):
            value = getattr(self, name)
            if value is not None and (not _is_int(value) or value < 1):
                raise ConfigError(f"{name}={value!r} is not valid: use at least 1, or leave it out")
        if self.kv_cache not in CACHES:
            raise ConfigError(f"kv_cache={self.kv_cache!r} is unknown: use one of {', '.join(CACHES)}")
        if self.max_batched_tokens < self.max_batch_size:
            raise ConfigError(
                f"max_batched_tokens={self.max_batched_tokens} is less than max_batch_size={self.max_batch_size}: "
                "every running request needs at least one token of a run"
            )
        if self.kv_tokens is not None and self.kv_cache != "paged":
            raise ConfigError(f"kv_tokens={self.kv_tokens} is for kv_cache='paged': the contiguous cache has slots")
        self._check_draft()
        self.target_options(), self.draft_options(), self.speculation()  # each refuses what it does not know

    def _check_draft(self) -> None:
        draft = self.draft_source
        if draft not in SOURCES:
            raise ConfigError(f"draft={draft!r} is unknown: use one of {', '.join(SOURCES)}")
        if draft == "model" and self.draft_model is None:
            raise ConfigError("draft='model' needs a draft model: name one with draft_model (--draft-model)")
        if self.draft_model is not None and draft != "model":
            raise ConfigError(
                f"draft_model={self.draft_model!r} would not be used with draft={draft!r}: use draft='model'"
            )
        if self.use_speculative_decoding is True and draft == "none":
            raise ConfigError("use_speculative_decoding=True needs a source of drafts: name a draft or a draft_model")
        if self.use_speculative_decoding is False and draft != "none":
            raise ConfigError(f"use_speculative_decoding=False contradicts draft={draft!r}: leave one of them out")

    @property
    def draft_source(self) -> str:
        if self.draft is not None:
            return self.draft
        return "none" if self.draft_model is None else "model"

    def target_options(self) -> ModelOptions:
        return ModelOptions(dtype=self.dtype, device=self.device, max_seq_len=self.max_seq_len)

    def draft_options(self) -> ModelOptions:
        return ModelOptions(dtype=self.draft_dtype, device=self.device)

    def speculation(self) -> SpeculationParams:
        """What a request gets that does not choose for itself."""
        return SpeculationParams(
            draft=self.draft_source,
            spec_length=self.spec_length,
            verifier=self.verifier,
            lenience=self.lenience,
            posterior_threshold=self.posterior_threshold,
            posterior_alpha=self.posterior_alpha,
            draft_temperature=self.draft_temperature,
        )
