"""Pictures of ``adaptive_ais.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.papers.adaptive_ais_bank import KINDS
from benchmarks.papers.adaptive_ais_replays import Law, arm_names
from benchmarks.papers.bandit_pictures import COLORS

_SHADES = {**COLORS, "lcb": "black", "tightest": "tab:olive", "in turn": "tab:pink"}
_DOTS = (":", "-.", (0, (1, 3)))
_TITLES = {"cpu": "CPU time", "counted": "evaluations"}


def _style(name: str) -> dict:
    if name.startswith("arm"):
        return {"color": "tab:brown", "ls": _DOTS[(int(name.split()[1]) - 1) % 3], "lw": 1.6}
    return {"color": _SHADES[name], "lw": 1.1}


def _panels(found):
    """One row per kind of cost, one column per T."""
    fig = Figure(figsize=(4.3 * len(found), 7.6), layout="constrained")
    axes = np.asarray(fig.subplots(len(KINDS), len(found), squeeze=False))
    for i, kind in enumerate(KINDS):
        for j, (T, of) in enumerate(found.items()):
            axes[i, j].set(xscale="log", title=f"T = {T}, cost: {_TITLES[kind]}")
            axes[i, j].xaxis.set_minor_formatter(NullFormatter())
            axes[i, j].set_xlabel(f"time in draws of the dearest arm, {_unit(of[kind].law, kind)}")
            yield fig, axes, axes[i, j], of[kind]


def _legend(fig, axes) -> None:
    """One for all panels; arms may be missing from some."""
    lines = {line.get_label(): line for ax in axes.flat for line in ax.get_lines()}
    named = {k: v for k, v in sorted(lines.items()) if not k.startswith("_")}
    fig.legend(named.values(), named.keys(), loc="outside right center", frameon=False, fontsize=8)


def _unit(law: Law, kind: str) -> str:
    return f"{1e3 * law.unit:.3g} ms" if kind == "cpu" else f"{law.unit:,.0f}"


def regrets(path: Path, found, covariates: str) -> None:
    """Figure 3: regret over time, both axes logarithmic; where it is negative there is no line."""
    for fig, axes, ax, of in _panels(found):
        best = of.arm_losses().argmin(axis=0)
        names = arm_names(of.law)
        for name in of.counts:
            for errors, dashed in ((of.uniform, False), (of.inverse, True)):
                if name.startswith("arm") and (dashed or name == names[best[-1]]):
                    continue
                rivals = np.stack([of.uniform[n] for n in names])
                rival = np.take_along_axis(rivals, best[None, None, :], axis=0)[0]
                regret = of.times**2 * (errors[name] - rival).mean(axis=0)
                style = _style(name) | ({"ls": "--"} if dashed else {})
                ax.plot(
                    of.times, np.where(regret > 0.0, regret, np.nan), **style,
                    label=None if dashed else name,
                )  # fmt: skip
        ax.set_yscale("log")
        ax.set_ylabel("regret" if ax in axes[:, 0] else "")
    _legend(fig, axes)
    fig.suptitle(
        f"{covariates} covariates; solid: uniform average, dashed: inverse-variance weights"
    )
    fig.savefig(path, dpi=130)


def losses(path: Path, found, covariates: str) -> None:
    """Losses by pulls over that of the arm that is best at the time."""
    for fig, axes, ax, of in _panels(found):
        best = of.arm_losses().min(axis=0)
        for name in of.counts:
            for weights, dashed in (("uniform", False), ("inverse", True)):
                if name.startswith("arm") and dashed:
                    continue
                loss = of.by_pulls(name, weights).mean(axis=0) / best
                style = _style(name) | ({"ls": "--"} if dashed else {})
                ax.plot(of.times, loss, **style, label=None if dashed else name)
        ax.axhline(1.0, color="0.8", lw=0.8, zorder=0)
        ax.set_yscale("log")
        ax.set_ylabel("loss over that of the best arm" if ax in axes[:, 0] else "")
    _legend(fig, axes)
    fig.suptitle(
        f"{covariates} covariates, by pulls; solid: uniform average, dashed: inverse-variance weights"
    )
    fig.savefig(path, dpi=130)


def kernels(path: Path, tried) -> None:
    """CPU time times relative variance: against steps, and against the size."""
    problems = list(dict.fromkeys((t.covariates, t.rows) for t in tried))
    groups = list(dict.fromkeys(t.covariates for t in tried))
    fig = Figure(figsize=(10.0, 4.0 * len(groups)), layout="constrained")
    axes = np.asarray(fig.subplots(len(groups), 2, squeeze=False))
    shades = dict(
        zip(
            ("slice", "random walk", "Langevin", "HMC"),
            ("black", "tab:blue", "tab:orange", "tab:green"),
            strict=True,
        )
    )
    marks = dict(zip(sorted({rows for _, rows in problems}), "o^sDv*", strict=False))
    for left, covariates in zip(axes, groups, strict=True):
        for name, color in shades.items():
            mine = [t for t in tried if t.kernel == name and t.covariates == covariates]
            for rows in dict.fromkeys(t.rows for t in mine):
                some = [t for t in mine if t.rows == rows and not t.tuning.startswith("size")]
                left[0].plot(
                    [t.steps for t in some], [1e3 * t.price() for t in some], color=color,
                    marker=marks[rows], label=f"{name}, T = {rows}", lw=1.0, ms=4,
                )  # fmt: skip
            some = [t for t in mine if t.tuning.startswith("size")]
            sizes = [float(t.tuning.split()[1]) for t in some]
            left[1].plot(
                sizes, [1e3 * t.price() for t in some], color=color, marker="o", ms=4, label=name
            )
        left[0].set(xscale="log", yscale="log", xlabel="steps", ylabel="CPU ms x relative variance",
                    title=f"{covariates}, tuned by a pilot run, slices not")  # fmt: skip
        left[1].set(xscale="log", yscale="log", xlabel="size in prior standard deviations",
                    title=f"{covariates}, one size at all temperatures")  # fmt: skip
        for ax in left:
            low = min(line.get_ydata().min() for line in ax.get_lines())
            ax.set_ylim(0.5 * low, 1e6 * low)
            ax.xaxis.set_minor_formatter(NullFormatter())
        left[0].legend(frameon=False, fontsize=6, ncols=2)
        left[1].legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=130)
