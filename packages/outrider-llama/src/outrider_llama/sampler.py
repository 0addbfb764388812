"""The sampler chain of llama-cpp-python on a row of logits, in its order.

    logits_processor, logit_bias ─ penalties ─ grammar ─ top-k ─ typical ─ top-p ─ min-p ─ temperature ─ draw

The engine applies the temperature and draws; all steps before it are a ``RowConstraint`` of the request. Outrider's own
order is another one: there, temperature comes before top-k, top-p and min-p.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outrider.errors import InvalidRequestError
from outrider.verify.constraint import Constraint
from outrider.verify.noise import largest
from outrider_llama.llama_grammar import LlamaGrammar
from outrider_llama.processors import LogitsProcessor

Row = NDArray[np.float32]  # [vocab]


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """The sampling options of one call, with the defaults of llama-cpp-python.

    Raises:
        InvalidRequestError: an option would change the output in a way that is not supported.
    """

    temp: float = 0.8
    """0 is greedy; below 0, nothing is truncated and the temperature is 1."""
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    tfs_z: float = 1.0
    mirostat_mode: int = 0
    penalize_nl: bool = True
    last_n: int = 64
    """Generated tokens that penalties look back at."""
    logits_processor: Sequence[LogitsProcessor] | None = None
    logit_bias: Mapping[int, float] | None = None
    grammar: LlamaGrammar | None = None

    def __post_init__(self) -> None:
        if self.mirostat_mode and self.temp > 0:
            _refuse("mirostat_mode", self.mirostat_mode, "mirostat is not supported: use 0, with top_p or min_p")
        if self.tfs_z != 1.0:
            _refuse("tfs_z", self.tfs_z, "llama.cpp has no tail-free sampling any more, and ignores it: use 1.0")
        if not self.penalize_nl:
            _refuse("penalize_nl", False, "llama.cpp penalises line ends as other tokens, and ignores it: use True")
        if self.grammar is not None and not isinstance(self.grammar, LlamaGrammar):
            _refuse("grammar", self.grammar, "use LlamaGrammar.from_string")

    @classmethod
    def of(cls, arguments: Mapping[str, Any], **more: Any) -> Self:
        """The sampler of a call, from its arguments by name (its ``locals()``), with others among them."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in arguments.items() if name in names}, **more)

    @property
    def engine_temperature(self) -> float:
        """The temperature that remains for the engine."""
        return 1.0 if self.temp < 0 else self.temp

    @property
    def truncates(self) -> bool:
        """Whether the chain drops unlikely tokens: not where it is greedy or draws from the whole row."""
        return self.temp > 0 and (self.top_k > 0 or self.typical_p < 1 or self.top_p < 1 or self.min_p > 0)

    @property
    def penalises(self) -> bool:
        changed = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)
        return changed and self.last_n > 0

    @property
    def changes_rows(self) -> bool:
        """Whether anything but a grammar and the temperature acts."""
        return bool(self.truncates or self.penalises or self.logit_bias or self.logits_processor)

    @cached_property
    def bias(self) -> tuple[NDArray[np.int64], Row]:
        """Token ids and their biases."""
        pairs = {int(token): float(value) for token, value in (self.logit_bias or {}).items()}
        return np.array(list(pairs), np.int64), np.array(list(pairs.values()), np.float32)


class SampledRows:
    """The chain of one request as its constraint (``outrider.verify.constraint.RowConstraint``).

    A pure function of the output and its row, as far as the caller's processors are.
    """

    def __init__(
        self,
        sampler: Sampler,
        vocab_size: int,
        prompt: Sequence[int],
        grammar: Constraint | None,
        earlier: Sequence[int] = (),
    ) -> None:
        """``earlier``: tokens of the prompt that were generated, for penalties."""
        self._sampler, self._grammar, self._prompt, self._earlier = sampler, grammar, prompt, earlier
        self._all = np.ones(vocab_size, np.bool_)
        self.row: Row | None = None
        """A copy of the last row that was read, before anything acted on it."""

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        """The grammar's mask; with a processor, which sees rows before the grammar, all tokens."""
        allowed = self._all if self._grammar is None else self._grammar.mask(output)
        return allowed if allowed is None or not self._sampler.logits_processor else self._all

    def forbid_(self, logits: Row, output: Sequence[int]) -> None:
        """Apply the chain in place, up to the temperature: float32 [vocab]."""
        sampler = self._sampler
        self.row = logits.copy()
        if sampler.logits_processor:
            seen = np.array([*self._prompt, *output], np.intc)
            for processor in sampler.logits_processor:
                logits[:] = processor(seen, logits)
        tokens, bias = sampler.bias
        logits[tokens] += bias
        if sampler.penalises:
            penalise_(logits, sampler, [*self._earlier, *output][-sampler.last_n :])
        if sampler.logits_processor and self._grammar is not None:
            allowed = self._grammar.mask(output)
            if allowed is not None:
                logits[: len(allowed)][~allowed[: len(logits)]] = -np.inf
        if sampler.truncates:
            truncate_(logits, sampler)


def penalise_(logits: Row, sampler: Sampler, recent: Sequence[int]) -> None:
    """Apply repeat, frequency and presence penalties for ``recent`` tokens, in place on float32 [vocab]."""
    counts = Counter(recent)
    tokens = np.fromiter(counts, np.int64, len(counts))
    times = np.fromiter(counts.values(), np.float32, len(counts))
    found, penalty = logits[tokens], np.float32(sampler.repeat_penalty)
    found = np.where(found <= 0, found * penalty, found / penalty)
    logits[tokens] = found - times * np.float32(sampler.frequency_penalty) - np.float32(sampler.presence_penalty)


def truncate_(logits: Row, sampler: Sampler) -> None:
    """Keep the tokens that top-k, typical, top-p and min-p leave, in place; all others become -inf."""
    tokens = largest(logits, min(sampler.top_k, len(logits)) if sampler.top_k > 0 else len(logits))  # best first
    if sampler.typical_p < 1:
        tokens = _typical(logits, tokens, sampler.typical_p)
    if sampler.top_p < 1:
        held = np.cumsum(_probabilities(logits[tokens]))
        tokens = tokens[: int(np.searchsorted(held, sampler.top_p)) + 1]
    if sampler.min_p > 0 and len(tokens):
        kept = logits[tokens]
        tokens = tokens[kept >= kept[0] + np.log(sampler.min_p)]
    kept = logits[tokens]
    logits.fill(-np.inf)
    logits[tokens] = kept


def _typical(logits: Row, tokens: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """The tokens whose surprise is nearest to the entropy, best first (Meister et al. 2022, locally typical)."""
    p = _probabilities(logits[tokens])
    surprise = -np.log(p)
    order = np.argsort(np.abs(surprise - (p * surprise).sum()), kind="stable")
    last = int(np.searchsorted(np.cumsum(p[order]), share, side="right"))
    return tokens[np.sort(order[: last + 1])]


def _probabilities(logits: Row) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp((logits - logits.max()).astype(np.float64))
    normalised: NDArray[np.float64] = weights / weights.sum()
    return normalised


def _refuse(name: str, value: object, remedy: str) -> None:
    raise InvalidRequestError(f"{name}={value!r} cannot be used: {remedy}", param=name)
