"""Pictures of ``abc_tree.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

COLORS = {
    "rejection": "tab:orange",
    "Thompson": "tab:green",
    "SMC-ABC": "tab:purple",
    "ABC-Tree, printed": "tab:blue",
    "ABC-Tree, here": "black",
    "omega1": "tab:blue",
    "omega2": "tab:red",
    "omega3": "tab:brown",
    "omega1, Beta draws": "tab:cyan",
    "ess (ours)": "black",
}


def _line(ax, x, values, name, color=None) -> None:
    """Mean over runs (the first axis) with its standard error."""
    mean = np.nanmean(values, axis=0)
    error = np.nanstd(values, axis=0) / max(len(values), 1) ** 0.5
    (line,) = ax.plot(x, mean, label=name, color=color or COLORS.get(name))
    ax.fill_between(x, mean - 2 * error, mean + 2 * error, color=line.get_color(), alpha=0.2, lw=0)


def toy(path: Path, times, found) -> None:
    """Acceptance, regret, total variation distance."""
    fig = Figure(figsize=(13.0, 4.0), layout="constrained")
    titles = {
        "acceptance": "acceptance rate",
        "regret": "regret (omega3)",
        "tv": "TV to the posterior",
    }
    for ax, (measure, title) in zip(fig.subplots(1, 3), titles.items(), strict=True):
        for name, of in found.items():
            _line(ax, times, of[measure], name)
        ax.set(xscale="log", yscale="log", xlabel="simulations", title=title)
    ax.legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=110)


def grid(path: Path, times, errors, samples, fine, rate) -> None:
    """Weighted histograms of acceptances, and errors."""
    fig = Figure(figsize=(11.0, 4.2), layout="constrained")
    left, right = fig.subplots(1, 2)
    shown = rate > 1e-3 * rate.max()
    left.plot(fine[shown], rate[shown] / rate.mean(), color="0.6", lw=3, label="exact")
    for k, (theta, weight) in samples.items():
        left.hist(
            theta, bins=60, weights=weight, density=True, histtype="step", label=f"{k:,} bins"
        )
        _line(right, times, errors[k], f"{k:,} bins")
    left.set(xlabel="theta", title="accepted, weighted; last run")
    left.legend(frameon=False, fontsize=8)
    right.set(xscale="log", yscale="log", xlabel="simulations", title="Wasserstein distance / sd")
    right.legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=110)


def arms(path: Path, rates, times, right, follow) -> None:
    """Rates, frequency of the right guess, trajectories."""
    fig = Figure(figsize=(11.0, 7.0), layout="constrained")
    axes = fig.subplots(2, 2)
    axes[0, 0].bar(np.arange(1, len(rates) + 1), rates / rates.sum())
    axes[0, 0].set(xlabel="point", title="posterior at the tolerance")
    for name, of in right.items():
        _line(axes[0, 1], times, of, name, None if name in COLORS else "tab:gray")
    axes[0, 1].set(xscale="log", xlabel="simulations", title="probability of the right mode")
    axes[0, 1].legend(frameon=False)
    for ax, (name, of) in zip(axes[1], follow.items(), strict=True):
        ax.plot(of + 1, ".", ms=1, color=COLORS.get(name, "tab:red"))
        ax.set(xlabel="simulation", ylabel="point", title=f"{name}, one run")
    fig.savefig(path, dpi=110)


def proposals(path: Path, rounds, exact, extent) -> None:
    """Densities of proposals by round, a row per partition, beside the exact posterior."""
    columns = max(len(v) for v in rounds.values()) + 1
    fig = Figure(figsize=(2.2 * columns, 2.4 * len(rounds)), layout="constrained")
    axes = fig.subplots(len(rounds), columns, squeeze=False)
    for row, (name, of) in zip(axes, rounds.items(), strict=True):
        for ax in row:
            ax.set_axis_off()
        for ax, (title, density) in zip(row, [*of, ("exact", exact)], strict=False):
            ax.imshow(np.sqrt(density).T, origin="lower", extent=extent, cmap="magma_r")
            ax.set_title(f"{name}\n{title}" if ax is row[0] else title, fontsize=8)
    fig.savefig(path, dpi=110)


def convergence(path: Path, times, panels) -> None:
    """Measures over simulations: panels of title, values by method, and whether logarithmic."""
    fig = Figure(figsize=(4.3 * len(panels), 4.0), layout="constrained")
    for ax, (title, of, log) in zip(
        np.atleast_1d(fig.subplots(1, len(panels))), panels, strict=True
    ):
        for name, values in of.items():
            _line(ax, times, np.asarray(values), name)
        ax.set(xscale="log", xlabel="simulations", title=title)
        if log:
            ax.set_yscale("log")
        ax.legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=110)


def marginals(path: Path, names, samples, truth) -> None:
    """Histograms of the parameters by method; samples map method to (n, D)."""
    fig = Figure(figsize=(3.0 * len(names), 3.0), layout="constrained")
    for d, (ax, name) in enumerate(zip(fig.subplots(1, len(names)), names, strict=True)):
        for method, of in samples.items():
            ax.hist(
                of[:, d],
                bins=25,
                density=True,
                histtype="step",
                color=COLORS.get(method, "0.5"),
                label=method,
            )
        if truth is not None:
            ax.axvline(truth[d], color="0.6", ls=":")
        ax.set(xlabel=name, yticks=[])
    ax.legend(frameon=False, fontsize=6)
    fig.savefig(path, dpi=110)


def digit_shares(path: Path, shares) -> None:
    """Shares of the digits by method."""
    fig = Figure(figsize=(8.0, 3.2), layout="constrained")
    ax = fig.subplots()
    width = 0.8 / len(shares)
    for i, (name, of) in enumerate(shares.items()):
        ax.bar(np.arange(10) + i * width, of, width, color=COLORS.get(name, "0.6"), label=name)
    ax.set(xticks=np.arange(10) + 0.4, xticklabels=range(10), xlabel="digit", ylabel="share")
    ax.legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=110)


def images(path: Path, rows, side) -> None:
    """Images (n, P) by row title."""
    columns = max(len(v) for v in rows.values())
    fig = Figure(figsize=(0.8 * columns, 1.1 * len(rows)), layout="constrained")
    for axes, (title, of) in zip(
        fig.subplots(len(rows), columns, squeeze=False), rows.items(), strict=True
    ):
        for ax in axes:
            ax.set_axis_off()
        for ax, image in zip(axes, of, strict=False):
            ax.imshow(image.reshape(side, side), cmap="gray_r", vmin=0.0, vmax=1.0)
        axes[0].set_title(title, fontsize=7, loc="left")
    fig.savefig(path, dpi=110)


def modes(path: Path, errors, estimates, truth, boxes, title) -> None:
    """Squared errors, where estimates lie, and the boxes of one search: lower, upper corners (K, 2)."""
    fig = Figure(figsize=(13.0, 4.2), layout="constrained")
    axes = fig.subplots(1, 3)
    axes[0].boxplot(
        list(errors.values()), tick_labels=[n.replace(", ", ",\n") for n in errors], showmeans=True
    )
    axes[0].set(yscale="log", title=title)
    axes[0].tick_params(axis="x", labelsize=7)
    for name, of in estimates.items():
        axes[1].plot(*of.T, ".", ms=4, alpha=0.6, label=name)
    axes[1].plot(*truth, "k+", ms=14)
    axes[1].set(title="estimates")
    axes[1].legend(frameon=False, fontsize=7)
    for low, high in zip(*boxes, strict=True):
        axes[2].add_patch(Rectangle(low, *(high - low), fill=False, lw=0.4))
    axes[2].plot(*truth, "r+", ms=14)
    axes[2].set(xlim=(boxes[0][:, 0].min(), boxes[1][:, 0].max()),
                ylim=(boxes[0][:, 1].min(), boxes[1][:, 1].max()), title="boxes of MAP-Tree")  # fmt: skip
    fig.savefig(path, dpi=110)
