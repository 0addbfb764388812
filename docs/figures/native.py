"""Figures of the native run: how quantised weights lie in memory, and in which order a product is added up."""

from __future__ import annotations

from draw import AMBER, BLUE, DIM, GREEN, GREY, VIOLET, Drawing


def native_layouts() -> Drawing:
    d = Drawing(820, 396)
    _matrix(d)
    _block(d)
    _codes(d)
    d.legend(24, 378, {"scales": AMBER, "minima, if the format has them": GREEN, "codes": VIOLET})
    return d


def _matrix(d: Drawing) -> None:
    d.text(24, 20, "A matrix, cut into panels of 16 outputs", bold=True)
    for row in range(3):
        for group in range(6):
            shade = BLUE if row == 0 else GREY
            d.box(
                24 + 42 * group, 38 + 34 * row, 38, 30, color=shade, strength=0.45 if (row, group) == (0, 2) else 0.12
            )
    d.text(288, 53, "panel 0: outputs 0 to 15", size=12)
    d.text(288, 87, "panel 1: outputs 16 to 31", size=12, color=DIM)
    d.text(288, 121, "…", size=12, color=DIM)
    d.text(24, 148, "inputs, 32 by 32: each box is one block of codes", size=12, color=DIM)


def _block(d: Drawing) -> None:
    d.text(470, 20, "One panel: 16 outputs, all inputs", bold=True)
    d.box(470, 38, 84, 30, "scales", color=AMBER, mono=True, size=12)
    d.box(558, 38, 84, 30, "minima", color=GREEN, mono=True, size=12, dashed=True)
    d.box(646, 38, 70, 30, "block 0", color=VIOLET, mono=True, size=12)
    d.box(720, 38, 76, 30, "block 1 …", color=VIOLET, mono=True, size=12)
    d.text(556, 82, "of 16 blocks, as the file stores them", size=11, color=DIM, anchor="middle")
    d.text(721, 82, "bit planes", size=11, color=DIM, anchor="middle")
    d.text(470, 112, "weight = scale * value + minimum", mono=True, size=12)
    d.text(470, 134, "K-quants: scale = float16 * integer of the group", size=12, color=DIM)


def _codes(d: Drawing) -> None:
    d.text(24, 186, "A plane of 8 bits: 64 bytes hold 4 inputs of 16 outputs", bold=True)
    _bytes(d, 206, ["i0", "i1", "i2", "i3"])
    d.text(24, 246, "the next 64 bytes hold inputs 4 to 7, and so on", size=12, color=DIM)
    d.text(24, 282, "A plane of 4 bits: 64 bytes hold 4 + 4 inputs of 16 outputs", bold=True)
    _bytes(d, 302, ["i0 i4", "i1 i5", "i2 i6", "i3 i7"])
    d.text(24, 342, "planes of 2 bits or 1 hold 16 or 32 inputs; codes of 6 bits are a plane of 4 bits and one of 2",
           size=12, color=DIM)  # fmt: skip


def _bytes(d: Drawing, y: float, names: list[str]) -> None:
    width = 52
    for output, place in ((0, 24), (1, 292)):
        d.text(place, y + 11, f"output {output}", size=11, color=DIM)
        for i, name in enumerate(names):
            d.box(place + 54 + width * i, y, width - 2, 24, name, color=VIOLET, mono=True, size=11)
    d.text(570, y + 11, "…", size=13, color=DIM)
    d.text(596, y + 11, "output 15", size=11, color=DIM)
    d.box(656, y, 140, 24, " … ".join((names[0], names[-1])), color=VIOLET, mono=True, size=11)


def native_order() -> Drawing:
    d = Drawing(820, 214)
    d.text(24, 20, "One output of one row", bold=True)
    for group in range(4):
        x = 24 + 150 * group
        for i in range(8):
            d.box(x + 16 * i, 40, 14, 14, color=VIOLET, strength=0.5)
            d.box(x + 16 * i, 58, 14, 14, color=BLUE, strength=0.5)
        d.arrow(x + 63, 78, x + 63, 98)
        d.box(x + 8, 100, 110, 26, f"sum {group}", color=GREEN, mono=True, size=12)
        d.arrow(x + 63, 128, x + 63, 150)
        d.box(x + 8, 152, 110, 26, "fmaf", color=AMBER, mono=True, size=12)
        if group < 3:
            d.arrow(x + 118, 165, x + 158, 165, color=AMBER)
    d.text(622, 47, "weight values of a group", size=11, color=DIM)
    d.text(622, 65, "activation codes", size=11, color=DIM)
    d.text(622, 113, "integers: exact in any order", size=11, color=DIM)
    d.text(622, 165, "floats: one order, g = 0, 1, 2 …", size=11, color=DIM)
    d.legend(24, 200, {"weights": VIOLET, "activations": BLUE, "int32": GREEN, "float32": AMBER})
    return d


FIGURES = {"native-layouts": native_layouts, "native-order": native_order}
