"""``LLM``: load a model once, then generate, chat and stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike, fspath
from typing import Any, Literal, Unpack, overload

from outrider.config import DTypeName, SpeculationParams, VerifierName, engine_config
from outrider.config.engine import CacheName, Implementation, KVCacheDType
from outrider.config.options import OtherNames, changed_options
from outrider.config.request import Params, RequestOptions, Speculation
from outrider.extensions import extension
from outrider.input_processor import ImagePrompt, Message, Prompt
from outrider.llm.requests import RequestLLM
from outrider.loading import load
from outrider.output import Output, one_or_all
from outrider.prompts import broadcast_params, conversations, prompts_in, resolve_alias


class LLM(RequestLLM):
    """A target model with its draft sources.

        with LLM("smollm2-135m-instruct") as llm:
            print(llm.chat([{"role": "user", "content": "Write a haiku about rivers."}]).text)

    The draft source (``draft``) changes only the speed, never the output; ``draft="none"`` is plain decoding.

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
        """Load ``model`` and its draft sources."""
        options = changed_options(LLM.__init__, locals())
        super().__init__(load(engine_config(fspath(model), **options), progress=progress))

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

    def _answer(
        self, asked: Sequence[tuple[Any, ...]], alone: bool, scheduling: RequestOptions, progress: bool
    ) -> Output | list[Output]:
        """The outputs of prompts with their options; ``alone``: whether the prompt was given without a list."""
        requests = [request for one in asked for request in self.requests(*one, **scheduling)]
        outputs = self._run(requests, progress=progress)
        if self._recorder is not None and self._recorder.active:
            self._recorder.add(requests, [output.steps for output in outputs])
        return one_or_all(outputs) if alone else outputs
