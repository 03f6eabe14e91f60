"""Picture of the calibration of likelihood-free intervals, on a problem with a known posterior.

    python examples/gallery/calibration.py [--out docs/images/gallery]

The mean of ten normal observations is inferred from their average, for 25 data sets with means from the prior. To see:
intervals at a large tolerance are too wide, so they cover too often; a linear adjustment of the same simulations makes
them as wide as the exact ones.
"""

import argparse
import warnings

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from scipy import stats

import amc_pymc as amc

DATA_SETS, PRIOR_SD, SD, TOLERANCE = 25, 2.0, 10**-0.5, 0.8
LEVELS = np.linspace(0.1, 0.9, 9)
CASES = {None: ("#d1662f", "no adjustment"), "linear": ("#0b6e99", "linear adjustment")}


def simulate(rng, mu):
    """Return averages (n,) of ten observations."""
    return rng.normal(mu, SD)


def intervals(observed, adjust, seed):
    """Return the ends (2, 9) of the central intervals at all levels."""
    problem = amc.SimulatorProblem({"mu": stats.norm(0.0, PRIOR_SD)}, simulate, observed=observed)
    found = amc.sample_abc_rejection(
        500, max_simulations=2_000, tolerance=TOLERANCE, adjust=adjust, smooth=False, model=problem, batched=True,
        random_seed=seed, progressbar=False,
    )  # fmt: skip
    tails = 0.5 * (1.0 - LEVELS)
    return np.quantile(found["posterior"]["mu"], [tails, 1.0 - tails])


def main():
    """Make the picture."""
    warnings.filterwarnings(
        "ignore", message="Likelihood-free"
    )  # the tolerance is large on purpose
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    rng = np.random.default_rng(1)
    means = rng.normal(0.0, PRIOR_SD, DATA_SETS)
    data = simulate(rng, means)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 5.6), layout="constrained")
    chance = stats.binom(DATA_SETS, LEVELS)
    band = np.array([chance.ppf(0.025), chance.ppf(0.975)]) / DATA_SETS
    axes[0].fill_between(LEVELS, *band, color="#dddddd", label="calibrated: 95 % of experiments")
    for adjust, (colour, label) in CASES.items():
        found = np.array([intervals(y, adjust, seed) for seed, y in enumerate(data)])
        covered = (found[:, 0] <= means[:, None]) & (means[:, None] <= found[:, 1])
        axes[0].plot(LEVELS, covered.mean(axis=0), "o-", color=colour, label=label)
        widths = (found[:, 1] - found[:, 0]).mean(axis=0)
        axes[1].plot(LEVELS, widths, "o-", color=colour, label=label)
    exact_sd = (PRIOR_SD**-2 + SD**-2) ** -0.5
    axes[1].plot(LEVELS, 2.0 * exact_sd * stats.norm.ppf(0.5 + 0.5 * LEVELS), "k--", label="exact")
    axes[0].set(
        ylabel="share of intervals with the true mean",
        title="Intervals should cover at their level",
    )
    axes[1].set(ylabel="mean width of the intervals", title="Those without adjustment are too wide")
    for axis in axes:
        axis.set(xlabel="level of the interval")
        axis.legend(frameon=False, loc="upper left")
        axis.spines[["top", "right"]].set_visible(False)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "calibration.png", dpi=125)


if __name__ == "__main__":
    main()
