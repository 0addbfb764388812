"""Each family's own notation of tool calls, as a regular expression that a grammar makes any model write.

A server that takes ``structured_outputs`` beside ``tools`` (Outrider, vLLM) is asked for calls with ``tool_choice``
auto. It then reads them as its model would have written them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outrider_lab.certify.tool_calls.shapes import GEMMA, JSON, PYTHON, RAW, Object, escaped

__all__ = ["NOTATIONS", "Named"]

Named = tuple[str, Object]
"""A tool's name, and the shape of its arguments."""

_DSML = "｜DSML｜"


def _each(
    before: str, between: str, after: str, call: Callable[[str, Object], str]
) -> Callable[[Sequence[Named]], str]:
    """Calls one after the other; ``call`` gives the regular expression of one."""
    return lambda calls: (
        escaped(before) + escaped(between).join(call(name, shape) for name, shape in calls) + escaped(after)
    )


def _json(name: str, shape: Object) -> str:
    return escaped(f'{{"name": "{name}", "arguments": ') + shape.regex(JSON) + escaped("}")


def _around(before: str, after: str, inner: Callable[[str, Object], str]) -> Callable[[str, Object], str]:
    return lambda name, shape: escaped(before) + inner(name, shape) + escaped(after)


def _members(
    before: str, after: str, pattern: tuple[str, str], strings: tuple[str, str] | None = None
) -> Callable[[str, Object], str]:
    """A name between two texts, then each member between two: ``{}`` is the name. ``strings``: those around text."""

    def call(name: str, shape: Object) -> str:
        parts = []
        for key, value in shape.members.items():
            is_text = value.schema["type"] == "string"
            opening, closing = strings if strings is not None and is_text else pattern
            parts.append(escaped(opening.format(key)) + value.regex(RAW) + escaped(closing))
        return escaped(before.format(name)) + "".join(parts) + escaped(after)

    return call


def _python(name: str, shape: Object) -> str:
    given = (f"{key}=" + value.regex(PYTHON) for key, value in shape.members.items())
    return escaped(f"{name}(") + ", ".join(given) + escaped(")")


def _kimi(calls: Sequence[Named]) -> str:
    each = (
        escaped(f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>")
        + shape.regex(JSON)
        + escaped("<|tool_call_end|>")
        for i, (name, shape) in enumerate(calls)
    )
    return escaped("<|tool_calls_section_begin|>") + "".join(each) + escaped("<|tool_calls_section_end|>")


_XML = ("<parameter={}>\n", "\n</parameter>\n")
NOTATIONS: Mapping[str, Callable[[Sequence[Named]], str]] = {
    "hermes": _each("", "\n", "", _around("<tool_call>\n", "\n</tool_call>", _json)),
    "qwen-xml": _each("", "\n", "", _members("<tool_call>\n<function={}>\n", "</function>\n</tool_call>", _XML)),
    "glm": _each("", "\n", "", _members("<tool_call>{}", "</tool_call>", (
        "\n<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>"))),
    "seed": _each("", "\n", "", _members("<seed:tool_call>\n<function={}>\n", "</function>\n</seed:tool_call>", (
        "<parameter={}>", "</parameter>\n"))),
    "mistral": _each("", "", "", lambda name, shape: escaped(f"[TOOL_CALLS]{name}[ARGS]") + shape.regex(JSON)),
    "deepseek": _each("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>", lambda name, shape: (
        escaped(f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>") + shape.regex(JSON) + escaped("<｜tool▁call▁end｜>"))),
    "deepseek-dsml": _each(f"<{_DSML}function_calls>\n", "\n", f"\n</{_DSML}function_calls>", _members(
        f'<{_DSML}invoke name="{{}}">\n', f"</{_DSML}invoke>",
        (f'<{_DSML}parameter name="{{}}" string="false">', f"</{_DSML}parameter>\n"),
        (f'<{_DSML}parameter name="{{}}" string="true">', f"</{_DSML}parameter>\n"))),
    "kimi": _kimi,
    "minimax": _each("<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>", _members(
        '<invoke name="{}">\n', "</invoke>", ('<parameter name="{}">', "</parameter>\n"))),
    "gemma": _each("", "", "", _around("<|tool_call>", "<tool_call|>", lambda name, shape: (
        escaped(f"call:{name}") + shape.regex(GEMMA)))),
    "nemotron": _each("<TOOLCALL>[", ", ", "]</TOOLCALL>", _json),
    "hunyuan": _each("<tool_calls>[", ", ", "]</tool_calls>", _json),
    "llama3": _each("<|python_tag|>", "; ", "", _json),
    "llama4": _each("<|python_start|>[", ", ", "]<|python_end|>", _python),
    "lfm2": _each("<|tool_call_start|>[", ", ", "]<|tool_call_end|>", _python),
    "granite": _each("<|tool_call|>[", ", ", "]", _json),
}  # fmt: skip
"""From calls to a regular expression of them, by name."""
