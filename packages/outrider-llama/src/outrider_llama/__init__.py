"""The ``Llama`` class of llama-cpp-python, run by Outrider: a program changes one import.

from outrider_llama import Llama
"""

from __future__ import annotations

from outrider import __version__
from outrider_llama.base import LlamaState
from outrider_llama.llama import Llama
from outrider_llama.llama_cache import LlamaCache, LlamaDiskCache, LlamaRAMCache
from outrider_llama.llama_grammar import LlamaGrammar
from outrider_llama.llama_speculative import LlamaPromptLookupDecoding
from outrider_llama.llama_types import (
    CreateChatCompletionResponse,
    CreateChatCompletionStreamResponse,
    CreateCompletionResponse,
    CreateCompletionStreamResponse,
    CreateEmbeddingResponse,
)
from outrider_llama.processors import (
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)

__all__ = [
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse",
    "CreateCompletionStreamResponse",
    "CreateEmbeddingResponse",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaPromptLookupDecoding",
    "LlamaRAMCache",
    "LlamaState",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "__version__",
]
