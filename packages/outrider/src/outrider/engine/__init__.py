"""One step after another for all requests: schedule, draft, score, verify, commit."""
