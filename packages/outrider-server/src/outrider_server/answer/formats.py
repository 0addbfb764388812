"""A model's answer format, read from its chat template: markers of thinking, of the answer and of tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from outrider.tokenizer.tokenizer import Tokenizer
from outrider_server.answer.notations import Notation, deepseek, gemma, glm, invoke, kimi
from outrider_server.answer.tool_calls import parse_calls

__all__ = [
    "BARE",
    "HEADER_TOKENS",
    "PLAIN",
    "THINKING",
    "TOLD",
    "TOOL_FORMATS",
    "WRAPPERS",
    "AnswerFormat",
    "ThinkingFormat",
    "ToolFormat",
    "is_harmony",
]


class ThinkingFormat(NamedTuple):
    """Where a thinking section begins and ends."""

    opening: str
    closing: str
    token: str = ""
    """The token that ``opening`` begins with; empty: it is one."""


THINKING = (
    ThinkingFormat("<think>", "</think>"),  # Qwen 3, QwQ, DeepSeek, GLM, Kimi K2, MiniMax, Nemotron, Exaone 4, ERNIE
    ThinkingFormat("[THINK]", "[/THINK]"),  # Magistral, Ministral 3, Mistral 4
    ThinkingFormat("<seed:think>", "</seed:think>"),
    ThinkingFormat("<|channel>thought", "<channel|>", "<|channel>"),  # Gemma 4
)

WRAPPERS = (
    ("<response>", "</response>"),  # ERNIE 4.5, Granite 3.3
    ("<answer>", "</answer>"),  # Hunyuan
)
"""Markers around the whole text of an answer, which are no part of it."""

_HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_ANALYSIS = ThinkingFormat("<|channel|>analysis", "<|end|>", "<|channel|>")
_FINAL = ("<|channel|>", "final<|message|>")
"""What an answer of harmony begins with, and what its text stands behind."""

TAIL_TOKENS, HEADER_TOKENS = 8, 32  # of a prompt: enough for a marker and line breaks, for a header of harmony


@dataclass(frozen=True)
class ToolFormat:
    """Between ``opening`` and ``closing`` stands a call, or a list of them; without ``closing``, to the end."""

    opening: str | None
    closing: str = ""
    bare: bool = False  # an answer that is calls as a whole, without a marker, is calls as well
    read: Notation = parse_calls
    told_by: str = ""
    """What a chat template of this format holds; empty: ``opening``."""
    around: tuple[str, ...] = ()
    """Markers around all calls; they are no text."""
    inner: tuple[str, ...] = ()
    """Markers that ``read`` needs, which may be control tokens."""
    python: bool = False
    """The model writes Python's calls."""
    by_token: bool = False
    """A vocabulary with the token ``opening`` tells of the format: templates do not."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers."""
        return tuple(text for text in (self.opening, self.closing, *self.around, *self.inner) if text)

    def is_of(self, template: str, tokenizer: Tokenizer) -> bool:
        """Whether a model with this template and tokenizer writes its calls so."""
        told = self.told_by or self.opening or ""
        return told in template or (self.by_token and self.opening in tokenizer.vocabulary)


