"""Several replicas of one model behind one server. See docs/fleet.md."""
