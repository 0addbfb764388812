"""The parts of a request's state: the text of its output, the limits on its drafts, and the report on its prompt.

A stop string cuts the text exactly, even inside an accepted draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams, SpeculationParams
from outrider.verify.arrays import Array, Floats, host
from outrider.verify.distribution import Context, log_weights
from outrider.verify.logprobs import TokenLogprobs
from outrider.verify.shapes import max_depth, max_nodes, nodes_by

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Ranked:
    """The rank of an output among those that a search found."""

    score: float
    sum_logprobs: float


class Detokenizer(Protocol):
    """Turns token ids into text without ever splitting a character."""

    def push(self, ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class StopStrings:
    """Passes text through until a stop string appears; holds back text that may be the start of one.

    ::

        stop = ("END",)    push("foo E") -> "foo "    push("N") -> ""    push("Dbar") -> "", found
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """The text that can be shown now; empty once a stop string is found.

        ``armed=False`` passes text unchecked, for output still shorter than ``min_tokens``.
        """
        if not self._stop or self.found is not None:
            return "" if self.found is not None else text
        if not armed:
            return text
        text = self._held + text
        hits = [(at, s) for s in self._stop if (at := text.find(s)) >= 0]
        if hits:
            at, self.found = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, at the end of the output."""
        text, self._held = self._held, ""
        return text


class OutputText:
    """The text of an output, extended token by token."""

    def __init__(self, detokenizer: Detokenizer | None, stop: Sequence[str]) -> None:
        """``detokenizer``: None for an output without text."""
        self.detokenizer, self.text = detokenizer, ""
        self._stop_strings = StopStrings(stop)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the output, or None."""
        return self._stop_strings.found

    def push(self, token: int, *, armed: bool) -> str:
        """The text that a token adds; ``armed``: whether a stop string ends the output."""
        return self._show("" if self.detokenizer is None else self.detokenizer.push([token]), armed=armed)

    def finish(self, *, armed: bool) -> str:
        """The text still held back at the end, which may complete a stop string."""
        shown = self._show("" if self.detokenizer is None else self.detokenizer.flush(), armed=armed)
        if self.stop_string is None:
            held = self._stop_strings.flush()
            self.text += held
            shown += held
        return shown

    def _show(self, text: str, *, armed: bool) -> str:
        shown = self._stop_strings.push(text, armed=armed)
        self.text += shown
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


class DraftState:
    """The limits on one request's drafts, and the counts of the current step."""

    def __init__(self, speculation: SpeculationParams, *, adaptive: bool) -> None:
        self._speculation = speculation
        self.max_depth = max_depth(speculation, adaptive=adaptive)
        """The most levels of a draft."""
        self.disabled_sources: set[str] = set()
        """Draft sources that failed."""
        self.budget = 0
        """Nodes requested of the sources in this step."""
        self.num_proposed = 0
        """Nodes that the sources proposed, before the policy's selection."""
        self.resting = False
        """No source is asked in the next step, so no room is looked for."""
        self._nodes: dict[tuple[str, int], int] = {}  # results of ``max_nodes``, by source and depth

    @property
    def has_sources(self) -> bool:
        """Whether any source is still enabled."""
        return not self.disabled_sources.issuperset(self._speculation.combination.names)

    def max_nodes(self, source: str, depth: int) -> int:
        """The most nodes of a source's draft with ``depth`` levels; "": over all of the request's sources."""
        nodes = self._nodes.get((source, depth))
        if nodes is None:
            spec = self._speculation
            nodes = nodes_by(source, spec, depth) if source else max_nodes(spec, depth)
            self._nodes[source, depth] = nodes
        return nodes


_LEAST = 1e-12  # lower bound of an embedding's norm, for a division


class PromptReport:
    """Filled chunk by chunk as a prompt is read. The embedding is the mean of the target's last hidden states."""

    def __init__(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._prompt, self._params = prompt, params
        self.logprobs = TokenLogprobs()
        """The log-probabilities of the prompt's tokens but the first."""
        self.final_norm: Callable[[Any], Any] | None = None
        """The target's final norm if the prompt's embedding is requested; else None."""
        self.hidden_sum: NDArray[np.float64] | None = None
        """float64 [d]: the sum of the hidden states of the tokens so far."""

    @property
    def wants_logprobs(self) -> bool:
        """Whether the rows not read yet need logits."""
        return self._params.prompt_logprobs is not None and len(self.logprobs) < len(self._prompt) - 1

    @property
    def wants_embedding(self) -> bool:
        return self.final_norm is not None

    def add_logits(self, start: int, logits: Array) -> None:
        """Add ``logits`` [count, vocab] after the prompt's tokens from ``start`` on.

        Raises ``NumericalError`` before any change.
        """
        known = len(self.logprobs) - start  # rows added before a preemption
        following = self._prompt[len(self.logprobs) + 1 : start + 1 + len(logits)]
        if following:
            rows = self._in_mode(logits[known : known + len(following)])
            self.logprobs.add(rows, following, self._params.prompt_logprobs or 0)

    def _in_mode(self, logits: Array) -> Array:
        """The rows whose log-probabilities ``logprobs_mode`` reports; ``logits`` follow those added so far."""
        if self._params.logprobs_mode == "raw_logprobs":
            return logits
        first = len(self.logprobs) + 1
        contexts = [Context(self._prompt[: first + i], ()) for i in range(len(logits))]
        options = self._params.untempered if self._params.greedy else self._params
        return log_weights(logits, [options] * len(logits), contexts)

    def add_features(self, start: int, features: Array, hidden_size: int) -> None:
        """Add ``features`` [count, layers * d] of the tokens from ``start`` on; the last layer's are the last columns.

        A prompt that is read again after a preemption restarts its sum. Sums are float64, so that the chunks of a
        prompt hardly matter.
        """
        last = features[: len(self._prompt) - start, -hidden_size:]
        if self.final_norm is None or len(last) == 0:
            return
        own = host(self.final_norm(last)).astype(np.float64).sum(0)
        self.hidden_sum = own if start == 0 or self.hidden_sum is None else self.hidden_sum + own

    def embedding(self) -> Floats:
        """The embedding of a prompt that has been read: float32 [d], of norm 1."""
        assert self.hidden_sum is not None, "no embedding was asked for"
        length = max(float(np.linalg.norm(self.hidden_sum)), _LEAST)
        return (self.hidden_sum / length).astype(np.float32)
