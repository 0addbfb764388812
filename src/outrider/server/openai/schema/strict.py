"""The base of every request."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """No unknown fields, no text for numbers, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
