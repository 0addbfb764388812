"""Several replicas of one model behind one server: routing, resumption, shared statistics (docs/fleet.md)."""
