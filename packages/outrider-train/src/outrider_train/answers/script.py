"""One conversation, as a generator: it asks the target for turns, and returns the answers to keep.

Its requests depend on the model, the options and its key alone, and each turn is sampled with its own seed. So a
conversation is the same in any batch, in any order, and after any interruption.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.config import SamplingParams
from outrider.engine.request import Request
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_train.answers.filters import Excluded, LoopWatch, loops
from outrider_train.answers.openings import OPENINGS, PLAIN, Opening
from outrider_train.answers.options import AnswerOptions
from outrider_train.answers.user_turn import UserTurns

Message = Mapping[str, Any]

_ROOM = 16  # least tokens of room for an answer, if ``max_tokens`` is not smaller


@dataclass(frozen=True)
class Ask:
    """A request to the target: text to continue."""

    ids: Sequence[int]
    params: SamplingParams
    in_vain: Callable[[Sequence[int]], bool] = lambda output: False
    """Whether an output with this beginning will certainly be dropped, so that it need not be continued."""


@dataclass
class Conversation:
    """``answers``: lines for the shards. ``prompt``: the user's first message, if it passes the filters."""

    kind: str
    prompt: str | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[dict[str, Any]] = field(default_factory=list)  # {"reason", "turn", "text"}
    generated: int = 0  # tokens, including those of prompts and of dropped texts


Script = Generator[Ask, Request, Conversation]


@dataclass(frozen=True)
class Start:
    """The beginning of a conversation. ``user``: the user's whole first message; None: the target writes it."""

    key: str  # of the conversation's own seed
    opening: Opening = PLAIN
    messages: tuple[Message, ...] = ()
    user: str | None = None
    ids: tuple[int, ...] = ()  # given instead of ``messages``: a prompt that is not a chat


@dataclass
class Author:
    """Makes the scripts of one model. ``turns``: None for a model without a chat template."""

    tokenizer: Tokenizer
    options: AnswerOptions
    context: int  # the most tokens that the model reads
    turns: UserTurns | None
    excluded: Excluded
    known: Callable[[str], bool] = lambda prompt: False
    """Whether a prompt is certainly a duplicate. A True saves an answer, and changes nothing else."""

    def chance(self, key: str) -> random.Random:
        """A random generator for the conversation ``key`` alone."""
        return random.Random(f"{self.options.seed}:{key}")

    def opening(self, chance: random.Random) -> Opening:
        """The opening of a conversation whose prompt the target writes."""
        if chance.random() >= self.options.system_share or self.turns is None:
            return PLAIN
        found = chance.choice(OPENINGS)
        return found if self.turns.takes_system else Opening(found.kind, None, found.start)

    def script(self, start: Start, chance: random.Random) -> Script:
        """The conversation that ``start`` begins. ``chance``: its generator, after the choice of ``start``."""
        o, found = self.options, Conversation(start.opening.kind)
        wanted = chance.randint(*o.turns) if not start.ids and self.turns is not None else 1
        messages = list(start.messages)
        for turn in range(wanted):
            user = start.user if turn == 0 else None
            if not start.ids and user is None:
                user = yield from self._prompt(start, messages, turn, found)
            elif not o.keep_all and self.excluded.contains(user or ""):
                found.dropped.append({"reason": "excluded", "turn": turn, "text": user})
                user = None
            if user is None:
                return found
            if turn == 0:
                found.prompt = user
                if not o.keep_all and self.known(user):
                    return found
            if not start.ids and (turn or start.user is None):
                messages.append({"role": "user", "content": user})
            greedy = chance.random() < o.greedy
            answer = yield from self._answer(start, messages, user, turn, greedy, found)
            if answer is None:
                return found
            messages.append({"role": "assistant", "content": answer})
        return found

    def _prompt(
        self, start: Start, messages: Sequence[Message], turn: int, found: Conversation
    ) -> Generator[Ask, Request, str | None]:
        """The user's message, written by the target; None if the filters drop it."""
        assert self.turns is not None, "a model without a chat template is given its prompts"
        o = self.options
        place = self.turns.open(messages, start.opening.start if turn == 0 else "")
        room = self.context - len(place.ids) - _ROOM
        if room < 2:
            found.dropped.append({"reason": "too long", "turn": turn, "text": ""})
            return None
        params = SamplingParams(
            max_tokens=min(o.prompt_tokens, room),
            temperature=o.prompt_temperature,
            top_p=o.prompt_top_p,
            seed=self._seed(start.key, "prompt", turn),
            stop=self.turns.stop,
            stop_token_ids=self.turns.end_ids | self.tokenizer.special_ids,
        )
        watch = LoopWatch(len(place.written) + params.max_tokens, place.written)
        request = yield Ask(place.ids, params, watch)
        output = list(request.output)
        found.generated += len(output)
        written = (self.tokenizer.decode(place.written) + request.text).strip()
        ended = request.written.stop_string is not None or output[-1] in self.turns.end_ids
        reason = _of_prompt(written, request.text, ended, [*place.written, *output])
        if reason is None and self.excluded.contains(written):
            reason = "excluded"
        if reason is None:
            return written
        found.dropped.append({"reason": reason, "turn": turn, "text": written})
        return None

    def _answer(
        self, start: Start, messages: Sequence[Message], user: str, turn: int, greedy: bool, found: Conversation
    ) -> Generator[Ask, Request, str | None]:
        """The answer to the last message; None where the conversation ends, with or without this answer."""
        o = self.options
        ids = list(start.ids) or self.tokenizer.encode_chat(messages)
        room = self.context - len(ids) - 1
        if room < min(_ROOM, o.max_tokens):
            found.dropped.append({"reason": "too long", "turn": turn, "text": user})
            return None
        params = SamplingParams(
            max_tokens=min(o.max_tokens, room),
            temperature=0.0 if greedy else o.temperature,
            seed=self._seed(start.key, "answer", turn),
        )
        ask = Ask(ids, params) if o.keep_all else Ask(ids, params, LoopWatch(params.max_tokens))
        request = yield ask
        output = list(request.output)
        found.generated += len(output)
        reason = None if o.keep_all else "empty answer" if not request.text.strip() else None
        if reason is None and not o.keep_all and loops(output):
            reason = "loop in answer"
        if reason is not None:
            found.dropped.append({"reason": reason, "turn": turn, "text": user})
            return None
        assert request.finish_reason is not None
        said = {"role": "assistant", "content": request.text}
        chat = {"prompt": user, "answer": request.text} if start.ids else {"messages": [*messages, said]}
        line = {"turn": turn, "kind": start.opening.kind, "greedy": greedy, "finish": request.finish_reason}
        found.answers.append(line | chat | {"prompt_ids": ids, "answer_ids": output})
        return request.text if request.finish_reason == "stop" else None

    def _seed(self, key: str, role: str, turn: int) -> int:
        digest = hashlib.sha256(f"{self.options.seed}:{key}:{role}:{turn}".encode()).digest()
        return int.from_bytes(digest[:7], "big")


def _of_prompt(written: str, own: str, ended: bool, ids: Sequence[int]) -> str | None:
    """The reason to drop a prompt; None to keep it."""
    if not own.strip():
        return "empty prompt"
    if loops(ids):
        return "loop in prompt"
    return None if ended else "unfinished prompt"
