"""Chat templates: Jinja text that comes with a model, rendered in a sandbox exactly as transformers renders it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from outrider.errors import InvalidRequestError, ModelFormatError


def find_template(folder: Path, configured: object) -> str | None:
    """The template of a model folder: ``chat_template.jinja``, else what ``tokenizer_config.json`` says.

    That may be one text or a list of named ones, of which ``default`` is taken.
    """
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelFormatError(f"{file} cannot be read ({error}): download the model again") from None
    if isinstance(configured, list):
        named = {entry.get("name"): entry.get("template") for entry in configured if isinstance(entry, dict)}
        configured = named.get("default")
    return configured if isinstance(configured, str) else None


class ChatTemplate:
    """A compiled template and the special tokens it may mention.

    Raises ``ModelFormatError`` on construction if the template does not parse.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        import jinja2

        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelFormatError(f"the model's chat template does not parse ({error}): use a plain prompt") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for ``messages``. Raises ``InvalidRequestError`` with the template's own words if it refuses."""
        import jinja2

        context = {"tools": None, "documents": None} | self._special_tokens | dict(variables or {})
        context |= {"messages": [dict(m) for m in messages], "add_generation_prompt": add_generation_prompt}
        try:
            text: str = self._template.render(context)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            raise InvalidRequestError(f"the chat template refuses these messages: {reason}", param="messages") from None
        return text


def _environment() -> Any:
    """The environment of transformers' ``apply_chat_template``: same sandbox, whitespace rules and helpers."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's words for training; when generating it is transparent."""

        tags = {"generation"}  # noqa: RUF012  (jinja2 declares a set)

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
