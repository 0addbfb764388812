"""Draw the figures of the documentation: ``python docs/figures [FOLDER]``, by default into docs/images/figures."""

from __future__ import annotations

import sys
from pathlib import Path

import adaptive
import beams
import distributions
import drafting
import heads
import house
import modelling
import native
import speculating
import verifying

ROOMS = (verifying, distributions, drafting, modelling, beams, heads, adaptive, native, speculating, house)
FIGURES = {name: figure for room in ROOMS for name, figure in room.FIGURES.items()}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "images" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES.items():
        (folder / f"{name}.svg").write_text(figure().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
