"""``speculation``: every field of ``SpeculationParams``, for one request."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model

from outrider.config import SOURCES, SpeculationParams
from outrider_server.openai.schema.strict import List, StrictModel

MOST = 1024  # of any number of tokens, nodes or columns that a request may ask for

Length = Annotated[int, Field(ge=1, le=MOST)] | Literal["auto"]


class SpeculationBase(StrictModel):
    """Drafting and verification of this request; omitted fields keep the server's values.

    Output is the same with any ``draft`` and length while ``verifier`` is ``matching``.
    """

    draft: str | None = Field(None, max_length=256, description=f"Draft source: {', '.join(SOURCES)}, or several.")
    method: str | None = Field(
        None, max_length=256, description="The same in vLLM's words: ngram is its prompt lookup."
    )
    spec_length: Length | None = Field(None, description="K: draft tokens per step at most; auto: as many as pay.")
    num_speculative_tokens: Length | None = Field(None, description="Another name of spec_length.")
    verifier: str | None = Field(None, max_length=64)


NAMED_HERE = {"draft", "spec_length", "verifier", "prediction"}
"""Fields of ``SpeculationParams`` that have a name or a check of their own; a prediction is OpenAI's own field."""


def _as_json(hint: Any) -> Any:
    """A field's type as JSON can have it, with an upper bound where a request could ask for the moon."""
    origin, own = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_as_json(part) for part in own)]  # noqa: UP007  (made at run time)
    if origin is Iterable:
        return Annotated[List[_as_json(own[0])], Field(max_length=MOST)]  # type: ignore[misc]
    if hint is int:
        return Annotated[int, Field(le=MOST)]
    return Annotated[str, Field(max_length=MOST)] if hint is str else hint


def _others() -> dict[str, Any]:
    hints = typing.get_type_hints(SpeculationParams)
    names = [field.name for field in fields(SpeculationParams) if field.name not in NAMED_HERE]
    return {name: (_as_json(hints[name]) | None, None) for name in names}


if TYPE_CHECKING:

    class SpeculationOptions(SpeculationBase):
        """The fields above and all others of ``SpeculationParams``."""
else:
    SpeculationOptions = create_model(
        "SpeculationOptions", __base__=SpeculationBase, __doc__=SpeculationBase.__doc__, **_others()
    )
