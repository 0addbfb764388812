"""``LlamaBase``: a loaded model, its vocabulary, its state, and tokens one by one."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from outrider import LLM, LoRARequest
from outrider.errors import ConfigError, ModelNotFoundError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.hub.catalog import resolve
from outrider_llama.generation import Generation
from outrider_llama.llama_cache import BaseLlamaCache, LlamaDiskCache
from outrider_llama.options import engine_options, fitting_context
from outrider_llama.vocabulary import Vocabulary, metadata_of

DEFAULT_SEED = 0xFFFFFFFF
_RANDOM = (-1, DEFAULT_SEED)  # seeds that stand for one that is drawn

_ELSEWHERE = {
    "tokenizer": "tokenize and detokenize",
    "tokenizer_": "tokenize and detokenize",
    "create_chat_completion_openai_v1": "create_chat_completion, or the openai package with `outrider serve`",
    "scores": "logprobs of create_completion, with logits_all=True",
    "_scores": "logprobs of create_completion, with logits_all=True",
    "eval_logits": "logprobs of create_completion, with logits_all=True",
    "ctx": "the methods of this class: there is no llama.cpp context",
    "_ctx": "the methods of this class: there is no llama.cpp context",
    "model": "the methods of this class: there is no llama.cpp model",
    "_model": "the methods of this class: there is no llama.cpp model",
}
"""Attributes and methods of llama-cpp-python that are not here, and what to use."""


@dataclass(frozen=True)
class LlamaState:
    """The tokens and the seed of a ``Llama``. Keys and values are not in it: the engine's cache has them."""

    input_ids: NDArray[np.intc]  # [n_tokens]
    n_tokens: int
    seed: int


class LlamaBase:
    """What ``Llama`` knows between calls."""

    def __init__(self, model_path: str | PathLike[str], chat_format: str | None, given: Mapping[str, Any]) -> None:
        """``given``: the arguments of ``Llama(...)``. Raises as that."""
        self._llm: LLM | None = None
        self.model_path, self.verbose = fspath(model_path), bool(given["verbose"])
        options = engine_options(given)
        try:
            folder = resolve(self.model_path, progress=self.verbose)
        except ModelNotFoundError as error:
            raise ValueError(f"Model path does not exist: {self.model_path} ({error})") from None
        self.metadata = metadata_of(folder)
        if given["vocab_only"]:
            self._vocabulary = Vocabulary(Tokenizer.from_folder(folder))
        else:
            options["max_seq_len"] = fitting_context(folder, options["max_seq_len"])
            self._llm = LLM(self.model_path, **options)
            self._vocabulary = Vocabulary(self._llm.tokenizer)
        self._lora = LoRARequest("lora") if given["lora_path"] else None
        self.embeds, self._logits_all = bool(given["embedding"]), bool(given["logits_all"])
        self.n_batch, self.last_n_tokens_size = int(given["n_batch"]), int(given["last_n_tokens_size"])
        self._seed = given["seed"] or DEFAULT_SEED
        has_template = self._vocabulary.tokenizer.chat_template is not None
        self.chat_format = chat_format or ("chat_template.default" if has_template else None)
        self.cache: BaseLlamaCache | None = None
        self.n_tokens = 0
        self.input_ids: NDArray[np.intc] = np.empty(0, np.intc)  # [n_tokens]

    @property
    def llm(self) -> LLM:
        """The ``outrider.LLM`` that runs the model. Raises ``ConfigError`` if there is none."""
        if self._llm is None:
            raise ConfigError("only the vocabulary was loaded: leave vocab_only out")
        return self._llm

    def close(self) -> None:
        """Release the model. Closing twice does nothing."""
        if self._llm is not None:
            self._llm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled: load the model in each process")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Called for missing attributes only."""
            hint = f": use {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The ids of UTF-8 bytes, with BOS if the model takes one. ``special``: spelled special tokens are tokens."""
        return self._vocabulary.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of ids. ``prev_tokens`` has no influence, as in llama-cpp-python with a GGUF's own tokenizer."""
        return self._vocabulary.detokenize(tokens, special)

    def n_ctx(self) -> int:
        """Tokens of a prompt and its output together, at most."""
        return self.llm.engine.max_seq_len

    def n_vocab(self) -> int:
        return self._vocabulary.size

    def n_embd(self) -> int:
        """Numbers of an embedding."""
        return self.llm.model.config.hidden_size

    def token_eos(self) -> int:
        return self._vocabulary.eos

    def token_bos(self) -> int:
        return self._vocabulary.bos

    def token_nl(self) -> int:
        return self._vocabulary.nl

    @property
    def eval_tokens(self) -> list[int]:
        """The prompt and the output of the last call."""
        return [int(token) for token in self.input_ids]

    def reset(self) -> None:
        """Forget the tokens of the last call. Cached prefixes stay: they change no output."""
        self._remember(())

    def set_seed(self, seed: int) -> None:
        """The seed of the next call that brings none."""
        self._seed = seed

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Accepted with a warning, as the engine always caches prefixes itself. Raises ``ConfigError`` for a disk."""
        if isinstance(cache, LlamaDiskCache):
            raise ConfigError("a cache on disk cannot be set: load with Llama(..., session_dir=FOLDER)")
        if cache is not None:
            warnings.warn("set_cache: without effect, the engine caches prefixes itself", UserWarning, stacklevel=2)
        self.cache = cache

    def save_state(self) -> LlamaState:
        """The tokens and the seed, for ``load_state``."""
        return LlamaState(self.input_ids.copy(), self.n_tokens, self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Go back to a state: calls give what they gave after it. Its prefix is read from the cache, or again."""
        self.input_ids, self.n_tokens, self._seed = state.input_ids.copy(), state.n_tokens, state.seed

    def _generation(self, prompt: Sequence[int], *, max_tokens: int | None, **options: Any) -> Generation:
        """A generation of at most ``max_tokens`` (None or 0: no limit) and what the context holds.

        Raises ``ValueError`` if the prompt leaves no room in the context.
        """
        room = self.n_ctx() - len(prompt)
        if room <= 0:
            raise ValueError(f"Requested tokens ({len(prompt)}) exceed context window of {self.n_ctx()}")
        most = room if max_tokens is None or max_tokens <= 0 else min(max_tokens, room)
        seed = None if self._seed in _RANDOM else self._seed
        return Generation(llm=self.llm, prompt=list(prompt), max_tokens=most, seed=seed, lora=self._lora, **options)

    def _next_seed(self, seed: int | None) -> int:
        """The seed of a call, which the next one without a seed follows from."""
        self._seed = random.Random(self._seed).randint(0, 2**32) if seed is None else seed
        return self._seed

    def _remember(self, tokens: Sequence[int]) -> None:
        self.input_ids, self.n_tokens = np.array(tokens, np.intc), len(tokens)
