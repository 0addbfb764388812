"""What the native library computes with: a context has threads, scratch memory and an instruction set of its own.

Models that are loaded together share one, as they run in turn: two sets of threads would keep the processor from each
other. What is loaded apart (another ``LLM`` of this process) has another, and both run at the same time.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from outrider.errors import ConfigError
from outrider.native.library import default_isa, native_library
from outrider.native.processor import num_threads

__all__ = ["MOST_THREADS", "Context", "current_context", "loading_context", "own_context"]

MOST_THREADS = 256
"""Of one context; of more processors, the others are left alone."""


class Context:
    """Threads that end with this object. One forward pass at a time uses them; others wait for it."""

    def __init__(self, threads: int, isa: str | None = None) -> None:
        """``threads``: the caller's included; fewer if the system has no more. ``isa``: None is the best there is.

        Raises:
            ConfigError: the library is not there, or ``threads`` or ``isa`` is not possible here.
            MemoryError: there is no memory for a context.
        """
        native, isa, made = native_library(), isa or default_isa(), ctypes.c_void_p()
        status = native.outrider_create(threads, isa.encode(), ctypes.byref(made))
        if status == 1:
            raise MemoryError("no memory for threads of the native library")
        if status or made.value is None:
            raise ConfigError(f"threads={threads} with {isa} are not possible: use 1 to {MOST_THREADS} threads")
        self.address: int = made.value
        self.threads, self.isa = int(native.outrider_threads(made)), isa
        # At exit a thread may still compute: the system frees what is left.
        weakref.finalize(self, native.outrider_destroy, self.address).atexit = False

    def __repr__(self) -> str:
        return f"Context(threads={self.threads}, isa={self.isa!r})"


class _Scope:
    """What is loaded together; its context is made when the first part asks for one."""

    def __init__(self, threads: int, isa: str | None) -> None:
        self._threads, self._isa = threads, isa
        self._context: Context | None = None

    def context(self) -> Context:
        if self._context is None:
            self._context = Context(self._threads, self._isa)
        return self._context


_SCOPE: ContextVar[_Scope | None] = ContextVar("native context", default=None)


@contextmanager
def own_context(threads: int | None = None, isa: str | None = None) -> Iterator[None]:
    """What is loaded inside shares a context of its own.

    ``threads``: None is as many as this process computes with; ``isa``: as of ``Context``.
    """
    token = _SCOPE.set(_Scope(_possible(threads or num_threads()), isa))
    try:
        yield
    finally:
        _SCOPE.reset(token)


def current_context() -> Context:
    """That of what is being loaded here, else one that all others with as many threads share."""
    return loading_context() or _shared(native_library(), _possible(num_threads()))


def loading_context() -> Context | None:
    """That of what is being loaded here; None where nothing is loaded with a context of its own."""
    scope = _SCOPE.get()
    return None if scope is None else scope.context()


@cache
def _shared(native: ctypes.CDLL, threads: int) -> Context:
    """``native``: tells libraries apart that were loaded one after the other."""
    return Context(threads)


def _possible(threads: int) -> int:
    return min(threads, MOST_THREADS)
