"""Options of beam search: their ranges, and the options that exclude them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.config.checks import is_finite, is_int, require
from outrider.errors import InvalidRequestError

MAX_WIDTH = 64
_USUAL = {"length_penalty": 1.0, "early_stopping": False, "num_beam_groups": 1, "diversity_penalty": 0.0}
_REFUSED: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | {
    "stop": (),
    "logprobs": None,
    "prompt_logprobs": None,
}
"""What beam search, which draws nothing and looks at tokens alone, does not take; and its usual value."""


class BeamOptions:
    """The fields of ``SamplingParams`` that beam search reads or refuses, for type checkers."""

    if TYPE_CHECKING:
        n: int
        beam_width: int
        length_penalty: float
        early_stopping: bool | str
        num_beam_groups: int
        diversity_penalty: float


def check_beams(params: BeamOptions) -> None:
    """Raises InvalidRequestError for options of beam search that are invalid or contradict each other."""
    width, groups = params.beam_width, params.num_beam_groups
    require(is_int(width) and 0 <= width <= MAX_WIDTH, "beam_width", width, f"use 1 to {MAX_WIDTH}, or 0 for no beams")
    penalty = params.length_penalty
    require(is_finite(penalty) and -10 <= penalty <= 10, "length_penalty", penalty, "use a number between -10 and 10")
    stopping = params.early_stopping
    require(isinstance(stopping, bool) or stopping == "never", "early_stopping", stopping, "use True, False or 'never'")
    require(is_int(groups) and groups >= 1, "num_beam_groups", groups, "use at least 1")
    diversity = params.diversity_penalty
    possible = is_finite(diversity) and 0 <= diversity <= 100
    require(possible, "diversity_penalty", diversity, "use a number from 0 to 100")
    for name, usual in (_REFUSED if width else _USUAL).items():
        value = getattr(params, name)
        require(value == usual, name, value, "beam search does not take it" if width else "it needs beam_width")
    if width == 0:
        return
    require(params.n <= width, "n", params.n, f"beam_width={width} finds no more than that many outputs")
    require(width % groups == 0, "num_beam_groups", groups, f"use a divisor of beam_width={width}")
    if groups > 1 and diversity == 0:
        raise InvalidRequestError(
            f"num_beam_groups={groups} without a penalty are {groups} times the same beams: set diversity_penalty",
            param="diversity_penalty",
        )
    require(groups > 1 or diversity == 0, "diversity_penalty", diversity, "it needs groups: set num_beam_groups")
