"""Price an option with sixteen importance samplers, and learn which of them is best while sampling.

    python examples/option_pricing.py             under a minute
    python examples/option_pricing.py --quick     fewer paths

A caplet pays if an interest rate ends above its strike; the rate follows the model of Cox, Ingersoll
and Ross. Plain Monte Carlo simulates the rate and averages the discounted payoffs; if the rate
seldom exceeds the strike, most paths pay nothing. Shifting the paths upwards and weighting them accordingly
(exponential twisting) helps, but the best shift depends on the strike: too small or too large a shift needs
many times the number of paths. amc.combine_estimators receives sixteen shifts theta = 0.0, 0.1, ..., 1.5 and
learns the best one while it draws (Neufeld et al. 2014, section 6.2).
"""

from __future__ import annotations

import argparse
import sys
import time

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from rich.console import Console
from rich.table import Table

import amc_pymc as amc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.cir_caplet import STRIKES, THETAS, Caplet


class Plain(NamedTuple):
    """Price by plain Monte Carlo and its standard error."""

    price: float
    error: float


def estimators(caplet: Caplet) -> dict[str, object]:
    """Return one estimator of the price for each drift; theta = 0 is plain Monte Carlo."""
    return {f"theta = {theta:.1f}": caplet.arm(theta) for theta in THETAS}


def price_adaptively(caplet: Caplet, paths: int, seed: int) -> xr.DataTree:
    """Price the caplet with a bandit that decides which drifts to simulate."""
    return amc.combine_estimators(
        estimators(caplet), draws=paths, random_seed=seed, progressbar=False
    )


def price_plainly(caplet: Caplet, paths: int, seed: int) -> Plain:
    """Price the caplet with as many paths without drift."""
    values = caplet.arm(0.0).sample(paths, np.random.default_rng(seed))
    return Plain(float(values.mean()), float(values.std(ddof=1) / np.sqrt(paths)))


def print_allocation(console: Console, found: xr.DataTree) -> None:
    """Print the number of paths by drift; drifts with less than a hundredth are pooled."""
    arms = found["arms"].to_dataset()
    draws = arms["draws"].values
    table = Table("drift", "paths", "price", "error", "sd of a path", title="Where the paths went")
    for column in table.columns[1:]:
        column.justify = "right"
    large = draws >= 0.01 * draws.sum()
    for k in np.flatnonzero(large):
        row = arms.isel(arm=k)
        sd = row["mcse"].item() * np.sqrt(draws[k])
        table.add_row(
            row["arm"].item(), f"{draws[k]:,}", f"{row['mean'].item():.4f}",
            f"{row['mcse'].item():.4f}", f"{sd:.2f}",
        )  # fmt: skip
    if not large.all():
        table.add_row(f"{(~large).sum()} others", f"{draws[~large].sum():,}", "", "", "")
    console.print(table)


def print_estimates(console: Console, found: xr.DataTree, plain: Plain, exact: float) -> None:
    """Print the combined estimates together with plain Monte Carlo and the formula."""
    table = Table("estimate", "price", "error", "difference / error")
    for column in table.columns[1:]:
        column.justify = "right"
    estimate = found["estimate"].to_dataset()
    rows = [
        (name.replace("_", "-"), estimate["mean"].values[i], estimate["mcse"].values[i])
        for i, name in enumerate(estimate["weights"].values.tolist())
    ]
    for name, price, error in [*rows, ("plain Monte Carlo", *plain)]:
        table.add_row(name, f"{price:.4f}", f"{error:.4f}", f"{(price - exact) / error:+.1f}")
    table.add_row("formula", f"{exact:.4f}", "", "")
    console.print(table)


def gain(found: xr.DataTree, plain: Plain) -> float:
    """Return the factor by which plain Monte Carlo needs more paths for the same error."""
    return (plain.error / float(found["estimate"]["mcse"].sel(weights="predictable"))) ** 2


def draw_figure(found: xr.DataTree, strike: float, path: Path) -> None:
    """Write the figure of the allocation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture = amc.plot_allocation(found)
    picture.suptitle(f"Caplet at strike {strike:g}, sixteen drifts")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=85)
    plt.close(picture)


def main(arguments: Sequence[str] | None = None) -> int:
    """Price the caplet at each strike; return the exit code."""
    parser = argparse.ArgumentParser(description="Price an option with sixteen estimators.")
    parser.add_argument("--strikes", type=float, nargs="+", default=list(STRIKES))
    parser.add_argument("--paths", type=int, help="paths per strike (default 200,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path("demo_output/option_pricing.png"),
        help="where to write the picture, which is of the last strike",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="10,000 paths")
    args = parser.parse_args(arguments)
    paths = args.paths or (10_000 if args.quick else 200_000)
    if paths < 1000:
        parser.error(f"--paths must be at least 1000, got {paths}")
    if min(args.strikes) < 0.0:
        parser.error(f"--strikes must not be negative, got {min(args.strikes)}")
    begin = time.perf_counter()
    console = Console(width=100)
    for strike in args.strikes:
        caplet = Caplet(strike)
        console.print(f"[bold]Strike {strike:g}[/bold]: {paths:,} paths of {caplet.steps} steps")
        found = price_adaptively(caplet, paths, args.seed)
        plain = price_plainly(caplet, paths, args.seed)
        print_allocation(console, found)
        print_estimates(console, found, plain, caplet.price())
        console.print(
            f"Plain Monte Carlo takes {gain(found, plain):.1f} times as many paths for the error of "
            "the predictable estimate.\n",
            highlight=False,
        )
    console.print(found.attrs["unbiased"], highlight=False)
    console.print(
        "The formula is for continuous time; the simulation's steps make a small difference.",
        highlight=False,
    )
    draw_figure(found, args.strikes[-1], args.out)
    console.print(f"wrote {args.out}; all done in {time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
