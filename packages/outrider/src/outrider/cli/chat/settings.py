"""The settings of ``/set``."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from outrider.config import SamplingParams
from outrider.config.fields import default_of, field_docs
from outrider.errors import InvalidRequestError
from outrider.utils.suggest import close_to

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "seed", "stop"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos"),
)
_SWITCHES = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}
_OTHER_NAMES = {"color": "colour", "colours": "colour", "colors": "colour", "num_predict": "max_tokens"}


@dataclass(frozen=True)
class View:
    """Display of answers. Each field is a switch of ``/set``."""

    colour: bool = False
    """Colour tokens by where they came from."""
    markdown: bool = True
    """Render Markdown."""
    stats: bool = True
    """Print a line of statistics after each answer."""


SWITCHES = tuple(field.name for field in fields(View))
NAMES = ("system", *SAMPLING, *SWITCHES)


def own_name(name: str) -> str:
    """The setting with ``name`` or alias ``name``. Raises InvalidRequestError if there is none."""
    name = _OTHER_NAMES.get(name, name).replace("-", "_")
    if name not in NAMES:
        near = "".join(f"did you mean {each}? " for each in close_to(name, NAMES))
        raise InvalidRequestError(f"there is no setting {name!r}: {near}use one of {', '.join(NAMES)}")
    return name


def changed_params(params: SamplingParams, name: str, text: str) -> SamplingParams:
    """``params`` with one field set to ``text`` (``default``: its default). Raises InvalidRequestError."""
    usual = default_of(next(field for field in fields(SamplingParams) if field.name == name))
    value: Any = usual if text == "default" else text if name == "stop" else _value(text)
    return replace(params, **{name: value})


def changed_view(view: View, name: str, text: str) -> View:
    """``view`` with one switch set to ``text``. Raises InvalidRequestError."""
    if text not in _SWITCHES:
        raise InvalidRequestError(f"{name}={text!r} is not valid: use on or off")
    return replace(view, **{name: _SWITCHES[text]})


def _value(text: str) -> Any:
    if text in _SWITCHES:
        return _SWITCHES[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text  # refused by the dataclass, in its own words


def listed(params: SamplingParams, view: View, system: str | None) -> list[tuple[str, str, str]]:
    """Name, value and meaning of every setting."""
    meanings = {"system": "What the model is told before the conversation."}
    meanings |= field_docs(SamplingParams) | field_docs(View)
    values: dict[str, Any] = {"system": system, **vars(params)}
    values |= {name: "on" if value else "off" for name, value in vars(view).items()}
    return [(name, _shown(values[name]), meanings[name]) for name in NAMES]


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "not set"
    if isinstance(value, tuple):
        return " ".join(map(repr, value))
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
