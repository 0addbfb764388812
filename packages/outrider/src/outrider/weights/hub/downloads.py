"""Models from the Hugging Face hub, through ``huggingface_hub`` and its cache: safetensors, or GGUF files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from outrider.errors import DownloadError, ModelFormatError, ModelNotFoundError
from outrider.weights.gguf.draft_head import HEADS
from outrider.weights.gguf.shards import first_shard, shard_pattern

# Never *.bin, *.pt (pickles) nor *.py (code); `original/` and `onnx/` hold the same weights once more.
_WANTED = ("*.json", "*.jinja", "model*.safetensors")
_UNWANTED = ("*/*",)
TOWERS = "*mmproj*"  # GGUF files of vision towers, beside the model's
USUAL_TYPE = "Q4_K_M"
"""The type if none is named, as in Ollama and llama.cpp."""


def download(repo_id: str, *, progress: bool = False) -> Path:
    """The local snapshot of ``repo_id``, fetched where it is not cached; the cached one serves when offline.

    Raises ``ModelNotFoundError`` if the hub does not have it or denies this user access, ``DownloadError`` if the hub
    cannot be reached, ``ModelFormatError`` if there are no safetensors weights.
    """
    path = _snapshot(repo_id, _WANTED, _UNWANTED, progress=progress)
    if not any(path.glob("*.safetensors")):
        raise ModelFormatError(
            f"{repo_id} has no model*.safetensors: name a GGUF file of its by the type, as in {repo_id}:{USUAL_TYPE}, "
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
    return models[0]


def _is_model(name: str) -> bool:
    """Whether a GGUF file is a model: no vision tower and no draft head, which may lie beside one."""
    return not fnmatchcase(name, TOWERS) and not fnmatchcase(Path(name).name, HEADS)


def _available_files(repo_id: str) -> str:
    """The GGUF files of a repository, as a remedy."""
    from huggingface_hub import list_repo_files

    try:
        files = [name for name in list_repo_files(repo_id) if name.endswith(".gguf")]
    except (OSError, ValueError, RuntimeError):
        return "look at its files on the hub, and name the type of one"
    return f"use the type of one of {', '.join(files[:20])}" if files else "it has none at all"


def _snapshot(repo_id: str, wanted: Sequence[str], unwanted: Sequence[str], *, progress: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    silence = not (progress and sys.stderr.isatty()) and not are_progress_bars_disabled()
    if silence:
        disable_progress_bars()
    try:
        return Path(snapshot_download(repo_id, allow_patterns=list(wanted), ignore_patterns=list(unwanted)))
    except GatedRepoError:
        raise ModelNotFoundError(
            f"{repo_id} asks for consent first: accept its terms on the hub, then run `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ModelNotFoundError(f"the hub has no model {repo_id!r} (or it is private: run `hf auth login`)") from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(
            f"{repo_id} could not be fetched from the hub ({reason}): use a local folder, a .gguf file or a built-in "
            "model (`outrider models list`)"
        ) from None
    finally:
        if silence:
            enable_progress_bars()
