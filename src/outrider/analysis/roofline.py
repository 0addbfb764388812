"""What a run should cost on a machine that is not at hand: weights read once, arithmetic by the row.

    T(n) = max(bytes of weights and cache / bandwidth, 2 * parameters * n / arithmetic) + launch overhead

This is the roofline model (Williams et al. 2009): a run is bound by memory while few rows share the weights, and by
arithmetic beyond n* = arithmetic * bytes per weight / (2 * bandwidth) rows. Both limits are taken at the efficiencies
that well-made kernels reach; they and the overhead are assumptions, and every answer states them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from outrider.errors import ConfigError

BANDWIDTH_EFFICIENCY = 0.8  # of the data sheet's, reading weights in a run of few rows
ARITHMETIC_EFFICIENCY = 0.6  # of the data sheet's, in dense matrix products
SPARE = 0.9  # share of memory for weights and cache


@dataclass(frozen=True)
class Hardware:
    """One device, or several that share each layer. Data-sheet numbers for dense 16-bit arithmetic."""

    name: str
    bandwidth: float  # bytes per second
    arithmetic: float  # operations per second, 16-bit
    memory: float  # bytes
    overhead: float = 20e-6  # seconds per layer and run that neither limit covers: launches, small kernels
    devices: int = 1

    def times(self, devices: int) -> Hardware:
        """Several of them, each with a share of every layer; exchanges between them are counted as overhead."""
        if devices == 1:
            return self
        return replace(
            self,
            name=f"{devices} x {self.name}",
            bandwidth=self.bandwidth * devices,
            arithmetic=self.arithmetic * devices,
            memory=self.memory * devices,
            overhead=self.overhead * 1.5,
            devices=devices,
        )


HARDWARE: dict[str, Hardware] = {
    h.name: h
    for h in (
        Hardware("H100", 3.35e12, 989e12, 80e9),
        Hardware("H200", 4.8e12, 989e12, 141e9),
        Hardware("B200", 8.0e12, 2250e12, 180e9),
        Hardware("A100", 2.04e12, 312e12, 80e9),
        Hardware("L40S", 0.864e12, 362e12, 48e9),
        Hardware("L4", 0.3e12, 121e12, 24e9),
        Hardware("RTX 4090", 1.008e12, 165e12, 24e9),
        Hardware("RTX 3090", 0.936e12, 71e12, 24e9),
        Hardware("T4", 0.32e12, 65e12, 16e9),
        Hardware("M2 Max", 0.4e12, 13.6e12, 64e9, overhead=40e-6),
        Hardware("CPU", 0.05e12, 1.5e12, 32e9, overhead=30e-6),
    )
}
"""Vendors' data sheets (SXM versions of data-centre cards). ``CPU``: a desktop with two channels of DDR5."""


@dataclass(frozen=True)
class Size:
    """A dense decoder of so many parameters; layers and width follow from it if they are not known."""

    parameters: float
    weight_bits: float = 16

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.weight_bits / 8

    @property
    def width(self) -> float:
        """Hidden size: published models of 0.1 to 400 billion parameters keep layers near width / 100."""
        return float((self.parameters * 100 / 12) ** (1 / 3))

    @property
    def layers(self) -> float:
        return max(2.0, self.width / 100)

    @property
    def cache_bytes_per_token(self) -> float:
        """Keys and values in 16 bits, with a key head for every eight query heads."""
        return 2 * 2 * self.layers * self.width / 8


def devices_needed(hardware: Hardware, *sizes: Size) -> int:
    """The smallest power of two of devices that holds these models' weights."""
    need = sum(size.weight_bytes for size in sizes) / (SPARE * hardware.memory)
    return 1 if need <= 1 else 2 ** math.ceil(math.log2(need))


@dataclass(frozen=True)
class Run:
    """T(n) of a model on a machine, for ``batch`` sequences of ``context`` tokens; usable as ``cost.Cost``."""

    size: Size
    hardware: Hardware
    context: int = 512
    batch: int = 1

    def __post_init__(self) -> None:
        if self.size.parameters <= 0 or self.context < 0 or self.batch < 1:
            raise ConfigError(
                f"parameters={self.size.parameters:g}, context={self.context}, batch={self.batch} describe no run"
            )

    def __call__(self, rows: float) -> float:
        """Seconds of a run over ``rows`` rows, of all sequences together."""
        read = self.size.weight_bytes + self.batch * self.context * self.size.cache_bytes_per_token
        memory = read / (BANDWIDTH_EFFICIENCY * self.hardware.bandwidth)
        arithmetic = 2 * self.size.parameters * rows / (ARITHMETIC_EFFICIENCY * self.hardware.arithmetic)
        return max(memory, arithmetic) + self.size.layers * self.hardware.overhead

    @property
    def free_rows(self) -> int:
        """Rows that cost no more than one: those that the reading of the weights hides."""
        memory = self.size.weight_bytes / (BANDWIDTH_EFFICIENCY * self.hardware.bandwidth)
        row = 2 * self.size.parameters / (ARITHMETIC_EFFICIENCY * self.hardware.arithmetic)
        return max(1, int(memory / row))


def assumptions(run: Run, draft: Run | None) -> list[str]:
    """What an answer rests on, one line each."""
    h, s = run.hardware, run.size
    lines = [
        f"{h.name}: {h.bandwidth / 1e12:.2f} TB/s and {h.arithmetic / 1e12:.0f} TFLOP/s from the data sheet, of which "
        f"{BANDWIDTH_EFFICIENCY:.0%} and {ARITHMETIC_EFFICIENCY:.0%} are reached",
        f"target {s.parameters / 1e9:g}B in {s.weight_bits:g} bits: {s.weight_bytes / 1e9:.0f} GB read per run, about "
        f"{s.layers:.0f} layers at {1e6 * h.overhead:.0f} µs beside that",
        f"batch {run.batch}, {run.context} tokens of context each",
    ]
    if draft is not None:
        lines.append(f"draft {draft.size.parameters / 1e9:g}B in {draft.size.weight_bits:g} bits on the same machine")
    lines.append("acceptances are independent and equally likely (Leviathan et al. 2023, section 3.1)")
    return lines
