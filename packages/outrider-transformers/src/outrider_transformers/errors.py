"""What the bridge says to itself."""

from __future__ import annotations


class NotBridgedError(Exception):
    """A model does something that this way of running it cannot follow; another way is tried, or it is refused."""
