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
import sys
import time

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import common
from benchmarks.bandit_neufeld import aim, figure_1, figure_2
from benchmarks.bandit_statements import Part
from benchmarks.bandit_verma import figure_cv1, figure_cv2, figure_cv3, figure_cv4

FIGURES = ("1", "2", "cv1", "cv2", "cv3", "cv4", "aim")


PARTS: dict[str, Callable[..., Part]] = {
    "1": figure_1,
    "2": figure_2,
    "cv1": figure_cv1,
    "cv2": figure_cv2,
    "cv3": figure_cv3,
    "cv4": figure_cv4,
    "aim": aim,
}


def parser() -> argparse.ArgumentParser:
    """Options of this script."""
    p = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--figures", nargs="+", default=list(FIGURES), choices=FIGURES)
    p.add_argument("--runs", type=int, help="of a figure; by default 200, 1,000 and 100")
    p.add_argument("--aim-runs", type=int, help="of part aim; by default 10,000")
    p.add_argument(
        "--steps", type=int, help="pulls per run; by default 1e5, 1e4 with controls, cv3 5e3"
    )
    p.add_argument("--population", type=int, default=500, help="G of Population Monte Carlo")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--name", default="bandit_papers", help="of the files with the results")
    p.add_argument("--out", default=str(common.RESULTS), help="folder of the results")
    p.add_argument("--quick", action="store_true", help="a small run that shows that it works")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, draw, save."""
    options = parser().parse_args(argv)
    if options.quick:
        options.runs = options.runs or 10
        options.aim_runs = options.aim_runs or 20
        options.steps = options.steps or 2_000
    options.pictures = Path(options.out)
    options.pictures.mkdir(parents=True, exist_ok=True)
    parts, seconds = [], {}
    for figure in options.figures:
        begun = time.perf_counter()
        part = PARTS[figure](options)
        seconds[figure] = round(time.perf_counter() - begun, 1)
        print(f"{part.text}\n", flush=True)
        for s in part.statements:
            print(" | ".join(s.line()), file=sys.stderr, flush=True)
        parts.append(part)
    lines = [s.line() for part in parts for s in part.statements]
    titles = ["source", "statement", "holds", "evidence, 95 %", "why not"]
    table = "## Statements\n\n" + common.markdown(titles, lines)
    table += "\n\nSeconds: " + ", ".join(f"{k} {s:g}" for k, s in seconds.items())
    print(table)
    text = "\n\n".join([*(part.text for part in parts), table])
    meta = {k: v for k, v in vars(options).items() if k != "pictures"} | {"seconds": seconds}
    rows = [row for part in parts for row in part.rows]
    heads = ("source", "statement", "holds", "evidence", "cause")
    rows += [{"figure": "statements", **dict(zip(heads, line, strict=True))} for line in lines]
    common.save(Path(options.out), options.name, rows, text, meta)


if __name__ == "__main__":
    main()
