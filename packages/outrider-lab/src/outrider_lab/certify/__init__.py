"""Tests that outputs are the target's own, for any model, source and verifier."""
