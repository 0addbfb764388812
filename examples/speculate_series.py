"""A time series of real numbers: a network's normal distributions, guessed by a second-order autoregression.

``--picture FILE`` draws the series, and how one guess is judged; it needs matplotlib.
"""

import argparse

import numpy as np
import torch
from scipy import stats

from outrider import speculate
from outrider_lab.speculation import Normal

WINDOW = 16


def observed(length: int = 4000) -> np.ndarray:
    """A noisy oscillator whose swings saturate, sampled at regular times: float64 [length]."""
    rng, x, v, series = np.random.default_rng(0), 1.0, 0.0, []
    for _ in range(length):
        v += 0.25 * ((1 - x * x) * v - x) + 0.15 * rng.standard_normal()
        x += 0.25 * v
        series.append(x + 0.1 * rng.standard_normal())
    return np.array(series)


class Network(torch.nn.Module):
    """The law of the next value after the last 16: a mean and a standard deviation. The slow function f."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(WINDOW, 128), torch.nn.Tanh(), torch.nn.Linear(128, 128), torch.nn.Tanh(),
            torch.nn.Linear(128, 2),
        )  # fmt: skip

    def forward(self, windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, width = self.layers(windows).unbind(-1)
        return windows[:, -1] + mean, 0.05 + 0.35 * torch.sigmoid(width)

    def train_on(self, series: np.ndarray, steps: int) -> "Network":
        windows = torch.from_numpy(np.lib.stride_tricks.sliding_window_view(series, WINDOW + 1).copy()).float()
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3)
        for _ in range(steps):
            rows = windows[torch.randint(len(windows), (256,))]
            loss = torch.nn.functional.gaussian_nll_loss(*self._moments(rows))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return self.double()

    def _moments(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, sd = self(rows[:, :-1])
        return mean, rows[:, -1], sd**2

    @torch.no_grad()
    def batch(self, prefixes: list[tuple[float, ...]]) -> list[Normal]:
        mean, sd = self(torch.tensor([prefix[-WINDOW:] for prefix in prefixes], dtype=torch.float64))
        return [Normal(m, s) for m, s in zip(mean.tolist(), sd.tolist(), strict=True)]


class Autoregression:
    """x[t] = a x[t-1] + b x[t-2] + noise, by least squares. The guess g."""

    def __init__(self, series: np.ndarray) -> None:
        before = np.stack([series[1:-1], series[:-2]], axis=1)
        self.weights = np.linalg.lstsq(before, series[2:], rcond=None)[0]
        self.sd = float((series[2:] - before @ self.weights).std())

    def __call__(self, prefix: tuple[float, ...], widen: float = 1.0) -> Normal:
        return Normal(self.weights @ (prefix[-1], prefix[-2]), widen * self.sd)


def p_value(f: Network, start: tuple[float, ...], values: list[float]) -> float:
    """Kolmogorov and Smirnov's: do the values have the network's law, each given those before it?"""
    whole = (*start, *values)
    laws = f.batch([whole[: len(start) + i] for i in range(len(values))])
    return float(stats.kstest([(x - law.mean) / law.sd for x, law in zip(values, laws, strict=True)], "norm").pvalue)


def main(length: int = 400, steps: int = 1500) -> dict[str, object]:
    """Sample the series by both verifiers, and return what a picture needs."""
    torch.manual_seed(0)
    series = observed()
    f, g, start = Network().train_on(series, steps), Autoregression(series), tuple(series[:WINDOW].tolist())

    def base(prefix: tuple[float, ...]) -> Normal:
        return g(prefix, widen=4.0)

    plain = speculate(f, None, length, start=start, seed=1, base=base, draft_length=0)
    matched = speculate(f, g, length, start=start, seed=1, base=base)
    rejected = speculate(f, g, length, start=start, seed=1)
    for name, run in (("plain", plain), ("matching", matched), ("rejection", rejected)):
        print(f"{name:10} {run.report.rounds} forward passes, p-value of the law {p_value(f, start, run.values):.2f}")
    print("matching gives", "the plain values" if matched.values == plain.values else "DIFFERENT VALUES")
    print(rejected.report)
    return {"f": f, "g": g, "start": start, "plain": plain, "matched": matched, "rejected": rejected}


def draw(found: dict, path: str) -> None:
    from outrider_lab.figures.page import COLOURS, GREY, pyplot

    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), width_ratios=(1.7, 1))
    run, shown = found["rejected"], 120
    colours = {"accepted": COLOURS[2], "recovered": COLOURS[5], "direct": COLOURS[0]}
    left.plot(run.values[:shown], color=GREY, linewidth=0.8)
    for name, text in (("accepted", "guessed, accepted"), ("recovered", "from the residual")):
        at = [i for i in range(shown) if run.origins[i] == name]
        left.plot(at, [run.values[i] for i in at], "o", color=colours[name], markersize=3.5, label=text)
    left.set(title=f"{len(run)} values in {run.report.rounds} forward passes: the first {shown}", xlabel="time")
    left.set_ylim(-2.9, 2.4)
    left.legend(loc="lower left", ncols=2, fontsize=8)
    place = 1 + max(range(shown), key=lambda i: abs(run.values[i] - run.values[i - 1]) if i else 0)
    prefix = (*found["start"], *run.values[:place])
    p, q = found["f"].batch([prefix])[0], found["g"](prefix)
    x = np.linspace(min(p.mean - 4 * p.sd, q.mean - 3 * q.sd), max(p.mean + 4 * p.sd, q.mean + 3 * q.sd), 400)
    p_x, q_x = (stats.norm.pdf(x, law.mean, law.sd) for law in (p, q))
    kept = np.minimum(p_x, q_x)
    right.fill_between(x, kept, color=COLOURS[2], alpha=0.35, linewidth=0, label="accepted")
    right.fill_between(x, kept, p_x, where=p_x > q_x, color=COLOURS[5], alpha=0.5, linewidth=0, label="residual")
    right.plot(x, p_x, color=COLOURS[0], label="p, the network")
    right.plot(x, q_x, color=GREY, linestyle="--", label="q, the guess")
    right.set(title=f"One value's densities: {np.trapezoid(kept, x):.0%} accepted", yticks=[], xlabel="value")
    right.legend(loc="upper right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE")
    path = parser.parse_args().picture
    found = main()
    if path:
        draw(found, path)
