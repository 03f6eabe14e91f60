"""Picture of the rows that racing_forecast predicts for five models, and of those that were read.

    python examples/gallery/forecast.py [--out docs/images/gallery]

The forecast needs no sampling: it finds the mode, and measures how well the control variate predicts each row. To see:
a race reads a hundred rows; thinned decisions, which are exact, read about one row in thirty decisions, none for a
normal model, and more for rare outcomes, where few rows dominate. Means of runs are near the predictions.
"""

import argparse

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from scipy.special import expit

import amc_pymc as amc

N_ROWS = 20_000
BLUE, PALE, ORANGE = "#0b6e99", "#cfe3ec", "#d1662f"


def models():
    """Return models of 20,000 simulated rows by name."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=N_ROWS)
    noise = rng.standard_t(4.0, N_ROWS)
    observed = {
        "normal": (pm.Normal, lambda m: {"mu": m, "sigma": 1.0}, 1.0 + x + rng.normal(size=N_ROWS)),
        "Poisson": (
            pm.Poisson,
            lambda m: {"mu": pm.math.exp(m)},
            rng.poisson(np.exp(0.5 + 0.3 * x)),
        ),
        "logistic": (pm.Bernoulli, lambda m: {"logit_p": m}, rng.random(N_ROWS) < expit(x)),
        "logistic, rare": (
            pm.Bernoulli,
            lambda m: {"logit_p": m},
            rng.random(N_ROWS) < expit(x - 7.0),
        ),
        "Student t": (pm.StudentT, lambda m: {"nu": 4.0, "mu": m, "sigma": 1.0}, x + noise),
    }
    for name, (family, parameters, y) in observed.items():
        with pm.Model() as model:
            a, b = pm.Normal("a", 0.0, 5.0), pm.Normal("b", 0.0, 5.0)
            family("y", **parameters(a + b * x), observed=y)
        yield name, model


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    names, raced, thinned, means = [], [], [], []
    for name, model in models():
        forecast = amc.racing_forecast(model=model, progressbar=False)
        with model:
            step = amc.RacingMetropolis(progressbar=False)
        names.append(name)
        raced.append(step.prepared.forecast.rows)
        thinned.append(forecast.expected_rows)
        means.append([])
        for own in (step.replace(race=amc.NormalRace()), step):
            idata = pm.sample(
                500, tune=300, step=own, chains=2, cores=1, model=model,
                random_seed=1, progressbar=False, quiet=True, compute_convergence_checks=False,
            )  # fmt: skip
            means[-1].append(idata["sample_stats"]["race_rows"].values.mean())

    at = np.arange(len(names))
    plt.rc("axes.spines", top=False, right=False)
    figure, axis = plt.subplots(figsize=(9.6, 5.6), layout="constrained")
    axis.hlines(at, thinned, raced, color=PALE, lw=10, zorder=0)
    axis.plot(raced, at, "s", color=BLUE, ms=13, label="race, predicted")
    axis.plot(thinned, at, "D", color=BLUE, ms=12, label="thinning, predicted")
    axis.plot(
        np.ravel(means), np.repeat(at, 2), "|", color=ORANGE, ms=28, mew=4, label="means of runs"
    )
    axis.set_xscale("symlog", linthresh=0.01, linscale=0.4)
    axis.set(
        xlim=(-0.002, 2.0 * N_ROWS), ylim=(len(names) - 0.5, -0.5), ylabel="model",
        xlabel="rows per decision, of 20,000",
        title="The forecast predicts the rows that decisions read, before any sampling",
    )  # fmt: skip
    axis.set_yticks(at, names)
    axis.set_xticks([0, 0.1, 1, 10, 100, 1_000, 10_000], "0 0.1 1 10 100 1,000 10,000".split())
    axis.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.45, -0.24))
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "forecast.png", dpi=125)


if __name__ == "__main__":
    main()
