"""Models from the Hugging Face hub, through ``huggingface_hub`` and its cache: safetensors, or GGUF files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from outrider.errors import DownloadError, ModelFormatError, ModelNotFoundError
from outrider.utils.memory import available_memory
from outrider.weights.gguf.draft_head import HEADS
from outrider.weights.gguf.shards import first_shard, gguf_files, shard_pattern
from outrider.weights.hub.checksums import sha256_of
from outrider.weights.hub.choose import choose

# Never *.bin, *.pt (pickles) nor *.py (code); `original/` and `onnx/` hold the same weights once more.
_WANTED = ("*.json", "*.jinja", "model*.safetensors")
_UNWANTED = ("*/*",)
TOWERS = "*mmproj*"  # GGUF files of vision towers, beside the model's
_SHA256 = re.compile(r"[0-9a-f]{64}")  # names of large files in the hub's cache


def download(repo_id: str, *, progress: bool = False) -> Path:
    """The local snapshot of ``repo_id``, fetched where it is not cached; the cached one serves when offline.

    Raises ``ModelNotFoundError`` if the hub does not have it or denies this user access, ``DownloadError`` if the hub
    cannot be reached, ``ModelFormatError`` if there are no safetensors weights.
    """
    path = _snapshot(repo_id, _WANTED, _UNWANTED, progress=progress)
    if not any(path.glob("*.safetensors")):
        raise ModelFormatError(
            f"{repo_id} has no model*.safetensors: name a GGUF file of its by the type, as in {repo_id}:Q4_K_M, "
            "or convert it to safetensors; pickles (*.bin, *.pt) are not fetched, because they can run code"
        )
    return path


def download_gguf(repo_id: str, wanted: str, *, progress: bool = False) -> Path:
    """The GGUF file of ``repo_id`` named ``wanted``, or whose name ends with the type ``wanted``, in any case.

    Of a model that is split, the first part; all of its parts are fetched.

    Raises as ``download``, and ``ModelNotFoundError`` if there is no such file, or more than one.
    """
    if wanted.endswith(".gguf"):
        patterns = [shard_pattern(wanted)]
    else:
        cases = dict.fromkeys((wanted, wanted.upper(), wanted.lower()))
        ends = [f"{case}{part}.gguf" for case in cases for part in ("", "-?????-of-?????")]
        patterns = [pattern for end in ends for pattern in (end, f"*[-._/]{end}")]
    folder = _snapshot(repo_id, patterns, [TOWERS], progress=progress)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf"))
    found = [name for name in names if any(fnmatchcase(name, p) for p in patterns) and _is_model(name)]
    models = sorted({first_shard(folder / name) for name in found})
    if len(models) > 1:
        raise ModelNotFoundError(
            f"{repo_id}:{wanted} is {len(models)} models ({', '.join(found[:3])}): name one of their files"
        )
    if not models:
        raise ModelNotFoundError(f"{repo_id} has no GGUF file {wanted}: {_available_files(repo_id)}")
    _check_arrived(gguf_files(models[0]))
    return models[0]


def best_gguf(repo_id: str, *, progress: bool = False) -> str:
    """The type, or the file, of the model of ``repo_id`` that is best for this machine's memory; ``progress``: say so.

    Raises as ``download_gguf``.
    """
    from huggingface_hub import HfApi

    with _explained(repo_id):
        files = HfApi().model_info(repo_id, files_metadata=True).siblings or []
    free = available_memory()
    choice = choose(((file.rfilename, file.size or 0) for file in files), free)
    if choice is None:
        raise ModelNotFoundError(f"{repo_id} has no GGUF file of a model: use {repo_id.removesuffix('-GGUF')}")
    if progress:
        why = "the best that fits" if choice.fits else "the smallest, which may not fit"
        print(
            f"{repo_id}: taking {choice.type or choice.file}, {choice.bytes / 1e9:,.2f} GB, of {choice.among} models: "
            f"{why} {free / 1e9:,.1f} GB of free memory (name another as {repo_id}:TYPE)",
            file=sys.stderr,
        )
    return choice.name


def hub_files(repo_id: str) -> list[str]:
    """The names of all files of ``repo_id``. Raises ``ModelNotFoundError`` or ``DownloadError`` as ``download``."""
    from huggingface_hub import HfApi

    with _explained(repo_id):
        return [file.rfilename for file in HfApi().model_info(repo_id).siblings or []]


def _check_arrived(models: Sequence[Path]) -> None:
    """Compare files that were fetched with the digests by which the hub names them.

    Raises ``DownloadError``; the damaged file is then removed, so that the next attempt fetches it anew.
    """
    for file in models:
        blob = file.resolve()
        if _SHA256.fullmatch(blob.name) and sha256_of(blob) != blob.name:
            blob.unlink()
            raise DownloadError(f"{file.name} arrived damaged: its SHA-256 is not {blob.name[:16]}…: try again")


def _is_model(name: str) -> bool:
    """Whether a GGUF file is a model: no vision tower and no draft head, which may lie beside one."""
    return not fnmatchcase(name, TOWERS) and not fnmatchcase(Path(name).name, HEADS)


def _available_files(repo_id: str) -> str:
    """The GGUF files of a repository, as a remedy."""
    try:
        files = [name for name in hub_files(repo_id) if name.endswith(".gguf")]
    except (DownloadError, ModelNotFoundError):
        return "look at its files on the hub, and name the type of one"
    return f"use the type of one of {', '.join(files[:20])}" if files else "it has none at all"


def _snapshot(repo_id: str, wanted: Sequence[str], unwanted: Sequence[str], *, progress: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    silence = not (progress and sys.stderr.isatty()) and not are_progress_bars_disabled()
    if silence:
        disable_progress_bars()
    try:
        with _explained(repo_id):
            return Path(snapshot_download(repo_id, allow_patterns=list(wanted), ignore_patterns=list(unwanted)))
    finally:
        if silence:
            enable_progress_bars()


@contextmanager
def _explained(repo_id: str) -> Iterator[None]:
    """Turn the hub's errors into those a user can act on."""
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        yield
    except GatedRepoError:
        raise ModelNotFoundError(
            f"{repo_id} asks for consent first: accept its terms on the hub, then run `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ModelNotFoundError(f"the hub has no model {repo_id!r} (or it is private: run `hf auth login`)") from None
    except Exception as error:
        if not isinstance(error, OSError | ValueError | RuntimeError) and not type(error).__module__.startswith(
            "httpx"
        ):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(
            f"{repo_id} could not be fetched from the hub ({reason}): use a local folder, a .gguf file or a built-in "
            "model (`outrider models list`)"
        ) from None
