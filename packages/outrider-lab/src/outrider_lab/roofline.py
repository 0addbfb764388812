"""A roofline model: the cost of a forward pass on hardware that cannot be measured.

    T(n) = max(bytes of weights and KV cache / bandwidth, 2 * parameters * n / FLOP/s) + launch overhead

This is the roofline model of Williams et al. (2009). A forward pass is bound by memory bandwidth while few rows share
the weights. It is bound by compute beyond n* = FLOP/s * bytes per weight / (2 * bandwidth) rows. Both limits are taken
at the efficiency that good kernels reach. These efficiencies and the overhead are assumptions; every estimate states
them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from outrider.errors import ConfigError
from outrider.utils.suggest import unknown

BANDWIDTH_EFFICIENCY = 0.8  # share of the data sheet's bandwidth that a pass over few rows reaches
FLOPS_EFFICIENCY = 0.6  # share of the data sheet's FLOP/s that dense matrix products reach
MEMORY_UTILIZATION = 0.9  # share of device memory for weights and cache


@dataclass(frozen=True)
class Hardware:
    """One device, or several with tensor parallelism. Data-sheet numbers for dense 16-bit arithmetic."""

    name: str
    bandwidth: float  # bytes per second
    flops: float  # FLOP/s, 16-bit
    memory: float  # bytes
    overhead: float = 20e-6  # seconds per layer and forward pass that neither limit covers: launches, small kernels
    devices: int = 1

    def tensor_parallel(self, devices: int) -> Hardware:
        """``devices`` of this device, each with a share of every layer; communication counts as overhead."""
        if devices == 1:
            return self
        return replace(
            self,
            name=f"{devices} x {self.name}",
            bandwidth=self.bandwidth * devices,
            flops=self.flops * devices,
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


def find_hardware(name: str) -> Hardware:
    """Hardware by its name in ``HARDWARE``, in any case and spacing.

    Raises:
        ConfigError: the name is unknown; the message lists the known names.
    """
    wanted = name.replace(" ", "").replace("-", "").lower()
    for known, hardware in HARDWARE.items():
        if known.replace(" ", "").lower() == wanted:
            return hardware
    raise ConfigError(unknown("hardware", name, HARDWARE))


@dataclass(frozen=True)
class ModelSize:
    """A dense decoder with this number of parameters. Layers and width are estimated from it."""

    parameters: float
    weight_bits: float = 16

    @classmethod
    def parse(cls, text: str, weight_bits: float = 16) -> ModelSize:
        """A size as in the names of models: ``70B``, ``1.1b``, ``135M``. Raises ConfigError for other text."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([bm])", text.strip().lower())
        if match is None or float(match[1]) == 0:
            raise ConfigError(f"parameters={text!r} is not a model size: write it like 70B or 135M")
        return cls(float(match[1]) * (1e9 if match[2] == "b" else 1e6), weight_bits)

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


def devices_needed(hardware: Hardware, *sizes: ModelSize) -> int:
    """The smallest number of devices, a power of two, whose memory holds the weights of ``sizes``."""
    need = sum(size.weight_bytes for size in sizes) / (MEMORY_UTILIZATION * hardware.memory)
    return 1 if need <= 1 else 2 ** math.ceil(math.log2(need))


@dataclass(frozen=True)
class Roofline:
    """T(n) of a model on hardware, for ``batch`` sequences of ``context`` tokens. It is a ``cost.Cost``."""

    size: ModelSize
    hardware: Hardware
    context: int = 512
    batch: int = 1

    def __post_init__(self) -> None:
        if self.size.parameters <= 0 or self.context < 0 or self.batch < 1:
            raise ConfigError(
                f"parameters={self.size.parameters:g}, context={self.context}, batch={self.batch} describe no forward "
                "pass: use positive numbers"
            )

    def __call__(self, rows: float) -> float:
        """Seconds of a forward pass over ``rows`` rows, of all sequences together."""
        read = self.size.weight_bytes + self.batch * self.context * self.size.cache_bytes_per_token
        memory = read / (BANDWIDTH_EFFICIENCY * self.hardware.bandwidth)
        compute = 2 * self.size.parameters * rows / (FLOPS_EFFICIENCY * self.hardware.flops)
        return max(memory, compute) + self.size.layers * self.hardware.overhead

    @property
    def free_rows(self) -> int:
        """Rows that cost no more than one row, because reading the weights takes longer than their arithmetic."""
        memory = self.size.weight_bytes / (BANDWIDTH_EFFICIENCY * self.hardware.bandwidth)
        row = 2 * self.size.parameters / (FLOPS_EFFICIENCY * self.hardware.flops)
        return max(1, int(memory / row))


def assumptions(target: Roofline, draft: Roofline | None) -> list[str]:
    """Assumptions of an estimate, one line each."""
    h, s = target.hardware, target.size
    lines = [
        f"{h.name}: {h.bandwidth / 1e12:.2f} TB/s and {h.flops / 1e12:.0f} TFLOP/s from the data sheet, of which "
        f"{BANDWIDTH_EFFICIENCY:.0%} and {FLOPS_EFFICIENCY:.0%} are reached",
        f"target {s.parameters / 1e9:g}B in {s.weight_bits:g} bits: {s.weight_bytes / 1e9:.0f} GB read a forward pass, "
        f"{s.layers:.0f} layers at {1e6 * h.overhead:.0f} µs of overhead each",
        f"batch {target.batch}, {target.context} tokens of context each",
    ]
    if draft is not None:
        lines.append(f"draft {draft.size.parameters / 1e9:g}B in {draft.size.weight_bits:g} bits on the same hardware")
    lines.append("acceptances are independent and equally likely (Leviathan et al. 2023, section 3.1)")
    return lines
