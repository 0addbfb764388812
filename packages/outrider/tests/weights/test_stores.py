"""Models of Ollama, LM Studio, the hub's cache and llama.cpp: found, named, listed in damaged stores too."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from gguf import LlamaFileType
from typer.testing import CliRunner

from outrider.cli.listing import list_all
from outrider.cli.models import app
from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.brief import FILE_TYPES, read_brief
from outrider.weights.hub.catalog import file_of, resolve, stored_settings
from outrider.weights.hub.stores import found as bounds
from outrider.weights.hub.stores.find import find_model, find_models
from outrider.weights.hub.stores.settings import StoredSettings
from tests.weights.files import write_gguf
from tests.weights.stores import empty_home, header, ollama, write


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = empty_home(tmp_path, monkeypatch)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return found


@pytest.fixture
def ollama_store(home: Path) -> Path:
    return home / ".ollama" / "models"


def listed() -> dict[str, dict[str, Any]]:
    result = CliRunner().invoke(app, ["list", "--json"], catch_exceptions=False)
    return {entry["name"]: entry for entry in json.loads(result.stdout) if entry["kind"] != "built-in"}


def test_models_of_four_stores_are_listed(home: Path, ollama_store: Path) -> None:
    ollama(ollama_store, "llama3.2:3b", header("llama"))
    lm_studio = home / ".lmstudio" / "models"
    write(lm_studio / "org" / "Qwen3-4B-GGUF" / "Qwen3-4B-Q8_0.gguf", header("qwen3"))
    write(lm_studio / "org" / "Qwen3-4B-GGUF" / "mmproj-F16.gguf", header("clip"))
    repo = home / ".cache" / "huggingface" / "hub" / "models--hub--m-GGUF"
    write(repo / "blobs" / "abc", header("olmo2"))
    (repo / "snapshots" / "c1").mkdir(parents=True)
    (repo / "snapshots" / "c1" / "m-IQ4_XS.gguf").symlink_to(repo / "blobs" / "abc")
    cpp = home / ".cache" / "llama.cpp"
    write(cpp / "ggml-org_x-GGUF_x-UD-Q2_K.gguf", header("gemma3"))
    write(cpp / "manifest=ggml-org=x-GGUF=latest.json", json.dumps({"ggufFile": {"rfilename": "x-UD-Q2_K.gguf"}}))
    write(cpp / "by-hand.gguf", header("rwkv7", file_type=7))
    found = {name: (e["kind"], e["type"], e["architecture"], e["runs"]) for name, e in listed().items()}
    assert found == {
        "llama3.2:3b": ("ollama", "Q4_K_M", "llama", True),
        "org/Qwen3-4B-GGUF:Q8_0": ("lm-studio", "Q8_0", "qwen3", True),
        "hub/m-GGUF:IQ4_XS": ("hub", "IQ4_XS", "olmo2", True),
        "ggml-org/x-GGUF:UD-Q2_K": ("llama.cpp", "UD-Q2_K", "gemma3", True),
        "by-hand.gguf": ("llama.cpp", "Q8_0", "rwkv7", False),
    }
    assert all(file_of(name) != name for name in found)
    table = CliRunner().invoke(app, ["list"], env={"COLUMNS": "200"}, catch_exceptions=False).stdout
    assert "1 in Ollama's store" in table
    assert "architectures that do not run: rwkv7" in table


def test_a_model_of_ollama_runs_by_its_name_and_nothing_is_copied(
    tmp_path: Path, ollama_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("a file of another user")

    monkeypatch.setattr(os, "link", refuse)
    write_gguf(tmp_path / "m.gguf")
    ollama(ollama_store, "tiny:1b", (tmp_path / "m.gguf").read_bytes(), kinds=["template", "params"])
    assert not (tmp_path / "cache").exists()
    folder = resolve("Tiny:1b")
    assert resolve("tiny:1B") == resolve("tiny") == resolve("ollama.com/library/tiny:1b", verify=True) == folder
    assert (folder / "model.gguf").is_symlink()
    assert open_checkpoint(folder).config.num_layers == 2
    entry = listed()["tiny:1b"]
    assert (entry["folder"], entry["draft"]) == (str(folder), "suffix")
    facts = json.loads(CliRunner().invoke(app, ["check", "tiny:1b", "--json"], catch_exceptions=False).stdout)
    assert (facts["name"], facts["runs"], facts["parameters"] > 10_000) == ("tiny:1b", "native", True)
    removed = CliRunner().invoke(app, ["rm", "tiny:1b"], catch_exceptions=False)
    assert removed.exit_code == 0
    assert not folder.exists()
    assert listed()["tiny:1b"]["folder"] is None
    with pytest.raises(ModelNotFoundError, match="nothing was made of 'tiny:1b'"):
        CliRunner().invoke(app, ["rm", "tiny:1b"], catch_exceptions=False)


def test_what_ollama_says_beside_the_weights_is_told_at_load(
    tmp_path: Path, ollama_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gguf(tmp_path / "m.gguf")
    weights = (tmp_path / "m.gguf").read_bytes()
    params = {"temperature": 0.6, "stop": ["<|im_end|>", "User:"]}
    extras = {"params": json.dumps(params).encode(), "system": b"Be brief.\n", "template": b"{{ .Prompt }}"}
    ollama(ollama_store, "tiny:1b", weights, extras=extras)
    ollama(ollama_store, "odd:1b", weights, extras={"params": b"[1", "system": b"\xff"})
    ollama(ollama_store, "bare:1b", weights)
    found = stored_settings("tiny:1b")
    assert (dict(found.params), found.system, found.has_template) == (params, "Be brief.", True)
    assert stored_settings("odd:1b") == stored_settings("bare:1b") == stored_settings("no such") == StoredSettings()
    resolve("tiny:1b", progress=True)
    said = capsys.readouterr().err
    assert "stop, temperature, a system prompt are defaults of /api/chat and /api/generate alone; its template" in said
    resolve("bare:1b", progress=True)
    assert "in Ollama's store" not in capsys.readouterr().err


def test_names_without_a_tag(ollama_store: Path) -> None:
    ollama(ollama_store, "a:1b", header())
    ollama(ollama_store, "b:1b", header())
    ollama(ollama_store, "b:latest", header("qwen2"))
    ollama(ollama_store, "c:1b", header("qwen2"))
    ollama(ollama_store, "c:3b", header("phi3"))
    ollama(ollama_store, "me:q4", header("phi3"), host="registry.ollama.ai/user")
    ollama(ollama_store, "n-GGUF:Q8_0", header("olmo2"), host="hf.co/org")
    assert [model.name for model in map(find_model, ("a", "b", "user/me", "org/n-GGUF")) if model is not None] == [
        "a:1b", "b:latest", "user/me:q4", "hf.co/org/n-GGUF:Q8_0",
    ]  # fmt: skip
    assert find_model("a:7b") is None
    assert find_model("a/b") is None
    with pytest.raises(ModelNotFoundError, match=r"'c' is 2 models here: c:1b \(.* bytes in Ollama's store\), c:3b"):
        resolve("c")
    with pytest.raises(ModelNotFoundError, match=r"a name of Ollama's library, its store here has a:1b"):
        resolve("a:7b")


def test_ollama_s_newer_manifests(ollama_store: Path) -> None:
    child = ollama(ollama_store, "child:1", header("qwen3"))
    inline = json.loads(child.read_text())
    child.unlink()
    kinds = [{"runner": "mlx", "digest": "sha256:" + "0" * 64}, {"runner": "ollama"} | inline]
    said = {"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": kinds}
    folder = ollama_store / "manifests-v2" / "ollama.com" / "library"
    target = write(ollama_store / "blobs" / ("sha256-" + "1" * 64), json.dumps(said))
    (folder / "new").mkdir(parents=True)
    (folder / "new" / "8b").symlink_to(target)
    by_digest = said | {"manifests": [{"runner": "llamacpp", "digest": "sha256:" + "2" * 64}]}
    write(ollama_store / "blobs" / ("sha256-" + "2" * 64), json.dumps(inline))
    write(folder / "new" / "4b", json.dumps(by_digest))
    ollama(ollama_store, "new:8b", header("phi3"))  # of the older layout: the newer one counts
    found = {model.name: model.file for model in find_models()}
    assert found.keys() == {"new:4b", "new:8b"}
    assert {read_brief(file).architecture for file in found.values() if file is not None} == {"qwen3"}


def damaged(ollama_store: Path, name: str, content: object) -> None:
    write(
        ollama_store / "manifests" / "registry.ollama.ai" / "library" / name / "1",
        content if isinstance(content, bytes) else json.dumps(content),
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        ([1], "is no JSON object"),
        ({"layers": 5}, "it has no GGUF file"),
        ({"layers": [7, {"mediaType": "application/vnd.ollama.image.model"}]}, "it names no blob"),
        (
            {
                "layers": [
                    {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../../etc/passwd"}
                ]
            },
            "it names no blob",
        ),
        (
            {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "a" * 64}]},
            "is missing: pull it again in Ollama",
        ),
        ({"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": [None]}, "it has no GGUF file"),
        (b" " * ((1 << 20) + 1), "1,048,577 bytes"),
    ],
)
def test_damaged_manifests_are_told_and_the_list_goes_on(ollama_store: Path, content: object, why: str) -> None:
    ollama(ollama_store, "whole:1", header())
    damaged(ollama_store, "broken", content)
    entries = listed()
    assert entries.keys() == {"broken:1", "whole:1"}
    assert why in entries["broken:1"]["problem"]
    assert entries["broken:1"]["runs"] is False
    assert entries["whole:1"]["problem"] is None
    assert "broken:1 (Ollama's store): " in CliRunner().invoke(app, ["list"], catch_exceptions=False).stdout
    with pytest.raises(ModelFormatError, match="broken:1 is in Ollama's store, but"):
        resolve("broken")


def test_models_of_ollama_that_would_not_be_the_same_are_refused(ollama_store: Path) -> None:
    ollama(ollama_store, "tuned:1", header(), kinds=["adapter"])
    ollama(ollama_store, "tensors:1", header(), config={"model_format": "safetensors"})
    cut = ollama(ollama_store, "cut:1", header())
    said = json.loads(cut.read_text())
    said["layers"][0]["size"] += 1
    cut.write_text(json.dumps(said))
    cloud = ollama(ollama_store, "big:cloud", header(), config={"remote_host": "somewhere"})
    cloud.write_text(json.dumps(json.loads(cloud.read_text()) | {"layers": []}))
    problems = {model.name: model.problem or "" for model in find_models()}
    assert "an adapter, which would not be applied" in problems["tuned:1"]
    assert problems["tensors:1"] == "it has no GGUF file"
    assert "bytes of" in problems["cut:1"]
    assert "has no weights here" in problems["big:cloud"]


def test_files_that_are_no_models_and_links_that_lead_nowhere(home: Path) -> None:
    folder = home / ".lmstudio" / "models" / "org" / "m"
    write(folder / "html-Q4_0.gguf", "<html>not found</html>")
    write(folder / "empty-Q5_0.gguf", "")
    write(folder / "cut-Q6_K.gguf", header()[:30])
    write(folder / "huge-Q4_1.gguf", b"GGUF\x03\0\0\0" + b"\xff" * 40)
    (folder / "gone-Q8_0.gguf").symlink_to(folder / "nowhere")
    (folder / "dir-F16.gguf").mkdir()
    os.mkfifo(folder / "pipe-F32.gguf")
    (folder / "loop").symlink_to(folder.parent)
    write(folder / "part-BF16-00001-of-00003.gguf", header())
    write(folder / "part-BF16-00002-of-00003.gguf", header())
    write(folder / "whole-Q3_K_M.gguf", header())
    problems = {entry["type"]: entry["problem"] for entry in listed().values()}
    assert problems.pop("Q3_K_M") is None
    expected = {
        "Q4_0": "not start with 'GGUF'", "Q5_0": "is damaged", "Q6_K": "is damaged", "Q4_1": "is damaged",
        "Q8_0": "leads nowhere", "F16": "is no file", "F32": "is no file", "BF16": "1 of its 3 files are missing",
    }  # fmt: skip
    assert problems.keys() == expected.keys()
    assert [kind for kind, why in expected.items() if why not in problems[kind]] == []


def test_names_of_files_do_not_control_the_terminal(home: Path) -> None:
    folder = home / ".lmstudio" / "models" / "[red]org"
    write(folder / "m\x1b[2J" / "a-Q4_0.gguf", header())
    write(Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe/b-Q4_0.gguf")), "no model")
    shown = CliRunner().invoke(app, ["list"], env={"COLUMNS": "200"}, catch_exceptions=False).stdout
    assert "[red]org/m?[2J:Q4_0" in shown
    assert "[red]org/??:Q4_0 (LM Studio's folder)" in shown
    assert "\x1b[2J" not in shown


def test_a_store_of_another_user_is_told(home: Path, ollama_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ollama(ollama_store, "a:1b", header())
    real, closed = os.scandir, home / "closed"

    def scandir(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setenv("OLLAMA_MODELS", str(closed))
    assert {model.name: model.problem for model in find_models()} == {
        str(closed): "cannot be read: Permission denied", "a:1b": None,
    }  # fmt: skip


def test_a_folder_of_too_many_files_is_read_in_part(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_MOST_ENTRIES", 20)
    for i in range(30):
        write(home / ".lmstudio" / "models" / "org" / f"m{i:02}" / "x-Q4_0.gguf", header())
    models = find_models()
    assert any("holds more than 20 files" in (model.problem or "") for model in models)


def test_lm_studio_s_settings_name_its_folder(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "disk" / "org" / "m" / "m-Q4_0.gguf", header())
    write(tmp_path / "disk" / "org" / "m" / "sub" / "m-Q4_0.gguf", header("qwen2"))
    write(tmp_path / "disk" / "alone.gguf", header("phi3"))
    write(home / ".lmstudio" / "settings.json", json.dumps({"downloadsFolder": str(tmp_path / "disk")}))
    assert {model.name for model in find_models()} == {
        "org/m/m-Q4_0.gguf", "org/m/sub/m-Q4_0.gguf", "lm-studio/alone.gguf",
    }  # fmt: skip
    with pytest.raises(ModelNotFoundError, match=r"is 2 models here: org/m/m-Q4_0\.gguf"):
        find_model("org/m:Q4_0")
    write(home / ".lmstudio" / "settings.json", "{")
    assert find_models() == []


def test_a_model_in_two_stores_is_one_if_it_is_the_same(home: Path, tmp_path: Path) -> None:
    for root in (
        home / ".lmstudio" / "models" / "org" / "m-GGUF",
        home / ".cache/huggingface/hub/models--org--m-GGUF/snapshots/c",
    ):
        write(root / "m-Q4_0.gguf", header())
    model = find_model("hf.co/org/m-GGUF:q4_0")
    assert model is not None
    assert model.store == "lm-studio"
    write(home / ".lmstudio" / "models" / "org" / "m-GGUF" / "m-Q4_0.gguf", header("starcoder2"))
    with pytest.raises(
        ModelNotFoundError, match=r"is 2 models here: .*lmstudio.*m-Q4_0.gguf, .*snapshots.*m-Q4_0.gguf"
    ):
        find_model("org/m-GGUF")


def test_llama_cpp_s_manifests(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpp = tmp_path / "cpp"
    monkeypatch.setenv("LLAMA_CACHE", str(cpp))
    for part in (1, 2):
        write(cpp / f"o_n_sub_n-Q4_0-0000{part}-of-00002.gguf", header())
    manifests = {
        "manifest=o=n=Q4_0.json": {"ggufFile": {"rfilename": "sub/n-Q4_0-00001-of-00002.gguf"}},
        "manifest=o=cut=Q8_0.json": {"ggufFile": {"rfilename": "cut-Q8_0.gguf", "size": 5}},
        "manifest=o=gone=Q8_0.json": {"ggufFile": {"rfilename": "gone-Q8_0.gguf"}},
        "manifest=o=bad=Q8_0.json": {"ggufFile": ["x"]},
        "manifest=strange.json": {},
    }
    for name, said in manifests.items():
        write(cpp / name, json.dumps(said))
    write(cpp / "o_cut_cut-Q8_0.gguf", header())
    write(cpp / "models--new--m" / "snapshots" / "c" / "m-Q5_0.gguf", header())
    problems = {model.name: model.problem for model in find_models()}
    assert problems["o/n:Q4_0"] is problems["new/m:Q5_0"] is None
    assert "bytes of 5" in (problems["o/cut:Q8_0"] or "")
    assert "is missing" in (problems["o/gone:Q8_0"] or "")
    assert "names no file" in (problems["o/bad:Q8_0"] or "")
    assert len(problems) == 6
    assert file_of("o/n").endswith("o_n_sub_n-Q4_0-00001-of-00002.gguf")


def test_companions_are_told(home: Path) -> None:
    folder = home / ".lmstudio" / "models" / "org" / "big"
    words = [f"word {i}" for i in range(300)]
    big = header("qwen35", tokens=words) + bytes(50_000)
    write(folder / "big-Q4_0.gguf", big)
    write(folder / "mtp-big-Q4_0.gguf", header("qwen35", tokens=words))
    write(folder / "mmproj-F16.gguf", header("clip"))
    write(folder / "imatrix.gguf", header())
    other = home / ".lmstudio" / "models" / "org" / "other"
    write(other / "big-Q4_0.gguf", header("qwen3", tokens=words) + bytes(50_000))
    write(other / "eagle3-big-F16.gguf", header("eagle3"))
    write(home / ".lmstudio" / "models" / "org" / "small" / "s-Q8_0.gguf", header("qwen3", tokens=words))
    write(home / ".lmstudio" / "models" / "org" / "tiny" / "t-Q8_0.gguf", header("qwen3", tokens=words[:-1]))
    models = {model.entry.name: model for model in list_all() if model.entry.pulled}
    assert models.keys() == {"org/big:Q4_0", "org/other:Q4_0", "org/small:Q8_0", "org/tiny:Q8_0"}
    big_one = models["org/big:Q4_0"]
    assert big_one.draft == "suffix,mtp"
    assert big_one.companions == {
        "mmproj": "mmproj-F16.gguf",
        "mtp": "mtp-big-Q4_0.gguf",
        "draft model": "org/small:Q8_0",
    }
    assert (models["org/other:Q4_0"].draft, models["org/tiny:Q8_0"].companions) == ("suffix", {})
    assert models["org/other:Q4_0"].companions == {"eagle3": "eagle3-big-F16.gguf", "draft model": "org/small:Q8_0"}
    table = CliRunner().invoke(app, ["list"], env={"COLUMNS": "200"}, catch_exceptions=False).stdout
    assert "--draft-model org/small:Q8_0" in table


def test_types_are_those_of_llama_cpp() -> None:
    names = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    assert {number: names[number].removesuffix("_MOE") for number in FILE_TYPES} == FILE_TYPES


@pytest.mark.parametrize("last", [True, False])
def test_the_type_is_found_before_and_behind_the_vocabulary(tmp_path: Path, last: bool) -> None:
    words = [str(i) for i in range(5000)]
    path = write(tmp_path / "m.gguf", header("qwen3", file_type=15, tokens=words, last=last))
    brief = read_brief(path)
    assert (brief.architecture, brief.type, brief.runs) == ("qwen3", "Q4_K_M", True)
    assert brief.vocabulary is not None
    assert brief.vocabulary[0] == 5000
    write(path, header("qwen3", file_type=15, tokens=["other", *words[1:]], last=last))
    assert read_brief(path).vocabulary != brief.vocabulary


def test_a_hundred_large_vocabularies_are_listed_in_a_second(home: Path) -> None:
    words = [f"word {i}" for i in range(50_000)]
    first = write(home / ".lmstudio" / "models" / "org" / "m" / "0.gguf", header(tokens=words, file_type=7))
    for i in range(1, 100):
        os.link(first, first.with_name(f"{i}.gguf"))
    began = time.process_time()
    models = [model for model in list_all() if model.entry.pulled]
    assert time.process_time() - began < 1
    assert [model.type for model in models] == ["Q8_0"] * 100
