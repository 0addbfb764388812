"""Connections on which no request runs: they give way when there are too many."""

from __future__ import annotations

import asyncio


class IdleConnections:
    """Transports that wait for their client to send, by the client's address, oldest first."""

    def __init__(self) -> None:
        self._by_peer: dict[str, dict[asyncio.Transport, None]] = {}
        self._peers: dict[asyncio.Transport, str] = {}

    def add(self, transport: asyncio.Transport, peer: str) -> None:
        """Begins anew for one that waits already."""
        self.remove(transport)
        self._by_peer.setdefault(peer, {})[transport] = None
        self._peers[transport] = peer

    def remove(self, transport: asyncio.Transport) -> None:
        """Does nothing for one that does not wait."""
        peer = self._peers.pop(transport, None)
        if peer is None:
            return
        del self._by_peer[peer][transport]
        if not self._by_peer[peer]:
            del self._by_peer[peer]

    def disconnect_one(self) -> bool:
        """End the oldest connection of the client that has most of them; False if none waits."""
        if not self._by_peer:
            return False
        peer = max(self._by_peer, key=lambda peer: len(self._by_peer[peer]))
        transport = next(iter(self._by_peer[peer]))
        self.remove(transport)
        transport.close()
        return True
