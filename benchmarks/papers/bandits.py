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

import argparse
import time

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.harness import options
from benchmarks.harness.statements import Part, publish
from benchmarks.papers.neufeld import aim, figure_1, figure_2
from benchmarks.papers.verma import figure_cv1, figure_cv2, figure_cv3, figure_cv4

PARTS: dict[str, Callable[..., Part]] = {
    "1": figure_1, "2": figure_2, "cv1": figure_cv1, "cv2": figure_cv2, "cv3": figure_cv3,
    "cv4": figure_cv4, "aim": aim,
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Options of this script."""
    p = options.parser(__doc__)
    p.add_argument("--figures", nargs="+", default=list(PARTS), choices=PARTS)
    p.add_argument("--runs", type=int, help="of a figure; by default 200, 1,000 and 100")
    p.add_argument("--aim-runs", type=int, help="of part aim; by default 10,000")
    p.add_argument(
        "--steps", type=int, help="pulls per run; by default 1e5, 1e4 with controls, cv3 5e3"
    )
    p.add_argument("--population", type=int, default=500, help="G of Population Monte Carlo")
    p.add_argument("--name", default="bandit_papers", help="of the files with the results")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    chosen = options.parse(parser(), argv, {"runs": 10, "aim_runs": 20, "steps": 2_000})
    makers = {figure: partial(PARTS[figure], chosen) for figure in chosen.figures}
    publish(chosen, makers, clock=time.perf_counter)


if __name__ == "__main__":
    main()
