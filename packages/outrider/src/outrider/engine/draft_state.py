"""How much may be drafted for one request, and what was."""

from __future__ import annotations

from outrider.config import SpeculationParams
from outrider.verify.shapes import max_depth, max_nodes, nodes_by


class DraftState:
    """Of one request."""

    def __init__(self, speculation: SpeculationParams, *, adaptive: bool) -> None:
        self._speculation = speculation
        self.max_depth = max_depth(speculation, adaptive=adaptive)
        """Levels of a draft, at most."""
        self.disabled_sources: set[str] = set()
        """Draft sources that failed."""
        self.budget = 0
        """Nodes that the sources were asked for in this step."""
        self.num_proposed = 0
        """Nodes that they gave, before the policy chose among them."""
        self._nodes: dict[tuple[str, int], int] = {}  # of a draft by a source ("": whichever) with so many levels

    @property
    def has_sources(self) -> bool:
        """Whether any source is left to ask."""
        return not self.disabled_sources.issuperset(self._speculation.combination.names)

    def max_nodes(self, source: str, depth: int) -> int:
        """Nodes of a draft by a source with ``depth`` levels, at most; "": by whichever of the request's sources."""
        nodes = self._nodes.get((source, depth))
        if nodes is None:
            spec = self._speculation
            nodes = nodes_by(source, spec, depth) if source else max_nodes(spec, depth)
            self._nodes[source, depth] = nodes
        return nodes
