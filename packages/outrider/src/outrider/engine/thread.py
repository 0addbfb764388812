"""The engine on a thread of its own: requests go in from anywhere, bursts of tokens come out."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import groupby

from outrider.engine.engine import Engine
from outrider.engine.request import Request, StepOutput
from outrider.errors import EngineDeadError, OutriderError
from outrider.utils.turns import TurnLock, exits

logger = logging.getLogger(__name__)

Event = list[StepOutput] | BaseException | None
"""A request's tokens from one step; or the error that ended the request; or None after its last token."""
Listener = Callable[[Event], None]

MAX_FAILED_STEPS = 3  # in a row, without an ended request between them: then the engine itself is at fault


class EngineThread:
    """Steps an engine while it is busy and sleeps while it is not.

    Listeners are called on this thread and must not block. A step that raises ends all open requests with its error,
    and later requests are served. The thread dies of errors without recovery: inconsistent caches, the loss of a
    process that ran a share of the model, ``MAX_FAILED_STEPS`` failures in a row, or an exception that is no
    ``Exception``. Then ``on_death`` is called, and all open and later requests get an ``EngineDeadError``.
    """

    def __init__(self, engine: Engine, *, on_death: Callable[[BaseException], None] = lambda error: None) -> None:
        self._engine = engine
        self._on_death = on_death
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # between "is it dead?" and a command that a dead thread would never read
        self._listeners: dict[str, Listener] = {}
        self._requests: dict[str, Request] = {}
        self._failed_steps = 0
        self._turn = TurnLock()  # contended only when the interpreter exits
        self.death: EngineDeadError | None = None
        self._thread = threading.Thread(target=self._run, name="outrider-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self.death is None and self._thread.is_alive()

    def submit(self, pairs: Sequence[tuple[Request, Listener]]) -> None:
        """Queue requests that begin before the same step. An error of ``Engine.add`` is passed to the listener.

        A beam search emits its other outputs with its first request's last step, so all of them must be known by then.
        """
        with self._gate:
            if self.death is None:
                for request, _ in pairs:
                    self._engine.expect(request.tenant)
                self._commands.put(lambda: self._add(pairs))
                return
        for _, listener in pairs:
            listener(self.death)

    def drop(self, request_id: str) -> None:
        """Abort a request before the next step; unknown ids are ignored."""
        self._commands.put(lambda: self._drop(request_id))

    def call(self, work: Callable[[], None]) -> None:
        """Call ``work`` between two steps; its exceptions are logged only."""

        def guarded() -> None:
            try:
                work()
            except Exception:
                logger.exception("work between two steps of the engine failed")

        self._commands.put(guarded)

    def pause(self, work: Callable[[], None], error: OutriderError | None, done: Future[None]) -> None:
        """Do ``work`` while no request is running or waiting, then complete ``done``, with its exception if it failed.

        ``error``: ends those that do; None: they are run to their ends. Requests that are submitted meanwhile wait.
        """

        def paused() -> None:
            if not done.set_running_or_notify_cancel():
                return
            if self.death is not None:
                done.set_exception(self.death)
                return
            try:
                if error is not None:
                    self._end_all(error)
                while self._engine.busy:
                    self._step()
            except BaseException as fatal:
                done.set_exception(fatal)
                raise
            try:
                work()
            except Exception as failure:  # noqa: BLE001  whoever waits for ``done`` is told
                done.set_exception(failure)
            else:
                done.set_result(None)

        with self._gate:
            if self.death is None:
                self._commands.put(paused)
                return
        done.set_exception(self.death)

    def close(self) -> None:
        """Stop the thread; requests that still run end with an ``EngineDeadError``."""
        self._commands.put(None)
        if not exits():
            self._thread.join()

    # -- on the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._obey():
                self._step()
        except BaseException as error:
            logger.critical("the engine has stopped", exc_info=error)
            try:
                self._on_death(error)  # first, so that listeners told below, when they retry, find it known
            finally:
                stopped = EngineDeadError(f"the engine has stopped ({type(error).__name__}): restart it")
                self._die(error if isinstance(error, EngineDeadError) else stopped)
        else:
            self._die(EngineDeadError("the engine was closed: start a new one"))

    def _obey(self) -> bool:
        """Run the queued commands, waiting for one while the engine is idle; False to stop."""
        while not self._engine.busy or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
        return True

    def _step(self) -> None:
        try:
            with self._turn:
                outputs = self._engine.step()
        except EngineDeadError:
            raise
        except Exception as error:
            logger.exception("a step of the engine failed; the requests it ran are lost")
            self._end_all(error)
            self._engine.cache.check()
            self._failed_steps += 1
            if self._failed_steps >= MAX_FAILED_STEPS:
                raise
            return
        for request_id, steps in groupby(outputs, key=lambda step: step.request_id):
            if listener := self._listeners.get(request_id):  # none: an output of a search, dropped before its leader
                listener(list(steps))
        for request in [r for r in self._requests.values() if r.finish_reason is not None or r.error is not None]:
            self._failed_steps = 0
            self._listeners[request.id](request.error)
            self._drop(request.id)

    def _add(self, pairs: Sequence[tuple[Request, Listener]]) -> None:
        for request, listener in pairs:
            if self.death is not None:
                listener(self.death)
                continue
            try:
                self._engine.add(request)
            except OutriderError as error:  # an error of this request alone
                listener(error)
            else:
                self._requests[request.id], self._listeners[request.id] = request, listener

    def _drop(self, request_id: str) -> None:
        if self._requests.pop(request_id, None) is not None:
            del self._listeners[request_id]
            self._engine.abort(request_id)

    def _end_all(self, error: BaseException) -> None:
        for request_id in list(self._requests):
            self._listeners[request_id](error)
            self._drop(request_id)

    def _die(self, death: EngineDeadError) -> None:
        """Tell all listeners, including queued requests'; the engine is not used any more."""
        with self._gate:
            self.death = death
        for listener in self._listeners.values():
            listener(death)
        self._requests.clear()
        self._listeners.clear()
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command()
