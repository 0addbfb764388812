"""The per-user state folder: data kept between starts that cannot be fetched again."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def state_root() -> Path:
    """``OUTRIDER_STATE`` if set, else the user's state folder for Outrider."""
    chosen = os.environ.get("OUTRIDER_STATE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_state_path("outrider")
