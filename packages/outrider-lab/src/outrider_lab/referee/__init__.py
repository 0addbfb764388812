"""A neutral test of any OpenAI-compatible server: whether drafts change its answers, and at what speed."""
