"""Low-rank adapters by name, as options of a request and of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outrider.errors import ConfigError, InvalidRequestError


@dataclass(frozen=True)
class LoRARequest:
    """The adapter that a request runs with; names are vLLM's.

        llm.generate(prompt, lora_request=LoRARequest("sql", lora_path="./sql-adapter"))

    ``lora_path`` may be left out for an adapter that the engine knows already. ``lora_int_id`` has no influence.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.lora_name, str) or not self.lora_name:
            raise InvalidRequestError(
                f"lora_name={self.lora_name!r} is not valid: give the adapter a name", param="lora_request"
            )
        if not isinstance(self.lora_path, str):
            raise InvalidRequestError(f"lora_path={self.lora_path!r} is not valid: name a folder", param="lora_request")


def parse_lora_modules(given: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Adapter paths by name, from ``{"sql": "./sql-adapter"}`` or ``["sql=./sql-adapter"]``. Raises ConfigError."""
    if isinstance(given, str):
        given = (given,)
    pairs = given.items() if isinstance(given, Mapping) else [tuple(text.partition("=")[::2]) for text in given]
    found: dict[str, str] = {}
    for name, path in pairs:
        if not name or not path:
            raise ConfigError(f"lora_modules={name!r} names no folder: write NAME=FOLDER")
        if name in found:
            raise ConfigError(f"lora_modules names {name!r} twice: name one of them differently")
        found[name] = path
    return found
