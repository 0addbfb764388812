"""The draft limits and counts of one request."""

from __future__ import annotations

from outrider.config import SpeculationParams
from outrider.verify.shapes import max_depth, max_nodes, nodes_by


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
