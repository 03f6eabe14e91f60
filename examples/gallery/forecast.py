"""Picture of the rows that racing_forecast predicts for five models, and of those that were read.

    python examples/gallery/forecast.py [--out docs/images/gallery]

The forecast needs no sampling: it finds the mode and measures how well the control variate predicts each row. To see:
the prediction is close to the median of a run; a few long races raise the mean, most for rare outcomes, where few rows
dominate. Without a control variate, racing would not pay for any of the models.
"""

import argparse

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from scipy.special import expit

import amc_pymc as amc

N_ROWS = 20_000
BLUE, ORANGE, GREY = "#0b6e99", "#d1662f", "#888888"


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
    names, predicted, plain, mean, median = [], [], [], [], []
    for name, model in models():
        forecast = amc.racing_forecast(model=model, progressbar=False)
        with model:
            step = amc.RacingMetropolis(transitions_per_draw=1, progressbar=False)
            idata = pm.sample(
                500, tune=300, step=step, chains=2, cores=1, random_seed=1,
                progressbar=False, quiet=True, compute_convergence_checks=False,
            )  # fmt: skip
        names.append(name)
        predicted.append(forecast.expected_rows)
        plain.append(forecast.plain_rows)
        read = idata["sample_stats"]["race_rows"].values
        mean.append(read.mean())
        median.append(np.median(read))

    at = np.arange(len(names))
    figure, axis = plt.subplots(figsize=(9.6, 5.6), layout="constrained")
    axis.axvspan(0.1 * N_ROWS, 1.4 * N_ROWS, color="#f3f3f3", zorder=0)
    axis.text(0.11 * N_ROWS, -0.55, "above a tenth of the rows", color=GREY, va="center")
    axis.plot(plain, at, "s", color=GREY, ms=9, label="without control variate, predicted")
    axis.plot(predicted, at, "D", color=BLUE, ms=10, label="with one, predicted")
    axis.plot(median, at, "|", color=ORANGE, ms=26, mew=2, label="median of a run")
    axis.plot(mean, at, "o", color=ORANGE, ms=9, label="mean of a run")
    axis.set(
        xscale="log", xlim=(35, 1.4 * N_ROWS), ylim=(len(names) - 0.5, -0.8), xlabel="rows per decision, of 20,000",
        ylabel="model", title="The forecast predicts the rows of most decisions, before any sampling",
    )  # fmt: skip
    axis.set_yticks(at, names)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.45, -0.24))
    axis.spines[["top", "right"]].set_visible(False)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "forecast.png", dpi=125)


if __name__ == "__main__":
    main()