_DSML = "｜DSML｜"
TOOL_FORMATS = (
    ToolFormat("<tool_call>", "</tool_call>", read=glm, told_by="<arg_key>", inner=(
        "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")),  # GLM-4.5 to 4.7
    ToolFormat("<tool_call>", "</tool_call>"),
    # Hermes, Qwen, SmolLM, Granite 4, Exaone 4, ERNIE 4.5; Qwen 3 Coder and Nemotron 3, with XML inside
    ToolFormat("<seed:tool_call>", "</seed:tool_call>"),
    ToolFormat("[TOOL_CALLS]", inner=("[ARGS]", "[CALL_ID]")),  # Mistral, Ministral
    ToolFormat("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", read=deepseek, inner=("<｜tool▁sep｜>",),
               around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),  # DeepSeek V3, R1, V3.1
    ToolFormat(f"<{_DSML}invoke name=", f"</{_DSML}invoke>", read=invoke, told_by=_DSML,
               around=(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>",
                       f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>"), inner=(_DSML,)),  # DeepSeek V3.2
    ToolFormat("<|tool_call_begin|>", "<|tool_call_end|>", read=kimi, inner=("<|tool_call_argument_begin|>",),
               around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),  # Kimi K2
    ToolFormat("<invoke name=", "</invoke>", read=invoke, told_by="<minimax:tool_call>",
               around=("<minimax:tool_call>", "</minimax:tool_call>")),  # MiniMax M2
    ToolFormat("<|tool_call>", "<tool_call|>", read=gemma, inner=('<|"|>',)),  # Gemma 4
    ToolFormat("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron Nano 2
    ToolFormat("<tool_calls>", "</tool_calls>"),  # Hunyuan
    ToolFormat("<|python_tag|>", bare=True),  # Llama 3
    ToolFormat("<|python_start|>", "<|python_end|>", bare=True, python=True, by_token=True),  # Llama 4
    ToolFormat("<|tool_call_start|>", "<|tool_call_end|>", python=True, by_token=True),  # LFM2
    ToolFormat("<|tool_call|>"),  # Granite 3
)  # fmt: skip
BARE = ToolFormat(None, bare=True)
"""Llama 3.2, and calls that a grammar forces."""
TOLD = ToolFormat("<tool_call>", "</tool_call>", bare=True)
"""Of templates that know no tools: ``answer.telling`` asks for Hermes's."""


@dataclass(frozen=True)
class AnswerFormat:
    """How the answers of a model are written."""

    thinking: ThinkingFormat | None
    tools: ToolFormat
    wrapper: tuple[str, str] | None = None
    thinking_tokens: tuple[str, str] | None = None
    """Where a form begins: see ``StructuredOutput.thinking``. None if the model does not think, or a marker is several
    tokens."""
    thinking_ids: tuple[int, int] | None = None
    """The tokens that begin and end thinking."""
    thinking_marker_ids: frozenset[int] = frozenset()
    """Markers of thinking and of the answer that are control tokens, which text leaves out unless told otherwise."""
    tool_marker_ids: frozenset[int] = frozenset()
    """The same, with the markers of tool calls."""
    harmony: bool = False
    """The answer is read by ``HarmonyParser``."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> AnswerFormat:
        """Read once for each model that is served."""
        template = tokenizer.chat_template or ""
        if is_harmony(template):
            return cls._of_harmony(tokenizer)
        usual = BARE if "tools" in template else TOLD
        tools = next((form for form in TOOL_FORMATS if form.is_of(template, tokenizer)), usual)
        thinking = next((form for form in THINKING if form.closing in template), None)
        wrapper = next((pair for pair in WRAPPERS if thinking and all(text in template for text in pair)), None)
        tokens: tuple[str, ...] = (thinking.token or thinking.opening, thinking.closing) if thinking else ()
        own, of_tools = _controls(tokenizer, (*tokens, *(wrapper or ()))), _controls(tokenizer, tools.markers)
        ids = [i for text in tokens if (i := tokenizer.vocabulary.get(text)) is not None]
        whole = len(ids) == 2
        return cls(
            thinking,
            tools,
            wrapper,
            (tokens[0], tokens[1]) if whole else None,
            (ids[0], ids[1]) if whole else None,
            own,
            own | of_tools,
        )

    @classmethod
    def _of_harmony(cls, tokenizer: Tokenizer) -> AnswerFormat:
        ids = [i for text in ("<|channel|>", "<|end|>") if (i := tokenizer.vocabulary.get(text)) is not None]
        whole, own = len(ids) == 2, _controls(tokenizer, _HARMONY)
        thinking_ids = (ids[0], ids[1]) if whole else None
        return cls(_ANALYSIS, BARE, None, _FINAL if whole else None, thinking_ids, own, own, harmony=True)

    def tail(self, tokenizer: Tokenizer, prompt: tuple[int, ...]) -> str:
        """The end of a prompt, control tokens included."""
        count = HEADER_TOKENS if self.harmony else TAIL_TOKENS
        return tokenizer.decode(prompt[-count:], skip_special_tokens=False)

    def begins_thinking(self, tokenizer: Tokenizer, prompt: tuple[int, ...]) -> bool:
        """Whether a prompt ends within a thinking section, which the template has opened."""
        if self.thinking is None:
            return False
        return self.tail(tokenizer, prompt).rstrip().endswith(self.thinking.opening)


def is_harmony(template: str) -> bool:
    """Whether a chat template writes gpt-oss's format. See ``answer.harmony``."""
    return "<|channel|>" in template and "<|message|>" in template


def _controls(tokenizer: Tokenizer, markers: tuple[str, ...]) -> frozenset[int]:
    """The ids of those markers that are control tokens."""
    ids = (tokenizer.vocabulary.get(text) for text in markers)
    return frozenset(i for i in ids if i is not None and i in tokenizer.special_ids)


PLAIN = AnswerFormat(None, BARE)
"""Text and nothing else."""
