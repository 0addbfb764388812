"""``outrider models list``: the models there are, whether they run, with which drafts, and their measured speed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from outrider.cli.measured import measured
from outrider.config.combination import USUAL, WITH_ASSISTANT, WITH_DSPARK, WITH_OWN_HEAD
from outrider.drafters.trained.assistant_files import find_assistant
from outrider.drafters.trained.dspark_files import find_dspark
from outrider.errors import OutriderError
from outrider.utils.user_cache import cache_root
from outrider.weights.gguf.brief import GGUFBrief, read_brief
from outrider.weights.gguf.draft_head import find_draft_head
from outrider.weights.gguf.families import GGUF_FAMILIES
from outrider.weights.hub.catalog import gguf_folder
from outrider.weights.hub.inventory import ModelEntry, list_models
from outrider.weights.hub.stores.found import COMPANIONS, STORES, is_companion

__all__ = ["Listed", "fits", "list_all", "list_lines", "list_table", "narrow_lines"]

_FEW = 3  # files that are gone and are named one by one
_SMALL = 0.4  # of the target's bytes: draft models are at most as large


@dataclass(frozen=True)
class Listed:
    """A model, and the facts that its file's first bytes tell. ``outrider models check`` reads all of the header."""

    entry: ModelEntry
    brief: GGUFBrief | None
    draft: str | None = None
    """The sources of drafts by default; None: the model does not run, or is not here."""
    companions: dict[str, str] = field(default_factory=dict)
    """Names of files beside the model that are parts for it, by kind, and of models that can draft for it."""
    tokens_per_s: float | None = None
    """Without drafts, as an earlier start measured them; None: there was none."""

    def as_json(self) -> dict[str, Any]:
        """All facts as one JSON-ready object."""
        architecture = None if self.brief is None else self.brief.architecture
        facts = dataclasses.asdict(self.entry) | {"architecture": architecture, "runs": self.runs, "draft": self.draft}
        return facts | {"type": self.type, "companions": self.companions, "tokens_per_s": self.tokens_per_s}

    @property
    def runs(self) -> bool | None:
        """Whether the native library has the model's architecture; None: nobody looked, for it is no GGUF file."""
        return self.brief.runs if self.brief is not None else False if self.entry.problem else None

    @property
    def type(self) -> str | None:
        return self.entry.type if self.brief is None else self.brief.type


def list_all() -> list[Listed]:
    """All models, of which at most the first megabytes are read."""
    models = [_listed(entry) for entry in list_models()]
    return [dataclasses.replace(model, companions=model.companions | _draft_model(model, models)) for model in models]


def _listed(entry: ModelEntry) -> Listed:
    if entry.file is None or entry.problem is not None:
        speed = measured(entry.folder).get("tokens_per_s") if entry.folder is not None else None
        return Listed(entry, None, tokens_per_s=speed)
    try:
        brief = read_brief(entry.file, entry.type)
    except (OutriderError, OSError) as error:
        return Listed(dataclasses.replace(entry, problem=str(error)), None)
    beside = _companions(entry.file)
    draft = _draft(entry.file, brief, beside) if brief.runs else None
    return Listed(entry, brief, draft, beside, measured(gguf_folder(entry.file)).get("tokens_per_s"))


@cache
def _files(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(name for name in os.listdir(folder) if name.endswith(".gguf")))
    except OSError:
        return ()


def _companions(file: Path) -> dict[str, str]:
    """Files that are parts for a model, by kind: the first of each kind in its folder."""
    names = [name for name in _files(file.parent) if is_companion(name)]
    pairs = [
        (kind, next((n for n in names if Path(n.lower()).match(pattern)), None)) for kind, pattern in COMPANIONS.items()
    ]
    return {kind: name for kind, name in pairs if name is not None and kind != "imatrix"}


def _draft(file: Path, brief: GGUFBrief, beside: dict[str, str]) -> str:
    """The default sources of drafts, by the rules of a start; what it finds not to fit, it does not use."""
    place = str(file)
    head = find_draft_head(file) if "mtp" in beside else None
    if brief.own_head or (head is not None and _architecture(head) == brief.architecture):
        return WITH_OWN_HEAD
    if "assistant" in beside and brief.architecture == "gemma4" and find_assistant(place) is not None:
        return WITH_ASSISTANT
    return WITH_DSPARK if "dspark" in beside and find_dspark(place) is not None else USUAL


def _architecture(file: Path) -> str | None:
    try:
        return read_brief(file).architecture
    except (OutriderError, OSError):
        return None


