"""The two limits of a forward pass on this machine: the rates of reading and of multiplying weights."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.native.context import NativeContext
from outrider.native.library import native_library
from outrider.utils.system import total_memory

__all__ = ["MachineRates", "measure_rates", "thread_counts"]

_BUFFER = 512 << 20
"""Bytes: more than the last-level cache of one socket."""


@dataclass(frozen=True)
class MachineRates:
    """Rates of all threads of a context together, with its instruction set."""

    read_gb_s: float
    """Gigabytes per second, read in order from a buffer larger than the caches."""
    int8_gmac_s: float
    """10^9 int8 multiply-adds per second, in linear layers of 16 rows on weights in the cache."""
    sync_us: float = 0.0
    """Microseconds until all threads have met, as they do a few times in each layer."""

    def memory_limit(self, weight_bytes: int) -> float:
        """Seconds to read all weights once: the least time of any forward pass."""
        return weight_bytes / (self.read_gb_s * 1e9)

    def arithmetic_limit(self, weights: int, rows: int) -> float:
        """Seconds to multiply all weights with ``rows`` rows."""
        return weights * rows / (self.int8_gmac_s * 1e9)


def thread_counts(most: int) -> list[int]:
    """Counts of threads to compare: 1, 2, 3, 4, then 6, 8, 12, 16, 24, ... below ``most``, and ``most``."""
    doubled = [base << shift for shift in range(1, most.bit_length()) for base in (2, 3)]
    return [count for count in sorted({1, 2, 3, *doubled}) if count < most] + [most]


def measure_rates(context: NativeContext) -> MachineRates:
    """Measure the rates, in about 0.5 s and 0.5 GB of memory, or less on a small machine.

    Raises ``MemoryError``.
    """
    library = native_library()
    memory = total_memory()
    read = library.outrider_memory_rate(context.address, min(_BUFFER, memory // 8))
    multiplied = library.outrider_arithmetic_rate(context.address)
    if not read or not multiplied:
        raise MemoryError("no memory to measure this machine with")
    met = library.outrider_sync_time(context.address)
    return MachineRates(round(read / 1e9, 1), round(multiplied / 1e9, 1), round(1e6 * met, 2))
