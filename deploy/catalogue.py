"""Writes the list of trained drafts, and the files of a release: python deploy/catalogue.py [--out FOLDER]

The list is ``hub/trained.json`` of the core. ``--out`` also fills a folder with the files under the names by which
``weights/hub/trained.py`` fetches them, to be uploaded with a release.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from outrider.weights.hub.manifest import sha256_of

ROOT = Path(__file__).parents[1]
WEIGHTS = ROOT / "weights"
LIST = ROOT / "packages/outrider/src/outrider/weights/hub/trained.json"


def catalogue() -> list[dict[str, Any]]:
    """One entry for each folder ``weights/<model>/<kind>``."""
    return [_entry(folder) for folder in sorted(WEIGHTS.glob("*/*"))]


def _entry(folder: Path) -> dict[str, Any]:
    target = json.loads((folder / "config.json").read_text(encoding="utf-8"))["target"]
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".safetensors")]
    return {
        "model": folder.parent.name,
        "kind": folder.name,
        "target": target,
        "files": [[path.name, path.stat().st_size, sha256_of(path)] for path in files],
    }


def main(out: Path | None) -> None:
    entries = catalogue()
    LIST.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for entry in entries:
            for name, *_ in entry["files"]:
                place = WEIGHTS / entry["model"] / entry["kind"] / name
                shutil.copyfile(place, out / f"{entry['model']}-{entry['kind']}-{name}")


if __name__ == "__main__":
    main(Path(sys.argv[2]) if sys.argv[1:2] == ["--out"] else None)
