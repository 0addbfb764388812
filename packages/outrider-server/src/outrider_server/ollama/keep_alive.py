"""``keep_alive``: how long a model stays loaded behind a request of Ollama's clients."""

from __future__ import annotations

import math
import re

from starlette.requests import Request

from outrider_server.http.errors import invalid
from outrider_server.models import Models, service_of
from outrider_server.ollama.options import plain_name
from outrider_server.ollama.schema import KeepAlive
from outrider_server.service import Service

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)"
_DURATION = re.compile(rf"-?(?:{_NUMBER}(?:{'|'.join(_SECONDS)}))+")
_PART = re.compile(rf"({_NUMBER})({'|'.join(_SECONDS)})")


async def named_service(request: Request, name: str | None, keep_alive: KeepAlive | None = None) -> Service:
    """As ``service_of``. ``keep_alive`` says how long an idle model stays after the request, where models go."""
    models: Models = request.app.state.models
    wanted = plain_name(name, [known for known, _ in models.listed()])
    if models.pool is None:
        return await service_of(request, wanted)
    seconds = None if keep_alive is None else kept_seconds(keep_alive)
    service = await service_of(request, wanted)
    if seconds is not None:
        models.pool.keep(models.pool.find(wanted), seconds)
    return service


def unload(request: Request, name: str | None) -> Service:
    """Unload a model once nobody holds it, where models go. Raises ApiError 404."""
    models: Models = request.app.state.models
    if models.pool is None:
        return models.services[0]
    model = models.pool.find(plain_name(name, models.pool.models))
    models.pool.keep(model, 0.0)
    return model.service


def kept_seconds(given: KeepAlive) -> float:
    """``300``, ``"5m"`` or ``"1h30m"`` in seconds; infinite for a negative value. Raises ApiError 400."""
    text = str(given).strip()
    if re.fullmatch(rf"-?{_NUMBER}", text):
        seconds = float(text)
    elif _DURATION.fullmatch(text):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
        seconds = -seconds if text.startswith("-") else seconds
    else:
        raise invalid(
            f"keep_alive={text!r} is not valid: use seconds, as in 300, or a duration, as in '5m'; -1 keeps the model",
            "keep_alive",
            "invalid_value",
        )
    return math.inf if seconds < 0 else seconds
