"""What a caller can ask for: the only home of defaults.

Every class here is frozen and validates itself on construction, so that bad input is refused before
anything is loaded, allocated or queued.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from outrider.errors import ConfigError, InvalidRequestError
from outrider.sources import AUTO, HEAD_SOURCES, SOURCES, Combination, check_known, is_custom, parse
from outrider.structured import StructuredOutput

__all__ = [
    "CACHES",
    "DTYPES",
    "SOURCES",
    "VERIFIERS",
    "EngineConfig",
    "ModelOptions",
    "SamplingParams",
    "SpeculationParams",
]

VerifierName = Literal["matching", "rejection", "block", "iterative", "specinfer", "sequoia", "lenient", "typical"]
CacheName = Literal["contiguous", "paged"]
DTypeName = Literal["auto", "bfloat16", "float32", "int8"]

VERIFIERS: tuple[str, ...] = get_args(VerifierName)
CACHES: tuple[str, ...] = ("contiguous", "paged")
DTYPES: tuple[str, ...] = ("auto", "bfloat16", "float32", "int8")

CHAIN_VERIFIERS: tuple[str, ...] = ("rejection", "block")
"""Verifiers whose drafts must not branch."""
BRANCHING_SOURCES: tuple[str, ...] = ("models", "lookahead")
"""Sources that branch whether a tree is asked for or not."""
UNSHAPED_SOURCES: tuple[str, ...] = (
    "suffix", "recycling", "prediction", "lookup", "random", "hierarchical", "lookahead", "grammar",
)  # fmt: skip
"""Sources whose drafts have no shape to choose: chains, or a tree of their own."""
GROWING_SOURCES: tuple[str, ...] = ("suffix", "recycling", "prediction")
"""Sources that branch where the verifier lets them, up to ``tree_nodes`` nodes."""
DRAFT_MODELS: Mapping[str, tuple[int, int]] = {"model": (1, 1), "models": (2, 8), "hierarchical": (1, 2)}
"""How many draft models a source takes, from and to."""
MAX_TREE_NODES = 1024
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
    structured output, allowed and banned tokens, minimum length, temperature, top-k, top-p, min-p
    (``outrider.core.distribution``). ``temperature=0`` is greedy: all probability on the largest logit.
    """

    max_tokens: int = 256
    """Tokens to generate at most, at least 1."""
    min_tokens: int = 0
    """No end-of-text or stop token before this many tokens, unless a structured output is complete."""
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
    structured: StructuredOutput | None = None
    """The form the whole output must have: a JSON schema, a regex, one of some strings, or a grammar."""

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
            _is_finite(self.repetition_penalty) and 0.01 <= self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "use a number between 0.01 and 100; 1 is off",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(_is_finite(value) and -100 <= value <= 100, name, value, "use a number between -100 and 100")
        bias = dict(self.logit_bias)
        for token, value in bias.items():
            _require(_is_int(token) and token >= 0, "logit_bias", token, "keys are token ids")
            _require(_is_finite(value) and abs(value) <= 1e6, "logit_bias", value, "use numbers between -1e6 and 1e6")
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

        form = self.structured
        _require(form is None or isinstance(form, StructuredOutput), "structured", form, "use a StructuredOutput")
        _require(
            form is None or not self.ignore_eos, "ignore_eos", True, "a structured output ends when it is complete"
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


AUTO_LENGTH = 16  # nodes that spec_length="auto" may score for a request
FIXED_LENGTH = 5  # what it stands for where it cannot adapt


@dataclass(frozen=True, kw_only=True)
class SpeculationParams:
    """How drafts are made and checked.

    Shared by the engine (its defaults) and a request (its own choice).
    """

    draft: str = "none"
    """A draft source, one of ``SOURCES``, or several: ``a,b`` is the first that has something to say, ``a/b`` the one
    that has won most, ``a+b`` both in one tree (``outrider.sources``)."""
    spec_length: int | Literal["auto"] = "auto"
    """K: draft tokens on the longest path proposed per step. ``auto``: as many as pay, by measured costs and
    acceptance, for verifiers whose output cannot depend on it; the others use 5, so that a seed gives the same tokens
    again."""
    tree: str | Iterable[int] | None = None
    """None: a chain. Widths by depth, as in ``(4, 2, 1)`` or ``"4,2,1"``: every node at a depth has so many children.
    The parents of each node of any other shape, the first being -1 (``core.shapes.optimal`` finds good ones).
    ``"dynamic"``: the ``tree_nodes`` most likely nodes, found anew in each step. ``"learned"``: a trained head's own
    shape, the ``tree_nodes`` nodes that were accepted most when it was measured; dynamic for other sources."""
    tree_nodes: int = 16
    """Nodes of a draft whose size no shape gives: dynamic trees, those of ``suffix``, and merged drafts."""
    lookahead_window: int = 5
    """W: columns of guesses that ``lookahead`` improves in each run."""
    lookahead_ngram: int = 3
    """N: length of the n-grams ``lookahead`` collects; 2 with no guesses is Jacobi decoding."""
    lookahead_guesses: int = 3
    """G: collected n-grams that ``lookahead`` has verified per step at most."""
    verifier: VerifierName = "matching"
    draft_temperature: float | None = None
    """Sampling temperature of a draft model; None follows the request."""
    counts_as_q: bool = False
    """Sources that count (unigram, bigram, ngram, suffix, recycling) draw from their counts, as q, instead of drafting
    what is most frequent: for verifiers that compare p with q."""
    prediction: str | Iterable[int] | None = None
    """Text or token ids that the output is expected to resemble, for the source ``prediction``."""
    lenience: float | None = None
    """l of ``verifier="lenient"``, in (0, 1]: no token more than 1/l times as likely as it should be; None: 0.5."""
    posterior_threshold: float | None = None
    """Of ``verifier="typical"``, in (0, 1]: tokens likelier than this are always accepted; None: 0.09."""
    posterior_alpha: float | None = None
    """Of ``verifier="typical"``, in (0, 1]: accept tokens likelier than alpha exp(-entropy); None: 0.3."""

    def __post_init__(self) -> None:
        parse(self.draft)
        if self.prediction is not None and not isinstance(self.prediction, str):
            object.__setattr__(self, "prediction", _as_ids("prediction", self.prediction))
        if self.spec_length != "auto" and (not _is_int(self.spec_length) or self.spec_length < 1):
            raise ConfigError(f"spec_length={self.spec_length!r} is not valid: use at least 1, auto, or draft='none'")
        if self.verifier not in VERIFIERS:
            raise ConfigError(f"verifier={self.verifier!r} is unknown: use one of {', '.join(VERIFIERS)}")
        if self.draft_temperature is not None and not (
            _is_finite(self.draft_temperature) and self.draft_temperature >= 0
        ):
            raise ConfigError(f"draft_temperature={self.draft_temperature!r} is not valid: use 0 or a positive number")
        for name, least in (
            ("tree_nodes", 1), ("lookahead_window", 1), ("lookahead_ngram", 2), ("lookahead_guesses", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if not _is_int(value) or value < least:
                raise ConfigError(f"{name}={value!r} is not valid: use at least {least}")
        object.__setattr__(self, "tree", _as_tree(self.tree))
        self._check_branches()
        self._check_lossy()

    def _check_lossy(self) -> None:
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

    def _check_branches(self) -> None:
        names = self.combination.names
        if self.tree is not None and names and all(name in UNSHAPED_SOURCES for name in names):
            raise ConfigError(f"tree={self.tree!r} would not be used: draft={self.draft!r} has a shape of its own")
        branching = any(name in BRANCHING_SOURCES for name in names)
        if self.verifier in CHAIN_VERIFIERS and (self.tree is not None or branching):
            cause = f"draft={self.draft!r}" if self.tree is None else f"tree={self.tree!r}"
            raise ConfigError(f"{cause} branches, and verifier={self.verifier!r} takes chains: use verifier='matching'")

    @property
    def combination(self) -> Combination:
        """The sources that ``draft`` names."""
        return parse(self.draft)


def _as_tree(tree: str | Iterable[int] | None) -> str | tuple[int, ...] | None:
    """``tree`` of ``SpeculationParams``, checked: None, a word, widths, or parents that begin with -1."""
    if tree is None or tree in ("dynamic", "learned"):
        return tree
    remedy = 'use "dynamic", "learned", widths such as "4,2,1", or parents such as "-1,-1,0"'
    try:
        numbers = tuple(int(part) for part in tree.split(",")) if isinstance(tree, str) else tuple(tree)
    except (TypeError, ValueError):
        raise ConfigError(f"tree={tree!r} is not valid: {remedy}") from None
    if not numbers or not all(_is_int(i) for i in numbers):
        raise ConfigError(f"tree={tree!r} is not valid: {remedy}")
    if numbers[0] == -1:
        size, valid = len(numbers), all(-1 <= parent < i for i, parent in enumerate(numbers))
    else:
        size, valid = sum(itertools.accumulate(numbers, operator.mul)), min(numbers) >= 1
    if not valid:
        raise ConfigError(f"tree={tree!r} is not valid: widths are at least 1; parents come before their children")
    if size > MAX_TREE_NODES:
        raise ConfigError(f"tree={tree!r} has {size} nodes: use at most {MAX_TREE_NODES}")
    return numbers


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is loaded and run."""

    dtype: DTypeName = "auto"
    """``auto`` is bfloat16 where the machine computes in it, else float32; ``int8`` quantises linear weights."""
    device: str = "auto"
    max_seq_len: int | None = None
    """Positions per sequence; None is the model's own context length."""
    cuda_graphs: bool = True
    """On a CUDA device, decode and draft in a few fixed shapes that are captured as graphs."""

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
    """A draft source; None is ``model`` if a draft model is named, ``models`` if several are, ``auto`` if a head is,
    else ``none``. ``auto`` is the best trained head at hand, named in ``heads`` or shipped for the model, else
    ``suffix``."""
    draft_model: str | Sequence[str] | None = None
    """A smaller model of the same vocabulary, or several."""
    heads: str | Iterable[str] = ()
    """Folders of heads trained for this model, at most one for each of the sources eagle, medusa, blockwise and pass;
    sources without one use the head shipped for the model, if there is one."""
    draft_layers: int | None = None
    """``layer_skip``: how many of the target's first layers draft; None is a third."""
    draft_table: str | None = None
    """A file of counts from ``outrider train table``, for the sources unigram and bigram; None: they learn live."""
    extra_sources: Iterable[str] = ()
    """Sources of your own, as ``package.module:Class``, that requests may name besides those in ``draft``."""
    use_speculative_decoding: bool | None = None
    """True insists on a draft source, False does without; None leaves it to ``draft`` and ``draft_model``."""
    spec_length: int | Literal["auto"] = SpeculationParams.spec_length
    tree: str | Iterable[int] | None = SpeculationParams.tree
    tree_nodes: int = SpeculationParams.tree_nodes
    lookahead_window: int = SpeculationParams.lookahead_window
    lookahead_ngram: int = SpeculationParams.lookahead_ngram
    lookahead_guesses: int = SpeculationParams.lookahead_guesses
    verifier: VerifierName = SpeculationParams.verifier
    lenience: float | None = None
    posterior_threshold: float | None = None
    posterior_alpha: float | None = None
    draft_temperature: float | None = None
    dtype: DTypeName = ModelOptions.dtype
    draft_dtype: DTypeName = ModelOptions.dtype
    device: str = ModelOptions.device
    cuda_graphs: bool = ModelOptions.cuda_graphs
    """On a CUDA device, decode and draft in a few fixed shapes that are captured as graphs."""
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
        for name in ("threads", "kv_tokens", "draft_layers"):
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
        heads = (self.heads,) if isinstance(self.heads, str) else tuple(self.heads)
        object.__setattr__(self, "heads", heads)
        names = () if draft == AUTO else check_known(draft).names
        if heads and draft != AUTO and not set(names) & set(HEAD_SOURCES):
            raise ConfigError(
                f"heads={heads!r} would not be used with draft={draft!r}: use one of {', '.join(HEAD_SOURCES)}"
            )
        self._check_draft_models(draft, names)
        if self.draft_layers is not None and "layer_skip" not in names:
            raise ConfigError(f"draft_layers={self.draft_layers} is for draft='layer_skip', not draft={draft!r}")
        if isinstance(self.extra_sources, str):
            raise ConfigError(f"extra_sources={self.extra_sources!r} is one string: use a list of them")
        object.__setattr__(self, "extra_sources", tuple(self.extra_sources))
        for name in self.extra_sources:
            if not is_custom(name):
                raise ConfigError(
                    f"extra_sources names {name!r}: write package.module:Class; built-in ones need no entry"
                )
        if self.use_speculative_decoding is True and draft == "none":
            raise ConfigError("use_speculative_decoding=True needs a source of drafts: name a draft or a draft_model")
        if self.use_speculative_decoding is False and draft != "none":
            raise ConfigError(f"use_speculative_decoding=False contradicts draft={draft!r}: leave one of them out")

    def _check_draft_models(self, draft: str, names: Sequence[str]) -> None:
        count = len(self.draft_models)
        wanted = {name: DRAFT_MODELS[name] for name in names if name in DRAFT_MODELS}
        if count and not wanted:
            raise ConfigError(
                f"draft_model={self.draft_model!r} would not be used with draft={draft!r}: use draft='model'"
            )
        for name, (least, most) in wanted.items():
            if count < least:
                them = "a draft model: name one" if least == 1 else f"{least} draft models: name them"
                raise ConfigError(f"draft={name!r} needs {them} with draft_model (--draft-model)")
            if count > most:
                remedy = "use draft='models'" if name == "model" else f"name at most {most}"
                raise ConfigError(f"draft={name!r} does not take {count} draft models: {remedy}")

    @property
    def draft_models(self) -> tuple[str, ...]:
        """The draft models named, in order."""
        if self.draft_model is None:
            return ()
        return (self.draft_model,) if isinstance(self.draft_model, str) else tuple(self.draft_model)

    @property
    def draft_source(self) -> str:
        if self.draft is not None:
            return self.draft
        if not self.draft_models and self.heads:
            return AUTO
        return ("none", "model", "models")[min(len(self.draft_models), 2)]

    @property
    def custom_sources(self) -> tuple[str, ...]:
        """The user's own sources that this engine may import, and no others."""
        named = filter(is_custom, parse(self.draft_source).names)
        return tuple(dict.fromkeys((*named, *self.extra_sources)))

    def target_options(self) -> ModelOptions:
        return ModelOptions(
            dtype=self.dtype, device=self.device, max_seq_len=self.max_seq_len, cuda_graphs=self.cuda_graphs
        )

    def draft_options(self) -> ModelOptions:
        return ModelOptions(dtype=self.draft_dtype, device=self.device, cuda_graphs=self.cuda_graphs)

    def speculation(self) -> SpeculationParams:
        """What a request gets that does not choose for itself."""
        return SpeculationParams(
            draft=self.draft_source,
            spec_length=self.spec_length,
            tree=self.tree,
            tree_nodes=self.tree_nodes,
            lookahead_window=self.lookahead_window,
            lookahead_ngram=self.lookahead_ngram,
            lookahead_guesses=self.lookahead_guesses,
            verifier=self.verifier,
            lenience=self.lenience,
            posterior_threshold=self.posterior_threshold,
            posterior_alpha=self.posterior_alpha,
            draft_temperature=self.draft_temperature,
        )
