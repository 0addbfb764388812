"""Renders chat templates, in a process of its own (``utils.child``): a template is a program that comes with a model.

The environment is that of transformers' ``apply_chat_template``: same whitespace rules and helpers, and the same
sandbox, but for lists and mappings that a template makes itself: it may change those, as Kimi K2's does.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.tokenizer.provenance import guarded

MAX_TEMPLATES = 8  # compiled, by name
FAILURES = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError)


def serve(_: None) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The child process: answers requests of ``ChatTemplate``."""
    environment = _environment()
    templates: OrderedDict[str, tuple[jinja2.Template, Mapping[str, str], list[str]]] = OrderedDict()

    def respond(request: dict[str, Any]) -> dict[str, Any]:
        name = request["name"]
        if "source" in request:
            try:
                template = environment.from_string(request["source"])
            except (jinja2.TemplateError, RecursionError) as error:
                return {"unparsable": str(error)}
            templates[name] = (template, request["special_tokens"], request["controls"])
            while len(templates) > MAX_TEMPLATES:
                templates.popitem(last=False)
        if name not in templates:
            return {"unknown": True}
        if "context" not in request:
            return {}
        templates.move_to_end(name)
        template, special_tokens, controls = templates[name]

        def render(given: Mapping[str, Any]) -> str:
            environment.protect(given)
            text: str = template.render({"tools": None, "documents": None, **special_tokens, **given})
            if len(text) > request["limit"]:
                raise ValueError(f"they make {len(text)} characters, and at most {request['limit']} are taken")
            return text

        try:
            written = _read_arguments(request["context"]["messages"]) if request["read_arguments"] else []
            try:
                text, pieces = guarded(render, request["context"], controls)
            except TypeError:  # a template that joins arguments to text, as DeepSeek's and Functionary's do
                if not written:
                    raise
                for function, arguments in written:
                    function["arguments"] = arguments
                text, pieces = guarded(render, request["context"], controls)
        except FAILURES as error:
            return {"refused": (str(error) or type(error).__name__)[:1000]}
        except MemoryError:
            return {"refused": "it takes too much memory"}
        return {"text": text, "pieces": pieces}

    return respond


def _read_arguments(messages: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Parse the arguments of tool calls, which templates write with ``tojson``; other text than JSON stays text.

    Returns the functions that were called, and their arguments as they were.
    """
    written = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            function = call["function"]
            with suppress(ValueError, RecursionError):
                before = function["arguments"]
                function["arguments"] = json.loads(before)
                written.append((function, before))
    return written


class _Sandbox(ImmutableSandboxedEnvironment):
    """transformers' sandbox, in which a template may change the lists and mappings that it made itself."""

    _given: frozenset[int] = frozenset()

    def protect(self, given: Mapping[str, Any]) -> None:
        """Let nothing within ``given`` be changed by the next template."""
        found: set[int] = set()
        waiting: list[Any] = [given]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Mapping | list):
                found.add(id(value))
                waiting += value.values() if isinstance(value, Mapping) else value
        self._given = frozenset(found)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        own = isinstance(obj, list | dict) and id(obj) not in self._given
        return super().is_safe_attribute(obj, attr, value) or (own and attr in _CHANGES)


_CHANGES = frozenset(("append", "extend", "insert", "pop", "update"))


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; when generating it is transparent."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares a set)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _Sandbox:
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

    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
