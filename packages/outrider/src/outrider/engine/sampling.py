"""Sampling, the built-in decode method: a verifier accepts a path of the draft and adds one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.drafters.api import Outcome
from outrider.engine.decode_method import DecodeMethod, EngineParts
from outrider.engine.request import Request, StepOutput
from outrider.engine.runner import ScheduledRequest, TargetOutput
from outrider.engine.schedule import ScheduledTokens
from outrider.verify.distribution import TargetRows
from outrider.verify.draft import Verdict


@dataclass(frozen=True)
class Decision:
    """The verdict for one request, and the target distribution it came from."""

    verdict: Verdict
    p: TargetRows


class Sampling(DecodeMethod):
    """Decodes all requests without another method. Greedy decoding is sampling from a one-hot ``p``."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts

    def schedule(self, part: ScheduledTokens[Request]) -> None:
        """The engine drafts for all sampled requests at once."""

    def decide(self, scheduled: ScheduledRequest, output: TargetOutput) -> Decision:
        request = scheduled.request
        p = TargetRows(
            output.logits,
            request.params,
            request.context,
            scheduled.draft,
            stop_ids=self._parts.stop_ids,
            vocab_size=self._parts.vocab_size,
            constraint=request.constraint,
            first=output.first,
            largest=output.largest,
        )
        return Decision(request.verifier(scheduled.draft, p, request.noise, len(request.tokens)), p)

    def commit(self, scheduled: ScheduledRequest, output: TargetOutput, decision: Decision | None) -> list[StepOutput]:
        request, parts = scheduled.request, self._parts
        if output.prompt_logits is not None:
            request.prompt_report.add_logits(request.num_computed_tokens, output.prompt_logits[:, : parts.vocab_size])
        if output.features is not None and request.num_computed_tokens < request.prompt_length:
            read = output.features[: scheduled.num_tokens]
            request.prompt_report.add_features(request.num_computed_tokens, read, parts.config.hidden_size)
        emitted: list[StepOutput] = []
        if decision is None:
            parts.memory.keep(request, scheduled.num_tokens)
        else:
            emitted = self._emit(scheduled, decision)
        path: Sequence[int] = ()
        if decision is not None:  # of the path, the rows that stay: a request may end on it
            path = decision.verdict.path[: max(0, request.num_computed_tokens - len(request.tokens) + len(emitted))]
        self._forward_features(scheduled, output, path)
        return emitted

    def _emit(self, scheduled: ScheduledRequest, decision: Decision) -> list[StepOutput]:
        """Commit one request's decision to its tokens and to the cache."""
        request, draft, verdict = scheduled.request, scheduled.draft, decision.verdict
        base = len(request.tokens)
        emitted = request.commit(draft, verdict, decision.p)
        self._parts.stats.count(draft, accepted=sum(output.origin == "accepted" for output in emitted))
        self._parts.memory.keep_path(request, base, scheduled.pack_path(verdict.path))
        outcome = Outcome(request, draft, verdict, tuple(request.tokens[base:]), decision.p)
        self._parts.drafting.observe(outcome, request)
        return emitted

    def _forward_features(self, scheduled: ScheduledRequest, output: TargetOutput, path: Sequence[int]) -> None:
        """Pass the features of committed, cached tokens to drafters that read features."""
        request, count = scheduled.request, scheduled.num_tokens
        if output.features is None:
            return
        kept = output.features[:count]
        if path:
            kept = output.features[[*range(count), *(count + index for index in scheduled.pack_path(path))]]
        start = request.num_computed_tokens - len(kept)
        self._parts.drafting.features.forward(request, start, kept, output.feature_layers)
