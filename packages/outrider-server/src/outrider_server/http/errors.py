"""Every failure as an error object: OpenAI's ``{"error": {message, type, param, code}}``, or that of another API."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from outrider.errors import (
    CapacityError,
    ConfigError,
    EngineDeadError,
    GrammarError,
    InvalidRequestError,
    NoTokenError,
    NumericalError,
    OutriderError,
    WeightsReplacedError,
)

logger = logging.getLogger(__name__)

_SURROGATE = re.compile("[\ud800-\udfff]")

MAX_BYTES = 299
"""Of an error's body: a long message loses its middle."""


class ApiError(Exception):
    """An error whose message is sent to the client. ``param`` names the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """OpenAI's name for this kind of error."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    @property
    def short_message(self) -> str:
        """The message without its middle, if it is long."""
        return _fit(self.message, MAX_BYTES)

    def body(self) -> dict[str, Any]:
        """OpenAI's error object, at most ``MAX_BYTES`` long as JSON."""
        error = {"message": "", "type": self.kind, "param": self.param and _fit(self.param, 80), "code": self.code}
        error["message"] = _fit(self.message, MAX_BYTES - len(to_json({"error": error})))
        return {"error": error}

    def response(self) -> Response:
        """The answer to the current request."""
        return json_response(SHAPE.get()(self), self.status, self.headers)


ErrorShape = Callable[[ApiError], dict[str, Any]]
SHAPE: ContextVar[ErrorShape] = ContextVar("SHAPE", default=ApiError.body)
"""How the API that the current request speaks writes an error."""


def _fit(text: str, size: int) -> str:
    """``text`` in at most ``size`` bytes of JSON, without its middle if need be: value and remedy stand at its ends."""
    kept, shown = min(len(text), size), text
    while len(shown) > size or len(to_json(shown)) - 2 > size:  # 2: quotes
        shown = f"{text[: kept * 2 // 3]}...{text[len(text) - kept // 3 :]}"
        kept -= max(1, kept // 20)
    return shown


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that can never be served as it is."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, seconds: int, code: str) -> ApiError:
    """A request that may be served in ``seconds``."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(seconds)})


def as_api_error(error: BaseException) -> ApiError:
    """The error to send for any exception. An unforeseen one is logged and sent without its details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):
        return invalid(str(error), error.param, error.code)
    if isinstance(error, ConfigError):  # of a request's own speculation, which chose among the loaded sources
        return invalid(str(error), "speculation")
    if isinstance(error, EngineDeadError):
        return ApiError(503, "the engine has stopped: the server must be restarted", code="engine_dead")
    if isinstance(error, CapacityError):
        return unavailable(f"no room for this request: {error}", 1, "capacity")
    if isinstance(error, WeightsReplacedError):
        return unavailable(str(error), 1, "weights_replaced")
    if isinstance(error, GrammarError):
        return invalid(str(error), "response_format", "grammar_error")
    if isinstance(error, NoTokenError):
        return invalid(str(error), code="no_token")
    if isinstance(error, NumericalError):
        return ApiError(500, str(error), code="numerical_error")
    if isinstance(error, OutriderError):
        return ApiError(500, str(error))
    logger.error("a request failed", exc_info=error)
    return ApiError(500, "the server failed to answer this request; its log says why")


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(content), status, headers, "application/json")


def to_json(content: object) -> bytes:
    """UTF-8, and always valid JSON, without NaN. A lone surrogate that a client sent comes back escaped.

    Iterators become lists.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_list)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


def _as_list(value: object) -> list[Any]:
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


async def handle_error(request: Request, error: Exception) -> Response:
    """The handler of every exception that leaves an endpoint."""
    return as_api_error(error).response()


DEPTH = 6  # of an answer's own lists and objects; the ones inside are small
PIECE = 4096  # numbers or texts written at once
OBJECTS = 16  # of an iterator, written at once: about a millisecond, where each has twenty others inside


def to_long_json(value: Any, depth: int = DEPTH) -> bytes:
    """The same bytes as ``to_json``, for any other thread to come between. Iterators are lists, made meanwhile."""
    if isinstance(value, Iterator):
        pieces = iter(lambda: to_json(list(islice(value, OBJECTS)))[1:-1], b"")
        return b"[" + b",".join(pieces) + b"]"
    if depth and isinstance(value, dict):
        return b"{" + b",".join(to_json(k) + b":" + to_long_json(v, depth - 1) for k, v in value.items()) + b"}"
    if depth and isinstance(value, list) and value and isinstance(value[0], dict | list):
        return b"[" + b",".join(to_long_json(item, depth - 1) for item in value) + b"]"
    if isinstance(value, list) and len(value) > PIECE:
        starts = range(0, len(value), PIECE)
        return b"[" + b",".join(to_json(value[start : start + PIECE])[1:-1] for start in starts) + b"]"
    return to_json(value)
