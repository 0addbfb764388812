"""The engine's state of a request, and the tokens that it emits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

from outrider.config import SamplingParams, SpeculationParams
from outrider.engine.read_plan import ReadPlan
from outrider.engine.request_state import Detokenizer, DraftState, FinishReason, OutputText, PromptReport, Ranked
from outrider.engine.stats import RequestStats, RequestTimes
from outrider.errors import OutriderError
from outrider.models.inputs import TEXT, InputSource
from outrider.verify.constraint import Constraint
from outrider.verify.distribution import Context, TargetRows, TokenView
from outrider.verify.draft import Draft, DraftReport, Verdict
from outrider.verify.logprobs import LogitsReport
from outrider.verify.noise import Noise, fresh_seed
from outrider.verify.verifiers import make_verifier
from outrider.verify.verifiers.base import DraftSampler, Verifier

ALONE = "alone-"  # begins the ``cache_salt`` of a request with whose rows no later one begins
PROMPT_LOGITS_COST = 4  # budget of a prompt token whose logits are requested

Origin = Literal["target", "accepted", "recovered", "bonus"]


@dataclass(frozen=True)
class StepOutput:
    """One token of one request, in order; a step may send several."""

    request_id: str
    token_id: int
    text: str  # the text that this token adds; may be empty, never half a character
    origin: Origin  # target: without a draft; accepted: a draft token; recovered, bonus: as in the literature
    source: str  # the draft source of an accepted token, else of the step's draft; "none" without a draft
    logprobs: Mapping[int, float] | None  # of this token and the requested number of alternatives
    finish_reason: FinishReason | None  # set on the last token
    acceptance_rate: float | None = None  # of all drafts of the request; set on the last token
    logits: LogitsReport | None = None  # of the row that it was chosen from, if the request reports logits
    draft: DraftReport | None = None  # the step's draft, set on the step's last token if the request reports drafts


class RowNeeds(Protocol):
    """The part of a decode method that the scheduler uses (``engine.decode_method``)."""

    def num_rows(self, request: Request) -> int:
        """The number of cache rows required for the next decision."""
        ...

    def draft_limit(self, request: Request) -> int:
        """Draft nodes worth proposing in this step."""
        ...

    def chunk(self, request: Request, most: int) -> int:
        """The pending rows of the next pass, at most ``most``."""
        ...


class DraftPace(Protocol):
    """The limits on growing drafts (``engine.drafting.rounds``)."""

    @property
    def seconds_left(self) -> float: ...

    def should_continue(self, request: Request, source: str, paths: Sequence[Sequence[float]]) -> bool: ...


_PROMPT_ROWS_PER_DRAFT_ROW = 100  # so that drafts of adaptive length delay the first token by a hundredth at most


@dataclass
class Request:
    """The engine's state of one request. It is also the ``RequestView`` of draft sources."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    speculation: SpeculationParams
    stop_ids: frozenset[int]  # end-of-text ids (unless ignored) and the request's own
    detokenizer: InitVar[Detokenizer | None] = None
    constraint: Constraint | None = None  # of a structured output
    prefix_leader: Request | None = None  # the first of n requests with the same prompt, whose cached rows are shared
    priority: int = 0  # lower runs first
    cache_salt: str = ""  # its domain: requests share cached prefixes and learned drafts only within a domain
    tenant: str = ""  # its owner: tenants share the machine fairly
    reports_drafts: bool = False
    reports_logits: bool = False
    input: InputSource = TEXT  # the target's input besides the tokens
    method: RowNeeds | None = None  # its ``DecodeMethod``; None: sampling

    tokens: list[int] = field(init=False)  # prompt, then committed output
    max_seq_len: int = 0  # the engine's, once queued
    num_computed_tokens: int = 0  # tokens in the cache, at most len(tokens) - 1; set by ``CacheMemory``
    weights: str = ""  # a digest of those that it runs with, if they have replaced those of the model's files
    checked_by: object = None  # the mark of the engine that has checked it
    slot: int | None = None
    is_arriving: bool = False  # whether saved rows are on their way into its slot
    read_plan: ReadPlan | None = None  # where its reading pauses, for a model with recurrent states; set on admission
    finish_reason: FinishReason | None = None
    error: OutriderError | None = None
    retried_without_drafts: bool = False  # whether it was read again after an error that a draft may have caused
    ranked: Ranked | None = None  # its rank among the outputs of a search
    pace: DraftPace | None = None  # the limits on its drafts, while an engine drafts for it
    stats: RequestStats = field(default_factory=RequestStats)
    times: RequestTimes = field(default_factory=RequestTimes)

    def __post_init__(self, detokenizer: Detokenizer | None) -> None:
        self.seed: int = fresh_seed() if self.params.seed is None else self.params.seed
        self.noise = Noise(self.seed)
        self.tokens = list(self.prompt)
        self.verifier: Verifier = make_verifier(self.speculation)
        self.stats.exact = self.verifier.exact
        self.stats.prompt_tokens = len(self.prompt)
        self.adaptive: bool = self.speculation.spec_length == "auto" and self.verifier.shares_noise
        """Whether the engine chooses the draft length: only if the output cannot depend on it."""
        self.drafts = DraftState(self.speculation, adaptive=self.adaptive)
        self.written = OutputText(detokenizer, tuple(self.params.stop))
        self.prompt_report = PromptReport(self.prompt, self.params)

    @property
    def prompt_length(self) -> int:
        return len(self.prompt)

    @property
    def output(self) -> Sequence[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def prefix_salt(self) -> str:
        """The key of cache sharing: requests share rows only if their domains and inputs are equal.

        An input's digest contains no NUL, so the first NUL separates it from the caller's salt.
        """
        return f"{self.input.digest}\0{self.cache_salt}"

    @property
    def is_alone(self) -> bool:
        """Whether no later request can share its rows."""
        return self.cache_salt.startswith(ALONE)

    @property
    def prefix_keys(self) -> Sequence[int]:
        """The tokens as keys of the prefix cache: equal keys and salts mean equal rows."""
        return self.tokens if self._prompt_keys is self.prompt else [*self._prompt_keys, *self.output]

    @cached_property
    def _prompt_keys(self) -> Sequence[int]:
        return self.input.keys(self.prompt)

    @property
    def context(self) -> Context:
        return Context(self.prompt, TokenView(self.tokens, len(self.prompt), len(self.tokens)))

    @property
    def text(self) -> str:
        return self.written.text

    @property
    def num_pending_tokens(self) -> int:
        """The number of tokens not in the cache yet: the prompt at first, then the last committed token."""
        rows = len(self.tokens) if self.method is None else self.method.num_rows(self)
        return rows - self.num_computed_tokens

    @property
    def depth_limit(self) -> int:
        """The most levels of a draft that leave room for the token after the accepted path."""
        room = self.max_seq_len - len(self.tokens) - 1
        left = self.params.max_tokens - self.stats.completion_tokens - 1
        return max(0, min(self.drafts.max_depth, room, left))

    def chunk(self, most: int) -> int:
        """The pending tokens of the next pass, at most ``most``; none while saved rows are on their way."""
        if self.is_arriving:
            return 0
        if self.read_plan is not None:
            most = self.read_plan.chunk(self.num_computed_tokens, most)
        return most if self.method is None else self.method.chunk(self, most)

    @property
    def draft_limit(self) -> int:
        """The most draft nodes that can be used in this step."""
        return self.path_draft_limit if self.method is None else self.method.draft_limit(self)

    @property
    def path_draft_limit(self) -> int:
        """The most draft nodes after the last token, each of which takes a cache row."""
        if self.drafts.resting or not self.drafts.has_sources:
            return 0
        room = max(0, self.max_seq_len - len(self.tokens) - 1)
        if self.adaptive and not self.output:
            room = min(room, self.num_pending_tokens // _PROMPT_ROWS_PER_DRAFT_ROW)
        if self.read_plan is not None:
            room = min(room, self.read_plan.max_drafts)
        return min(self.nodes_by(""), room)

    def nodes_by(self, source: str) -> int:
        """The most nodes of a source's draft in this step; "": over all of the request's sources."""
        return self.drafts.max_nodes(source, self.depth_limit)

    @property
    def seconds_left(self) -> float:
        """Seconds left for drafting in this step; infinite if no other tenant waits."""
        return math.inf if self.pace is None else self.pace.seconds_left

    @property
    def tokens_of_budget(self) -> int:
        """The budget that each pending token takes; more if its logits are requested, which cost work and memory."""
        return PROMPT_LOGITS_COST if self.prompt_report.wants_logprobs else 1

    def admitted(self) -> None:
        """Record the time of the first run, and the number of prompt tokens found in the cache."""
        if self.times.started is None:
            self.stats.cached_prompt_tokens = min(self.num_computed_tokens, len(self.prompt))
        self.times.start(self.stats)

    def should_continue(self, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """See ``RequestView.should_continue``."""
        return self.pace is None or self.pace.should_continue(self, source, paths)

    def draws(self) -> DraftSampler:
        v = self.verifier
        return DraftSampler(self.noise, len(self.tokens), v.shares_noise, v.siblings, v.takes_trees)

    def commit(self, draft: Draft, verdict: Verdict, p: TargetRows) -> list[StepOutput]:
        """Commit a step's accepted path and its last token, one by one, until the request ends."""
        self.times.count(self.stats)
        refused = (verdict.path[-1] if verdict.path else -1) in draft.parents
        last: Origin = "target" if not draft else ("recovered" if refused else "bonus")
        outputs: list[StepOutput] = []
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        reported: Sequence[Mapping[int, float] | None] = [None] * len(tokens)
        rows = [0, *(1 + node for node in verdict.path)]
        if self.params.logprobs is not None:
            reported = p.token_logprobs(rows, tokens, self.params.logprobs)
        seen = p.reports(rows, tokens) if self.reports_logits else [None] * len(tokens)
        for node, token, logprobs, logits in zip((*verdict.path, None), tokens, reported, seen, strict=True):
            text = self.append(token)
            origin, source = (last, draft.source) if node is None else ("accepted", draft.source_of(node))
            outputs.append(
                StepOutput(self.id, token, text, origin, source, logprobs, self.finish_reason, logits=logits)
            )
            if self.finish_reason is not None or node is None:
                break
        path = verdict.path[: sum(output.origin == "accepted" for output in outputs)]
        self.stats.count(draft, path)
        self.times.count(self.stats)
        if self.finish_reason is not None:
            outputs[-1] = replace(outputs[-1], acceptance_rate=self.stats.draft_acceptance_rate)
        if self.reports_drafts:
            report = DraftReport.of(draft, path, self.drafts.budget, self.drafts.num_proposed)
            outputs[-1] = replace(outputs[-1], draft=report)
        return outputs

    def append(self, token: int) -> str:
        """Append one output token, decide whether it is the last, and return the text that it adds.

        Before the request is queued, this adds tokens of an earlier run, after which the output continues.
        """
        self.tokens.append(token)
        count = self.stats.completion_tokens = len(self.tokens) - len(self.prompt)
        armed = count >= self.params.min_tokens
        shown = self.written.push(token, armed=armed)
        # Before min_tokens, a constraint allows a stop token only if its output is complete.
        ends = token in self.stop_ids and (armed or self.constraint is not None)
        if self.written.stop_string is not None or ends:
            self.finish_reason = "stop"
        elif count >= self.params.max_tokens or len(self.tokens) >= self.max_seq_len:
            self.finish_reason = "length"
        if self.finish_reason is not None and self.written.stop_string is None:
            shown += self.written.finish(armed=armed)
            if self.written.stop_string is not None:
                self.finish_reason = "stop"
        return shown
