"""The engine: ``step`` is one forward pass of the target for all running requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from outrider.cache.protocol import CacheSpec, KVCache
from outrider.cache.sessions import SessionStore
from outrider.drafters.api import Drafter
from outrider.drafters.cost import DraftingCost
from outrider.engine.decode_method import DecodeMethod, EngineParts
from outrider.engine.draft_length.acceptance import Measured, nothing_measured
from outrider.engine.draft_length.adaptive import AdaptiveLength
from outrider.engine.draft_length.calibration import calibrate
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.policy import DraftLength
from outrider.engine.drafting.rounds import Drafting
from outrider.engine.engine_stats import EngineStats
from outrider.engine.memory import CacheMemory
from outrider.engine.pace import Pace, StepTimes
from outrider.engine.request import Request, StepOutput
from outrider.engine.request_checks import check_request
from outrider.engine.runner import ScheduledRequest, TargetOutput, run_target
from outrider.engine.sampling import Sampling
from outrider.engine.schedule import ScheduledTokens
from outrider.engine.scheduler import Scheduler
from outrider.errors import GrammarError, NumericalError, OutriderError
from outrider.models.base import Model
from outrider.models.inputs import has_encoder

_WAIT_FOR_ROWS = 0.01  # seconds that a step waits for files where there is nothing else to do: its callers wait too


class Engine:
    """Runs many requests at once. Plain decoding is the same step with an empty draft."""

    def __init__(
        self,
        model: Model,
        *,
        drafters: Mapping[str, Drafter],
        eos_token_ids: Sequence[int],
        vocab_size: int,
        cache: CacheSpec,
        kv_cache: KVCache | None = None,
        sessions: SessionStore | None = None,
        max_batched_tokens: int = 1024,
        measured: Measured = nothing_measured,
        step_cost: Callable[[Model], StepCost] = calibrate,
        draft_length: DraftLength | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``vocab_size``: ids with a meaning; columns of the model's head beyond it are padding.

        ``kv_cache`` is made as ``cache`` says, unless it is given because a draft source works in it too.
        ``sessions``: where rows are kept that outlive their memory.
        ``measured``: the acceptance of draft sources, as measured beforehand.
        ``step_cost``: what steps of the model cost, asked when the first adaptive request drafts; by default it times
        passes for a second.
        ``draft_length`` decides how much is drafted in place of the adaptive length.
        """
        self.max_seq_len = min(cache.max_seq_len, model.config.max_seq_len)
        self.vocab_size = min(vocab_size, model.config.vocab_size)
        self.cache = model.new_cache(cache) if kv_cache is None else kv_cache
        self.stats = EngineStats()
        self.weights = ""
        """A digest of weights that have replaced those of the model's files; empty: none have."""
        self._model = model
        self._checks = object()  # marks requests that this engine has checked, without keeping it alive
        self._sources = tuple(drafters)  # names; which sources there are does not change
        self._eos = tuple(token for token in eos_token_ids if token < self.vocab_size)
        self._policy: DraftLength = draft_length or AdaptiveLength(
            partial(step_cost, model), measured=measured, drafting_cost=self._time_drafts
        )
        self._clock, self._pace = clock, Pace()
        self._drafting = Drafting(drafters, self.vocab_size, self._policy, clock)
        self.sessions = sessions
        self.memory = CacheMemory(self.cache, lambda: self._drafting.isolated.caches, self._eos, sessions)
        self._parts = EngineParts(
            self.memory, self._drafting, self.stats, model.config, self._eos, self.vocab_size, self._policy.pass_seconds
        )
        self._sampling = Sampling(self._parts)
        self._scheduler: Scheduler[Request] = Scheduler(
            self.memory, max_batch_size=cache.slots, max_batched_tokens=max_batched_tokens
        )

    def add(self, request: Request) -> None:
        """Queue a request, checked unless ``check`` has passed it; raises what ``check`` raises."""
        if request.checked_by is not self._checks:
            self.check(request)
        request.max_seq_len, request.weights = self.max_seq_len, self.weights
        if self._method(request).begin(request, self._parts):
            self._scheduler.add(request)

    def check(self, request: Request) -> None:
        """Refuse a request that the engine cannot serve; raises what ``check_request`` raises."""
        check_request(request, self.max_seq_len, self.vocab_size, self._sources, self._eos, self.cache.states)
        request.input.check(self._model)
        request.checked_by = self._checks

    @property
    def drafters(self) -> Mapping[str, Drafter]:
        """The loaded draft sources, by the name requests give them."""
        return self._drafting.isolated.drafters

    def calibrate(self, sources: Sequence[str] = ()) -> None:
        """Measure the cost of forward passes now, rather than when the first adaptive request drafts.

        ``sources``: the sources that requests are likely to name; timed too if the model has an encoder.
        """
        self._policy.calibrate(sources if has_encoder(self._model) else ())

    def use(self, draft_length: DraftLength) -> None:
        """Let another policy decide how much is drafted, while no request is running."""
        self._policy = self._drafting.policy = draft_length

    def _time_drafts(self, source: str) -> DraftingCost | None:
        return self._drafting.isolated.time_drafts(source)

    def abort(self, request_id: str) -> None:
        """Drop a waiting or running request and release its resources; unknown ids are ignored."""
        request = self._scheduler.remove(request_id)
        if request is not None and request.slot is not None:
            self.memory.evict(request)
            self._finish_drafts(request)

    def fail_all(self, error: OutriderError) -> None:
        """End all requests with ``error``."""
        for request in self._scheduler.requests:
            request.error = error
            self.abort(request.id)

    def renew(
        self, weights: str, drafters: Mapping[str, Drafter], sessions: SessionStore | None, *, keep_learned: bool
    ) -> None:
        """Go on after the target's ``weights`` were replaced, while no request is running or waiting.

        Cached prefixes are forgotten, and drafters and saved sessions give way to these. ``keep_learned``: acceptance
        that was learned from texts stays.
        """
        assert not self.busy
        self.weights = weights
        self.cache.forget_prefixes()
        self.close()
        self.sessions = sessions
        self.memory.use_sessions(sessions)
        self._drafting.use(drafters)
        if not keep_learned:
            self._policy.forget_texts()

    def close(self) -> None:
        """Write what sessions have not written yet."""
        if self.sessions is not None:
            self.sessions.close()

    @property
    def busy(self) -> bool:
        return bool(self._scheduler.waiting or self._scheduler.running)

    def step(self) -> list[StepOutput]:
        """One step. Returns the committed tokens, in order for each request.

        If a request's logits are not finite or its grammar fails, it is read once more without drafts. If it fails
        again, it ends with ``request.error`` set. Other requests continue.
        """
        schedule = self._schedule()
        times = StepTimes(self._clock, [each.request for each in schedule])
        scheduled = self._draft(schedule)
        times.drafted()
        outputs = self._score(scheduled)
        decisions = self._verify(scheduled, outputs)
        emitted = self._commit(scheduled, outputs, decisions)
        self._pace.end(*times.ended(scheduled, self._scheduler.charge))
        return emitted

    def expect(self, tenant: str) -> None:
        """Announce, from any thread, a coming request of ``tenant``: ends this step's drafting for others early."""
        if any(request.tenant != tenant for request in self._scheduler.running):
            self._drafting.time.cut()

    def _schedule(self) -> list[ScheduledTokens[Request]]:
        """The requests of this step with their numbers of tokens; tells drafters of admitted and preempted requests."""
        queues = self._scheduler
        self.stats.begin(queues.waiting, len(queues.running), queues.preemptions, self.memory.free_kv_tokens)
        tenants = self._scheduler.tenants
        arrived = self.memory.begin_step()
        schedule = self._scheduler.schedule(self._pace.begin(shared=len(tenants) > 1, named=any(tenants)))
        self._drafting.time.begin(self._pace.drafting)
        for request in schedule.preempted:
            self._finish_drafts(request)
        if arrived or schedule.admitted:
            self.stats.admitting()
            for request in (*arrived, *schedule.admitted):
                if request.slot is not None and not request.is_arriving:  # preempted, or begins when its rows are there
                    request.input.attach(self._model, self.cache, request.slot)
                    self._drafting.start(request)
            self.stats.admitted()
        if not schedule.scheduled:
            self.memory.wait_for_rows(_WAIT_FOR_ROWS)
        return schedule.scheduled

    def _draft(self, schedule: Sequence[ScheduledTokens[Request]]) -> list[ScheduledRequest]:
        """Every request's tokens and draft; each drafter gets all of its requests in one call."""
        self.stats.drafting()
        own = [self._method(each.request).schedule(each) for each in schedule]
        others = [each for each, part in zip(schedule, own, strict=True) if part is None]
        granted, num_tokens = [each.num_draft_tokens for each in others], [each.num_tokens for each in others]
        drafts = iter(self._drafting.propose([each.request for each in others], granted, num_tokens))
        self.stats.drafted()
        return [
            part or ScheduledRequest(each.request, each.num_tokens, next(drafts))
            for each, part in zip(schedule, own, strict=True)
        ]

    def _score(self, scheduled: Sequence[ScheduledRequest]) -> list[TargetOutput]:
        """One forward pass of the target."""
        if not scheduled:
            return []
        requests = [each.request for each in scheduled]
        layers = self._drafting.features.layers(requests)
        if any(request.prompt_report.wants_embedding for request in requests):
            layers = tuple(sorted({*layers, self._model.config.num_layers}))
        outputs = run_target(self._model, self.cache, scheduled, self.vocab_size, layers)
        seconds, experts = self.stats.scored(), outputs[0].experts
        if _only_decodes(scheduled):  # the time of a pass that reads prompts says nothing of drafts
            drafts = [each.draft for each in scheduled]
            self._policy.observe_forward_pass(requests, drafts, seconds, 0 if experts is None else experts.count)
        elif experts is not None and len(scheduled) == 1:  # of several, neighbours are not of one text
            self._policy.observe_prompt(experts)
        return outputs

    def _verify(self, scheduled: Sequence[ScheduledRequest], outputs: Sequence[TargetOutput]) -> list[Any]:
        """Each request's decision; None for a request that still reads its prompt, or that failed."""
        decisions: list[Any] = []
        for each, output in zip(scheduled, outputs, strict=True):
            decision = None
            if each.decides:
                try:
                    decision = self._method(each.request).decide(each, output)
                except (NumericalError, GrammarError) as error:
                    self._retry_without_draft(each.request, error)
            decisions.append(decision)
        return decisions

    def _commit(
        self, scheduled: Sequence[ScheduledRequest], outputs: Sequence[TargetOutput], decisions: Sequence[Any]
    ) -> list[StepOutput]:
        """Emit tokens, keep the accepted rows of the cache, and report outcomes to the drafters."""
        emitted: list[StepOutput] = []
        for each, output, decision in zip(scheduled, outputs, decisions, strict=True):
            request = each.request
            if decision is not None or not each.decides:  # otherwise the request failed
                try:
                    emitted += self._method(request).commit(each, output, decision)
                except NumericalError as error:
                    self._retry_without_draft(request, error)
            if request.finish_reason is not None or request.error is not None:
                self.abort(request.id)
        seconds = self.stats.end(len(emitted))
        if scheduled and _only_decodes(scheduled):
            self._policy.observe_step(len(scheduled), seconds)
        return emitted

    def _method(self, request: Request) -> DecodeMethod:
        method = request.method or self._sampling
        assert isinstance(method, DecodeMethod)
        return method

    def _finish_drafts(self, request: Request) -> None:
        """Release the resources of draft sources and the decode method for an ended or preempted request."""
        self._drafting.finish(request)
        self._method(request).finish(request)

    def _retry_without_draft(self, request: Request, error: NumericalError | GrammarError) -> None:
        """Read a request again without drafts; the second failure ends it with ``error``.

        A refused draft, of this request or of an earlier user of the memory, may have left NaN in the cache, which
        spreads even from masked rows. Tokens accepted before the failing node are kept.
        """
        if request.retried_without_drafts:
            request.error = error
            self._method(request).fail(request)
            return
        request.retried_without_drafts = True
        if request.speculation.combination.names:
            self._drafting.isolated.switch_off_all(request, error)
        self._method(request).start_over(request)
        self.memory.clear(request)


def _only_decodes(scheduled: Sequence[ScheduledRequest]) -> bool:
    return all(each.num_tokens == 1 for each in scheduled)
