"""A loaded engine that is owned: its parts, its life and its weights."""

from __future__ import annotations

import gc
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from outrider.adapters import Adapters
from outrider.config import EngineConfig
from outrider.config.adapters import parse_lora_modules
from outrider.drafters.trained.mtp_head import mtp_head
from outrider.engine.loop import EngineLoop
from outrider.errors import EngineDeadError
from outrider.extensions import extension
from outrider.input_processor import InputProcessor
from outrider.loading import LoadedEngine, LoadedModels
from outrider.models.inputs import has_encoder
from outrider.reloading import NewWeights, Running, Weights, ending, load_new, renewed_heads
from outrider.sessions import SessionStore

if TYPE_CHECKING:
    from outrider.verify.grammar import GrammarCompiler

_HELD = ("tokenizer", "model", "draft_models", "drafters", "engine", "_input_processor", "_loop")
"""The attributes that ``LLM.close`` releases."""

_ELSEWHERE = {
    "get_tokenizer": "LLM.tokenizer",
    "encode": "LLM.embed, or LLM.tokenizer.encode for token ids",
    "create_chat_completion": "LLM.chat",
    "create_completion": "LLM.generate",
    "create_embedding": "LLM.embed",
    "beam_search": "LLM.generate with SamplingParams(beam_width=...)",
    "llm_engine": "LLM.engine",
}
"""Attributes and methods of other libraries, and their equivalents here."""


class BaseLLM:
    """Owns a loaded engine from its first request to ``close``."""

    _closed = False

    def __init__(self, loaded: LoadedEngine) -> None:
        """Raises the errors of ``Adapters.load`` for adapters that the configuration names."""
        models = loaded.models
        self.config, self.speculation = loaded.config, loaded.config.speculation
        self.tokenizer, self.eos_token_ids = models.tokenizer, models.eos_token_ids
        self.model, self.draft_models = models.target, models.drafts
        self.memory_plan, self.drafters, self.engine = loaded.memory_plan, loaded.drafters, loaded.engine
        self._input_processor, self._folder = _input_processor(loaded.config, models), models.folder
        self._loop = EngineLoop(self.engine)

    def __repr__(self) -> str:
        model, config = repr(self.config.model), self.config
        if self.closed:
            return f"LLM({model}, closed)"
        return (
            f"LLM({model}, {self.model.precision} on {self.model.device}, draft={self.speculation.draft!r}, "
            f"{config.max_batch_size} sequences of up to {self.engine.max_seq_len} tokens)"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def sessions(self) -> SessionStore | None:
        """What ``session_dir`` keeps."""
        return self.engine.sessions

    @property
    def closed(self) -> bool:
        return self._closed

    def update_weights(self, weights: Weights, *, running: Running = "wait", keep_drafts: bool = False) -> None:
        """Replace the model's weights in place; all that was computed from the old ones is dropped.

        Outputs are those of a fresh load of the new weights. Cached prefixes, saved sessions and learned drafts of the
        old weights are not used any more. Requests that begin meanwhile wait, and run with the new weights. After an
        error the old weights stay in use. For a moment both are in memory.

        Args:
            weights: a safetensors file or a folder of them, or a mapping (or pairs) from the names in such files to
                NumPy arrays or torch tensors, as ``model.state_dict()`` of transformers. Their memory may be shared
                with another process, and is not needed afterwards.
            running: "wait" runs requests to their ends with the old weights first, "abort" ends them with
                ``WeightsReplacedError``.
            keep_drafts: keep what drafts were learned from earlier texts; it changes speed, never output.

        Raises:
            ConfigError: the weights of this model cannot be replaced (GGUF files, encoders, several processes).
            ModelNotFoundError: there is no such file.
            ModelFormatError: a tensor is missing, of another shape or type, or not finite.
        """
        error, new = ending(running), self.load_weights(weights)
        self._loop.pause(lambda: self.use_weights(new, keep_drafts=keep_drafts), error)

    def load_weights(self, weights: Weights) -> NewWeights:
        """Load new weights beside the old ones, which stay in use; arguments and errors as ``update_weights``."""
        return load_new(weights, self.config, self._folder, self.model)

    def use_weights(self, new: NewWeights, *, keep_drafts: bool = False) -> None:
        """Compute with weights of ``load_weights`` from now on, while the engine has no request."""
        heads, own = self.drafters.heads, mtp_head(self.model)
        self.model.adopt(new.model)  # type: ignore[attr-defined]  # ``load_new`` has checked it
        heads = renewed_heads(heads, own, self.model)
        self.drafters = self.drafters.renewed(heads, new.sessions, keep_texts=keep_drafts)
        self.engine.renew(new.digest, self.drafters, new.sessions, keep_learned=keep_drafts)

    @property
    def weights_digest(self) -> str:
        """Of weights that have replaced those of the model's files; empty: none have."""
        return self.engine.weights

    def close(self) -> None:
        """Release the weights and caches; later calls raise ``EngineDeadError``.

        Open streams end with that error too. Closing twice does nothing.
        """
        if self._closed:
            return
        on_cuda = str(self.model.device) != "cpu"
        self._loop.close(self._closed_error())
        self.engine.close()
        self._closed = True
        for name in _HELD:
            delattr(self, name)
        gc.collect()  # model, engine and sources refer to each other
        if on_cuda:
            extension("backends", "torch").release_cached_memory()

    def _closed_error(self) -> EngineDeadError:
        return EngineDeadError(f"LLM({self.config.model!r}) was closed: load it again")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Called for missing attributes only: before loading has ended, or after ``close``."""
            if self._closed and name in _HELD:
                raise self._closed_error()
            hint = f": use {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    @property
    def adapters(self) -> Adapters:
        """The low-rank adapters that requests may name."""
        return self._input_processor.adapters

    @property
    def grammars(self) -> GrammarCompiler:
        """Compiles structured outputs."""
        return self._input_processor.grammars


def _input_processor(config: EngineConfig, models: LoadedModels) -> InputProcessor:
    """What makes requests for the models, with the adapters that ``config`` names loaded."""
    target = models.target
    adapters = Adapters(target, enabled=config.enable_lora)
    adapters.load(parse_lora_modules(config.lora_modules))
    split_prompt = target.split_prompt if has_encoder(target) else None
    return InputProcessor(
        models.tokenizer, models.eos_token_ids, config.speculation, adapters, split_prompt, models.vision
    )
