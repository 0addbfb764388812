"""An image model, pixel by pixel: a network scores eight guessed pixels at once, a table of neighbours guesses them.

It needs scikit-learn, for its images of digits. ``--picture FILE`` draws the images, which needs matplotlib.
"""

import argparse
from itertools import pairwise

import numpy as np
import torch
from sklearn.datasets import load_digits

from outrider import speculate
from outrider_lab.speculation import Result

SIDE, SHADES = 8, 4
PIXELS = SIDE * SIDE


def digits() -> np.ndarray:
    """Handwritten digits of four shades, from white (0) to black (3): int [1797, 64], row by row."""
    return np.minimum(load_digits().images // 4, SHADES - 1).astype(np.int64).reshape(-1, PIXELS)


class PixelNetwork(torch.nn.Module):
    """The law of the next pixel after any number of pixels. The slow function f."""

    def __init__(self) -> None:
        super().__init__()
        widths = [PIXELS * (SHADES + 1), 256, 256]
        hidden = [part for a, b in pairwise(widths) for part in (torch.nn.Linear(a, b), torch.nn.GELU())]
        self.layers = torch.nn.Sequential(*hidden, torch.nn.Linear(256, SHADES))

    def forward(self, images: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        """Logits of the first pixel that is not known. ``images``: int [n, 64], ``known``: int [n] -> [n, 4]."""
        hidden = torch.arange(PIXELS) >= known[:, None]
        shown = torch.nn.functional.one_hot(images.masked_fill(hidden, SHADES), SHADES + 1)
        return self.layers(shown.flatten(1).to(self.layers[0].weight.dtype))

    def train_on(self, images: np.ndarray, steps: int) -> "PixelNetwork":
        data, optimizer = torch.from_numpy(images), torch.optim.Adam(self.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps)
        for _ in range(steps):
            rows, known = torch.randint(len(data), (512,)), torch.randint(PIXELS, (512,))
            logits = self(data[rows], known)
            loss = torch.nn.functional.cross_entropy(logits, data[rows, known])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return self.double()  # so that a row's result does not depend on the rows beside it

    @torch.no_grad()
    def batch(self, prefixes: list[tuple[int, ...]]) -> torch.Tensor:
        """One forward pass for all prefixes: float64 [n, 4]."""
        images = torch.tensor([prefix + (0,) * (PIXELS - len(prefix)) for prefix in prefixes])
        return torch.softmax(self(images, torch.tensor([len(prefix) for prefix in prefixes])), dim=-1)


class NeighbourTable:
    """The law of a pixel by its place, the pixel to the left and the two above. The guess g."""

    def __init__(self, images: np.ndarray) -> None:
        self.counts = np.full((PIXELS, SHADES, SHADES, SHADES, SHADES), 0.05)
        for place in range(PIXELS):
            columns = [images[:, other] if other >= 0 else 0 for other in self._neighbours(place)]
            np.add.at(self.counts[place], (*columns, images[:, place]), 1)

    def __call__(self, prefix: tuple[int, ...]) -> np.ndarray:
        around = [prefix[other] if other >= 0 else 0 for other in self._neighbours(len(prefix))]
        row = self.counts[(len(prefix), *around)]
        return row / row.sum()

    @staticmethod
    def _neighbours(place: int) -> tuple[int, int, int]:
        """Places to the left, above, and above to the right; -1 is outside."""
        row, column = divmod(place, SIDE)
        above = place - SIDE if row else -1
        return (place - 1 if column else -1), above, (above + 1 if row and column + 1 < SIDE else -1)


def main(count: int = 8, steps: int = 1500, draft_length: int = 8) -> list[tuple[Result, Result]]:
    """Sample ``count`` images with and without guesses, and return pairs of results."""
    torch.manual_seed(0)
    images = digits()
    f, g = PixelNetwork().train_on(images, steps), NeighbourTable(images)
    pairs = []
    for seed in range(count):
        plain = speculate(f, None, PIXELS, seed=seed, draft_length=0)
        drafted = speculate(f, g, PIXELS, seed=seed, draft_length=draft_length)
        pairs.append((plain, drafted))
        same = "the same image" if drafted.values == plain.values else "DIFFERENT"
        print(f"seed {seed}: {plain.report.rounds} forward passes, {drafted.report.rounds} with guesses, {same}")
    print(pairs[-1][1].report)
    return pairs


def draw(pairs: list[tuple[Result, Result]], path: str) -> None:
    from outrider_lab.figures.page import COLOURS, pyplot

    plt = pyplot()
    figure, panes = plt.subplots(3, len(pairs), figsize=(1.1 * len(pairs) + 1, 3.9), squeeze=False)
    tints = {"accepted": COLOURS[2], "recovered": COLOURS[5], "direct": COLOURS[0]}
    for column, (plain, drafted) in zip(panes.T, pairs, strict=True):
        for pane, run in zip(column, (plain, drafted, drafted), strict=True):
            pane.imshow(np.reshape(run.values, (SIDE, SIDE)), cmap="gray_r", vmin=0, vmax=SHADES - 1)
            pane.set(xticks=[], yticks=[])
            pane.grid(False)
            for spine in pane.spines.values():
                spine.set(visible=True, color="#cccccc")
        rgb = [[int(tints[origin][i : i + 2], 16) for i in (1, 3, 5)] for origin in drafted.origins]
        column[2].imshow(np.reshape(rgb, (SIDE, SIDE, 3)), alpha=0.75)
        column[0].set_title(f"{plain.report.rounds} passes", fontsize=8, loc="center")
        column[1].set_title(f"{drafted.report.rounds} passes", fontsize=8, loc="center")
    for pane, text in zip(panes[:, 0], ("plain", "with guesses", "which pixels"), strict=True):
        pane.set_ylabel(text, fontsize=9)
    handles = [plt.Line2D([], [], marker="s", linestyle="", color=tints[name]) for name in tints]
    names = ["guessed, accepted", "guess refused, put right", "behind the last guess"]
    figure.legend(handles, names, loc="lower center", ncols=3, fontsize=8)
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE")
    path = parser.parse_args().picture
    pairs = main()
    if path:
        draw(pairs, path)
