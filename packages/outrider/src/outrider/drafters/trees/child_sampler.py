"""From a draft model's logits to the children of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.drafters.api import RequestView
from outrider.drafters.heads.calibration import Calibration, calibrated
from outrider.drafters.trees.builders import Choices, TreeBuilder, tokens_to
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.drafters.trees.ranking import most_likely, most_likely_of_each
from outrider.errors import GrammarError
from outrider.verify.arrays import Array, host
from outrider.verify.distribution import Context, log_weights
from outrider.verify.logits_processors import changes_logits
from outrider.verify.native import clipped_temperature


def draft_params(request: RequestView) -> SamplingParams:
    """The sampling options for the draft model: the request's, at ``draft_temperature`` if that is given."""
    temperature = request.speculation.draft_temperature
    return request.params if temperature is None else replace(request.params, temperature=temperature)


@dataclass(frozen=True)
class GumbelArgmax:
    """Chooses the one token of a level from its logits alone: the arg-max of log-weights + noise.

    ``params``: how logits become log-weights. ``keys``: from a depth to its noise's keys; None: no noise.
    """

    params: SamplingParams
    keys: Callable[[int], bytes] | None


class ChildSampler:
    """Chooses a node's children from draft logits as the request's verifier requires.

    ============================  ==========================================================  ======================
    request                       children of a node                                          scores
    ============================  ==========================================================  ======================
    greedy                        the most likely tokens                                      softmax of the logits
    sampled, shared noise         the best of the race the target will hold: log-weights      softmax of log-weights
                                  plus the position's noise (Gumbel-top-k)                    plus noise
    sampled, other, static tree   drawn as ``DraftSampler.siblings`` says, with ``q_logits``
    sampled, other, dynamic tree  the most likely tokens, as one-hot drafts                   softmax of log-weights
    ============================  ==========================================================  ======================

    In the first two rows, the scored values are those of which the target takes the arg-max if its logits equal the
    draft's. Their softmax is the probability that each token wins if the target's logits differ by Gumbel noise of
    scale 1.
    """

    def __init__(
        self,
        request: RequestView,
        *,
        ranks: bool,
        vocab_size: int,
        vocabulary: DraftVocabulary | None = None,
        calibration: Calibration = (),
    ) -> None:
        """``vocabulary``: the tokens that the logits score; None: all of the target's.

        ``calibration``: of the scores of greedy requests; other scores stay.
        """
        self._params = draft_params(request)
        self._draws = request.draws()
        self._by_likelihood = self._params.greedy or (ranks and not self._draws.shares_noise)
        self._vocab_size, self._vocabulary = vocab_size, vocabulary
        self._constraint = request.constraint
        self._calibration = calibration if self._params.greedy and request.params.greedy else ()
        self._request = request

    def __call__(self, logits: Array, path: Sequence[int], count: int, key: int) -> Choices:
        """Up to ``count`` children of the node at the end of ``path``, from its logits [vocab]."""
        tokens, split = self._request.tokens, self._request.prompt_length
        context = Context(tokens[:split], [*tokens[split:], *path])
        try:
            row = log_weights(
                logits[None],
                [self._ranking_params],
                [context],
                vocab_size=self._vocab_size,
                constraint=self._constraint,
            )[0]
        except GrammarError:  # raised again when the request itself reaches this token; other requests continue
            return Choices(())
        depth = len(path)
        if self._by_likelihood:
            return most_likely(row, count)
        if self._draws.shares_noise:
            return most_likely(row + self._draws.race_noise(len(row), depth=depth), count)
        drawn = self._draws.siblings(row, count, depth=depth, node=key)
        return Choices(drawn.tokens, q_logits=drawn.rows)

    def level(self, tree: TreeBuilder, logits: Array) -> list[Choices]:
        """The choices of every frontier node of a tree, from the nodes' logits [frontier, vocab]."""
        found = self._at_once(tree, logits) if self._alike else None
        if found is None:
            rows = host(logits)
            if self._vocabulary is not None:
                rows = self._vocabulary.full(rows)
            found = [
                self(row, tokens_to(tree, node), tree.width(node), tree.key(node))
                for node, row in zip(tree.frontier, rows, strict=True)
            ]
        return self._calibrated(found, len(tokens_to(tree, tree.frontier[0]))) if self._calibration else found

    def _calibrated(self, found: Sequence[Choices], depth: int) -> list[Choices]:
        """The choices at a depth with calibrated scores; tokens and ``q_logits`` stay."""
        worth = calibrated([each.scores for each in found], self._calibration, depth)
        return [replace(each, scores=scores) for each, scores in zip(found, worth, strict=True)]

    @cached_property
    def _ranking_params(self) -> SamplingParams:
        """The options for ranking. A greedy request ranks by the plain logits: its one-hot rows have one token."""
        if not self._params.greedy:
            return self._params
        return replace(self._params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)

    @cached_property
    def _alike(self) -> bool:
        """Whether the rows of a depth differ in logits only, so that all can be ranked in one call."""
        p = self._params
        return self._by_logits and (p.greedy or (p.top_k == 0 and p.top_p == 1.0 and p.min_p == 0.0))

    @cached_property
    def _by_logits(self) -> bool:
        """Whether a row's choices depend on its logits, its depth and the request's options alone."""
        length = len(self._request.tokens) - self._request.prompt_length
        known = self._vocabulary is None or self._vocabulary.largest < self._vocab_size
        plain = known and self._constraint is None and not changes_logits(self._params, length)
        return plain and (self._by_likelihood or self._draws.shares_noise)

    def _at_once(self, tree: TreeBuilder, logits: Array) -> list[Choices] | None:
        """``__call__`` for all frontier nodes in one call: the same choices, or None if a row is not finite."""
        counts = [tree.width(node) for node in tree.frontier]
        x = host(logits)
        same = len(x) > 1 and x.strides[0] == 0  # one row, broadcast
        x = x[:1] if same else x
        if self._vocabulary is None:
            x = x[:, : self._vocab_size]
        noise = self._noise(len(tokens_to(tree, tree.frontier[0])), x.shape[1])
        temperature = self._temperature
        ids = None if self._vocabulary is None else self._vocabulary.columns
        found = most_likely_of_each(x, max(counts), temperature, noise=noise, ids=ids)
        if found is None:
            return None
        if same:
            found *= len(counts)
        return [Choices(tokens[:count], scores[:count]) for count, (tokens, scores) in zip(counts, found, strict=True)]

    def race(self, columns: int) -> GumbelArgmax | None:
        """The rule for every level, given the number of columns of the logits; None if a level needs other inputs."""
        if not self._by_logits or (self._vocabulary is None and columns != self._vocab_size):
            return None
        return GumbelArgmax(self._ranking_params, None if self._by_likelihood else self._draws.race_keys)

    def winner(self, depth: int, token: int, score: float) -> Choices:
        """The choices at a depth where the rule of ``race`` took ``token``, with its log-probability ``score``."""
        found = [Choices([token], [score])]
        return (self._calibrated(found, depth) if self._calibration else found)[0]

    @property
    def _temperature(self) -> float:
        return 1.0 if self._params.greedy else float(clipped_temperature(self._params))

    def _noise(self, depth: int, columns: int) -> NDArray[np.float32] | None:
        """The noise at a depth for the columns of the logits; None if children are ranked by likelihood."""
        if self._by_likelihood:
            return None
        return self._draws.race_noise(columns if self._vocabulary is None else self._vocabulary.columns, depth=depth)
