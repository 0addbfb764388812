"""A server that speaks the hub's API: the description of a repository, and its files with digests and in ranges."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "c" * 40


@dataclass
class HubServer:
    """The files of one repository, ``org/m-GGUF``, and the requests for their content."""

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # file and range
    sizes: dict[str, int] = field(default_factory=dict)  # told beforehand, where they differ from the content's
    cut_once: int | None = None  # bytes behind which the first answer breaks off
    damage: bool = False

    def entry(self, name: str) -> dict[str, object]:
        """A file as the description of the repository has it."""
        content = self.files[name]
        size = self.sizes.get(name, len(content))
        lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 1}
        return {"rfilename": name, "size": size, "lfs": lfs}

    def tree(self, name: str) -> dict[str, object]:
        """A file as a listing of the repository has it."""
        said = self.entry(name)
        size, lfs = len(self.files[name]), dict(said["lfs"])  # type: ignore[call-overload]
        return {"size": size, "lfs": lfs | {"oid": lfs["sha256"], "size": size}}

    @contextmanager
    def serving(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        """The hub for ``huggingface_hub`` of this process."""
        from huggingface_hub import constants

        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
        monkeypatch.setenv("HF_HUB_CACHE", str(cache))
        try:
            yield address
        finally:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path, api = self.path.partition("?")[0], "/api/models/org/m-GGUF"
        if path == api or path.startswith(f"{api}/revision/"):
            self.send({"id": "org/m-GGUF", "sha": COMMIT, "siblings": [*map(self.hub.entry, self.hub.files)]})
        elif path.startswith(f"{api}/tree/"):
            self.send(
                [{"type": "file", "path": name, "oid": "0" * 40} | self.hub.tree(name) for name in self.hub.files]
            )
        elif path.startswith("/org/m-GGUF/resolve/"):
            self.file(path.split("/", 5)[5], body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def send(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def file(self, name: str, body: bool) -> None:
        content, asked = self.hub.files[name], self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not body:
            return
        self.hub.asked.append((name, asked))
        sent = content[start:]
        if self.hub.damage:
            sent = sent[:-1] + bytes([sent[-1] ^ 1])
        if self.hub.cut_once is not None:
            sent, self.hub.cut_once = sent[: self.hub.cut_once], None
            self.close_connection = True
        self.wfile.write(sent)
