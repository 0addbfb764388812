"""Where processes of several machines meet, by the variables that torchrun sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from outrider.errors import ConfigError


@dataclass(frozen=True)
class Rendezvous:
    """The first process listens at ``address``; this is number ``rank`` of ``size``."""

    address: str
    port: int
    rank: int
    size: int

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """From torchrun's variables; None if there is no ``WORLD_SIZE``. Raises ConfigError if they make no sense."""
        if "WORLD_SIZE" not in environment:
            return None
        names = ("MASTER_PORT", "RANK", "WORLD_SIZE")
        try:
            port, rank, size = (int(environment.get(name, "")) for name in names)
        except ValueError:
            port, rank, size = -1, -1, -1
        if not (0 < port < 65536 and 0 <= rank < size and environment.get("MASTER_ADDR")):
            given = ", ".join(f"{name}={environment.get(name)!r}" for name in ("MASTER_ADDR", *names))
            raise ConfigError(f"{given}: set all four for several machines (RANK below WORLD_SIZE), or none")
        return cls(environment["MASTER_ADDR"], port, rank, size)
