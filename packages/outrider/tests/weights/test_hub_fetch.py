"""Names as people paste them are fetched from a server that speaks the hub's API: chosen, resumed, and checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.errors import DownloadError, ModelNotFoundError
from outrider.weights.folder import open_checkpoint
from outrider.weights.hub import downloads
from outrider.weights.hub.catalog import resolve
from outrider.weights.hub.choose import SHARE, choose
from tests.weights.files import write_gguf
from tests.weights.hub_server import HubServer
from tests.weights.stores import empty_home


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    empty_home(tmp_path, monkeypatch)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(downloads, "available_memory", lambda: 10_000)
    write_gguf(tmp_path / "m.gguf")
    content = (tmp_path / "m.gguf").read_bytes()
    server = HubServer(
        {f"m-{kind}.gguf": content for kind in ("Q4_0", "Q6_K", "Q8_0", "BF16")} | {"mmproj-F16.gguf": b"x"}
    )
    server.sizes = {"m-Q4_0.gguf": 4000, "m-Q6_K.gguf": 6000, "m-Q8_0.gguf": 8000, "m-BF16.gguf": 5000}
    with server.serving(tmp_path / "hub", monkeypatch):
        yield server


def test_without_a_type_the_best_that_fits_is_taken_and_told(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = resolve("hf.co/org/m-GGUF", progress=True)
    assert [name for name, _ in hub.asked] == ["m-Q6_K.gguf"]
    assert "org/m-GGUF: taking Q6_K, 0.00 GB, of 4 models: the best that fits" in capsys.readouterr().err
    assert open_checkpoint(folder).config.num_layers == 2
    assert resolve("org/m-GGUF") == resolve("org/m-GGUF:q6_k") == folder
    assert len(hub.asked) == 1  # it is there: nobody is asked again


def test_a_broken_fetch_goes_on_where_it_broke_off(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
    hub.cut_once = 1000
    assert open_checkpoint(resolve("org/m-GGUF:Q8_0"))
    assert hub.asked == [("m-Q8_0.gguf", None), ("m-Q8_0.gguf", "bytes=1000-")]


def test_a_file_that_arrives_damaged_is_refused_and_fetched_anew(hub: HubServer) -> None:
    hub.damage = True
    with pytest.raises(DownloadError, match=r"m-Q4_0\.gguf arrived damaged: its SHA-256 is not"):
        resolve("org/m-GGUF:Q4_0")
    hub.damage = False
    assert open_checkpoint(resolve("org/m-GGUF:Q4_0", verify=True))
    assert len(hub.asked) == 2


def test_what_the_hub_does_not_have(hub: HubServer) -> None:
    with pytest.raises(ModelNotFoundError, match="the hub has no model 'org/none-GGUF'"):
        resolve("org/none-GGUF")
    with pytest.raises(ModelNotFoundError, match=r"no GGUF file Q3_K_S: use the type of one of m-Q4_0\.gguf"):
        resolve("org/m-GGUF:Q3_K_S")
    hub.files = {"mmproj-F16.gguf": b"x", "README.md": b""}
    with pytest.raises(ModelNotFoundError, match="has no GGUF file of a model"):
        resolve("org/m-GGUF")


def test_without_a_network_the_error_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty_home(tmp_path, monkeypatch)
    with HubServer().serving(tmp_path / "hub", monkeypatch):
        pass
    with pytest.raises(DownloadError, match=r"org/m-GGUF could not be fetched from the hub \("):
        resolve("org/m-GGUF")


@pytest.mark.parametrize(
    ("sizes", "free", "file", "name"),
    [
        ({"m-Q4_0.gguf": 4, "m-Q8_0.gguf": 8}, 20, "m-Q8_0.gguf", "Q8_0"),
        ({"m-Q4_0.gguf": 4, "m-Q8_0.gguf": 8}, 7, "m-Q4_0.gguf", "Q4_0"),
        ({"m-Q4_0.gguf": 4, "m-Q8_0.gguf": 8}, 1, "m-Q4_0.gguf", "Q4_0"),
        ({"m-Q4_0.gguf": 4, "m-F16.gguf": 8}, 99, "m-Q4_0.gguf", "Q4_0"),
        ({"m-F16.gguf": 8, "m.gguf.part": 1}, 99, "m-F16.gguf", "F16"),
        ({"m-Q8_0.gguf": 5, "m-UD-Q8_0.gguf": 6}, 99, "m-UD-Q8_0.gguf", "UD-Q8_0"),
        ({"m-Q8_0.gguf": 7, "m-UD-Q8_0.gguf": 6}, 99, "m-Q8_0.gguf", "m-Q8_0.gguf"),
        ({"q/Q8_0-00001-of-00002.gguf": 7, "q/Q8_0-00002-of-00002.gguf": 6, "Q6_K.gguf": 9}, 14, "Q6_K.gguf", "Q6_K"),
        ({"mtp-m-Q8_0.gguf": 7, "imatrix.gguf": 3, "m.gguf": 9}, 99, "m.gguf", "m.gguf"),
    ],
)  # fmt: skip
def test_the_choice(sizes: dict[str, int], free: int, file: str, name: str) -> None:
    choice = choose(sizes.items(), free)
    assert choice is not None
    assert (choice.file, choice.name) == (file, name)
    assert choice.fits == (choice.bytes <= SHARE * free)
    assert choose([("README.md", 1)], free) is None
