"""Element-wise operations whose bits do not depend on how torch shares it out among threads."""

from __future__ import annotations

_SERIAL = 32768  # elements that torch runs on one thread (at::internal::GRAIN_SIZE)


def serial_rows(width: int) -> int:
    """Rows of ``width`` elements to hand to torch at once so that none is divided among threads: at least 1.

    torch shares out more elements than ``_SERIAL`` evenly, row ends or not, and handles what a share has over
    whole vectors with scalar code. Exponentials and complex products differ between the two in float32's last
    bit, so a row would depend on the other rows. Sums, products and roundings do not.
    """
    return max(1, _SERIAL // width)
