"""The low-rank adapters of an engine, by name. Requests with different ones run in one batch, and share no cache."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from outrider.config.adapters import LoRARequest
from outrider.errors import ConfigError, InvalidRequestError
from outrider.models.adapters import Adapter
from outrider.models.base import LoadedModel


class Adapters:
    """Loads adapters when they are first named, and keeps them."""

    def __init__(self, model: LoadedModel, *, enabled: bool) -> None:
        """``enabled``: whether requests may bring their own."""
        self._model, self._enabled = model, enabled
        self._found: dict[str, tuple[str, Adapter]] = {}  # folder and adapter, by name
        self._lock = threading.Lock()  # of loading; requests for adapters that are loaded never wait

    def load(self, folders: Mapping[str, str]) -> None:
        """Load adapters by name. Raises ConfigError if the model supports none, and the errors of ``load_adapter``."""
        for name, folder in folders.items():
            self._load(name, folder)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._found)

    @property
    def keys(self) -> dict[str, str]:
        """The content key of each adapter (``Adapter.key``), by name."""
        return {name: adapter.key for name, (_, adapter) in self._found.items()}

    def find(self, request: LoRARequest) -> Adapter:
        """The adapter that a request names, loaded if that is its first.

        Raises:
            InvalidRequestError: it is not known, or known from another folder.
            OutriderError: it cannot be loaded.
        """
        name, folder = request.lora_name, request.lora_path
        held = self._found.get(name) or self._loaded(name, folder)
        if folder and folder != held[0]:
            raise InvalidRequestError(
                f"the adapter {name!r} was loaded from {held[0]!r}: name that of {folder!r} differently",
                param="lora_request",
            )
        return held[1]

    def _loaded(self, name: str, folder: str) -> tuple[str, Adapter]:
        """The adapter from ``folder``, unless another thread has loaded one of that name by now."""
        if not self._enabled or not folder:
            remedy = "give its lora_path" if self._enabled else "start with enable_lora=True"
            raise InvalidRequestError(f"the adapter {name!r} is not loaded: {remedy}", param="lora_request")
        with self._lock:
            if name not in self._found:
                self._load(name, folder)
            return self._found[name]

    def _load(self, name: str, folder: str) -> None:
        if not self._model.takes_adapters:
            raise ConfigError(
                f"the adapter {name!r} needs the native library of the CPU: use device='cpu', or merge it"
            )
        from outrider.weights.adapters import load_adapter

        self._found[name] = folder, load_adapter(name, Path(folder), self._model.config)
