"""JSON bodies to checked objects, with errors that name the field."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from outrider_server.http.body_limits import UNKNOWN, check_structure
from outrider_server.http.context import CALLER, Caller, tenant_of
from outrider_server.http.errors import ApiError, invalid

T = TypeVar("T", bound=BaseModel)

_OF_CURL = "application/x-www-form-urlencoded"
"""The Content-Type that ``curl -d`` sends, and so the examples of Ollama and llama.cpp."""
_BROWSERS = {"origin", "referer", "cookie", "accept-language", "upgrade-insecure-requests"}
_SHOWN = 60  # characters of a bad value that an error repeats


def json_body(model: type[T], *, untyped: bool = False) -> Callable[[Request], Coroutine[Any, Any, T]]:
    """A dependency that reads a request's body as ``model``.

    ``untyped``: the header Content-Type may be missing, or be that of ``curl -d``, unless a browser may have sent it.

    FastAPI's own reading is not used: it takes NaN, lone surrogates and numbers as text, reports deep nesting as a
    server error, and waits for a body as long as the client likes.
    """

    async def read(request: Request) -> T:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        may_lack_type = untyped and content_type in ("", _OF_CURL) and not may_be_browser(request)
        if content_type != "application/json" and not may_lack_type:
            given = f"not {content_type[:_SHOWN]!r}" if content_type else "and the header Content-Type says so"
            remedy = ": curl -H 'Content-Type: application/json'" if content_type == _OF_CURL else ""
            raise ApiError(415, f"send application/json, {given}{remedy}")
        coding = request.headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):
            raise ApiError(415, f"Content-Encoding {coding[:_SHOWN]!r} is not read here: send the body as it is")
        body = await read_body(request)
        models: Any = request.app.state.models
        CALLER.set(Caller(caller_name(request), len(body)))
        max_seq_len = models.max_seq_len
        checked: T = await models.executors.run_if_large(lambda: parse(model, body, max_seq_len))
        return checked

    return read


def may_be_browser(request: Request) -> bool:
    """Whether a web page may have made the request, and not a program that its user runs.

    A page of any site may send a body without asking (CORS preflight) if its type is one of a form, or none. That it
    is JSON all the same must then not count. Browsers send Origin with every POST, ``null`` where a page hides it.
    They send Sec-Fetch-* to addresses of this machine, and have done so since 2023 at the latest; the others are for
    browsers older than that. No page can keep its browser from all of these, nor name it other than Mozilla.
    """
    names = set(request.headers)
    return (
        bool(_BROWSERS & names)
        or any(name.startswith("sec-") for name in names)
        or request.headers.get("user-agent", "").lower().startswith("mozilla/")
    )


def caller_name(request: Request) -> str:
    """A name that tells callers apart: the API key's tenant, else the client's address."""
    return tenant_of(request) or (request.client.host if request.client else "")


async def read_body(request: Request) -> bytes:
    """All of it. Raises ApiError: 408 if it does not arrive in time, 499 if the client has gone."""
    try:
        async with asyncio.timeout(request.app.state.models.settings.limits.body_timeout):
            return await request.body()
    except TimeoutError:
        raise ApiError(408, "the body did not arrive in time", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(499, "the client has gone") from None


def parse(model: type[T], body: bytes, max_seq_len: int = 0) -> T:
    """Raises ApiError 400, with ``param`` where a field is at fault, or 413 for more values than a request can need."""
    check_structure(body, max_seq_len)
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid("the body is not a JSON object: send one, as in {...}")
    if len(value) > len(model.model_fields) + UNKNOWN:
        known = {field.alias or name for name, field in model.model_fields.items()}
        raise _unknown(next(name for name in value if name not in known)[:_SHOWN])
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        raise refusal(details) from None


def refusal(details: Sequence[Any]) -> ApiError:
    """One error for all that is wrong: that of the first element of the first field at fault."""
    field = details[0]["loc"][:1]
    own = _of_one_element([d for d in details if d["loc"][:1] == field])
    deepest = max(own, key=lambda d: len(_path(d["loc"])))
    param = _path(deepest["loc"])
    if deepest["type"] == "extra_forbidden":
        return _unknown(param)
    if deepest["type"] == "missing":
        return invalid(f"{param} is missing: it is required", param, "missing_required_parameter")
    reasons = dict.fromkeys(d["msg"].removeprefix("Value error, ") for d in own if _path(d["loc"]) == param)
    message = "; or ".join(reason[:1].lower() + reason[1:] for reason in reasons)
    return invalid(f"{param}={_short(deepest.get('input'))} is not valid: {message}", param, "invalid_value")


def _unknown(param: str) -> ApiError:
    return invalid(f"{param} is not a field this server knows: leave it out", param, "unknown_parameter")


def _of_one_element(details: list[Any], at: int = 1) -> list[Any]:
    """Those about the first bad element of a list. Of a union: in the types that hold for the most elements."""
    rest = [d for d in details if len(d["loc"]) > at]
    if not rest:
        return details
    parts = [d["loc"][at] for d in rest]
    kept: set[int | str]
    indices = [part for part in parts if isinstance(part, int)]
    if indices:
        kept = {min(indices)}
    elif all(_is_field(part) for part in parts):
        kept = {parts[0]}
    else:
        reach: dict[str, int] = {}
        for part, d in zip(parts, rest, strict=True):
            index = d["loc"][at + 1] if len(d["loc"]) > at + 1 and isinstance(d["loc"][at + 1], int) else -1
            reach[part] = min(index, reach.get(part, index))
        kept = {part for part in reach if reach[part] == max(reach.values())}
    return _of_one_element([d for d in rest if d["loc"][at] in kept], at + 1)


def _is_field(part: str) -> bool:
    """Whether this part of a location is a field; pydantic adds names of types and classes."""
    return part.isidentifier() and part not in _BRANCHES and not part[0].isupper()


def _path(loc: Sequence[str | int]) -> str:
    """``("messages", 0, "content", "str")`` to ``messages[0].content``."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _is_field(part):
            path += f".{part[:_SHOWN]}" if path else part[:_SHOWN]
        elif not path:
            path = part[:_SHOWN]
    return path


_BRANCHES = {"str", "int", "float", "bool", "list", "dict", "none"}


def _short(value: object) -> str:
    if isinstance(value, str):
        value = value[: _SHOWN + 1]
    text = ascii(value) if not isinstance(value, dict | list) else type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
