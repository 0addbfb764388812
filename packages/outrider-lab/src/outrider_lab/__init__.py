"""The laboratory: predicted gains of speculation, measured gains, and proofs that outputs stay the same."""
