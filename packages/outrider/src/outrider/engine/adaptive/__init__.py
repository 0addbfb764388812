"""How much is drafted: `policy` is the protocol, `controller` the adaptive one (docs/algorithms/adaptive.md)."""
