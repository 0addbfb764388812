"""``--regenerate``: the target answers the prompts, through the engine, in batches; a killed run goes on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.config import SamplingParams
from outrider.errors import CapacityError, ConfigError
from outrider.training.data import Line, read_data
from outrider.training.tasks import LogFn
from outrider.utils.progress import duration

if TYPE_CHECKING:
    from outrider.llm import LLM

_BATCH = 64
_SAMPLED = 3  # one answer in so many is sampled, as users do; the others are greedy


def regenerate_answers(
    model: str,
    paths: Sequence[Path],
    out: Path,
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
    log: LogFn = lambda line: None,
    llm: LLM | None = None,
) -> None:
    """Write ``out``: one line {"prompt_ids", "answer_ids"} for each prompt of ``paths``, in order.

    An answer depends on its prompt, place and ``seed`` alone, so that a resumed file is what an uninterrupted one is.
    Raises ``ConfigError`` for data without prompts, ``CapacityError`` if the disk is full.
    """
    from outrider.checkpoints.catalog import resolve
    from outrider.llm import LLM
    from outrider.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(resolve(model, progress=True)) if llm is None else llm.tokenizer
    lines = [line for path in paths for line in read_data(path, tokenizer)]
    if not all(line.prompt for line in lines):
        raise ConfigError(f"{paths[0]}: some lines have no prompt to answer: leave out --regenerate, or those lines")
    done = _done(out, lines)
    if done == len(lines):
        return
    llm = llm or LLM(model, max_batch_size=_BATCH, draft="none")
    limit = llm.model.config.max_seq_len - 1
    began = time.monotonic()
    with out.open("a", encoding="utf-8") as file:
        for at in range(done, len(lines), _BATCH):
            part = lines[at : at + _BATCH]
            params = [_params(at + i, len(line.prompt), max_tokens, temperature, seed) for i, line in enumerate(part)]
            prompts = [list(line.prompt[-(limit - p.max_tokens) :]) for line, p in zip(part, params, strict=True)]
            outputs = llm.generate(prompts, params)
            texts = [
                json.dumps({"prompt_ids": list(line.prompt), "answer_ids": found.token_ids})
                for line, found in zip(part, outputs, strict=True)
            ]
            try:
                file.write("".join(f"{text}\n" for text in texts))
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                raise CapacityError(f"cannot write {out}: {error.strerror}; what is there is kept, try again") from None
            answered = at + len(part)
            left = (time.monotonic() - began) / (answered - done) * (len(lines) - answered)
            log(f"answered {answered} of {len(lines)} prompts, {duration(left)} left")


def _params(place: int, length: int, max_tokens: int, temperature: float, seed: int) -> SamplingParams:
    heat = temperature if place % _SAMPLED == 0 else 0.0
    return SamplingParams(max_tokens=max_tokens, temperature=heat, seed=seed + place)


def _done(out: Path, lines: Sequence[Line]) -> int:
    """Answers that are there; a line cut short by a kill is removed."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if not out.exists():
            return 0
        data = out.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with out.open("r+b") as file:
                file.truncate(len(whole))
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}") from None
    found = whole.splitlines()
    for i, (text, line) in enumerate(zip(found, lines, strict=False)):
        if tuple(json.loads(text).get("prompt_ids", ())) != line.prompt:
            raise ConfigError(
                f"{out}, line {i + 1} answers another prompt: give another --out, or the data it was made of"
            )
    return min(len(found), len(lines))
