"""Bandits for Monte Carlo and with control variates: the figures and statements of two papers.

Neufeld et al. (2014), *Adaptive Monte Carlo via Bandit Allocation*, sections 6.1 and 6.2, figures 1
and 2; Verma & Hanawal (2021), *Stochastic Multi-Armed Bandits with Control Variates*, section 6,
figures 1-4 (here cv1-cv4). Part "aim" compares every policy with the best arm in hindsight. All runs
of a part share their random numbers between policies, see ``bandit_runs.py``.

The mean squared error of a plain average is computed from pulls by theorem 1 of Neufeld et al.,
n MSE / V* = 1 + sum_k T_k (V_k - V*) / (n V*) in expectation, which is exact and far less noisy than
squared errors; both are printed. That of Population Monte Carlo likewise: its values are martingale
differences about the price, so that n MSE is the mean of their squares.
"""

from __future__ import annotations

import time

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.harness import options
from benchmarks.harness.options import Option
from benchmarks.harness.statements import Part, publish
from benchmarks.papers.neufeld import aim, figure_1, figure_2
from benchmarks.papers.verma import figure_cv1, figure_cv2, figure_cv3, figure_cv4

PARTS: dict[str, Callable[..., Part]] = {
    "1": figure_1, "2": figure_2, "cv1": figure_cv1, "cv2": figure_cv2, "cv3": figure_cv3,
    "cv4": figure_cv4, "aim": aim,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    chosen = options.parse(
        __doc__, argv, {"runs": 10, "aim_runs": 20, "steps": 2_000},
        figures=Option(list(PARTS), choices=PARTS),
        runs=Option(0, "of a figure; 0 for 200, 1,000 and 100"),
        aim_runs=Option(10_000, "of part aim"),
        steps=Option(0, "pulls per run; 0 for 1e5, 1e4 with controls, 5e3 for cv3"),
    )  # fmt: skip
    makers = {figure: partial(PARTS[figure], chosen) for figure in chosen.figures}
    publish("bandit_papers", chosen, makers, clock=time.perf_counter)


if __name__ == "__main__":
    main()
