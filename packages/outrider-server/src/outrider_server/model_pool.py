"""Models that are loaded on demand: the queue of requests, and the choice of the model to unload.

A request holds its model until it has been answered; a model that nobody holds may be unloaded. All accounts are kept
on the event loop. Loading and unloading run on a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from outrider.errors import OutriderError
from outrider.llm import LLM
from outrider_server.executors import BoundedExecutor
from outrider_server.http.errors import ApiError, unavailable
from outrider_server.service import Service, not_served
from outrider_server.settings import ServerSettings

logger = logging.getLogger(__name__)

Loader = Callable[[], LLM]


@dataclass(eq=False)
class PooledModel:
    """One of several models, loaded or not."""

    name: str
    service: Service
    load: Loader
    idle_s: float
    """Seconds without a request after which it is unloaded; infinite for never."""
    users: int = 0
    """Requests that hold it."""
    used_at: float = 0.0
    """When a request last came or ended, by ``time.monotonic``."""
    waiting: dict[asyncio.Future[None], str] = field(default_factory=dict)
    """Requests that it is to be loaded for, and their tenants."""
    is_expired: bool = False
    timer: asyncio.TimerHandle | None = None

    @property
    def is_loaded(self) -> bool:
        return self.service.state in ("ready", "dead")

    @property
    def expires_in(self) -> float:
        """Seconds until it is unloaded, if nobody asks for it."""
        return self.idle_s if self.users else max(0.0, self.used_at + self.idle_s - time.monotonic())

    def take(self) -> None:
        self.users += 1
        self.used_at = time.monotonic()
        self.stop_timer()

    def stop_timer(self) -> None:
        self.is_expired = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ModelPool:
    """Several models, of which ``max_loaded_models`` are loaded at once."""

    def __init__(
        self, settings: ServerSettings, services: Mapping[str, Service], loaders: Mapping[str, Loader]
    ) -> None:
        """``loaders`` are called on a thread, and may raise anything."""
        self._settings = settings
        self._idle_s = settings.model_idle_seconds or math.inf
        self._most = settings.max_loaded_models or math.inf
        self.models = {name: PooledModel(name, services[name], load, self._idle_s) for name, load in loaders.items()}
        for model in self.models.values():
            model.service.state = "unloaded"
        self._executor = BoundedExecutor("loading models", threads=1, queue_limit=1, caller_limit=1)
        self._queue: list[PooledModel] = []  # those that requests wait for, in their order
        self._leaving: PooledModel | None = None  # it takes no new requests: another's turn has come
        self._worker: asyncio.Task[None] | None = None
        self._is_closed = False
        self.is_changing = False
        """Whether a model is being loaded or unloaded."""

    def find(self, name: str | None) -> PooledModel:
        """The model of that name; the first if none is given. Raises ApiError 404."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise not_served(name, self.models)
        return self.models[name]

    async def hold(self, model: PooledModel, tenant: str, held: ExitStack) -> None:
        """Wait until ``model`` is loaded, and keep it so until ``held`` closes.

        Raises ApiError: it cannot be loaded, or too many requests of ``tenant`` wait for it.
        """
        if model.service.state == "ready" and model is not self._leaving:
            model.take()
        else:
            await self._turn(model, tenant)
        held.callback(self._release, model)

    def keep(self, model: PooledModel, seconds: float) -> None:
        """Unload ``model`` after ``seconds`` without requests (0: when the last one ends), until it is loaded again."""
        model.idle_s = seconds
        self._rest(model)

    def give_up(self) -> None:
        """Refuse requests that wait for a model; no model is loaded any more."""
        self._is_closed = True
        for model in list(self._queue):
            self._refuse(model, "the server is stopping: ask another one", "draining")

    def close(self) -> None:
        self._executor.close()

    async def _turn(self, model: PooledModel, tenant: str) -> None:
        own = list(model.waiting.values()).count(tenant)
        if own > self._settings.max_queue:
            message = f"{own} of your requests wait for the model {model.name!r}: try again when one has ended"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "5"})
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        model.waiting[turn] = tenant
        if model not in self._queue:
            self._queue.append(model)
        self._go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if model.waiting.pop(turn, None) is not None:
                self._go_on()
            elif not turn.cancelled() and turn.exception() is None:  # it came in the same moment
                self._release(model)
            raise

    def _release(self, model: PooledModel) -> None:
        model.users -= 1
        self._rest(model)

    def _rest(self, model: PooledModel) -> None:
        """Begin the time after which an idle model is unloaded."""
        if not model.users and model.is_loaded:
            model.stop_timer()
            model.used_at = time.monotonic()
            if model.idle_s < math.inf:
                model.timer = asyncio.get_running_loop().call_later(model.idle_s, self._expire, model)
        self._go_on()

    def _expire(self, model: PooledModel) -> None:
        model.is_expired = True
        self._go_on()

    # -- loading and unloading ---------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Start the worker that loads and unloads, unless it runs."""
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while (change := self._next()) is not None:
            await change

    def _next(self) -> Coroutine[Any, Any, None] | None:
        """The next change, if there is one: for the model that was asked for first, with room made for it."""
        self._leaving = None
        while self._queue and not self._is_closed:
            model = self._queue[0]
            loaded = [each for each in self.models.values() if each.is_loaded]
            if not model.waiting or model.service.state == "ready":
                self._hand_over(model)
            elif model.is_loaded:  # its engine has died
                return None if model.users else self._unload(model)
            elif len(loaded) < self._most:
                return self._load(model)
            elif idle := [each for each in loaded if not each.users]:
                return self._unload(min(idle, key=lambda each: each.used_at))
            else:  # the one that gives way takes no more requests, or this turn might never come
                self._leaving = min(loaded, key=lambda each: each.used_at)
                return None
        for model in self.models.values():
            if model.is_loaded and not model.users and (model.is_expired or model.service.state == "dead"):
                return self._unload(model)
        return None

    def _hand_over(self, model: PooledModel) -> None:
        """Wake the requests that have waited for ``model``."""
        if model in self._queue:
            self._queue.remove(model)
        for turn in model.waiting:
            if not turn.done():
                model.take()
                turn.set_result(None)
        model.waiting.clear()

    def _refuse(self, model: PooledModel, message: str, code: str) -> None:
        self._queue.remove(model)
        for turn in model.waiting:
            if not turn.done():
                turn.set_exception(unavailable(message, 5, code))
        model.waiting.clear()

    async def _load(self, model: PooledModel) -> None:
        loop, began = asyncio.get_running_loop(), time.monotonic()
        model.service.state, model.idle_s = "loading", self._idle_s

        def died() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._go_on)

        try:
            await self._change(lambda: model.service.attach(model.load(), on_death=died))
        except Exception as error:
            model.service.state = "unloaded"
            unforeseen = None if isinstance(error, OutriderError) else error
            logger.error("the model %s cannot be loaded: %s", model.name, error, exc_info=unforeseen)
            if model in self._queue:
                reason = f"the model {model.name!r} cannot be loaded, and the server's log says why"
                self._refuse(model, f"{reason}: mend that and try again, or use another model", "model_load_failed")
            return
        logger.info("loaded %s in %.1f s", model.name, time.monotonic() - began)
        self._hand_over(model)
        self._rest(model)  # every waiting request may have gone

    async def _unload(self, model: PooledModel) -> None:
        model.stop_timer()
        model.service.state = "unloaded"
        await self._change(model.service.detach)
        logger.info("unloaded %s", model.name)

    async def _change(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                self.is_changing = False

        self.is_changing = True
        await self._executor.run(run)
