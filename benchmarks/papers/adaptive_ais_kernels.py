"""Appendix G: which kernel to anneal with; see ``adaptive_ais.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from amc_pymc.evidence.annealing import climb
from amc_pymc.evidence.mcmc import HMC, Slice
from benchmarks.harness.statements import Part, Statement
from benchmarks.harness.tables import markdown
from benchmarks.papers.adaptive_ais_bank import (
    COVARIATES,
    Bank,
    Draws,
    LogisticPath,
    draw,
    fixed_ladder,
    moves_all,
    prior_draws,
    ratio,
)


@dataclass(frozen=True)
class Langevin(HMC):
    """Metropolis-adjusted Langevin kernel (Roberts & Tweedie 1996, doi:10.2307/3318418): one leapfrog step of fixed size."""

    n_leapfrog: int = 1
    jitter: float = 0.0

    name: ClassVar[str] = "langevin"
    target_acceptance: ClassVar[float] = 0.57


KERNELS: dict[str, type] = {"slice": Slice, "Langevin": Langevin, "HMC": HMC}
RIVALS = ("Langevin", "HMC")
#: Step sizes in prior standard deviations, the same at all temperatures.
SIZES = tuple(2.0**j for j in range(-8, 3))
SLICE_SIZES = (0.125, 0.5, 2.0, 8.0)


class Tried(NamedTuple):
    """One kernel with one tuning on one problem."""

    covariates: str
    rows: int
    kernel: str
    tuning: str
    steps: int
    draws: Draws

    def price(self, kind: str = "cpu") -> float:
        """Mean cost times cautious variance."""
        return cautious_price(self.draws, kind)


def cautious_price(draws: Draws, kind: str) -> float:
    """Mean cost times cautious variance."""
    return draws.cautious_variance * float(draws.costs(kind).mean())


def kernels(options, banks: Sequence[Bank]) -> Part:
    """Appendix G: kernels and their estimators for their cost."""
    tried: list[Tried] = []
    for bank in banks:
        p = bank.problem
        rng = np.random.default_rng([options.seed, 20, COVARIATES.index(p.covariates), p.rows])
        for s, d in zip(bank.steps, bank.draws, strict=True):
            tried.append(Tried(p.covariates, p.rows, "slice", "none", s, d))
        for name in RIVALS:
            kernel = moves_all(KERNELS[name], p)
            start = prior_draws(p, 500, rng)
            ladder = climb(LogisticPath(p, 500), start, kernel, rng)
            for s, d in zip(bank.steps, bank.draws, strict=True):
                n = min(options.kernel_draws, d.seconds.size)
                found = draw(p, s, n, rng, kernel, ladder)
                tried.append(Tried(p.covariates, p.rows, name, "pilot", s, found))
        if p.rows == max(options.rows):
            tried += sizes_tried(options, bank, rng)
    lines = [
        [t.covariates, str(t.rows), t.kernel, t.tuning, f"{t.steps:,}",
         f"{t.draws.evaluations.mean():,.0f}", f"{1e3 * t.draws.seconds.mean():.3g}",
         f"{t.draws.cautious_variance:.3g}", f"{t.price('counted'):.3g}",
         f"{1e3 * t.price():.3g}"]
        for t in tried
    ]  # fmt: skip
    heads = ["covariates", "T", "kernel", "tuning", "steps", "evaluations or gradients", "CPU ms",
             "relative variance", "evaluations x variance", "CPU ms x variance"]  # fmt: skip
    text = (
        "## Appendix G: kernels\n\nTuning by a pilot run: scale matrix and size at each temperature. "
        "A size alone is in prior standard deviations, the same at all temperatures.\n\n"
        + markdown(heads, lines)
    )
    return Part(text, kernel_statements(tried))


def sizes_tried(options, bank: Bank, rng: np.random.Generator) -> list[Tried]:
    """All kernels with fixed sizes, at the smallest number of steps."""
    p, steps = bank.problem, bank.steps[0]
    out = []
    for name, kernel in KERNELS.items():
        n = options.kernel_draws if name != "slice" else max(20, options.kernel_draws // 3)
        for size in SLICE_SIZES if name == "slice" else SIZES:
            ladder = fixed_ladder(size, p.n_dim)
            found = draw(p, steps, n, rng, moves_all(kernel, p), ladder)
            out.append(Tried(p.covariates, p.rows, name, f"size {size:.3g}", steps, found))
    return out


def kernel_statements(tried: Sequence[Tried]) -> list[Statement]:
    """Appendix G."""
    out = []
    for covariates in dict.fromkeys(t.covariates for t in tried):
        tag = f"N app. G, {covariates}"
        mine = [t for t in tried if t.covariates == covariates]
        for about in (step_statement, price_statement, hand_statement, free_statement):
            out.append(Statement(tag, *about(mine)))
    return out


def _compared(tried: Sequence[Tried], measure: Callable[[Draws], float], besides: str = ""):
    """Slices against the best of the others at the same T and number of steps."""
    parts, better, n = [], 0, 0
    for ours in (t for t in tried if t.kernel == "slice" and t.tuning == "none"):
        others = [
            t for t in tried
            if (t.rows, t.steps, t.tuning) == (ours.rows, ours.steps, "pilot")
        ]  # fmt: skip
        rival = min(others, key=lambda t: measure(t.draws))
        r = ratio(ours.draws, rival.draws, measure)
        better, n = better + (r.high < 1.0), n + 1
        parts.append(f"T = {ours.rows}, {ours.steps:,} steps: {rival.kernel} {r}")
        if besides:
            parts[-1] += f", {besides} {ours.price(besides) / rival.price(besides):.3g}"
    return 2 * better > n, "slice over the best other; " + "; ".join(parts)


def step_statement(tried):
    """At the same number of steps."""
    holds, evidence = _compared(tried, lambda d: d.cautious_variance)
    return (
        "slice sampling is most effective, by the variance at a given number of steps", holds, evidence,
    )  # fmt: skip


def price_statement(tried):
    """For the same CPU time."""
    holds, evidence = _compared(tried, lambda d: cautious_price(d, "cpu"), "counted")
    return (
        "slice sampling is most effective, by CPU time times variance, others tuned by a pilot run",
        holds, evidence,
    )  # fmt: skip


def hand_statement(tried):
    """Against kernels with one step size for all temperatures and coordinates, the best of many."""
    sized = [t for t in tried if t.tuning.startswith("size")]
    ours = min((t for t in sized if t.kernel == "slice"), key=Tried.price)
    parts, holds = [], True
    for name in RIVALS:
        rival = min((t for t in sized if t.kernel == name), key=Tried.price)
        r = ratio(ours.draws, rival.draws, lambda d: cautious_price(d, "cpu"))
        holds &= r.high < 1.0
        counted = ours.price("counted") / rival.price("counted")
        parts.append(f"{name} ({rival.tuning}) {r}, counted {counted:.3g}")
    return (
        "the same, others with the best single step size and no scales",
        holds,
        f"T = {ours.rows}, {ours.steps:,} steps, slice ({ours.tuning}) over the others: {', '.join(parts)}",
    )


def free_statement(tried):
    """How much the size matters."""
    spread = {}
    for name in KERNELS:
        sized = [t for t in tried if t.tuning.startswith("size") and t.kernel == name]
        near = [float(t.tuning.split()[1]) for t in sized]
        best = near[int(np.argmin([t.price() for t in sized]))]
        prices = [
            t.price()
            for t, size in zip(sized, near, strict=True)
            if best / 4.1 <= size <= 4.1 * best
        ]
        spread[name] = max(prices) / min(prices)
    others = min(v for k, v in spread.items() if k != "slice")
    return (
        "slice sampling is effectively parameter-free",
        spread["slice"] < 2.0 and spread["slice"] < others,
        "largest over smallest CPU time times variance with sizes within a factor of 4 of the best: "
        + ", ".join(f"{k} {v:.3g}" for k, v in spread.items()),
    )