def _draft_model(model: Listed, others: Sequence[Listed]) -> dict[str, str]:
    """The smallest model of the same vocabulary, if it is small enough to draft; a start compares all tokens."""
    if model.brief is None or model.brief.vocabulary is None or not model.brief.runs or not model.entry.bytes:
        return {}
    fitting = [
        (each.entry.bytes, each.entry.name) for each in others
        if each.brief is not None and each.brief.vocabulary == model.brief.vocabulary and each.brief.runs
        and each.entry.bytes and each.entry.bytes <= _SMALL * model.entry.bytes
    ]  # fmt: skip
    return {"draft model": min(fitting)[1]} if fitting else {}


def list_table(models: Iterable[Listed]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Headings and rows of the models that are here; a column without any value is left out."""
    headings = ["name", "from", "architecture", "type", "size", "runs", "drafts", "tokens/s", "packed", "licence"]
    rows = [_row(model) for model in models if model.entry.pulled and model.entry.problem is None]
    used = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    return [headings[place] for place in used], [tuple(_plain(row[place]) for place in used) for row in rows]


def _row(model: Listed) -> tuple[str, ...]:
    entry, brief = model.entry, model.brief
    parameters = f"{entry.parameters / 1e6:,.0f} M" if entry.parameters else ""
    architecture = (brief.architecture or "?") if brief is not None else ""
    draft = model.draft if model.draft and model.draft != USUAL else ""
    return (
        entry.name,
        entry.kind,
        " ".join(filter(None, [architecture, parameters])),
        model.type or "",
        "" if entry.bytes is None else f"{entry.bytes / 1e6:,.0f} MB",
        {True: "yes", False: "no", None: ""}[model.runs],
        draft,
        "" if model.tokens_per_s is None else f"{model.tokens_per_s:,.1f}",
        f"{entry.packed_bytes / 1e6:,.0f} MB" if entry.packed_bytes else "",
        entry.licence or "",
    )


def fits(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether a framed table of these texts has room in ``width`` columns without folding any."""
    columns = zip(headings, *rows, strict=True)
    return sum(max(map(cell_len, column)) + 3 for column in columns) < width


def narrow_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """The table for a terminal without room for it: the name of each model, and its other facts in a line."""
    words = {"tokens/s": "{} tokens/s", "drafts": "drafts {}", "packed": "{} packed", "licence": "licence {}"}
    lines = []
    for name, *facts in rows:
        said = [
            words.get(heading, "{}").format(fact) for heading, fact in zip(headings[1:], facts, strict=True) if fact
        ]
        runs = {"yes": "runs", "no": "does not run"}
        lines.append((name, " · ".join(runs.get(each, each) for each in said)))
    return lines


def list_lines(models: Sequence[Listed]) -> list[str]:
    """Behind the table: draft models, the models to pull, those with a problem or not run, and places with sizes."""
    lines = [
        f"{m.entry.name} may draft with --draft-model {m.companions['draft model']}"
        for m in models
        if "draft model" in m.companions and m.draft == USUAL
    ]
    lines += [
        f"to pull: {m.entry.name}, {(m.entry.parameters or 0) / 1e6:,.0f} M parameters, "
        f"{(m.entry.bytes or 0) / 1e6:,.0f} MB, licence {m.entry.licence}"
        for m in models if not m.entry.pulled
    ]  # fmt: skip
    gone = [
        m for m in models if m.entry.problem and m.entry.kind == "gguf" and m.entry.file and not m.entry.file.exists()
    ]
    if len(gone) > _FEW:
        size = sum(m.entry.bytes or 0 for m in gone) / 1e6
        lines.append(f"{len(gone)} in Outrider's cache, {size:,.0f} MB, were made from files that are gone: outrider")
        lines[-1] += " models rm NAME removes one, and --json names all"
    shown = [m for m in models if m.entry.problem and (len(gone) <= _FEW or m not in gone)]
    lines += [f"{m.entry.name} ({_place(m.entry.kind)}): {m.entry.problem}" for m in shown]
    unknown = {m.brief.architecture or "?" for m in models if m.brief is not None and not m.brief.runs}
    if unknown:
        lines.append(
            f"architectures that do not run: {', '.join(sorted(unknown))}; those that do: {', '.join(GGUF_FAMILIES)}"
        )
    return [*map(_plain, lines), *_places([model.entry for model in models if model.entry.problem is None])]


def _plain(text: str) -> str:
    """A text in which names of files can neither control the terminal nor fail to be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _place(kind: str) -> str:
    return next((text for store, text in STORES.items() if store == kind), "Outrider's cache")


def _places(entries: Sequence[ModelEntry]) -> list[str]:
    """The numbers and sizes of models, by place."""
    lines = []
    for place in ("Outrider's cache", *STORES.values()):
        here = [each for each in entries if each.pulled and each.kind != "folder" and _place(each.kind) == place]
        if here:
            where = f": {cache_root()}" if place == "Outrider's cache" else ""
            lines.append(f"{len(here)} in {place}, {sum(each.bytes or 0 for each in here) / 1e6:,.0f} MB{where}")
    return lines
