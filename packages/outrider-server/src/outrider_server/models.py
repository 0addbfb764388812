"""The models of one process, and how a request finds the one it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider_server.executors import Executors
from outrider_server.http.context import Callers, by_deadline, tenant_of
from outrider_server.http.metrics import ServerMetrics, exposition
from outrider_server.model_pool import Loader, ModelPool
from outrider_server.service import Service, State
from outrider_server.settings import ServerSettings

_HELD = "held_models"  # key in a request's state: callbacks for its end


class Models:
    """A single model that stays, or several that come and go (``pool``)."""

    def __init__(self, settings: ServerSettings, single: Service | None, loaders: Mapping[str, Loader]) -> None:
        """Use ``Models.of`` or ``Models.on_demand``."""
        self.settings, self.single = settings, single
        self.callers = single.callers if single else Callers(share_across_keys=settings.share_across_keys)
        self.executors = single.executors if single else Executors()
        self.metrics = ServerMetrics(single.metrics.registry if single else CollectorRegistry())
        services = {name: Service(settings, name, callers=self.callers, executors=self.executors) for name in loaders}
        self.services: Sequence[Service] = [single] if single else list(services.values())
        self.pool = None if single else ModelPool(settings, services, loaders)
        self._is_draining = False

    @classmethod
    def of(cls, service: Service) -> Models:
        """A single model, which the caller loads, and which stays."""
        return cls(service.settings, service, {})

    @classmethod
    def on_demand(cls, settings: ServerSettings, loaders: Mapping[str, Loader]) -> Models:
        """Several models by the names that clients use; the first serves requests without a name."""
        return cls(settings, None, loaders)

    @property
    def state(self) -> State:
        """Of the server, which is ready as soon as models can be asked for."""
        if self.single is not None:
            return self.single.state
        return "draining" if self._is_draining else "ready"

    @property
    def sequences(self) -> int:
        """Admitted and not finished, of all models."""
        return sum(service.sequences for service in self.services)

    @property
    def max_seq_len(self) -> int:
        """The longest of a loaded model; 0 if there is none."""
        return max((service.max_seq_len for service in self.services if service.state == "ready"), default=0)

    @property
    def is_changing(self) -> bool:
        """Whether one of several models is being loaded or unloaded."""
        return self.pool is not None and self.pool.is_changing

    def listed(self) -> Iterator[tuple[str, Service]]:
        """The names that can be asked for."""
        for service in self.services:
            for name in [name for name in service.model_names if name != "*"] or [service.check_model(None)]:
                yield name, service

    def if_loaded(self, name: str | None) -> Service | None:
        """The service of the model ``name``, if it is loaded; it is neither loaded nor held.

        Raises ApiError 404 for an unknown model.
        """
        if self.pool is None:
            return self.services[0]
        model = self.pool.find(name)
        return model.service if model.is_loaded else None

    def metrics_text(self) -> bytes:
        """For Prometheus: all models added up, but each with its name under vLLM's prefix, as vLLM has it."""
        engine = {"engine": "0"} if self.settings.metrics_prefix == "vllm" else {}
        own = [] if self.single else [(self.metrics.registry, engine)]
        each = [
            (service.metrics.registry, engine and {"model_name": service.model_names[0], **engine})
            for service in self.services
        ]
        return exposition([*own, *each], self.settings.metrics_prefix)

    def drain(self) -> None:
        """Announce that the server stops; accepted requests are still answered."""
        self._is_draining = True
        if self.single is not None and self.single.state == "ready":
            self.single.state = "draining"

    def give_up(self) -> None:
        """Refuse requests that wait for a model."""
        if self.pool is not None:
            self.pool.give_up()

    def close(self) -> None:
        """Stop all engines, from any thread; requests that still run end with an error."""
        for service in self.services:
            service.close()
        if self.pool is not None:
            self.pool.close()


async def service_of(request: Request, name: str | None) -> Service:
    """The service of the model ``name``, kept loaded until the request has been answered.

    A single model is returned for any name; ``Service.check_model`` refuses a name that is not served.

    Raises ApiError: 404 for an unknown model, 503 for one that cannot be loaded, 504 if that takes too long.
    """
    models: Models = request.app.state.models
    if models.pool is None:
        return models.services[0]
    model, held = models.pool.find(name), getattr(request.state, _HELD)
    message = f"the model {model.name!r} was not loaded within {{}} s: try again, or use one that is loaded"
    turn = models.pool.hold(model, tenant_of(request), held)
    await by_deadline(request, turn, message)
    return model.service


class HoldMiddleware:
    """Lets go of the models that a request holds once it has been answered, however that ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            scope.setdefault("state", {})[_HELD] = held
            await self._app(scope, receive, send)
