"""Picture of the measured error of decisions of a racing step, against its bound.

    python examples/gallery/decision_errors.py [--out docs/images/gallery]

Two models of 10,000 rows are sampled at five bounds delta: a logistic regression by RacingMetropolis, and by RacingGibbs
the choice among five noisy measurements of a covariate, an index into data, which leaves no control variate. Audits
repeat decisions on all rows. To see: the measured errors are below the line at which they equal the bound.
"""

import argparse
import warnings

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import expit

import amc_pymc as amc

N_ROWS, DELTAS = 10_000, (0.01, 0.02, 0.05, 0.1, 0.2)
SHARES = (0.001, 0.002, 0.005, *DELTAS)
BLUE, ORANGE, GREY = "#0b6e99", "#d1662f", "#888888"


def logistic_regression(rng):
    """Return a model of which races have control variates."""
    X = np.column_stack([np.ones(N_ROWS), rng.normal(size=(N_ROWS, 3))])
    y = rng.random(N_ROWS) < expit(X @ [-0.5, 1.0, -1.0, 0.5])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.0, shape=4)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y)
    return model


def measurements(rng):
    """Return a model of which races have none."""
    x = rng.normal(size=N_ROWS)
    X = x[:, None] + rng.normal(scale=0.03, size=(N_ROWS, 5))
    with pm.Model() as model:
        which = pm.Categorical("which", np.full(5, 0.2))
        pm.Normal("y", pt.as_tensor(X)[:, which], 1.0, observed=x + rng.normal(size=N_ROWS))
    return model


def errors(model, kind):
    """Return measured errors of decisions (5,) and the ends (2, 5) of their 95 % intervals, by bound."""
    lines = []
    for delta in DELTAS:
        with model:
            audits = amc.Audits(400, max_share=None)
            step = kind(delta=delta, race="normal", audits=audits, progressbar=False)
            idata = pm.sample(
                400, tune=200, step=step, chains=2, cores=1, random_seed=1,
                progressbar=False, quiet=True, compute_convergence_checks=False,
            )  # fmt: skip
        lines.append(amc.decision_error(idata).loc["all", ["error", "ci_low", "ci_high"]])
    found = np.array(lines, float).T
    return found[0], found[1:]


def main():
    """Make the picture."""
    # One of the two models has no control variate on purpose.
    warnings.filterwarnings("ignore", message="RacingGibbs: there is no control variate")
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    rng = np.random.default_rng(1)
    cases = (
        (
            measurements(rng),
            amc.RacingGibbs,
            ORANGE,
            "without a control variate",
            0.97,
        ),
        (logistic_regression(rng), amc.RacingMetropolis, BLUE, "with one", 1.03),
    )
    plt.rc("axes.spines", top=False, right=False)
    figure, axis = plt.subplots(figsize=(9.6, 5.6), layout="constrained")
    axis.plot((0.007, 0.3), (0.007, 0.3), color=GREY, ls="--", label="error equal to its bound")
    for model, kind, colour, label, shift in cases:
        error, ends = errors(model, kind)
        axis.errorbar(
            shift * np.array(DELTAS), error, np.abs(ends - error), fmt="o", color=colour, capsize=4, label=label
        )  # fmt: skip
    axis.set(
        xscale="log", xlim=(0.007, 0.3), xlabel="bound on the error of a decision, delta",
        ylabel="audited decisions that differ on all rows (share)",
        title="Decisions of races err less often than their bound allows",
    )  # fmt: skip
    axis.set_xticks(DELTAS, [f"{delta:g}" for delta in DELTAS])
    axis.set_yscale("symlog", linthresh=0.002)
    axis.set_yticks((0.0, *SHARES), ["0", *(f"{share:g}" for share in SHARES)])
    axis.set_ylim(-0.0003, 0.3)
    axis.minorticks_off()
    axis.legend(frameon=False, loc="upper left")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "decision_errors.png", dpi=125)


if __name__ == "__main__":
    main()
