"""The protocol that runs a head's decoder layers for its drafter, natively for a native target, else in a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from outrider.cache import KVCache
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.models.batch import Span


class HeadRunner(Protocol):
    """Runs the layers over rows of any number of requests, and caches their keys and values.

    Arrays have the type of the target's arrays (NumPy, or the backend's tensors).
    """

    cache: KVCache
    vocabulary: DraftVocabulary | None  # the tokens that logits score; None: all of the target's

    def fuse(self, features: Any) -> Any:
        """Turn the target's features [n, layers * d] into the input of ``run``: [n, d]."""
        ...

    def run(
        self, features: Any, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Any = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """One forward pass over T rows. ``cache`` already has room for them.

        Args:
            features: float [T, d], ``fuse`` of the target's features, or earlier outputs.
            tokens: the token after each row's feature.
            positions: the position of each row's feature.
            spans: the rows' cache slots, in row order.
            logit_rows: the rows to score.
            added: float [T, d], added to the tokens' embeddings.

        Returns:
            outputs [T, d], and logits [len(logit_rows), vocab or draft vocab].
        """
        ...
