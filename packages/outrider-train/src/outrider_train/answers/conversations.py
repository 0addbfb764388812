"""All conversations of a run: begin them, write down those that have ended in order, count."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from outrider.errors import ConfigError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_train.answers.context import Contexts
from outrider_train.answers.filters import Duplicates, Excluded
from outrider_train.answers.openings import Opening
from outrider_train.answers.options import AnswerOptions, Effort
from outrider_train.answers.script import Author, Conversation, Script, Start
from outrider_train.answers.shards import Shards
from outrider_train.answers.tally import Forecast, Tally
from outrider_train.answers.user_turn import UserTurns
from outrider_train.data.documents import Line

if TYPE_CHECKING:
    from outrider.llm import LLM

_HOPELESS = 300  # consecutive conversations of the target's own without an answer to keep
_REPORT_S = 60.0  # seconds between two reports


class Tell(Protocol):
    """Hears of progress; as ``outrider.utils.working.Working``."""

    def __call__(self, what: str, count: int = 1) -> None: ...

    def expect(self, total: int, done: int = 0) -> None: ...


class Conversations:
    """Answers the given prompts, then the target's own, until the requested number is reached (``enough``)."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        given: Sequence[Line],
        shards: Shards,
        options: AnswerOptions,
        effort: Effort,
        tell: Tell,
    ) -> None:
        self._tokenizer, self._options, self._effort, self._tell = tokenizer, options, effort, tell
        self._given, self._shards = given, shards
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
        self._earlier = _earlier(shards.folder / "report.json")
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
        """The goal in tokens where a number of tokens is requested, else in conversations."""
        own = self._effort.own or 0
        return self._effort.tokens or len(self._given) + own

    @property
    def _done(self) -> int:
        if self._effort.tokens is not None:
            return self._tally.tokens_out
        return min(self._written, len(self._given)) + self._tally.own

    def go(self, llm: LLM) -> None:
        """Converse until there is enough, or until told to stop."""
        from outrider_train.answers.crowd import converse

        context = llm.model.config.max_seq_len
        self._check_room(context)
        author = Author(self._tokenizer, self._options, context, self._turns, self._excluded, self._is_known)
        self._began = self._reported = time.monotonic()
        try:
            converse(llm, lambda: self._begin(author), self._finished, lambda: self.enough or self._effort.stop())
        finally:
            self._seconds = time.monotonic() - self._began

    def report(self) -> dict[str, Any]:
        """Counts, and where the run is."""
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
        """Conversations to begin beyond those written, by the mean yield of those: few are wasted at the end."""
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
            self._shards.report(self.report())
            self._reported = time.monotonic()

    def _write(self, index: int, found: Conversation) -> None:
        """Drop duplicates of earlier conversations, and write the rest."""
        answers, dropped = found.answers, found.dropped
        reason = None if found.prompt is None or self._options.keep_all else self._known.find(found.prompt)
        if reason is not None:
            answers, dropped = [], [{"reason": reason, "turn": 0, "text": found.prompt}]
        source = self._source(index)
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

    def _source(self, index: int) -> dict[str, str]:
        """The origin of a conversation, for its records: the category is that of the given line."""
        if index >= len(self._given):
            return {"source": "own"}
        category = self._given[index].category
        return {"source": "given"} | ({} if category is None else {"category": category})

    def _note(self, record: dict[str, Any]) -> None:
        """Count a record that is on the disk."""
        if "reason" in record:
            self._tally.drop(record)
            return
        self._tally.add(record)
        if record["turn"] == 0:
            self._known.add(record["messages"][-2]["content"] if "messages" in record else record["prompt"])
        if self._contexts is not None:
            self._contexts.keep(record["index"], record)


def _plain(key: str, opening: Opening) -> Start:
    system = () if opening.system is None else ({"role": "system", "content": opening.system},)
    return Start(key, opening, system)


def _of_line(key: str, line: Line, tokenizer: Tokenizer) -> Start:
    if line.messages:
        return Start(key, Opening("given"), line.messages, user=str(line.messages[-1]["content"]))
    return Start(key, Opening("given"), user=tokenizer.decode(line.prompt), ids=line.prompt)


def _earlier(path: Path) -> dict[str, Any]:
    """Time and tokens of earlier runs, from their report; empty without a report."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"seconds": float(found["seconds"]), "generated_tokens": int(found["generated_tokens"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
