"""Picture of draws of RacingSlice and RacingMetropolis from a curved posterior.

    python examples/gallery/slice_sampler.py [--out docs/images/gallery]

The 20,000 rows tell only the sum a + b², so the posterior is a crescent. The contours hold 50 and 95 % of the exact
posterior. To see: the slice sampler, which has no scale to tune, covers the crescent to its tips.
"""

import argparse

from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import amc_pymc as amc

N_ROWS, NOISE = 20_000, 30.0
BLUE, ORANGE = "#0b6e99", "#d1662f"


def heights(density, shares):
    """Return the heights above which a density on a grid holds the given shares of its mass."""
    ordered = np.sort(density, axis=None)[::-1]
    held = np.cumsum(ordered) / ordered.sum()
    return sorted(ordered[np.searchsorted(held, share)] for share in shares)


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    y = np.random.default_rng(1).normal(0.3, NOISE, N_ROWS)
    found = {}
    with pm.Model():
        a, b = pm.Normal("a", 0.0, 1.0), pm.Normal("b", 0.0, 1.0)
        pm.Normal("y", a + b**2, NOISE, observed=y)
        for step in (amc.RacingSlice, amc.RacingMetropolis):
            found[step.__name__] = pm.sample(
                1000, tune=500, step=step(progressbar=False), chains=2, cores=1, random_seed=1,
                progressbar=False, quiet=True, compute_convergence_checks=False,
            )  # fmt: skip

    grid_b, grid_a = np.meshgrid(np.linspace(-2.0, 2.0, 300), np.linspace(-3.0, 1.0, 300))
    squares = grid_a**2 + grid_b**2 + N_ROWS * ((grid_a + grid_b**2 - y.mean()) / NOISE) ** 2
    density = np.exp(-0.5 * squares)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 5.6), sharey=True, layout="constrained")
    for axis, (name, idata) in zip(axes, found.items(), strict=True):
        posterior = idata["posterior"]
        axis.plot(
            posterior["b"].values.ravel(),
            posterior["a"].values.ravel(),
            ".",
            ms=3,
            color=ORANGE,
            alpha=0.5,
        )
        axis.contour(grid_b, grid_a, density, levels=heights(density, (0.95, 0.5)), colors=BLUE)
        effective = float(az.ess(posterior["b"].to_dataset())["b"])
        rows = float(idata["sample_stats"]["race_rows"].sum()) / effective
        axis.set(
            xlabel="b",
            title=f"{name}: {effective:,.0f} of 2,000 draws\neffective for b, {rows:,.0f} rows each",
        )
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylabel="a")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "slice_sampler.png", dpi=125)


if __name__ == "__main__":
    main()
