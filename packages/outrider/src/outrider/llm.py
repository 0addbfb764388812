"""``LLM``: load a model once, then generate, chat and stream."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from outrider.adapters import Adapters
from outrider.config import DTypeName, SamplingParams, SpeculationParams, VerifierName, engine_config
from outrider.config.adapters import parse_lora_modules
from outrider.config.engine import CacheName, Implementation, KVCacheDType
from outrider.config.options import OtherNames, changed_options
from outrider.config.request import Params, RequestOptions, Scheduling, Speculation, request_options
from outrider.drafters.trained.mtp_head import mtp_head
from outrider.engine.loop import EngineLoop
from outrider.engine.request import Request, StepOutput
from outrider.errors import EngineDeadError, InvalidRequestError
from outrider.extensions import extension
from outrider.input_processor import ImagePrompt, InputProcessor, Message, Prompt
from outrider.loading import load
from outrider.models.inputs import EncodedPrompt, has_encoder
from outrider.output import Output, one_or_all, tokens_per_run
from outrider.prompts import broadcast_params, conversations, prompts_in, resolve_alias
from outrider.recording.recorder import Recorder
from outrider.reloading import NewWeights, Running, Weights, ending, load_new, renewed_heads
from outrider.sessions import SessionStore
from outrider.utils.progress import work_bar

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


class LLM:
    """A target model with its draft sources.

        with LLM("smollm2-135m-instruct") as llm:
            print(llm.chat([{"role": "user", "content": "Write a haiku about rivers."}]).text)

    The draft source (``draft``) changes only the speed, never the output; ``draft="none"`` is plain decoding.
    """

    _closed = False
    _recorder: Recorder | None = None

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        progress: bool = False,
        draft: str = "auto",
        spec_length: int | Literal["auto"] = "auto",
        tree: str | Iterable[int] | None = None,
        tree_nodes: int = 16,
        lookahead: str | Iterable[int] | None = None,
        verifier: VerifierName = "matching",
        draft_temperature: float | None = None,
        counts_as_q: bool = False,
        prediction: str | Iterable[int] | None = None,
        lenience: float | None = None,
        posterior_threshold: float | None = None,
        speculation: SpeculationParams | None = None,
        draft_model: str | Sequence[str] | None = None,
        heads: str | Iterable[str] = (),
        draft_layers: int | None = None,
        draft_table: str | None = None,
        datastore: str = "auto",
        enable_lora: bool = False,
        lora_modules: Mapping[str, str] | Iterable[str] = (),
        extra_sources: Iterable[str] = (),
        dtype: DTypeName = "auto",
        draft_dtype: DTypeName = "auto",
        device: str = "auto",
        cuda_graphs: bool = True,
        implementation: Implementation = "auto",
        threads: int | None = None,
        tensor_parallel_size: int = 1,
        kv_cache: CacheName = "contiguous",
        kv_cache_dtype: KVCacheDType = "auto",
        prefix_reuse: bool = True,
        session_dir: str | None = None,
        session_gb: float = 16.0,
        kv_tokens: int | None = None,
        max_batch_size: int = 8,
        max_seq_len: int | None = None,
        max_batched_tokens: int = 1024,
        **other_names: Unpack[OtherNames],
    ) -> None:
        """Load ``model`` and its draft sources.

        ``SpeculationParams`` and ``EngineConfig`` describe their fields further.

        Names of vLLM and transformers are accepted where they mean the same: ``max_model_len``, ``max_num_seqs``,
        ``max_num_batched_tokens``, ``enable_prefix_caching``, ``torch_dtype``, and ``speculative_config`` with
        ``method``, ``model`` and ``num_speculative_tokens``.

        Args:
            model: a built-in name, a folder, a ``.gguf`` file or a hub id (see ``outrider models``).
            progress: report downloads and the memory budget on the terminal.
            draft: Where drafts come from: auto, none, suffix, model, eagle, ..., or several sources.
            spec_length: Draft tokens on a path at most, or auto.
            tree: Draft trees: widths by depth (4,2,1), parents (-1,-1,0), dynamic or learned.
            tree_nodes: Nodes of a dynamic tree, or of the drafts of several models.
            lookahead: W,N,G of lookahead: columns, length of n-grams, n-grams verified per step.
            verifier: matching: same tokens as without drafts; lenient, typical: lossy; all others: same distribution.
            draft_temperature: Sampling temperature of the draft model.
            counts_as_q: Sample drafts from the counts of sources that count, with these counts as q.
            prediction: Text or token ids that the output is expected to resemble, for the source ``prediction``.
            lenience: lenient: no token more than 1/l times too likely.
            posterior_threshold: typical: likelier tokens are always accepted, others from its root times exp(-entropy).
            speculation: Parameters of requests that bring none of their own.
            draft_model: A smaller model of the same vocabulary, as draft; may be repeated.
            heads: Folder or hub id of a head trained for the model; may be repeated for other kinds.
            draft_layers: Number of the target's first layers that draft (layer_skip).
            draft_table: File of counts from `outrider train table`, for bigram and unigram.
            datastore: File of answers from `outrider train datastore` that suffix copies from; auto, or none.
            enable_lora: Requests may bring low-rank adapters of their own (LoRA, as PEFT writes them).
            lora_modules: NAME=FOLDER of an adapter that requests may name as a model; may be repeated.
            extra_sources: package.module:Class of a source that requests may name; may be repeated.
            dtype: How weights are held: auto (as the file has them), bfloat16, float32, q8_0, q4_0 or q4_1.
            draft_dtype: The draft model's dtype.
            device: auto, cpu or cuda.
            cuda_graphs: On a CUDA device, decode and draft in a few fixed shapes that are captured as graphs.
            implementation: Code that computes the model: auto, native, torch or transformers (its own code, for any
                family it has).
            threads: CPU threads.
            tensor_parallel_size: Processes that run the model together on CPUs, each with a share of its matrices and
                of its cache.
            kv_cache: Layout of the key/value cache: contiguous or paged.
            kv_cache_dtype: How keys and values are held: auto (bfloat16, or float32 if dtype is), bfloat16, float32 or
                int8.
            prefix_reuse: Keep verified tokens of finished requests for later ones that begin alike.
            session_dir: Folder that keeps conversations beyond their memory and the process: their next turn reads
                them from there.
            session_gb: Gigabytes that session_dir may hold; the least recently used conversations make room.
            kv_tokens: Tokens that the paged cache holds.
            max_batch_size: Sequences that run at once.
            max_seq_len: Context length: tokens of one sequence, prompt and output.
            max_batched_tokens: Tokens of one forward pass: prompt chunks, last tokens and drafts together.
            other_names: the names of vLLM and transformers listed above.

        Raises:
            ConfigError: an option is unknown, or the options do not go together.
            OutriderError: the model cannot be found or loaded.
        """
        options = changed_options(LLM.__init__, locals())
        loaded = load(engine_config(fspath(model), **options), progress=progress)
        self.config = loaded.config
        self.speculation = loaded.config.speculation
        self.tokenizer = loaded.tokenizer
        self.model = loaded.model
        self.draft_models = loaded.draft_models
        self.memory_plan = loaded.memory_plan
        self.drafters = loaded.drafters
        self.engine = loaded.engine
        self.eos_token_ids = loaded.eos_token_ids
        adapters = Adapters(self.model, enabled=loaded.config.enable_lora)
        split_prompt = loaded.model.split_prompt if has_encoder(loaded.model) else None
        self._input_processor = InputProcessor(
            self.tokenizer, loaded.eos_token_ids, self.speculation, adapters, split_prompt, loaded.vision
        )
        adapters.load(parse_lora_modules(loaded.config.lora_modules))
        self._folder = loaded.folder
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
        self.drafters = self.drafters.renewed(renewed_heads(heads, own, self.model), keep_texts=keep_drafts)
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

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is also a sequence of str: one text, one output
        self,
        prompts: str | ImagePrompt,
        params: Params = None,
        *,
        speculation: Speculation = None,
        sampling_params: Params = None,
        progress: bool = False,
        **scheduling: Unpack[RequestOptions],
    ) -> Output | Any: ...  # Any: with n above 1, list[Output]
    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: Params | Sequence[Params] = None,
        *,
        speculation: Speculation | Sequence[Speculation] = None,
        sampling_params: Params | Sequence[Params] = None,
        progress: bool = False,
        **scheduling: Unpack[RequestOptions],
    ) -> list[Output]: ...
    def generate(
        self,
        prompts: str | ImagePrompt | Sequence[Prompt],
        params: Params | Sequence[Params] = None,
        *,
        speculation: Speculation | Sequence[Speculation] = None,
        sampling_params: Params | Sequence[Params] = None,
        progress: bool = False,
        **scheduling: Unpack[RequestOptions],
    ) -> Output | list[Output]:
        """Continue one text, or many texts and token-id lists at once.

        One text gives one ``Output``; with ``n`` above 1, a list of ``n``. A list of prompts gives a list, in which
        the ``n`` outputs of each prompt stand next to each other (and which type checkers know to be one).

        Args:
            prompts: a text, or a list of texts and lists of token ids. A text with images is
                ``{"prompt": "<image>What is this?", "multi_modal_data": {"image": "cat.png"}}``.
            params: for all prompts, or a list with one for each. ``sampling_params`` is another name for it. A dict
                of the fields of ``SamplingParams`` will do, and so will the fields as keywords: ``max_tokens=64``.
            speculation: likewise (``SpeculationParams``, or a dict).
            progress: show a bar on a terminal, or in a notebook.
            scheduling: a lower ``priority`` runs first (default 0), without starving others; only requests with the
                same ``cache_salt`` (default "") share cached prefixes and learned drafts; tenants (``tenant``, default
                "") get equal shares of the machine; ``lora_request`` names an adapter (``LoRARequest``) if the engine
                has ``enable_lora``.

        Raises:
            InvalidRequestError: a prompt or an option is impossible; nothing has run then.
            NumericalError: the model's output is not a number.
        """
        several = prompts_in(prompts)
        options = resolve_alias(params, sampling_params), speculation
        return self._answer(broadcast_params(prompts, several, *options), several is None, scheduling, progress)

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: Params = None,
        *,
        speculation: Speculation = None,
        sampling_params: Params = None,
        progress: bool = False,
        **scheduling: Unpack[RequestOptions],
    ) -> Output | Any: ...  # Any: with n above 1, list[Output]
    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        params: Params | Sequence[Params] = None,
        *,
        speculation: Speculation | Sequence[Speculation] = None,
        sampling_params: Params | Sequence[Params] = None,
        progress: bool = False,
        **scheduling: Unpack[RequestOptions],
    ) -> list[Output]: ...
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params | Sequence[Params] = None,
        *,
        speculation: Speculation | Sequence[Speculation] = None,
        sampling_params: Params | Sequence[Params] = None,
        progress: bool = False,
        **scheduling: Unpack[RequestOptions],
    ) -> Output | list[Output]:
        """Answer a conversation of ``{"role", "content"}`` messages, written with the model's chat template.

        A list of conversations is answered at once. Outputs and options are those of ``generate``, with a conversation
        for a text.
        """
        several = conversations(messages)
        options = resolve_alias(params, sampling_params), speculation
        return self._answer(broadcast_params(messages, several, *options), several is None, scheduling, progress)

    @cached_property
    def transcriber(self) -> Any:
        """The ``Transcriber`` that converts sounds to requests.

        Raises:
            MissingExtensionError: the distribution for sounds is not installed.
            InvalidRequestError: the model takes no sounds.
        """
        transcriber = extension("input_sources", "sounds", "transcription")
        return transcriber(self._folder, self.model, self.tokenizer, self._input_processor)

    def transcribe(self, sounds: Any, options: Any = None, **more: Any) -> Any:
        """Transcribe a sound, or each of a list of sounds at once, with time stamps.

        Args:
            sounds: a file, its bytes, or a ``Sound`` of samples; or a list of these.
            options: language, task and the thresholds of the recipe (``TranscriptionOptions``).
            more: ``on_segment`` and ``on_progress``, called as the work proceeds; ``speculation`` and ``scheduling`` as
                in ``generate``.

        Returns:
            A ``Transcript``, or a list of them.

        Raises:
            MissingExtensionError: the distribution for sounds is not installed.
            InvalidRequestError: the model takes no sounds, a file cannot be decoded, or an option is invalid.
        """
        batch = sounds if isinstance(sounds, list) else [sounds]
        transcripts = self.transcriber.run(batch, options, more, self._loop)
        return transcripts if isinstance(sounds, list) else transcripts[0]

    @overload
    def embed(  # type: ignore[overload-overlap]  # a str is also a sequence of str
        self, texts: str | list[int], **scheduling: Unpack[Scheduling]
    ) -> list[float]: ...
    @overload
    def embed(self, texts: Sequence[str | list[int]], **scheduling: Unpack[Scheduling]) -> list[list[float]]: ...
    def embed(
        self, texts: str | list[int] | Sequence[str | list[int]], **scheduling: Unpack[Scheduling]
    ) -> list[float] | list[list[float]]:
        """The embedding of a text (or its token ids), or the embeddings of a list of texts.

        As in ``/v1/embeddings``: the mean of the target's last hidden states, normalised to norm 1, ``hidden_size``
        numbers. Raises ``InvalidRequestError`` for a text that is empty or too long.
        """
        alone = isinstance(texts, str) or (bool(texts) and isinstance(texts[0], int))
        params, plain = SamplingParams(max_tokens=1), replace(self.speculation, draft="none", prediction=None)
        batch: Sequence[Any] = [texts] if alone else texts
        requests = [self.request(text, params, plain, **scheduling) for text in batch]
        for request in requests:
            request.prompt_report.final_norm = self.model.final_norm
        self._run(requests)
        vectors: list[list[float]] = [request.prompt_report.embedding().tolist() for request in requests]
        return vectors[0] if alone else vectors

    def stream(
        self,
        prompt: Prompt | Sequence[Message] | Request,
        params: Params = None,
        *,
        speculation: Speculation = None,
        sampling_params: Params = None,
        **scheduling: Unpack[RequestOptions],
    ) -> Iterator[StepOutput]:
        """Tokens as they are committed. ``prompt`` is text, token ids, chat messages, or a request of ``LLM.request``.

        Leaving the loop early aborts the request. ``self.last`` keeps it, with its text and statistics.
        """
        if isinstance(prompt, Request):
            self.last = prompt
        else:
            self.last = self.request(prompt, resolve_alias(params, sampling_params), speculation, **scheduling)
        steps = self._loop.stream(self.last)
        return steps if self._recorder is None else self._recorder.follow(self.last, steps)

    def request(
        self,
        prompt: Prompt | Sequence[Message],
        params: Params = None,
        speculation: Speculation = None,
        **scheduling: Unpack[RequestOptions],
    ) -> Request:
        """The checked request of one prompt with one output. Raises InvalidRequestError for ``n`` above 1."""
        params, speculation, rest = request_options(params, speculation, scheduling)
        if params.n != 1:
            raise InvalidRequestError(f"n={params.n} outputs here: one at a time; use generate or chat", param="n")
        return self.requests(prompt, params, speculation, **rest)[0]

    def requests(
        self,
        prompt: Prompt | Sequence[Message],
        params: Params = None,
        speculation: Speculation = None,
        **scheduling: Unpack[RequestOptions],
    ) -> list[Request]:
        """The checked requests of one prompt, ``params.n`` of them, ready for ``engine.add``."""
        params, speculation, rest = request_options(params, speculation, scheduling)
        read = self.read(prompt, **rest)
        if self._recorder is not None and self._recorder.active and self._recorder.logits:
            rest["reports_logits"] = True
        make = partial(self._input_processor.request, read.token_ids, given=read.input)
        first = make(params, speculation, **rest)
        self.engine.check(first)
        others = [
            make(replace(params, seed=first.seed + i), speculation, prefix_leader=first, **rest)
            for i in range(1, params.n)
        ]
        read.input.prepare()  # here, not within a step, which would delay other requests
        return [first, *others]

    def record(self, file: str | PathLike[str], *, logits: bool = False) -> Recorder:
        """Append each request from now on to ``file``, with its tokens: ``outrider replay`` runs it again.

        In ``with`` the record ends there. Another call takes its place.

        Args:
            logits: also keep a digest of the logits of each token, and the likeliest tokens there.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._recorder = Recorder(Path(file), self.config.model, self.model, logits=logits)
        return self._recorder

    def read(self, prompt: Prompt | Sequence[Message], **options: Any) -> EncodedPrompt:
        """Encode a prompt: its token ids, including the placeholders of images, and its other input.

        ``options``: ``cache_salt`` and ``tenant`` of its requests, and ``limits`` of its images.
        """
        return self._input_processor.encode_prompt(prompt, **options)

    @property
    def sees(self) -> bool:
        """Whether prompts may have images."""
        return not isinstance(self._input_processor.vision, str)

    def _answer(
        self, asked: Sequence[tuple[Any, ...]], alone: bool, scheduling: RequestOptions, progress: bool
    ) -> Output | list[Output]:
        """The outputs of prompts with their options; ``alone``: whether the prompt was given without a list."""
        requests = [request for one in asked for request in self.requests(*one, **scheduling)]
        outputs = self._run(requests, progress=progress)
        if self._recorder is not None and self._recorder.active:
            self._recorder.add(requests, [output.steps for output in outputs])
        return one_or_all(outputs) if alone else outputs

    def _run(self, requests: Sequence[Request], *, progress: bool = False) -> list[Output]:
        with work_bar("generate", len(requests), show=progress) as tell:
            given = self._loop.run(requests, (lambda: tell(*_done(requests))) if progress else lambda: None)
        token_text = self.tokenizer.token_text
        return [Output.of(request, steps, token_text) for request, steps in zip(requests, given, strict=True)]


def _done(requests: Sequence[Request]) -> tuple[int, str]:
    """The number of ended requests, and the tokens per forward pass of all, as text."""
    ended = sum(request.finish_reason is not None or request.error is not None for request in requests)
    return ended, tokens_per_run(request.stats for request in requests)
