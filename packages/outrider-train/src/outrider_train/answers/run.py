"""``outrider train answers``, and ``--regenerate``: fill a folder with answers, or resume an earlier run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError
from outrider_train.answers.conversations import Conversations, Tell
from outrider_train.answers.options import AnswerOptions, Effort
from outrider_train.answers.shards import Shards
from outrider_train.data.documents import read_data

if TYPE_CHECKING:
    from outrider.llm import LLM

BATCH = 64
"""Conversations at once, unless ``max_batch_size`` says otherwise."""


class _Quiet:
    def __call__(self, what: str, count: int = 1) -> None: ...

    def expect(self, total: int, done: int = 0) -> None: ...


def write_answers(
    model: str,
    out: Path,
    options: AnswerOptions,
    effort: Effort,
    *,
    llm: LLM | None = None,
    engine: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Fill the folder ``out``, and return its ``report.json``. The same call resumes a stopped or killed run.

    Args:
        llm: a loaded engine; None: one is made with the options ``engine``, unless the folder is complete.
        tell: is called for each written conversation.

    Raises:
        ConfigError: data or options are wrong or belong to another folder, or the target writes nothing of use.
        CapacityError: the disk is full; written conversations stay, and a later call resumes.
    """
    from outrider.llm import LLM
    from outrider.tokenizer.tokenizer import Tokenizer
    from outrider.weights.hub.catalog import resolve

    tokenizer = Tokenizer.from_folder(resolve(model, progress=True)) if llm is None else llm.tokenizer
    given = [line for path in options.prompts for line in read_data(path, tokenizer)]
    settings = _settings(model, str((engine or {}).get("dtype", "auto")), options)
    shards = Shards(out, settings, effort.shard_lines)
    try:
        run = Conversations(tokenizer, given, shards, options, effort, tell or _Quiet())
        if not run.enough:
            # Conversations differ in length: a paged cache holds more conversations.
            own = {"max_batch_size": BATCH, "draft": "none", "kv_cache": "paged", **(engine or {})}
            run.go(llm or LLM(model, **own))
        shards.flush()
        report = run.report()
        shards.report(report)
    finally:
        shards.close()
    return report


def regenerate_answers(
    model: str,
    paths: Sequence[Path],
    out: Path,
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
    llm: LLM | None = None,
    engine: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
) -> None:
    """``--regenerate``: the folder ``out`` gets an answer to each prompt of ``paths``, in order, one in three sampled.

    Raises as ``write_answers``.
    """
    options = AnswerOptions(
        prompts=tuple(paths), max_tokens=max_tokens, temperature=temperature, greedy=2 / 3, seed=seed, keep_all=True
    )
    write_answers(model, out, options, Effort(), llm=llm, engine=engine, tell=tell)


def _settings(model: str, dtype: str, options: AnswerOptions) -> dict[str, Any]:
    """The options that determine the answers, with files by their content."""
    files = {name: [_digest(path) for path in getattr(options, name)] for name in ("prompts", "documents", "exclude")}
    return {"model": Path(model).name, "dtype": dtype, **asdict(options), **files}


def _digest(path: Path) -> str:
    try:
        shards = sorted(path.glob("answers-*.jsonl")) if path.is_dir() else [path]
        sha = hashlib.sha256()
        for shard in shards:
            sha.update(shard.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    return f"{path.name} {sha.hexdigest()[:12]}"
