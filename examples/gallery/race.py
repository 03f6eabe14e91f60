"""Picture of two races: one decision of Metropolis-Hastings with and without a control variate.

    python examples/gallery/race.py [--out docs/images]

The model is a logistic regression of 100,000 simulated rows. A proposal is accepted if the log likelihood
ratio, a sum over all rows, exceeds a threshold. The race estimates the sum from batches that double and stops
when the interval of B standard errors excludes the threshold (Chen & Ghahramani 2016).
"""

import argparse

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from scipy.special import expit

from amc_pymc.tall.racing import b_normal

N_ROWS, N_COVARIATES, FIRST_BATCH, DELTA = 100_000, 5, 50, 0.05
BLUE, ORANGE, GREY = "#0b6e99", "#d1662f", "#888888"


def simulate(rng):
    """Return covariates (N, D) and outcomes (N,)."""
    X = np.column_stack([np.ones(N_ROWS), rng.normal(size=(N_ROWS, N_COVARIATES - 1))])
    beta = rng.normal(scale=0.5, size=N_COVARIATES)
    return X, rng.random(N_ROWS) < expit(X @ beta)


def log_likelihoods(X, y, beta):
    """Return log likelihoods (N,) of all rows, in nats."""
    return -np.logaddexp(0.0, np.where(y, -1.0, 1.0) * (X @ beta))


def mode_and_hessian(X, y):
    """Return the posterior mode (D,) under a flat prior, by Newton's method, and the Hessian (D, D) there."""
    beta = np.zeros(N_COVARIATES)
    for _ in range(20):
        p = expit(X @ beta)
        hessian = -(X * (p * (1.0 - p))[:, None]).T @ X
        beta = beta - np.linalg.solve(hessian, X.T @ (y - p))
    return beta, hessian


def expansions(X, y, centre, beta):
    """Return the second-order Taylor expansions (N,) of all rows around a centre."""
    p, step = expit(X @ centre), X @ (beta - centre)
    return log_likelihoods(X, y, centre) + (y - p) * step - 0.5 * p * (1.0 - p) * step**2


def race(rewards, known, threshold, order):
    """Return rows read, estimates and half-widths of the log ratio after each batch, until it is decided."""
    n_rows = len(rewards)
    b = b_normal(DELTA, FIRST_BATCH / n_rows)
    read, course = FIRST_BATCH, []
    while True:
        batch = rewards[order[:read]]
        estimate = known + n_rows * batch.mean()
        share_left = 1.0 - (read - 1) / (n_rows - 1)
        half_width = b * n_rows * batch.std(ddof=1) / np.sqrt(read) * np.sqrt(share_left)
        course.append((read, estimate, half_width))
        if read == n_rows or abs(estimate - threshold) > half_width:
            return np.array(course).T
        read = min(2 * read, n_rows)


def draw(axis, course, exact, threshold, title):
    """Draw one race: the interval after each batch, the exact log ratio and the threshold."""
    read, estimate, half_width = course
    decided = np.arange(read.size) == read.size - 1
    for which, colour, label in ((~decided, GREY, "not decided"), (decided, BLUE, "decided")):
        if which.any():
            axis.errorbar(
                read[which], estimate[which], half_width[which], fmt="o", color=colour, capsize=3, label=label
            )  # fmt: skip
    axis.axhline(threshold, color=ORANGE, lw=1.2, label="threshold")
    axis.axhline(exact, color="black", lw=0.8, ls="--", label="all rows")
    axis.set(xscale="log", xlim=(30, 2 * N_ROWS), xlabel="rows read", title=title)
    axis.spines[["top", "right"]].set_visible(False)


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out = parser.parse_args().out
    rng = np.random.default_rng(3)
    X, y = simulate(rng)
    centre, hessian = mode_and_hessian(X, y)
    root = np.linalg.cholesky(np.linalg.inv(-hessian))
    here, there = (centre + root @ rng.normal(size=N_COVARIATES) for _ in range(2))

    rewards = log_likelihoods(X, y, there) - log_likelihoods(X, y, here)
    predicted = expansions(X, y, centre, there) - expansions(X, y, centre, here)
    exact, threshold, order = rewards.sum(), np.log(rng.random()), rng.permutation(N_ROWS)

    plain = race(rewards, 0.0, threshold, order)
    controlled = race(rewards - predicted, predicted.sum(), threshold, order)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    draw(axes[0], plain, exact, threshold, f"Rows themselves: {plain[0, -1]:,.0f} read")
    draw(
        axes[1], controlled, exact, threshold,
        f"With a control variate: {controlled[0, -1]:,.0f} read",
    )  # fmt: skip
    axes[0].set(yscale="symlog", ylim=(-1000, 1e4), ylabel="log likelihood ratio, nats")
    axes[1].set(ylim=(min(exact, threshold) - 1.0, max(exact, threshold) + 1.0))
    axes[0].legend(frameon=False, ncols=2)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "race.png", dpi=110)


if __name__ == "__main__":
    main()
