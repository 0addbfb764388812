"""The engine: ``step`` is one run of the target for every running request."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import torch

from outrider.core.distribution import TargetRows, check_token_ids
from outrider.core.draft import EMPTY, Draft, Verdict
from outrider.drafters.base import Drafter, Outcome
from outrider.engine.drafting import Drafting
from outrider.engine.request import Request, StepOutput
from outrider.engine.runner import run_target
from outrider.errors import ConfigError, InvalidRequestError, NumericalError
from outrider.models.base import Model

PROMPT_CHUNK = 512  # prompt tokens one run reads at most


class Engine:
    """Runs requests to their end. Plain decoding is the same step with an empty draft."""

    def __init__(
        self,
        model: Model,
        *,
        drafters: Mapping[str, Drafter],
        eos_token_ids: Sequence[int],
        vocab_size: int,
        slots: int = 1,
    ) -> None:
        """``vocab_size``: ids with a meaning; columns of the model's head beyond it are padding."""
        self.max_seq_len = model.config.max_seq_len
        self.vocab_size = min(vocab_size, model.config.vocab_size)
        self.cache = model.new_cache(slots, self.max_seq_len)
        self._model = model
        self._drafting = Drafting(drafters, self.vocab_size)
        self._eos = tuple(token for token in eos_token_ids if token < self.vocab_size)
        self._slots = slots
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request; raises what ``check`` raises."""
        self.check(request)
        self._waiting.append(request)

    def check(self, request: Request) -> None:
        """Refuse what cannot be served.

        Raises:
            InvalidRequestError: its prompt is empty or too long, or it names tokens the model does not have.
            ConfigError: its draft source is not loaded.
        """
        if not request.prompt:
            raise InvalidRequestError("the prompt is empty: give at least one token", param="prompt")
        if len(request.prompt) >= self.max_seq_len:
            raise InvalidRequestError(
                f"the prompt has {len(request.prompt)} tokens, but the context holds {self.max_seq_len} and one must "
                "be left to generate: shorten the prompt",
                param="prompt",
            )
        for token in request.prompt:
            if not 0 <= token < self.vocab_size:
                raise InvalidRequestError(
                    f"the prompt names token {token}, but the vocabulary ends at {self.vocab_size - 1}", param="prompt"
                )
        check_token_ids(request.params, self.vocab_size)
        if request.speculation.draft not in self._drafting.sources:
            raise ConfigError(
                f"draft source {request.speculation.draft!r} is not loaded: "
                f"use one of {', '.join(self._drafting.sources)}"
            )

    def abort(self, request_id: str) -> None:
        """Drop a request wherever it is and release what it holds; unknown ids are ignored."""
        self._waiting = deque(r for r in self._waiting if r.id != request_id)
        for request in [r for r in self._running if r.id == request_id]:
            self._retire(request)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """One step of every running request. Returns the committed tokens, in order for each request.

        A request whose model output is not a number is read once more without drafts, and ends with
        ``request.error`` set if that does not help; the others go on.
        """
        requests = self._schedule()
        drafts = self._draft(requests)
        rows = self._score(requests, drafts)
        verdicts = self._verify(requests, drafts, rows)
        return self._commit(requests, drafts, rows, verdicts)

    def _schedule(self) -> list[Request]:
        """Admit waiting requests while slots last, and read prompts up to their last chunk."""
        while self._waiting and len(self._running) < self._slots:
            request = self._waiting.popleft()
            request.slot = self.cache.allocate()
            request.started = time.perf_counter()
            self._running.append(request)
            self._drafting.start(request)
        for request in self._running:
            while request.pending > PROMPT_CHUNK:
                run_target(self._model, self.cache, [request], [EMPTY], [PROMPT_CHUNK])
                request.cached += PROMPT_CHUNK
        return list(self._running)

    def _draft(self, requests: Sequence[Request]) -> list[Draft]:
        return self._drafting.propose(requests, [self._budget(request) for request in requests])

    def _score(self, requests: Sequence[Request], drafts: Sequence[Draft]) -> list[TargetRows]:
        """One run of the target over last tokens and drafts: the rows of ``p`` for each request."""
        if not requests:
            return []
        logits = run_target(self._model, self.cache, requests, drafts, [r.pending for r in requests])
        parts = logits.split([1 + len(draft) for draft in drafts])
        return [
            TargetRows(part, r.params, r.context, draft, stop_ids=self._eos, vocab_size=self.vocab_size)
            for r, draft, part in zip(requests, drafts, parts, strict=True)
        ]

    def _verify(
        self, requests: Sequence[Request], drafts: Sequence[Draft], rows: Sequence[TargetRows]
    ) -> list[Verdict | None]:
        """What each request keeps; None for one whose distribution cannot be drawn from (yet)."""
        verdicts: list[Verdict | None] = []
        for request, draft, p in zip(requests, drafts, rows, strict=True):
            try:
                verdicts.append(request.verifier(draft, p, request.noise, len(request.tokens)))
            except NumericalError as error:
                if not self._start_over(request, error):
                    request.fail(error)
                verdicts.append(None)
        return verdicts

    def _commit(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        rows: Sequence[TargetRows],
        verdicts: Sequence[Verdict | None],
    ) -> list[StepOutput]:
        """Emit tokens, keep the accepted rows of the cache, and tell the sources what happened."""
        outputs: list[StepOutput] = []
        for request, draft, p, verdict in zip(requests, drafts, rows, verdicts, strict=True):
            if verdict is None:
                if request.error is not None:
                    self._retire(request)
                continue
            base = len(request.tokens)
            outputs += request.commit(draft, verdict, p, self.max_seq_len)
            assert request.slot is not None
            self.cache.keep_path(request.slot, base, verdict.path)
            request.cached = base + len(verdict.path)
            if request.finish_reason is not None:
                self._retire(request)
            else:
                committed = tuple(request.tokens[base:])
                self._drafting.observe(Outcome(request, draft, verdict, committed), request)
        return outputs

    def _start_over(self, request: Request, error: NumericalError) -> bool:
        """Empty a request's cache, to read it again without drafts; False if that has been tried.

        A refused draft, of this request or of one that had the slot before, may have left NaN in the cache, which
        spreads even from rows that are masked. If the error comes again it is the request's own.
        """
        if request.started_over:
            return False
        request.started_over = True
        if request.speculation.draft != "none":
            self._drafting.switch_off(request, error)
        assert request.slot is not None
        self.cache.scrub(request.slot)
        self.cache.truncate_to(request.slot, 0)
        request.cached = 0
        return True

    def _budget(self, request: Request) -> int:
        """Draft tokens worth proposing: each must leave room for the token that follows the accepted path."""
        room = self.max_seq_len - len(request.tokens) - 1
        left = request.params.max_tokens - request.stats.completion_tokens - 1
        return min(request.speculation.spec_length, room, left)

    def _retire(self, request: Request) -> None:
        self._running.remove(request)
        self._drafting.finish(request)
        assert request.slot is not None
        if request.error is not None:
            self.cache.scrub(request.slot)
        self.cache.free(request.slot)
        request.slot = None
