"""A GGUF file of the Hugging Face hub by a pattern of its name."""

from __future__ import annotations

import glob
from fnmatch import fnmatchcase

from outrider.errors import DownloadError
from outrider.weights.hub.downloads import download_gguf


def hub_file(repo_id: str, filename: str) -> str:
    """The local path of the one file of ``repo_id`` that matches ``filename``, fetched if need be.

    Raises ``ValueError`` if no file matches or several do, and ``OutriderError`` if it cannot be fetched.
    """
    if glob.has_magic(filename):
        names = _names(repo_id)
        found = [name for name in names if fnmatchcase(name, filename)]
        if len(found) != 1:
            kind = f"{len(found)} files of {repo_id} match {filename}" if found else f"no file of {repo_id} matches it"
            raise ValueError(f"filename={filename!r}: {kind}; its files are {', '.join(names)}")
        filename = found[0]
    return str(download_gguf(repo_id, filename))


def _names(repo_id: str) -> list[str]:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return HfApi().list_repo_files(repo_id)
    except (OSError, HfHubHTTPError) as error:
        raise DownloadError(
            f"the files of {repo_id} cannot be listed ({error}): check its name, and try again"
        ) from None
