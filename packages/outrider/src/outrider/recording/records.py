"""Requests and their tokens as lines of JSON, which ``outrider replay`` runs again.

The file is its writer's: it holds prompts (as token ids) and answers, and of a server those of all callers, but no keys
or addresses. Only its owner can read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from outrider.config import SamplingParams
from outrider.config.structured import StructuredOutput
from outrider.errors import ConfigError, OutriderError
from outrider.native.processor import processor_name

__all__ = ["FORMAT", "Recorded", "read_record"]

FORMAT = "outrider-record 1"


@dataclass(frozen=True)
class Recorded:
    """One sequence: a line of the file."""

    prompt: list[int]
    params: dict[str, Any]
    """Fields of ``SamplingParams`` that are not the default, the seed among them."""
    output: list[int]
    text: str
    origins: str
    """A letter for each token: target, accepted, recovered or bonus; every step ends with one not accepted."""
    finish_reason: Literal["stop", "length"] | None
    """None: the request was given up, and the output is a beginning."""
    left_out: str | None
    """The reason why this sequence cannot be run again."""
    model: str
    model_digest: str
    dtype: str
    """Of the weights and of the cache."""
    id: str = ""
    format: str = FORMAT
    time: str = ""
    version: str = field(default_factory=lambda: version("outrider-core"))
    processor: str = field(default_factory=processor_name)
    logprobs: list[dict[str, float]] | None = None
    """Of each token, if the request or the record asked: log-probabilities by token id."""
    logits: list[str] | None = None
    """Of each token, if the record has them: the digest of the logits that it was chosen from."""
    prompt_text: str | None = None
    """For readers."""

    def step_of(self, token: int) -> int:
        """The step, from 0, that gave the token with this index."""
        return sum(letter != "a" for letter in self.origins[:token])

    def sampling(self) -> SamplingParams:
        """The options to run it again with. Raises ConfigError for options that this version does not have."""
        given = dict(self.params)
        try:
            if "structured" in given:
                given["structured"] = StructuredOutput(**given["structured"])
            if "logit_bias" in given:
                given["logit_bias"] = {int(token): value for token, value in given["logit_bias"].items()}
            if self.finish_reason is None:
                given["max_tokens"] = len(self.output)
                given["min_tokens"] = min(given.get("min_tokens", 0), len(self.output))
            return SamplingParams(**given)
        except (TypeError, ValueError, AttributeError, OutriderError) as error:
            raise ConfigError(f"the request {self.id} was recorded by another version: {error}") from None

    def is_whole(self) -> bool:
        """Whether the parts that are run again have the types and lengths above."""
        sides = (self.prompt, self.output)
        whole = all(isinstance(ids, list) and all(type(token) is int for token in ids) for ids in sides)
        whole = whole and isinstance(self.params, dict) and isinstance(self.text, str) and isinstance(self.origins, str)
        per_token = [self.origins, *(each for each in (self.logprobs, self.logits) if each is not None)]
        return whole and all(isinstance(each, list | str) and len(each) == len(self.output) for each in per_token)


def read_record(path: Path) -> Iterator[Recorded]:
    """The lines of a file. Raises ConfigError for a file that is no record, with the line where it stops being one."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield _parsed(line, f"{path}, line {number}")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no record of outrider: it is no text") from None


def _parsed(line: str, where: str) -> Recorded:
    try:
        found = json.loads(line)
    except ValueError:
        begun = line.startswith('{"prompt": [') and not line.endswith("\n")
        reason = "it is cut off: remove the line" if begun else "it is no record of outrider"
        raise ConfigError(f"{where}: {reason}") from None
    known = fields(Recorded)
    needed = {own.name for own in known if own.default is MISSING and own.default_factory is MISSING}
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ConfigError(f"{where}: it is no record of outrider")
    if not needed <= found.keys() <= {own.name for own in known}:
        raise ConfigError(f"{where}: it is a record of another version")
    recorded = Recorded(**found)
    if not recorded.is_whole():
        raise ConfigError(f"{where}: its fields do not fit together")
    return recorded
