"""The replicas that Ray would route to, as this process knows them.

A module of its own: Ray pickles classes of routers by value, so only modules can hold state that they share.
"""

from __future__ import annotations

REPLICAS: dict[str, frozenset[str]] = {}
"""Ids, by application."""
