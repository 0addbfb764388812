"""``--one-pass``: every document is trained on once; answers that come later are the next portion of the same run.

    documents   0 ........ 812 | 813 ..... 1,950 | 1,951 ...
    portions    the first run  | --resume        | --resume

The state notes where each portion ends, and a fingerprint of everything up to there, so that a killed portion goes on
with its own documents, however many have come since.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from outrider.errors import ConfigError, ModelFormatError
from outrider_train.data.documents import Document, digest

Portion = tuple[int, str]
"""The number of documents up to its end, and their digest."""


def portions(folder: Path, documents: Sequence[Document]) -> list[Portion]:
    """Those of the run in ``folder`` up to the one to train on now: begun, or new if there are new documents.

    Raises:
        ConfigError: the documents are not those that the run has seen, followed by others.
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
