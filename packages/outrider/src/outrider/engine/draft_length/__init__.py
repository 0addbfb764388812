"""How much is drafted: ``policy`` asks, ``adaptive`` answers (docs/algorithms/adaptive.md)."""
