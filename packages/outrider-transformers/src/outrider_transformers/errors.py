"""Internal errors of the bridge."""

from __future__ import annotations


class NotBridgedError(Exception):
    """A model is incompatible with this way of running it; another way is tried, or the model is refused."""
