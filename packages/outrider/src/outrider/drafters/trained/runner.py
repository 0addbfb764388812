"""What runs a head's decoder layers for its drafter: the native library where its target is, else a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from outrider.cache import KVCache
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.models.batch import Span

__all__ = ["HeadRunner"]


class HeadRunner(Protocol):
    """Runs the layers over rows of any number of requests, and keeps their keys and values.

    Arrays are of the target's kind.
    """

    cache: KVCache
    vocabulary: DraftVocabulary | None  # which tokens logits are of; None: all of the target's

    def fuse(self, features: Any) -> Any:
        """The target's features [n, layers * d], as it hands them out, as ``run`` takes them: [n, d]."""
        ...

    def run(
        self, features: Any, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Any = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """One forward pass, for whose rows ``cache`` has made room.

        Args:
            features: float [T, d], ``fuse`` of the target's features, or earlier outputs.
            tokens: of each row, the one that follows its feature.
            positions: of each row's feature.
            spans: in the order of the rows.
            logit_rows: which rows are scored.
            added: float [T, d], to the tokens' embeddings.

        Returns:
            outputs a_t [T, d], and logits [len(logit_rows), vocab or draft vocab].
        """
        ...
