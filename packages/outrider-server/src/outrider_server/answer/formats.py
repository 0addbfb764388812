"""Which markers a model writes around its thinking and its tool calls, by what its chat template mentions."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.tokenizer.tokenizer import Tokenizer

THINKING = (
    ("<think>", "</think>"),  # Qwen 3, QwQ, DeepSeek-R1, SmolLM3
    ("[THINK]", "[/THINK]"),  # Magistral
)
"""Where a thinking section begins and ends."""

TAIL_TOKENS = 8  # of a prompt, enough for a marker and line breaks behind it


@dataclass(frozen=True)
class ToolFormat:
    """Between ``opening`` and ``closing`` stands a call, or a list of them; without ``closing``, to the end."""

    opening: str | None
    closing: str = ""
    bare: bool = False  # an answer that is JSON as a whole is a call as well


TOOL_FORMATS = (
    ToolFormat("<tool_call>", "</tool_call>"),  # Hermes, Qwen, SmolLM; Qwen 3 Coder, with XML inside
    ToolFormat("[TOOL_CALLS]"),  # Mistral
    ToolFormat("<|python_tag|>", bare=True),  # Llama 3
)
BARE = ToolFormat(None, bare=True)
"""Llama 3.2, and calls that a grammar forces."""


@dataclass(frozen=True)
class AnswerFormat:
    """How the answers of a model are written."""

    thinking: tuple[str, str] | None
    tools: ToolFormat

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> AnswerFormat:
        template = tokenizer.chat_template or ""
        tools = (form for form in TOOL_FORMATS if form.opening is not None and form.opening in template)
        thinking = (pair for pair in THINKING if pair[1] in template)
        return cls(next(thinking, None), next(tools, BARE))

    def marker_ids(self, tokenizer: Tokenizer, *, tools: bool) -> frozenset[int]:
        """Markers that are control tokens, which text leaves out unless told otherwise."""
        texts = [*(self.thinking or ()), *((self.tools.opening, self.tools.closing) if tools else ())]
        ids = {tokenizer.vocabulary.get(text) for text in texts if text}
        return frozenset(i for i in ids if i is not None and i in tokenizer.special_ids)

    def thinking_tokens(self, tokenizer: Tokenizer) -> tuple[int, int] | None:
        """The markers of thinking as token ids; None if the model does not think, or writes them in several tokens."""
        ids = [tokenizer.vocabulary.get(text) for text in self.thinking or ()]
        return None if not ids or None in ids else (ids[0], ids[1])  # type: ignore[return-value]

    def begins_thinking(self, tokenizer: Tokenizer, prompt: tuple[int, ...]) -> bool:
        """Whether a prompt ends within a thinking section, which the template has opened."""
        if self.thinking is None:
            return False
        tail = tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special_tokens=False)
        return tail.rstrip().endswith(self.thinking[0])


PLAIN = AnswerFormat(None, BARE)
"""Text and nothing else."""
