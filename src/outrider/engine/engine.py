"""The engine: ``step`` is one run of the target for every running request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from outrider.cache.protocol import CacheSpec, KVCache
from outrider.config.sources import is_custom
from outrider.core.distribution import TargetRows, check_token_ids
from outrider.core.draft import Verdict
from outrider.drafters.api import Drafter, Outcome
from outrider.engine.adaptive.controller import Controller
from outrider.engine.adaptive.cost import calibrate
from outrider.engine.drafting.rounds import Drafting
from outrider.engine.memory import CacheMemory
from outrider.engine.request import Request, StepOutput
from outrider.engine.runner import Work, run_target
from outrider.engine.scheduler import Scheduler, Slice
from outrider.engine.stats import EngineStats
from outrider.errors import ConfigError, GrammarError, InvalidRequestError, NumericalError
from outrider.models.base import Model


@dataclass(frozen=True)
class _Rows:
    """What one run of the target said about one request."""

    p: TargetRows | None  # None: it still reads, and cannot decide
    layers: tuple[int, ...]  # whose features follow, side by side
    features: Tensor | None  # [count + len(draft), len(layers) * d]


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
        max_batched_tokens: int = 1024,
    ) -> None:
        """``vocab_size``: ids with a meaning; columns of the model's head beyond it are padding.

        ``kv_cache`` is made as ``cache`` says, unless it is given because a draft source works in it too.
        """
        self.max_seq_len = min(cache.max_seq_len, model.config.max_seq_len)
        self.vocab_size = min(vocab_size, model.config.vocab_size)
        self.cache = model.new_cache(cache) if kv_cache is None else kv_cache
        self.stats = EngineStats()
        self._model = model
        self._eos = tuple(token for token in eos_token_ids if token < self.vocab_size)
        self._controller = Controller(partial(calibrate, model))
        self._drafting = Drafting(drafters, self.vocab_size, self._controller)
        self.memory = CacheMemory(self.cache, self._drafting)
        self._scheduler: Scheduler[Request] = Scheduler(
            self.memory, max_batch_size=cache.slots, max_batched_tokens=max_batched_tokens
        )

    def add(self, request: Request) -> None:
        """Queue a request; raises what ``check`` raises."""
        self.check(request)
        request.max_seq_len = self.max_seq_len
        self._scheduler.add(request)

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
        if request.params.structured is not None and request.constraint is None:
            raise InvalidRequestError("a structured output needs its compiled grammar: use LLM", param="structured")
        for name in request.speculation.combination.names:
            if name not in self._drafting.sources:
                hint = " (name your own in extra_sources when the engine is made)" if is_custom(name) else ""
                raise ConfigError(
                    f"draft source {name!r} is not loaded: use one of {', '.join(self._drafting.sources)}{hint}"
                )

    def calibrate(self) -> None:
        """Measure what runs cost now, rather than when the first adaptive request drafts."""
        self._controller.calibrate()

    def abort(self, request_id: str) -> None:
        """Drop a request wherever it is and release what it holds; unknown ids are ignored."""
        request = self._scheduler.remove(request_id)
        if request is not None and request.slot is not None:
            self.memory.evict(request)

    @property
    def busy(self) -> bool:
        return bool(self._scheduler.waiting or self._scheduler.running)

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """One step. Returns the committed tokens, in order for each request.

        A request whose model output is not a number is read once more without drafts, and ends with
        ``request.error`` set if that does not help, as does one whose grammar breaks off; the others go on.
        """
        slices = self._schedule()
        works = self._draft(slices)
        rows = self._score(works)
        verdicts = self._verify(works, rows)
        return self._commit(works, rows, verdicts)

    def _schedule(self) -> list[Slice[Request]]:
        self.stats.begin(self._scheduler, self.memory)
        return self._scheduler.schedule()

    def _draft(self, slices: Sequence[Slice[Request]]) -> list[Work]:
        """Every request's part, with its draft; sources see all their requests at once."""
        self.stats.drafting()
        requests = [piece.job for piece in slices]
        rows = [piece.tokens for piece in slices]
        drafts = self._drafting.propose(requests, [piece.drafts for piece in slices], rows)
        self.stats.drafted()
        return [Work(piece.job, piece.tokens, draft) for piece, draft in zip(slices, drafts, strict=True)]

    def _score(self, works: Sequence[Work]) -> list[_Rows]:
        """One run of the target."""
        if not works:
            return []
        layers = self._drafting.feature_layers([work.request for work in works])
        scored = run_target(self._model, self.cache, works, layers)
        rows: list[_Rows] = []
        for work, result in zip(works, scored, strict=True):
            request, part = work.request, result.logits
            if request.wants_prompt_logprobs:
                request.add_prompt_logprobs(part[: work.count, : self.vocab_size])
                part = part[work.count - 1 :]
            p = TargetRows(
                part,
                request.params,
                request.context,
                work.draft,
                stop_ids=self._eos,
                vocab_size=self.vocab_size,
                constraint=request.constraint,
            )
            rows.append(_Rows(p if work.decides else None, layers, result.features))
        seconds = self.stats.scored()
        if all(work.count == 1 for work in works):
            self._controller.ran([work.request for work in works], [work.draft for work in works], seconds)
        return rows

    def _verify(self, works: Sequence[Work], rows: Sequence[_Rows]) -> list[Verdict | None]:
        """What each request keeps; None for one that still reads, or whose distribution cannot be drawn from."""
        verdicts: list[Verdict | None] = []
        for work, own in zip(works, rows, strict=True):
            verdict = None
            if own.p is not None:
                request = work.request
                try:
                    verdict = request.verifier(work.draft, own.p, request.noise, len(request.tokens))
                except (NumericalError, GrammarError) as error:
                    self._start_over(request, error)
            verdicts.append(verdict)
        return verdicts

    def _commit(
        self, works: Sequence[Work], rows: Sequence[_Rows], verdicts: Sequence[Verdict | None]
    ) -> list[StepOutput]:
        """Emit tokens, keep the accepted rows of the cache, and tell the sources what happened."""
        outputs: list[StepOutput] = []
        for work, own, verdict in zip(works, rows, verdicts, strict=True):
            request = work.request
            if own.p is None:
                request.cached += work.count
                self._hand_over(work, own, ())
            elif verdict is not None:
                outputs += self._emit(work, own.p, verdict)
                self._hand_over(work, own, verdict.path)
            if request.slot is not None and request.cached:
                self.cache.publish_prefix(request.slot, request.tokens[: request.cached], request.cache_salt)
            if request.finish_reason is not None or request.error is not None:
                self.abort(request.id)
        self.stats.end(len(outputs))
        return outputs

    def _emit(self, work: Work, p: TargetRows, verdict: Verdict) -> list[StepOutput]:
        """Commit one request's verdict to its tokens and to the cache."""
        request, base = work.request, len(work.request.tokens)
        outputs = request.commit(work.draft, verdict, p)
        self.stats.count(work.draft, accepted=sum(output.origin == "accepted" for output in outputs))
        assert request.slot is not None
        self.cache.keep_path(request.slot, base, [work.place[node] for node in verdict.path])
        request.cached = min(base + len(verdict.path), len(request.tokens) - 1)
        if request.finish_reason is None:
            self._drafting.observe(Outcome(request, work.draft, verdict, tuple(request.tokens[base:]), p), request)
        return outputs

    def _hand_over(self, work: Work, rows: _Rows, path: Sequence[int]) -> None:
        """Give sources that read features those of the tokens that are now committed and in the cache."""
        if rows.features is None or work.request.finish_reason is not None:
            return
        kept = rows.features[: work.count]
        if path:
            kept = torch.cat([kept, rows.features[[work.count + work.place[node] for node in path]]])
        self._drafting.read(work.request, work.request.cached - len(kept), kept, rows.layers)

    def _start_over(self, request: Request, error: NumericalError | GrammarError) -> None:
        """Empty a request's cache, to read it again without drafts; if that has been tried, the error is its own.

        A refused draft, of this request or of one that had the memory before, may have left NaN in the cache, which
        spreads even from rows that are masked. And an error behind an accepted path must not take the path with it.
        """
        if request.started_over:
            request.error = error
            return
        request.started_over = True
        if request.speculation.combination.names:
            self._drafting.switch_off(request, error)
        assert request.slot is not None
        self.cache.zero(request.slot)
        self.cache.truncate_to(request.slot, 0)
        request.cached = 0
