"""Picture of the rows that a racing step reads per draw, for growing data.

    python examples/gallery/rows_per_draw.py [--out docs/images/gallery]

A Poisson regression is sampled by RacingMetropolis, by races, with 3,000 to 100,000 rows. To see: a draw reads about as
many rows whatever their number.
"""

import argparse

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import amc_pymc as amc

SIZES = (3_000, 10_000, 30_000, 100_000)
BLUE, GREY = "#0b6e99", "#888888"


def rows_read(n_rows):
    """Return the rows read by each draw (draws,), one decision each."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=n_rows)
    y = rng.poisson(np.exp(0.5 + 0.3 * x))
    with pm.Model():
        a = pm.Normal("a", 0.0, 2.0)
        b = pm.Normal("b", 0.0, 2.0)
        pm.Poisson("y", pm.math.exp(a + b * x), observed=y)
        step = amc.RacingMetropolis(race="normal", transitions_per_draw=1, progressbar=False)
        idata = pm.sample(
            500, tune=300, step=step, chains=2, cores=1, random_seed=1,
            progressbar=False, quiet=True, compute_convergence_checks=False,
        )  # fmt: skip
    return idata["sample_stats"]["race_rows"].values.ravel()


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    plt.rc("axes.spines", top=False, right=False)
    figure, axis = plt.subplots(figsize=(9.6, 5.6), layout="constrained")
    axis.plot(SIZES, SIZES, color=GREY, ls="--", label="all rows")
    read = [rows_read(n) for n in SIZES]
    low, high = np.quantile(read, (0.05, 0.95), axis=1)
    mean = np.mean(read, axis=1)
    axis.vlines(SIZES, low, high, color=BLUE, lw=6, alpha=0.3)
    axis.plot(SIZES, mean, "o-", color=BLUE, label="races")
    axis.annotate(
        f"mean {mean[-1]:,.0f}", (SIZES[-1], mean[-1]), (10, 0), textcoords="offset points", color=BLUE, va="center"
    )  # fmt: skip
    axis.set(
        xscale="log", yscale="log", xlim=(2_500, 220_000), xlabel="rows of the data", ylabel="rows read per draw",
        title="The rows that races read do not grow with the data (bar: 90 % of the draws)",
    )  # fmt: skip
    axis.set_xticks(SIZES, [f"{n:,}" for n in SIZES])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.legend(frameon=False, loc="upper left")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "rows_per_draw.png", dpi=125)


if __name__ == "__main__":
    main()
