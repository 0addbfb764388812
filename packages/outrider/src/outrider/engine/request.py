"""A request on its way through the engine, and the events it sends back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams, SpeculationParams
from outrider.engine.stats import RequestStats
from outrider.engine.stopping import Detokenizer, FinishReason, StopStrings
from outrider.errors import OutriderError
from outrider.models.inputs import TEXT, InputSource
from outrider.verify.arrays import Array
from outrider.verify.constraint import Constraint
from outrider.verify.distribution import Context, Part, TargetRows
from outrider.verify.draft import Draft, DraftReport, Verdict
from outrider.verify.logprobs import TokenLogprobs
from outrider.verify.noise import Noise, fresh_seed
from outrider.verify.shapes import levels_wanted, nodes_by, nodes_wanted
from outrider.verify.verifiers import DraftSampler, Verifier, make_verifier

PROMPT_LOGITS_COST = 4  # tokens of a step's budget for one whose logits are wanted, though nothing is drawn from them

Origin = Literal["target", "accepted", "recovered", "bonus"]


@dataclass(frozen=True)
class StepOutput:
    """One token of one request, in order; a step may send several."""

    request_id: str
    token_id: int
    text: str  # what this token adds to the text; may be empty, never half a character
    origin: Origin  # target: nothing was drafted; accepted: by source; recovered, bonus: as in the literature
    source: str  # the draft source: of an accepted token its own, else of the draft; "none" without a draft
    logprobs: Mapping[int, float] | None  # of this token and the alternatives asked for
    finish_reason: FinishReason | None  # set on the last token
    acceptance_rate: float | None = None  # of all its drafts, on the last token
    draft: DraftReport | None = None  # of the whole step, on the step's last token, if the request reports drafts


class RowNeeds(Protocol):
    """What the scheduler asks a decode method about a request (``engine.decode_method``)."""

    def num_rows(self, request: Request) -> int:
        """Rows of the cache that are needed before the next decision."""
        ...

    def draft_limit(self, request: Request) -> int:
        """Draft nodes worth proposing in this step."""
        ...


@dataclass
class Request:
    """Everything the engine knows of one request. Also the ``RequestView`` that draft sources see."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    speculation: SpeculationParams
    stop_ids: frozenset[int]  # end-of-text ids (unless ignored) and the request's own
    detokenizer: Detokenizer | None = None
    constraint: Constraint | None = None  # of a structured output
    after: Request | None = None  # the first of n with the same prompt, to share what it has read
    priority: int = 0  # lower runs first
    cache_salt: str = ""  # its domain: only requests with the same one share cached prefixes, and learn from another
    tenant: str = ""  # whose it is: tenants share the machine fairly
    input: InputSource = TEXT  # what the target reads besides the tokens
    final_norm: Callable[[Any], Any] | None = None  # the target's, where the prompt's embedding is wanted
    method: RowNeeds | None = None  # its ``DecodeMethod``; None: its tokens are sampled
    noise: Noise = field(init=False)
    tokens: list[int] = field(init=False)  # prompt, then committed output
    max_seq_len: int = 0  # the engine's, once queued
    num_computed_tokens: int = 0  # whose keys and values are in the cache, at most len(tokens) - 1; ``CacheMemory``'s
    slot: int | None = None
    text: str = ""
    finish_reason: FinishReason | None = None
    error: OutriderError | None = None
    started_over: bool = False  # read again from the start, after an error that a draft may have caused
    stats: RequestStats = field(default_factory=RequestStats)
    started: float | None = None
    switched_off: set[str] = field(default_factory=set)  # draft sources that failed
    reports_drafts: bool = False
    seconds_left: float = math.inf  # for drafts in a step, where nobody waits (``engine.drafting.request_view``)
    draft_budget: int = 0  # of this step: nodes that the sources were asked for
    num_proposed_tokens: int = 0  # of this step: nodes that they gave, before the policy chose among them
    prompt_logprobs: TokenLogprobs = field(default_factory=TokenLogprobs)  # of the prompt's tokens but the first
    first_token: float | None = None
    hidden_sum: NDArray[np.float64] | None = None  # float64 [d], of the prompt's tokens so far
    sum_logprobs: float | None = None  # of an output that a beam search found
    score: float | None = None  # by which that ranked it

    def __post_init__(self) -> None:
        self.arrived = time.perf_counter()
        self.seed: int = fresh_seed() if self.params.seed is None else self.params.seed
        self.noise = Noise(self.seed)
        self.tokens = list(self.prompt)
        self.verifier: Verifier = make_verifier(self.speculation)
        self.stats.exact = self.verifier.exact
        self.stats.prompt_tokens = len(self.prompt)
        self._stop_strings = StopStrings(tuple(self.params.stop))
        self.adaptive: bool = self.speculation.spec_length == "auto" and self.verifier.shares_noise
        """Whether the engine chooses how much to draft: only where the output cannot depend on it."""
        self._levels_wanted = levels_wanted(self.speculation, adaptive=self.adaptive)
        self._nodes: dict[tuple[str, int], int] = {}  # of a draft by a source ("": whichever) with so many levels

    @property
    def prompt_length(self) -> int:
        return len(self.prompt)

    @property
    def output(self) -> Sequence[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def prefix_salt(self) -> str:
        """Only requests with the same one share rows of the cache: of one domain, and of equal inputs.

        No salt that a caller gives can look like another's input: its digest holds no NUL.
        """
        return f"{self.input.digest}\0{self.cache_salt}"

    @property
    def prefix_keys(self) -> Sequence[int]:
        """Its tokens as the cache compares them: equal keys, and salts, mean equal rows."""
        return self.tokens if self._prompt_keys is self.prompt else [*self._prompt_keys, *self.output]

    @cached_property
    def _prompt_keys(self) -> Sequence[int]:
        return self.input.keys(self.prompt)

    @property
    def context(self) -> Context:
        return Context(self.prompt, Part(self.tokens, len(self.prompt), len(self.tokens)))

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the output, if one did."""
        return self._stop_strings.found

    @property
    def num_pending_tokens(self) -> int:
        """Tokens not yet in the cache: the prompt at first, then the last committed token."""
        rows = len(self.tokens) if self.method is None else self.method.num_rows(self)
        return rows - self.num_computed_tokens

    @property
    def depth_limit(self) -> int:
        """Levels of a draft worth proposing: each must leave room for the token that follows the accepted path."""
        room = self.max_seq_len - len(self.tokens) - 1
        left = self.params.max_tokens - self.stats.completion_tokens - 1
        return max(0, min(self._levels_wanted, room, left))

    @property
    def draft_name(self) -> str:
        return self.speculation.draft

    @property
    def draft_limit(self) -> int:
        """Draft nodes worth proposing in this step."""
        return self.path_draft_limit if self.method is None else self.method.draft_limit(self)

    @property
    def path_draft_limit(self) -> int:
        """Draft nodes worth proposing behind the last token, all of which take a row of the cache."""
        if self.switched_off.issuperset(self.speculation.combination.names):
            return 0
        room = max(0, self.max_seq_len - len(self.tokens) - 1)
        return min(self.nodes_by(""), room)

    def nodes_by(self, source: str) -> int:
        """Nodes of a draft by a source in this step, at most; "": by whichever of its sources."""
        key = source, self.depth_limit
        nodes = self._nodes.get(key)
        if nodes is None:
            spec, depth = self.speculation, self.depth_limit
            nodes = self._nodes[key] = nodes_by(source, spec, depth) if source else nodes_wanted(spec, depth)
        return nodes

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.prompt) - 1

    @property
    def tokens_of_budget(self) -> int:
        """What each pending token takes of a step's budget: a row of logits is work and memory too."""
        return PROMPT_LOGITS_COST if self.wants_prompt_logprobs else 1

    def admitted(self) -> None:
        """Note when the request first ran, and how much of its prompt was already there."""
        if self.started is None:
            self.started = time.perf_counter()
            self.stats.queue_s = self.started - self.arrived
            self.stats.cached_prompt_tokens = min(self.num_computed_tokens, len(self.prompt))

    def add_prompt_logprobs(self, logits: Array) -> None:
        """``logits`` [count, vocab] after the prompt's tokens from ``num_computed_tokens`` on."""
        known = len(self.prompt_logprobs) - self.num_computed_tokens  # rows, after a preemption
        following = self.prompt[len(self.prompt_logprobs) + 1 : self.num_computed_tokens + 1 + len(logits)]
        if following:
            rows = logits[known : known + len(following)]
            self.prompt_logprobs.add(rows, following, self.params.prompt_logprobs or 0)

    def should_continue(self, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """Always: on its own a request has no policy for its length (``engine.drafting.request_view``)."""
        return True

    def draws(self) -> DraftSampler:
        v = self.verifier
        return DraftSampler(self.noise, len(self.tokens), v.shares_noise, v.siblings, v.takes_trees)

    def commit(self, draft: Draft, verdict: Verdict, p: TargetRows) -> list[StepOutput]:
        """Commit a step's accepted path and its last token, one by one, up to where the request ends."""
        now = time.perf_counter()
        if self.first_token is None:
            self.first_token = now
            self.stats.prefill_s = now - (self.started or now)
        refused = (verdict.path[-1] if verdict.path else -1) in draft.parents
        last: Origin = "target" if not draft else ("recovered" if refused else "bonus")
        outputs: list[StepOutput] = []
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        reported = self._logprobs(p, [0, *(1 + node for node in verdict.path)], tokens)
        for node, token, logprobs in zip((*verdict.path, None), tokens, reported, strict=True):
            text = self.append(token)
            origin, source = (last, draft.source) if node is None else ("accepted", draft.source_of(node))
            outputs.append(StepOutput(self.id, token, text, origin, source, logprobs, self.finish_reason))
            if self.finish_reason is not None or node is None:
                break
        path = verdict.path[: sum(output.origin == "accepted" for output in outputs)]
        self.stats.count(draft, path)
        self.stats.decode_s = time.perf_counter() - self.first_token
        if self.finish_reason is not None:
            outputs[-1] = replace(outputs[-1], acceptance_rate=self.stats.draft_acceptance_rate)
        if self.reports_drafts:
            report = DraftReport.of(draft, path, self.draft_budget, self.num_proposed_tokens)
            outputs[-1] = replace(outputs[-1], draft=report)
        return outputs

    def append(self, token: int) -> str:
        """Extend the output by one token, decide whether it is the last, and return the text it shows.

        Before a request is queued: a token of the output that it had elsewhere. It then goes on behind it.
        """
        self.tokens.append(token)
        count = self.stats.completion_tokens = len(self.tokens) - len(self.prompt)
        armed = count >= self.params.min_tokens
        text = "" if self.detokenizer is None else self.detokenizer.push([token])
        shown = self._stop_strings.push(text, armed=armed)
        # Before min_tokens a constraint lets a stop token through only where its output is complete.
        ends = token in self.stop_ids and (armed or self.constraint is not None)
        if self._stop_strings.found is not None or ends:
            self.finish_reason = "stop"
        elif count >= self.params.max_tokens or len(self.tokens) >= self.max_seq_len:
            self.finish_reason = "length"
        if self.finish_reason is not None and self._stop_strings.found is None:
            shown += self._held_back(armed)
        self.text += shown
        return shown

    def _held_back(self, armed: bool) -> str:
        """The text still held back at the end, which may yet complete a stop string."""
        text = "" if self.detokenizer is None else self.detokenizer.flush()
        shown = self._stop_strings.push(text, armed=armed)
        if self._stop_strings.found is not None:
            self.finish_reason = "stop"
            return shown
        return shown + self._stop_strings.flush()

    def _logprobs(
        self, p: TargetRows, rows: Sequence[int], tokens: Sequence[int]
    ) -> Sequence[Mapping[int, float] | None]:
        """Log-probabilities of tokens, and of the likeliest ones, at the rows of p that decided them, if asked for."""
        if self.params.logprobs is None:
            return [None] * len(tokens)
        return p.token_logprobs(rows, tokens, self.params.logprobs)
