"""Options of an engine: models, caches, limits, and the defaults of its requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from outrider.config import aliases
from outrider.config.adapters import parse_lora_modules
from outrider.config.combination import AUTO, check_known, is_custom, parse
from outrider.config.fields import checks_names, is_finite, is_int, short_repr
from outrider.config.sources import head_sources, source_record
from outrider.config.speculation import SpeculationParams
from outrider.errors import ConfigError
from outrider.utils.suggest import unknown

CacheName = Literal["contiguous", "paged"]
KVCacheDType = Literal["auto", "bfloat16", "float32", "int8"]
DTypeName = Literal["auto", "bfloat16", "float32", "q8_0", "q4_0", "q4_1", "int8"]
Implementation = Literal["auto", "native", "torch", "transformers"]
IMPLEMENTATIONS: tuple[str, ...] = ("auto", "native", "torch", "transformers")
CACHES: tuple[str, ...] = ("contiguous", "paged")
KV_CACHE_DTYPES: tuple[str, ...] = ("auto", "bfloat16", "float32", "int8")
DTYPES: tuple[str, ...] = ("auto", "bfloat16", "float32", "q8_0", "q4_0", "q4_1", "int8")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is loaded and run."""

    dtype: DTypeName = "auto"
    """How weights are held.

    ``auto``: as the file has them; on GPUs, and where there is no native library, bfloat16, or float32 on processors
    without bfloat16 instructions. ``q8_0``, ``q4_0`` and ``q4_1`` round weights to 8 or 4 bits, as the GGUF formats of
    these names do; ``int8`` is another name for ``q8_0``.
    """
    kv_cache_dtype: KVCacheDType = "auto"
    """How keys and values are held.

    ``auto``: bfloat16 with the native library, or float32 if ``dtype`` is; on GPUs, and where there is no native
    library, as the weights. ``int8`` has a scale for each head of each token. Any other value requires the native
    library, unless ``auto`` stands for the same value.
    """
    device: str = "auto"
    max_seq_len: int | None = None
    """Positions per sequence; None is the model's own context length."""
    cuda_graphs: bool = True
    """On a CUDA device, decode and draft in a few fixed shapes that are captured as graphs."""
    implementation: Implementation = "auto"
    """Code that computes the model.

    ``auto``: the native library on CPUs, torch on GPUs and where there is no library, and transformers' own code for
    families that Outrider does not implement. Any other value is used as given; loading fails where it cannot be used.
    """

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(unknown("dtype", self.dtype, DTYPES))
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ConfigError(unknown("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES))
        if self.implementation not in IMPLEMENTATIONS:
            raise ConfigError(unknown("implementation", self.implementation, IMPLEMENTATIONS))
        if self.max_seq_len is not None and (not is_int(self.max_seq_len) or self.max_seq_len < 2):
            raise ConfigError(f"max_seq_len={self.max_seq_len!r} is not valid: use at least 2")


@checks_names(aliases.ENGINE)
@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything an engine is built from. ``LLM`` takes the same options, those of ``speculation`` by themselves."""

    model: str
    """Built-in name, folder, .gguf file or hub id."""
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    """Parameters of requests that bring none of their own."""
    draft_model: str | Sequence[str] | None = None
    """A smaller model of the same vocabulary, as draft; may be repeated."""
    heads: str | Iterable[str] = ()
    """Folder or hub id of a head trained for the model; may be repeated for other kinds.

    At most one for each source that needs a head (eagle, dflash, medusa ...). The other such sources use the head
    shipped for the model, if there is one.
    """
    draft_layers: int | None = None
    """Number of the target's first layers that draft (layer_skip).

    None: a third of its layers.
    """
    draft_table: str | None = None
    """File of counts from `outrider train table`, for bigram and unigram.

    None: both sources count the tokens of running requests.
    """
    datastore: str = "auto"
    """File of answers from `outrider train datastore` that suffix copies from; auto, or none.

    auto: the answers shipped for the model, if there are any.
    """
    enable_lora: bool = False
    """Requests may bring low-rank adapters of their own (LoRA, as PEFT writes them)."""
    lora_modules: Mapping[str, str] | Iterable[str] = field(default_factory=dict)
    """NAME=FOLDER of an adapter that requests may name as a model; may be repeated."""
    extra_sources: Iterable[str] = ()
    """package.module:Class of a source that requests may name; may be repeated.

    Sources that ``draft`` names need no entry.
    """
    dtype: DTypeName = ModelOptions.dtype
    """How weights are held: auto (as the file has them), bfloat16, float32, q8_0, q4_0 or q4_1."""
    draft_dtype: DTypeName = ModelOptions.dtype
    """The draft model's dtype."""
    device: str = ModelOptions.device
    """auto, cpu or cuda."""
    cuda_graphs: bool = ModelOptions.cuda_graphs
    """On a CUDA device, decode and draft in a few fixed shapes that are captured as graphs."""
    implementation: Implementation = ModelOptions.implementation
    """Code that computes the model: auto, native, torch or transformers (its own code, for any family it has).

    ``auto``: Outrider's code for the families that it implements, else transformers'. Draft models are always ``auto``.
    """
    threads: int | None = None
    """CPU threads.

    None: one per core.
    """
    tensor_parallel_size: int = 1
    """Processes that run the model together on CPUs, each with a share of its matrices and of its cache.

    The output does not depend on it. ``threads`` counts the threads of each process; None divides the cores. Draft
    models and heads run in the first process.
    """
    kv_cache: CacheName = "contiguous"
    """Layout of the key/value cache: contiguous or paged.

    ``contiguous``: a range of memory per sequence; ``paged``: blocks, shared between sequences.
    """
    kv_cache_dtype: KVCacheDType = ModelOptions.kv_cache_dtype
    """How keys and values are held: auto (bfloat16, or float32 if dtype is), bfloat16, float32 or int8.

    For target and draft models; int8 takes half the memory of bfloat16 and needs the native library.
    """
    prefix_reuse: bool = True
    """Keep verified tokens of finished requests for later ones that begin alike."""
    session_dir: str | None = None
    """Folder that keeps conversations beyond their memory and the process: their next turn reads them from there.

    Its files hold token ids, for this user alone. ``FOLDER,key=FILE`` encrypts them. Needs the native library.
    """
    session_gb: float = 16.0
    """Gigabytes that session_dir may hold; the least recently used conversations make room."""
    kv_tokens: int | None = None
    """Tokens that the paged cache holds.

    None: as many as a full batch can use, if memory lasts.
    """
    max_batch_size: int = 8
    """Sequences that run at once."""
    max_seq_len: int | None = None
    """Context length: tokens of one sequence, prompt and output.

    None: the model's context length.
    """
    max_batched_tokens: int = 1024
    """Tokens of one forward pass: prompt chunks, last tokens and drafts together."""

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "max_batch_size", "max_batched_tokens"):
            value = getattr(self, name)
            if not is_int(value) or value < 1:
                raise ConfigError(f"{name}={value!r} is not valid: use at least 1")
        for name in ("threads", "kv_tokens", "draft_layers"):
            value = getattr(self, name)
            if value is not None and (not is_int(value) or value < 1):
                raise ConfigError(f"{name}={value!r} is not valid: use at least 1, or leave it out")
        if not is_finite(self.session_gb) or self.session_gb <= 0:
            raise ConfigError(f"session_gb={self.session_gb!r} is not valid: use a number above 0")
        if self.session_dir is not None and not self.prefix_reuse:
            raise ConfigError(f"session_dir={self.session_dir!r} is not used with prefix_reuse=False: leave one out")
        if self.kv_cache not in CACHES:
            raise ConfigError(unknown("kv_cache", self.kv_cache, CACHES))
        if self.max_batched_tokens < self.max_batch_size:
            raise ConfigError(
                f"max_batched_tokens={self.max_batched_tokens} is less than max_batch_size={self.max_batch_size}: "
                "every running request needs at least one token of a run"
            )
        if self.kv_tokens is not None and self.kv_cache != "paged":
            raise ConfigError(f"kv_tokens={self.kv_tokens} is for kv_cache='paged': the contiguous cache has slots")
        if self.tensor_parallel_size > 1 and (self.enable_lora or self.lora_modules):
            raise ConfigError(
                f"tensor_parallel_size={self.tensor_parallel_size}: adapters are not split, leave them out or use 1"
            )
        object.__setattr__(self, "speculation", replace(self.speculation, draft=self._source()))
        self._check_draft()
        object.__setattr__(self, "lora_modules", parse_lora_modules(self.lora_modules))
        self.target_options(), self.draft_options()  # each refuses what it does not know

    def _source(self) -> str:
        """The source for ``draft="auto"``, as far as options decide it; heads are looked for when they load."""
        if self.speculation.draft != AUTO:
            return self.speculation.draft
        if self.draft_models:
            return "model" if len(self.draft_models) == 1 else "models"
        return AUTO if self.heads or self.speculation.prediction is None else "prediction"

    def _check_draft(self) -> None:
        draft = self.speculation.draft
        heads = (self.heads,) if isinstance(self.heads, str) else tuple(self.heads)
        object.__setattr__(self, "heads", heads)
        names = () if draft == AUTO else check_known(draft).names
        if heads and draft != AUTO and not any(source_record(name).takes_head for name in names):
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
    def custom_sources(self) -> tuple[str, ...]:
        """The user's own sources that this engine may import, and no others."""
        named = filter(is_custom, parse(self.speculation.draft).names)
        return tuple(dict.fromkeys((*named, *self.extra_sources)))

    def target_options(self) -> ModelOptions:
        return ModelOptions(
            dtype=self.dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            device=self.device,
            max_seq_len=self.max_seq_len,
            cuda_graphs=self.cuda_graphs,
            implementation=self.implementation,
        )

    def draft_options(self) -> ModelOptions:
        return ModelOptions(
            dtype=self.draft_dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            device=self.device,
            cuda_graphs=self.cuda_graphs,
        )

    __repr__ = short_repr
