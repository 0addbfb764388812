"""Models from the Hugging Face hub, through ``huggingface_hub`` and its cache: weights in safetensors only."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from outrider.errors import DownloadError, ModelFormatError, ModelNotFoundError

# Never *.bin, *.pt (pickles) nor *.py (code); `original/` and `onnx/` hold the same weights once more.
_WANTED = ("*.json", "*.jinja", "model*.safetensors")
_UNWANTED = ("*/*",)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_hub_id(ref: str) -> bool:
    """Whether ``ref`` has the form ``org/name``."""
    return _HUB_ID.fullmatch(ref) is not None


def download(repo_id: str, *, progress: bool = False) -> Path:
    """The local snapshot of ``repo_id``, fetched where it is not cached; the cached one serves when offline.

    Raises ``ModelNotFoundError`` if the hub does not know it or does not give it to this user, ``DownloadError`` if
    the hub cannot be reached, ``ModelFormatError`` if there are no safetensors weights.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    silence = not (progress and sys.stderr.isatty()) and not are_progress_bars_disabled()
    if silence:
        disable_progress_bars()
    try:
        folder = snapshot_download(repo_id, allow_patterns=list(_WANTED), ignore_patterns=list(_UNWANTED))
    except GatedRepoError:
        raise ModelNotFoundError(
            f"{repo_id} asks for consent first: accept its terms on the hub, then run `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ModelNotFoundError(f"the hub has no model {repo_id!r} (or it is private: run `hf auth login`)") from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(
            f"{repo_id} could not be fetched from the hub ({reason}): use a local folder or a built-in model "
            "(`outrider models list`)"
        ) from None
    finally:
        if silence:
            enable_progress_bars()
    path = Path(folder)
    if not any(path.glob("*.safetensors")):
        raise ModelFormatError(
            f"{repo_id} has no model*.safetensors: other formats are not fetched, pickles (*.bin, *.pt) because they "
            "can run code; convert it to safetensors"
        )
    return path
