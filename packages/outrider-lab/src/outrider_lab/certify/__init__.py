"""Is the output really what the target would have said? Evidence for any model, source and verifier."""
