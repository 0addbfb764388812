"""The base of every request, and bounds on the time that checking takes.

Checking a list stops at its first wrong element, and a list of too many elements is refused unread: an
error for each of a million elements would take a minute and gigabytes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, model_validator
from pydantic_core import PydanticCustomError

from outrider_server.http.body_limits import UNKNOWN

T = TypeVar("T")


class _FirstError(FailFast):
    """pydantic's, for unions too, whose members must have a hash."""

    __hash__ = object.__hash__


List = Annotated[list[T], _FirstError()]


def at_most(count: int) -> BeforeValidator:
    """Refuses a list or an object of more than ``count`` elements."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count:
            raise PydanticCustomError("too_long", "it has {size} elements: send at most {count}", _sizes(value, count))
        return value

    return BeforeValidator(check)


def _sizes(value: Any, count: int) -> dict[str, Any]:
    return {"size": len(value), "count": count}


class StrictModel(BaseModel):
    """No unknown fields, no text for numbers, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _not_too_many_fields(cls, value: Any) -> Any:
        most = len(cls.model_fields) + UNKNOWN
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_long", "it has {size} fields: send at most {count}", _sizes(value, most))
        return value


def _not_a_number(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise PydanticCustomError("literal_error", "Input should be true or false")
    return value


OnlyFalse = Annotated[Literal[False], BeforeValidator(_not_a_number)]
"""``false``: as a literal alone it would be 0 too, which is equal."""
OnlyTrue = Annotated[Literal[True], BeforeValidator(_not_a_number)]
