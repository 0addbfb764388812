"""Contexts of the native library: each has its own threads, scratch memory and instruction set.

Models that are loaded together share a context, as they run in turn: two sets of threads would compete for the
processor. Models of another ``LLM`` of this process have another context, and both run at the same time.
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

__all__ = ["MOST_THREADS", "NativeContext", "current_context", "loading_context", "own_context", "same_context"]

MOST_THREADS = 256
"""The most threads of a context; further processors stay unused."""


class NativeContext:
    """Threads that end with this object. One forward pass at a time uses them; others wait."""

    def __init__(self, threads: int, isa: str | None = None) -> None:
        """``threads``: including the caller's; fewer if the system grants fewer. ``isa``: None is the best available.

        Raises:
            ConfigError: the library is missing, or ``threads`` or ``isa`` is not available here.
            MemoryError: not enough memory for a context.
        """
        native, isa, made = native_library(), isa or default_isa(), ctypes.c_void_p()
        status = native.outrider_create(threads, isa.encode(), ctypes.byref(made))
        if status == 1:
            raise MemoryError("no memory for threads of the native library")
        if status or made.value is None:
            raise ConfigError(f"threads={threads} with {isa} are not possible: use 1 to {MOST_THREADS} threads")
        self.address: int = made.value
        self.threads, self.isa = int(native.outrider_threads(made)), isa
        # At exit a thread may still compute: the system frees the rest.
        weakref.finalize(self, native.outrider_destroy, self.address).atexit = False

    def __repr__(self) -> str:
        return f"Context(threads={self.threads}, isa={self.isa!r})"


class _Scope:
    """The shared context of models loaded together, made at the first request for it."""

    def __init__(self, threads: int, isa: str | None) -> None:
        self._threads, self._isa = threads, isa
        self._context: NativeContext | None = None

    def use(self, context: NativeContext) -> None:
        self._context = context

    def context(self) -> NativeContext:
        if self._context is None:
            self._context = NativeContext(self._threads, self._isa)
        return self._context


_SCOPE: ContextVar[_Scope | None] = ContextVar("native context", default=None)


@contextmanager
def same_context(context: NativeContext) -> Iterator[None]:
    """Models loaded inside this block share ``context`` with those that have it already."""
    scope = _Scope(context.threads, context.isa)
    scope.use(context)
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)


@contextmanager
def own_context(threads: int | None = None, isa: str | None = None) -> Iterator[None]:
    """Models loaded inside this block share a new context.

    ``threads``: None is ``num_threads()``. ``isa``: as for ``NativeContext``.
    """
    token = _SCOPE.set(_Scope(_possible(threads or num_threads()), isa))
    try:
        yield
    finally:
        _SCOPE.reset(token)


def current_context() -> NativeContext:
    """The context of the current ``own_context`` block, else one shared by all users of the same thread count."""
    return loading_context() or _shared(native_library(), _possible(num_threads()))


def loading_context() -> NativeContext | None:
    """The context of the current ``own_context`` block; None outside one."""
    scope = _SCOPE.get()
    return None if scope is None else scope.context()


@cache
def _shared(native: ctypes.CDLL, threads: int) -> NativeContext:
    """The shared context of ``threads`` threads. ``native``: distinguishes libraries loaded in sequence."""
    return NativeContext(threads)


def _possible(threads: int) -> int:
    return min(threads, MOST_THREADS)
