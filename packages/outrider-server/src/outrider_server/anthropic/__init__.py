"""Anthropic's Messages API, for its clients: the same service under other names."""
