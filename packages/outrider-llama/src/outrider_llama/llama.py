"""``Llama``: the class of llama-cpp-python, run by ``outrider.LLM``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from os import PathLike
from typing import Any, Self

from outrider.errors import InvalidRequestError
from outrider_llama.base import DEFAULT_SEED
from outrider_llama.chat import as_chat, chat_chunks, choice_of, chosen_tool, grammar_of, tool_chunks, tools_of
from outrider_llama.completions import Completion
from outrider_llama.embeddings import Embedder
from outrider_llama.hub import hub_file
from outrider_llama.llama_grammar import LlamaGrammar
from outrider_llama.llama_types import CreateEmbeddingResponse
from outrider_llama.low_level import LowLevel
from outrider_llama.options import check_chat_format, check_pooling
from outrider_llama.processors import LogitsProcessor, StoppingCriteria
from outrider_llama.sampler import Sampler


class Llama(LowLevel):
    """A model under the interface of llama-cpp-python 0.3.36.

        from outrider_llama import Llama
        llm = Llama(model_path="model.gguf")
        print(llm("The capital of France is", max_tokens=8)["choices"][0]["text"])

    Sampling options have llama-cpp-python's defaults and order. Those that would change the output and are not
    supported raise ``ValueError``; those that only place llama.cpp's work give one warning. A seed gives the same
    tokens again, with drafts or without, but not those of llama.cpp, whose generator is another.
    """

    def __init__(
        self,
        model_path: str | PathLike[str],
        *,
        n_gpu_layers: int = 0,
        split_mode: int = 1,
        main_gpu: int = 0,
        tensor_split: list[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: Mapping[str, bool | int | float | str] | None = None,
        seed: int = DEFAULT_SEED,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int | None = -1,
        pooling_type: int = -1,
        attention_type: int = -1,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        logits_all: bool = False,
        embedding: bool = False,
        offload_kqv: bool = True,
        flash_attn: bool = False,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = False,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_handler: Any = None,
        draft_model: Any = None,
        tokenizer: Any = None,
        type_k: int | None = None,
        type_v: int | None = None,
        spm_infill: bool = False,
        verbose: bool = True,
        **kwargs: Any,
    ) -> None:
        """Load ``model_path``: a GGUF file, or whatever else ``outrider.LLM`` takes.

        ``kwargs`` are options of ``outrider.LLM``. Raises ``ValueError`` for a path that does not exist, and
        ``OutriderError`` as ``outrider.LLM``.
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        check_chat_format(chat_format)
        check_pooling(pooling_type)
        super().__init__(model_path, chat_format, given)
        self._embedder = Embedder(self, pooling_type)

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = (),
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: StoppingCriteria | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> Any:
        """Continue a text, or token ids: a ``CreateCompletionResponse``, or with ``stream`` an iterator of them.

        ``max_tokens``: None or 0 is as many as the context holds. ``logprobs``: 0 to 20, with ``logits_all=True``.

        Raises ``ValueError`` for a prompt that fills the context, and for options that are not supported:
        ``suffix``, mirostat, ``tfs_z``, and ``echo`` in a stream or of token ids.
        """
        arguments = locals()
        if suffix is not None:
            raise _refused("suffix", "filling in the middle is not supported: write the model's own markers as prompt")
        if echo and (stream or not isinstance(prompt, str)):
            raise _refused("echo", "a stream and token ids are not echoed: leave it out, or give a text without stream")
        if logprobs is not None and not self._logits_all:
            raise _refused("logprobs", "logprobs is not supported for models created with logits_all=False")
        sampler = Sampler.of(arguments, temp=temperature, last_n=self.last_n_tokens_size)
        ids = self._vocabulary.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._next_seed(seed)
        generation = self._generation(
            ids,
            max_tokens=max_tokens,
            sampler=sampler,
            stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
            logprobs=logprobs,
            of_prompt=echo,
            criteria=stopping_criteria,
            on_end=self._remember,
        )
        name = self.model_path if model is None else model
        found = Completion(generation=generation, vocabulary=self._vocabulary, prompt=prompt, model=name, echo=echo)
        return found.chunks() if stream else found.whole()

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Any] | None = None,
        function_call: Any = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Any:
        """Answer a conversation: a ``CreateChatCompletionResponse``, or with ``stream`` an iterator of chunks.

        The model's own chat template writes the messages and the tools. A tool that ``tool_choice`` names is called;
        with "auto" the model's text is the answer, as it is. Raises ``ValueError`` as ``create_completion``, and for a
        model without a chat template.
        """
        given = locals()
        tools, choice = tools_of(functions, tools), choice_of(function_call, tool_choice)
        tool = chosen_tool(tools, choice)
        variables = {"functions": functions, "function_call": function_call, "tools": tools, "tool_choice": choice}
        completion = self.create_completion(
            self._vocabulary.tokenizer.encode_chat(messages, variables=variables),
            logprobs=top_logprobs if logprobs else None,
            grammar=grammar_of(response_format, tool, grammar),
            **{name: given[name] for name in _OF_CHAT},
        )
        if not stream:
            return as_chat(completion, tool)
        return chat_chunks(completion) if tool is None else tool_chunks(completion, tool)

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> CreateEmbeddingResponse:
        """The embeddings of texts as a response: means of the last hidden states, ``n_embd`` numbers each.

        Raises ``RuntimeError`` without ``embedding=True``.
        """
        texts = [input] if isinstance(input, str) else list(input)
        vectors, count = self._embedder.embed(texts)
        return {
            "object": "list",
            "data": [{"object": "embedding", "embedding": each, "index": i} for i, each in enumerate(vectors)],
            "model": self.model_path if model is None else model,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """The embedding of a text, or those of several, and with ``return_count`` the number of tokens read.

        ``truncate``: read the first ``n_batch`` tokens of a longer text, which else raises ``ValueError``.
        """
        texts = [input] if isinstance(input, str) else list(input)
        vectors, count = self._embedder.embed(texts, normalize=normalize, truncate=truncate)
        found: Any = vectors[0] if isinstance(input, str) else vectors
        return (found, count) if return_count else found

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str, **kwargs: Any) -> Self:
        """Load a GGUF file of the hub: its name, or a pattern that one of them matches, as ``*Q4_K_M.gguf``."""
        return cls(model_path=hub_file(repo_id, filename), **kwargs)


_BOTH = signature(Llama.create_completion).parameters.keys() & signature(Llama.create_chat_completion).parameters.keys()
_OF_CHAT = sorted(_BOTH - {"self", "grammar", "logprobs"})
"""The options of a chat that its completion takes as they are."""


def _refused(name: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} cannot be used: {reason}", param=name)
