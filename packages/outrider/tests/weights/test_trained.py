"""Trained drafts: taken from a checkout, else from the cache, else fetched."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest

from outrider.errors import DownloadError, ModelNotFoundError
from outrider.utils.user_cache import cache_root
from outrider.weights.hub import removal, trained
from outrider.weights.hub.trained import TrainedDraft, fetch_all, fetched, trained_drafts
from tests.paths import ROOT

CONTENT = b"the content of a head"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
HEAD = TrainedDraft("m", "eagle3", {"digest": "abc"}, {"head.safetensors": (len(CONTENT), DIGEST)})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No checkout, an empty cache, one trained draft; the folder to which files of a release can be written."""
    monkeypatch.setattr(trained, "CHECKOUT", tmp_path / "no-checkout")
    monkeypatch.setattr(trained, "trained_drafts", lambda: (HEAD,))
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "release"
    folder.mkdir()
    monkeypatch.setattr(trained, "RELEASE_FILES", f"{folder.as_uri()}/")
    return folder


def test_it_is_fetched_once_and_kept(installed: Path) -> None:
    file = installed / "m-eagle3-head.safetensors"
    file.write_bytes(CONTENT)
    assert not HEAD.is_here
    found = HEAD.fetch()
    assert (found / "head.safetensors").read_bytes() == CONTENT
    file.unlink()
    assert HEAD.is_here
    assert HEAD.fetch() == found
    assert fetched(found) == found


def test_a_checkout_has_all_that_was_trained() -> None:
    if not (ROOT / "weights").is_dir():
        pytest.skip("no checkout")
    assert [str(one) for one in trained_drafts() if not one.is_here] == []
    assert trained.CHECKOUT == ROOT / "weights"


def test_all_of_a_model_are_fetched_and_removed_with_it(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (installed / "m-eagle3-head.safetensors").write_bytes(CONTENT)
    (folder,) = fetch_all("m")
    assert folder == HEAD.folder
    assert fetch_all("another") == []
    monkeypatch.setattr(removal, "BUILTINS", {"m": None})
    monkeypatch.setattr(removal, "folder_of", lambda _: cache_root() / "models" / "m")
    (cache_root() / "models" / "m").mkdir(parents=True)
    kept = sum(file.stat().st_size for file in folder.iterdir())
    assert removal.remove("m").bytes == kept > len(CONTENT)
    assert not folder.exists()


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT[:-1] + b"x"])
def test_what_arrives_damaged_is_not_kept(installed: Path, content: bytes) -> None:
    (installed / "m-eagle3-head.safetensors").write_bytes(content)
    with pytest.raises(DownloadError, match="arrived damaged: try again"):
        HEAD.fetch()
    assert not HEAD.is_here


def test_a_file_that_is_nowhere(installed: Path) -> None:
    with pytest.raises(DownloadError, match="cannot be fetched"):
        HEAD.fetch()


def test_without_an_address_it_is_refused(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "RELEASE_FILES", "")
    assert not HEAD.is_available
    with pytest.raises(ModelNotFoundError, match=r"the eagle3 of m \(0.0 MB\) is not on this machine"):
        HEAD.fetch()


def test_a_checkout_has_all_that_is_listed() -> None:
    spec = importlib.util.spec_from_file_location("catalogue", ROOT / "deploy" / "catalogue.py")
    assert spec is not None
    assert spec.loader is not None
    catalogue = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(catalogue)
    if not trained.CHECKOUT.is_dir():
        pytest.skip("the weights are not here")
    assert json.loads(catalogue.LIST.read_text()) == catalogue.catalogue()
    assert {draft.kind for draft in trained_drafts()} == {"eagle3", "medusa", "pass"}
    assert all(draft.is_here and draft.fetch() == draft.folder for draft in trained_drafts())
