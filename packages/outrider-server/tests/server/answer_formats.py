"""Small chat templates in the manner of several families, and answers as their models write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from tests.tokenizer.vocabularies import byte_level
from tests.weights.files import write_folder

MESSAGES = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
)
SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
JSON = '{"place": "the world", "days": 12}'


@dataclass(frozen=True)
class Family:
    """A template, and an answer that thinks ``hello``, says ``world`` and looks at ``the world`` for 12 days."""

    template: str
    answer: str
    call_id: str | None = None


def _family(told: str, prompt: str, answer: str, call_id: str | None = None) -> Family:
    """``told``: what the template tells of the format; ``prompt``: how it opens the answer."""
    template = f"{MESSAGES}{{# {told} #}}{{% if add_generation_prompt %}}assistant: {prompt}{{% endif %}}"
    return Family(template, answer, call_id)


FAMILIES = {
    "glm": _family(
        "<tool_call> <arg_key> </think>",
        "<think>",
        "hello</think>world<tool_call>look<arg_key>place</arg_key><arg_value>the world</arg_value>"
        "<arg_key>days</arg_key><arg_value>12</arg_value></tool_call>",
    ),
    "deepseek": _family(
        f"{BEGIN} </think>",
        "{% if thinking is not defined or thinking %}<think>{% else %}</think>{% endif %}",
        f"hello</think>world<｜tool▁calls▁begin｜>{BEGIN}look{SEP}{JSON}{END}<｜tool▁calls▁end｜>",
    ),
    "kimi": _family(
        "<|tool_call_begin|> </think>",
        "",
        "<think>hello</think>world<|tool_calls_section_begin|><|tool_call_begin|>functions.look:3"
        f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_calls_section_end|>",
        "functions.look:3",
    ),
    "minimax": _family(
        "<minimax:tool_call> </think>",
        "<think>\n",
        'hello\n</think>\n\nworld<minimax:tool_call>\n<invoke name="look">\n<parameter name="place">the world'
        '</parameter>\n<parameter name="days">12</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    "gemma": _family(
        "<|tool_call> <channel|>",
        "",
        '<|channel>thought\nhello\n<channel|>world<|tool_call>call:look{place:<|"|>the world<|"|>,days:12}<tool_call|>',
    ),
    "seed": _family(
        "<seed:tool_call> </seed:think> thinking_budget",
        "",
        "<seed:think>hello</seed:think>world<seed:tool_call>\n<function=look>\n<parameter=place>the world</parameter>\n"
        "<parameter=days>12</parameter>\n</function>\n</seed:tool_call>",
    ),
    "ministral": _family(
        "[TOOL_CALLS] [/THINK] | length != 9",
        "",
        f"[THINK]hello[/THINK]world[TOOL_CALLS]look[CALL_ID]a1B2c3D4e[ARGS]{JSON}",
        "a1B2c3D4e",
    ),
    "ernie": _family(
        "<tool_call> <response> </response> </think>",
        "<think>\n",
        f'hello\n</think>\n\n<response>\nworld\n</response>\n<tool_call>\n{{"name": "look", "arguments": {JSON}}}\n'
        "</tool_call>\n",
    ),
    "harmony": _family(
        "<|channel|> <|message|> reasoning_effort",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>hello<|end|><|start|>assistant<|channel|>final<|message|>world<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{JSON}<|call|>",
    ),
    "lfm2": _family(
        "</think>",
        "",
        "<think>hello</think>world<|tool_call_start|>[look(place='the world', days=12)]<|tool_call_end|>",
    ),
}


_MARKER = re.compile(r"<[^<>\s=]+>|\[/?[A-Z_]+\]")
_PLAIN = ("</parameter>", "</function>", "</invoke>")


def family_folder(folder: Path, name: str) -> Path:
    """A tiny model with the template of a family; the markers of that family are control tokens."""
    byte_level(folder, chat_template=FAMILIES[name].template)
    tokenizer: Any = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    used = FAMILIES[name].template + FAMILIES[name].answer
    markers = [text for text in dict.fromkeys(_MARKER.findall(used)) if text not in _PLAIN]
    tokenizer.add_special_tokens([tokenizers.AddedToken(text, normalized=False, special=True) for text in markers])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_folder(
        folder, vocab_size=tokenizer.get_vocab_size(), bos_token_id=0, eos_token_id=1, max_position_embeddings=2048
    )
    return folder
