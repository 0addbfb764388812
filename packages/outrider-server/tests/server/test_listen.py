"""Where a server listens, and what is wrong with settings, said before anything is loaded."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from outrider import LLM
from outrider.errors import ConfigError
from outrider_server.http.listening import listen
from outrider_server.settings import ServerSettings
from tests.server.conftest import load
from tests.server.live import Live

COMPLETIONS = "/v1/completions"
ASK = {"prompt": "hello", "max_tokens": 2}


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    """Lent to one server after another."""
    return load(folder)


def test_tls(llm: LLM, tmp_path: Path) -> None:
    authority = trustme.CA()
    cert = authority.issue_cert("127.0.0.1", "localhost")
    cert.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    cert.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    files: dict[str, Any] = {"ssl_certfile": str(tmp_path / "cert.pem"), "ssl_keyfile": str(tmp_path / "key.pem")}
    trusting = ssl.create_default_context()
    with Live(llm, **files) as server:
        url = f"https://127.0.0.1:{server.port}/health"
        with pytest.raises(httpx.TransportError):
            httpx.get(url, verify=trusting)
        authority.configure_trust(trusting)
        assert httpx.get(url, verify=trusting).json() == {"status": "ok"}


def test_a_unix_socket(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "outrider.sock"
    with Live(llm, uds=str(path)):
        assert path.stat().st_mode & 0o777 == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://any.name") as client:
            assert client.post(COMPLETIONS, json=ASK).status_code == 200
        with pytest.raises(ConfigError, match="in use"):
            listen(ServerSettings(uds=str(path)))
    listen(ServerSettings(uds=str(path))).close()  # what a dead server left behind is in nobody's way


def test_answers_do_not_wait_for_acknowledgements(live: Live) -> None:
    """Nagle's algorithm held back whatever was written after an answer's first packet, for 40 ms."""
    assert live.client.get("/health").status_code == 200
    connections = [each.transport.get_extra_info("socket") for each in live.server.server_state.connections]
    assert connections
    assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in connections)


def test_a_port_in_use_is_said_in_a_line(live: Live) -> None:
    with pytest.raises(ConfigError, match=f"127.0.0.1:{live.port} is in use: choose another --port"):
        listen(ServerSettings(port=live.port))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 70000}, "port=70000"),
        ({"max_queue": -1}, "max_queue"),
        ({"request_timeout": 0}, "request_timeout"),
        ({"stream_interval": float("nan")}, "stream_interval"),
        ({"log_format": "xml"}, "log_format"),
        ({"ssl_certfile": "x"}, "ssl-keyfile"),
        ({"ssl_certfile": "/nothing", "ssl_keyfile": "/nothing"}, "/nothing"),
        ({"api_keys": ("",)}, "empty"),
        ({"api_keys": ("kéy",)}, "ASCII"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerSettings(**settings)


def test_an_empty_key_file_locks_nobody_out_silently(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none yet\n")
    with pytest.raises(ConfigError, match="no API key"):
        _ = ServerSettings(api_key_file=str(file)).keys
    with pytest.raises(ConfigError, match="cannot be read"):
        _ = ServerSettings(api_key_file=str(tmp_path / "missing")).keys
