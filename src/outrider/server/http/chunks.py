"""How many chunks a body may come in.

Reading a chunk costs some ten microseconds on the event loop, however little is in it: a packet of 256 KB that holds
bytes one by one would stop the loop for half a second, and a body of 8 MB for a minute and a half.
"""

from __future__ import annotations

from typing import Any

import h11

FREE_CHUNKS = 2048  # of a body, whatever is in them
CHUNK_BYTES = 128  # that the others hold on average, at least


class BoundedConnection(h11.Connection):
    """The server's end of a connection; more chunks than a body can need are an error of the client."""

    def __init__(self, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self._chunks = self._bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._bytes += len(event.data)
            self._chunks += event.chunk_end
            if self._chunks > FREE_CHUNKS + self._bytes // CHUNK_BYTES:
                raise h11.RemoteProtocolError("the body comes in too many chunks", error_status_hint=413)
        return event
