"""``--one-pass``: every document is trained on once; answers added later are the next portion of the same run.

    documents   0 ........ 812 | 813 ..... 1,950 | 1,951 ...
    portions    the first run  | --resume        | --resume

The state records each portion's end and a fingerprint of all documents up to it, so that a killed portion resumes
with its own documents, however many were added since.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from outrider.errors import ConfigError, ModelFormatError
from outrider_train.data.documents import Document, digest

Portion = tuple[int, str]
"""The number of documents up to the portion's end, and their digest."""


def portions(folder: Path, documents: Sequence[Document]) -> list[Portion]:
    """The portions of the run in ``folder``, the last one to train on now: resumed, or new if documents were added.

    Raises:
        ConfigError: the documents do not begin with those that the run has seen.
        ModelFormatError: the state is damaged.
    """
    path = folder / "state" / "state.json"
    if not path.exists():
        return [(len(documents), digest(documents))]
    try:
        progress = json.loads(path.read_text(encoding="utf-8"))["progress"]
        known: list[Portion] = [(int(end), str(sha)) for end, sha in progress.get("portions", ())]
        finished = bool(progress["finished"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelFormatError(f"{path} cannot be read ({error}): start again in another folder") from None
    if not known:
        raise ConfigError(f"{folder} was begun without --one-pass: go on without it, or train in another folder")
    for end, sha in known:
        if end > len(documents) or digest(documents[:end]) != sha:
            raise ConfigError(
                f"{folder} has seen {end} documents that the data do not begin with: add new answers behind the old "
                "ones, or train in another folder"
            )
    new = finished and known[-1][0] < len(documents)
    return [*known, (len(documents), digest(documents))] if new else known
