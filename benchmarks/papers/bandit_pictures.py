"""Pictures of ``bandits.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from scipy.stats import t as student

COLORS = {
    "UCB1": "tab:gray",
    "UCB-V": "tab:blue",
    "KL-UCB": "tab:orange",
    "TS": "tab:green",
    "MOSS": "tab:purple",
    "EUCBV": "tab:red",
    "UCB-CV": "black",
    "jackknife": "tab:blue",
    "splitting": "tab:orange",
    "batching": "tab:red",
}
PALETTE = [f"C{i}" for i in range(10)]


def figure_1(path: Path, axis, best, clear, times, pulls, highlighted, n) -> None:
    """Tiles of the best policy; suboptimal pulls over time with 1 and 99 % quantiles."""
    fig = Figure(figsize=(10.5, 4.4), layout="constrained")
    tiles, right = fig.subplots(1, 2)
    for i, (name, sure) in enumerate(zip(best, clear, strict=True)):
        x, y = divmod(i, len(axis))
        color = matplotlib.colors.to_rgba(COLORS[name], 1.0 if sure else 0.35)
        tiles.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=color, ec="white"))
        tiles.text(x, y, name, ha="center", va="center", color="white" if sure else "black", size=7)
    place = (float(axis.index(highlighted[0])), float(axis.index(highlighted[1])))
    tiles.add_patch(Circle(place, 0.45, fill=False, ec="red", ls="--", lw=1.5))
    labels = [f"{v:.3g}" for v in axis]
    ticks = range(len(axis))
    tiles.set(xlim=(-0.5, len(axis) - 0.5), ylim=(-0.5, len(axis) - 0.5), aspect="equal",
              xlabel="variance of the better estimator", ylabel="additional variance of the other",
              title=f"least regret at n = {n:,} (pale: not significant)",
              xticks=ticks, yticks=ticks, xticklabels=labels, yticklabels=labels)  # fmt: skip
    for name, of in pulls.items():
        right.plot(times, of.mean(0), color=COLORS[name], label=name)
        low, high = np.percentile(of, (1, 99), axis=0)
        right.fill_between(times, np.maximum(low, 0.5), high, color=COLORS[name], alpha=0.15, lw=0)
    right.set(xscale="log", yscale="log", xlabel="pulls", ylabel="suboptimal pulls",
              title="highlighted case: mean, 1 and 99 % quantiles")  # fmt: skip
    right.legend(frameon=False)
    fig.savefig(path, dpi=130)


def figure_2(path: Path, panels) -> None:
    """Normalised MSE against the number of samples; dots are squared errors of the same runs."""
    fig = Figure(figsize=(12.5, 4.4), layout="constrained")
    axes = fig.subplots(1, len(panels), sharey=True)
    for ax, (strike, times, exact, errors, ends, pmc) in zip(axes, panels, strict=True):
        for name, of in exact.items():
            ax.plot(times, of.mean(0), color=COLORS[name], label=name)
            some = slice(None, None, 4)
            ax.plot(times[some], errors[name].mean(0)[some], ".", color=COLORS[name], ms=4)
        for (adapt, of), style in zip(pmc.items(), ("-", "--", ":"), strict=True):
            ax.plot(ends, of.mean(0), "k", ls=style, label=f"PMC by {adapt}")
        ax.axhline(1.0, color="0.7", lw=0.8)
        ax.set(xscale="log", yscale="log", xlabel="samples", title=f"K = {strike:g}")
    axes[0].set_ylabel("n MSE / variance of the best arm")
    axes[-1].legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=130)


def figure_cv1(path: Path, horizons, squares, pulls, total) -> None:
    """V^2 against T beside its bound, and its ratio at N and at T pulls."""
    fig = Figure(figsize=(10.5, 4.0), layout="constrained")
    left, right = fig.subplots(1, 2)
    for color, (q, of) in zip(PALETTE, squares.items(), strict=False):
        left.plot(horizons[horizons > q + 3], of, color=color, label=f"q = {q}")
        if q <= 20:
            ratio = student.isf(total**-2.0, pulls - q - 1) / student.isf(
                total**-2.0, total - q - 1
            )
            right.plot(pulls, ratio, color=color, label=f"q = {q}")
    left.plot(horizons, 3.726 * np.log(horizons), "k--", label="3.726 log T")
    left.set(xscale="log", ylim=(0, 120), xlabel="T", ylabel="V²")
    left.legend(frameon=False, fontsize=8)
    right.set(xscale="log", xlabel="N", ylabel=f"V at N pulls / V at T = {total:,.0f}")
    right.axhline(1.0, color="0.7", lw=0.8)
    right.legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=130)


def curves(path: Path, times, cases) -> None:
    """Regret over time, one panel per case, bars are 95 % intervals."""
    fig = Figure(figsize=(4.2 * len(cases), 4.0), layout="constrained")
    for ax, (case, found) in zip(
        np.atleast_1d(fig.subplots(1, len(cases))), cases.items(), strict=True
    ):
        others = [name for name in found if name not in COLORS]
        shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.9, max(len(others), 1)))
        for name, of in found.items():
            color = COLORS[name] if name in COLORS else shades[others.index(name)]
            half = 1.96 * of.std(0, ddof=1) / len(of) ** 0.5
            ax.plot(times, of.mean(0), color=color, label=name)
            bars = np.arange(len(times) - 1, 0, -6)
            ax.errorbar(times[bars], of.mean(0)[bars], half[bars], fmt="none", ecolor=color, lw=1)
        ax.set(xlabel="pulls", ylabel="regret", title=case)
        ax.legend(frameon=False, fontsize=7)
    fig.savefig(path, dpi=130)
