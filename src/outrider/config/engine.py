"""How an engine is set up: models, caches, limits, and what requests get that do not choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from outrider.config.checks import is_int
from outrider.config.combination import AUTO, check_known, is_custom, parse
from outrider.config.sources import head_sources, source_record
from outrider.config.speculation import SpeculationParams, VerifierName
from outrider.errors import ConfigError

CacheName = Literal["contiguous", "paged"]
DTypeName = Literal["auto", "bfloat16", "float32", "int8"]
CACHES: tuple[str, ...] = ("contiguous", "paged")
DTYPES: tuple[str, ...] = ("auto", "bfloat16", "float32", "int8")


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
        if self.max_seq_len is not None and (not is_int(self.max_seq_len) or self.max_seq_len < 2):
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
    max_batched_tokens: int = 1024
    """Tokens of one run: prompt chunks, last tokens and drafts together."""

    def __post_init__(self) -> None:
        for name in ("block_size", "max_batch_size", "max_batched_tokens"):
            value = getattr(self, name)
            if not is_int(value) or value < 1:
                raise ConfigError(f"{name}={value!r} is not valid: use at least 1")
        for name in ("threads", "kv_tokens", "draft_layers"):
            value = getattr(self, name)
            if value is not None and (not is_int(value) or value < 1):
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
        if heads and draft != AUTO and not set(names) & set(head_sources()):
            raise ConfigError(
                f"heads={heads!r} would not be used with draft={draft!r}: use one of {', '.join(head_sources())}"
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
        wanted = [source for name in names if (source := source_record(name)).max_draft_models]
        if count and not wanted:
            raise ConfigError(
                f"draft_model={self.draft_model!r} would not be used with draft={draft!r}: use draft='model'"
            )
        for source in wanted:
            name, least, most = source.name, source.min_draft_models, source.max_draft_models
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
