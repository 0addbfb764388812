"""The run: begin conversations, write down those that have ended in order, count, and go on where a run was."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from outrider.errors import ConfigError
from outrider.training.answers.context import Contexts
from outrider.training.answers.filters import Duplicates, Excluded
from outrider.training.answers.options import AnswerOptions, Effort
from outrider.training.answers.script import Author, Conversation, Script, Start
from outrider.training.answers.shards import Shards
from outrider.training.answers.tally import Forecast, Tally
from outrider.training.answers.user_turn import UserTurns
from outrider.training.data import Line, read_data

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.tokenizer.tokenizer import Tokenizer

BATCH = 64
"""Conversations at once, unless ``max_batch_size`` says otherwise."""

_HOPELESS = 300  # conversations of the target's own in a row that came to nothing
_REPORT_S = 60.0  # seconds between two reports


class Tell(Protocol):
    """Hears of progress; as ``outrider.cli.working.Working``."""

    def __call__(self, what: str, count: int = 1) -> None: ...

    def expect(self, total: int, done: int = 0) -> None: ...


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
    """Fill the folder ``out``; what its ``report.json`` says. The same call goes on where a run was stopped or killed.

    Args:
        llm: an engine that is loaded already; else one is made with the options ``engine``, if anything is to be done.
        tell: hears of each conversation that is written.

    Raises:
        ConfigError: data or options are wrong or belong to another folder, or the target writes nothing of use.
        CapacityError: the disk is full; what is written stays, and can be gone on with.
    """
    from outrider.checkpoints.catalog import resolve
    from outrider.llm import LLM
    from outrider.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(resolve(model, progress=True)) if llm is None else llm.tokenizer
    run = _Run(model, tokenizer, out, options, effort, dtype=str((engine or {}).get("dtype", "auto")), tell=tell)
    if not run.enough:
        # Conversations differ in length: a paged cache holds more of them.
        own = {"max_batch_size": BATCH, "draft": "none", "kv_cache": "paged", **(engine or {})}
        run.go(llm or LLM(model, **own))
    return run.close()


def regenerate_answers(
    model: str,
    paths: Sequence[Path],
    out: Path,
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
    llm: LLM | None = None,
    tell: Tell | None = None,
) -> None:
    """``--regenerate``: the folder ``out`` gets an answer to each prompt of ``paths``, in order, one in three sampled.

    Raises as ``write_answers``.
    """
    options = AnswerOptions(
        prompts=tuple(paths), max_tokens=max_tokens, temperature=temperature, greedy=2 / 3, seed=seed, keep_all=True
    )
    write_answers(model, out, options, Effort(), llm=llm, tell=tell)


class _Run:
    """``enough`` once all is there that was asked for."""

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        out: Path,
        options: AnswerOptions,
        effort: Effort,
        *,
        dtype: str,
        tell: Tell | None,
    ) -> None:
        self._tokenizer, self._options, self._effort, self._tell = tokenizer, options, effort, tell or _Quiet()
        self._given = [line for path in options.prompts for line in read_data(path, tokenizer)]
        if not all(line.prompt for line in self._given):
            raise ConfigError(f"{options.prompts[0]}: some lines have no prompt to answer: leave those lines out")
        self._writes = effort.own is not None or not self._given
        if self._writes and effort.own is None and effort.tokens is None:
            raise ConfigError("nothing says how many answers: give --own, --tokens or --prompts")
        templated = self._writes or tokenizer.chat_template is not None
        self._turns = UserTurns(tokenizer) if templated and not options.keep_all else None
        self._excluded = Excluded(options.exclude)
        self._known = Duplicates()
        self._tally = Tally()
        c = options.context
        self._contexts = None if c is None else Contexts(tokenizer, c, options.documents)
        self._pending: dict[int, Conversation] = {}
        self._hopeless = self._generated = 0
        self._seconds = 0.0
        self._shards = Shards(out, _settings(model, dtype, options), effort.shard_lines)
        self._earlier = _earlier(out / "report.json")
        self._written = self._begun = self._shards.resume(self._note)
        self._before = self._done
        self._tell.expect(self._goal, self._before)

    @property
    def enough(self) -> bool:
        if self._effort.tokens is not None and self._tally.tokens_out >= self._effort.tokens:
            return True
        own = self._writes and (self._effort.own is None or self._tally.own < self._effort.own)
        return self._written >= len(self._given) and not own

    @property
    def _goal(self) -> int:
        """Tokens if so many are asked for, else conversations."""
        own = self._effort.own or 0
        return self._effort.tokens or len(self._given) + own

    @property
    def _done(self) -> int:
        if self._effort.tokens is not None:
            return self._tally.tokens_out
        return min(self._written, len(self._given)) + self._tally.own

    def go(self, llm: LLM) -> None:
        """Converse until there is enough, or until told to stop."""
        from outrider.training.answers.crowd import converse

        context = llm.model.config.max_seq_len
        self._check_room(context)
        author = Author(self._tokenizer, self._options, context, self._turns, self._excluded, self._is_known)
        self._began = self._reported = time.monotonic()
        try:
            converse(llm, lambda: self._begin(author), self._finished, lambda: self.enough or self._effort.stop())
        finally:
            self._seconds = time.monotonic() - self._began

    def close(self) -> dict[str, Any]:
        """Have everything on the disk; the report."""
        self._shards.flush()
        report = self._report()
        self._shards.report(report)
        return report

    def _check_room(self, context: int) -> None:
        c, o = self._options.context, self._options
        most = context - o.prompt_tokens - o.max_tokens
        if c is not None and c[1] > most:
            raise ConfigError(
                f"context={c[0]}-{c[1]}: the model reads {context} tokens, of which prompt and answer take up to "
                f"{o.prompt_tokens + o.max_tokens}: use at most {most}"
            )

    def _begin(self, author: Author) -> tuple[int, Script] | None:
        index, given = self._begun, len(self._given)
        if (index >= given and not self._writes) or index - self._written >= self._wanted():
            return None
        key = f"given:{index}" if index < given else f"own:{index - given}"
        chance = author.chance(key)
        if index < given:
            start = _of_line(key, self._given[index], self._tokenizer)
        else:
            long = None
            if self._contexts is not None and chance.random() < self._options.context_share:
                if self._written < self._contexts.needs(index):
                    return None
                long = self._contexts.begin(key, index, chance)
            start = long or _plain(key, author.opening(chance))
        self._begun += 1
        return index, author.script(start, chance)

    def _wanted(self) -> int:
        """Conversations to have begun beyond those written, by what those were worth: the end wastes few."""
        t, e = self._tally, self._effort
        wanted = math.inf
        if e.tokens is not None:
            each = max(t.tokens_out, self._options.max_tokens) / max(1, self._written)
            wanted = (e.tokens - t.tokens_out) / each
        if self._begun >= len(self._given) and e.own is not None:
            kept = max(t.own, 1) / max(1, self._written - len(self._given))
            left = max(0, len(self._given) - self._written)
            wanted = min(wanted, left + (e.own - t.own) / min(1.0, kept))
        return max(1, math.ceil(min(wanted, 1e9)))

    def _is_known(self, prompt: str) -> bool:
        return self._known.find(prompt) is not None

    def _finished(self, index: int, found: Conversation) -> None:
        self._generated += found.generated
        self._pending[index] = found
        while self._written in self._pending and not self.enough:
            self._write(self._written, self._pending.pop(self._written))
        if time.monotonic() - self._reported > _REPORT_S:
            self._shards.report(self._report())
            self._reported = time.monotonic()

    def _write(self, index: int, found: Conversation) -> None:
        """Decide on duplicates, now that everything before is known, and write."""
        answers, dropped = found.answers, found.dropped
        reason = None if found.prompt is None or self._options.keep_all else self._known.find(found.prompt)
        if reason is not None:
            answers, dropped = [], [{"reason": reason, "turn": 0, "text": found.prompt}]
        source = {"source": "given" if index < len(self._given) else "own"}
        answers, dropped = [source | line for line in answers], [source | line for line in dropped]
        self._shards.write(index, answers, dropped)
        before = self._done
        self._written += 1
        for record in (*answers, *dropped):
            self._note({"index": index} | record)
        self._hopeless = 0 if answers or index < len(self._given) else self._hopeless + 1
        if self._hopeless >= _HOPELESS:
            raise ConfigError(
                f"the last {_HOPELESS} conversations came to nothing ({_counts(self._tally.dropped)}): look into "
                f"{self._shards.folder / 'dropped.jsonl'}, and try other --prompts, --prompt-tokens or --exclude"
            )
        speed = self._generated / max(1e-9, time.monotonic() - self._began)
        self._tell(f"{speed:,.0f} tokens/s, {self._tally.dropped_share:.0%} left out", self._done - before)

    def _note(self, record: dict[str, Any]) -> None:
        """A record that is on the disk."""
        if "reason" in record:
            self._tally.drop(record)
            return
        self._tally.add(record)
        if record["turn"] == 0:
            self._known.add(record["messages"][-2]["content"] if "messages" in record else record["prompt"])
        if self._contexts is not None:
            self._contexts.keep(record["index"], record)

    def _report(self) -> dict[str, Any]:
        seconds = self._seconds or time.monotonic() - getattr(self, "_began", time.monotonic())
        forecast = Forecast(self._goal, self._before, self._done, seconds)
        generated = self._generated + self._earlier.get("generated_tokens", 0)
        whole = seconds + self._earlier.get("seconds", 0.0)
        return {
            **self._tally.report(),
            "generated_tokens": generated,
            "seconds": round(whole, 1),
            "tokens_per_s": round(generated / whole, 1) if whole else None,
            "complete": self.enough,
            "goal": {"tokens" if self._effort.tokens is not None else "conversations": self._goal, "done": self._done},
            "seconds_left": None if forecast.left is None else round(forecast.left, 1),
            "settings": self._shards.settings,
        }


def _plain(key: str, opening: Any) -> Start:
    system = () if opening.system is None else ({"role": "system", "content": opening.system},)
    return Start(key, opening, system)


def _of_line(key: str, line: Line, tokenizer: Tokenizer) -> Start:
    from outrider.training.answers.openings import Opening

    if line.messages:
        return Start(key, Opening("given"), line.messages, user=str(line.messages[-1]["content"]))
    return Start(key, Opening("given"), user=tokenizer.decode(line.prompt), ids=line.prompt)


def _settings(model: str, dtype: str, options: AnswerOptions) -> dict[str, Any]:
    """What identifies the answers; files by their content."""
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


def _earlier(path: Path) -> dict[str, Any]:
    """Time and tokens of the runs before; nothing where no report tells."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"seconds": float(found["seconds"]), "generated_tokens": int(found["generated_tokens"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
