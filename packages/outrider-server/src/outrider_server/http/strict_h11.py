"""Requests that are refused although h11 takes them: bodies in too many chunks, folded headers, ambiguous ends.

Reading a chunk costs some ten microseconds on the event loop, however little is in it: a packet of 256 KB that holds
bytes one by one would stop the loop for half a second, and a body of 8 MB for a minute and a half.
"""

from __future__ import annotations

import re
from typing import Any

import h11

_FOLDED = re.compile(rb"\n[ \t]")
_HEAD_END = re.compile(rb"\n\r?\n")
FREE_CHUNKS = 2048  # of a body, of any size
CHUNK_BYTES = 128  # that the others hold on average, at least


class StrictConnection(h11.Connection):
    """The server's end of a connection.

    More chunks than a body can need are an error of the client. So is everything that readers of HTTP disagree about,
    because two of them may see two different requests (RFC 9112): a header that goes on in the next line (5.2),
    ``Transfer-Encoding`` beside ``Content-Length`` or from before it existed (6.1, 6.3), other versions.
    """

    def __init__(self, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self._chunks = self._bytes = 0

    def next_event(self) -> Any:
        before = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            end = _HEAD_END.search(before)
            if end is not None and _FOLDED.search(before, 0, end.start()):
                raise h11.RemoteProtocolError("a header goes on in the next line")
            names = {name for name, _ in event.headers}
            is_old = event.http_version == b"1.0"
            if not is_old and event.http_version != b"1.1":
                raise h11.RemoteProtocolError("only HTTP/1.1 is spoken here")
            if b"transfer-encoding" in names and (b"content-length" in names or is_old):
                raise h11.RemoteProtocolError("two readers may see two ends of this request")
        elif isinstance(event, h11.Data):
            self._bytes += len(event.data)
            self._chunks += event.chunk_end
            if self._chunks > FREE_CHUNKS + self._bytes // CHUNK_BYTES:
                raise h11.RemoteProtocolError("the body comes in too many chunks", error_status_hint=413)
        return event
