"""A GGUF file of the Hugging Face hub by a pattern of its name."""

from __future__ import annotations

import glob
from fnmatch import fnmatchcase

from outrider.weights.hub.downloads import download_gguf, hub_files


def hub_file(repo_id: str, filename: str) -> str:
    """The local path of the one file of ``repo_id`` that matches ``filename``, fetched if need be.

    Raises ``ValueError`` if no file matches or several do, and ``OutriderError`` if it cannot be fetched.
    """
    if glob.has_magic(filename):
        names = hub_files(repo_id)
        found = [name for name in names if fnmatchcase(name, filename)]
        if len(found) != 1:
            raise ValueError(
                f"filename={filename!r} matches {len(found)} files of {repo_id}: name one of {', '.join(names)}"
            )
        filename = found[0]
    return str(download_gguf(repo_id, filename))
