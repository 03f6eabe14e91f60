"""Picture of draws of ABC-Tree beside the exact posterior.

    python examples/gallery/abc_posterior.py [--out docs/images]

Twenty observations are normal with unknown mean and standard deviation. The simulator is compared with the data by their
mean and standard deviation, which are sufficient, so the posterior without a tolerance is known: its contours hold 50 and
95 % of it.
"""

import argparse

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from scipy import stats

import amc_pymc as amc

BLUE, ORANGE = "#0b6e99", "#d1662f"
EPSILON = 0.3
OBSERVED = np.random.default_rng(1).normal(1.0, 2.0, size=20)


def simulate(rng, mu, sigma, size):
    """Return data of the given shape; PyMC passes parameters that broadcast against it."""
    return rng.normal(mu, sigma, size=size)


def summaries(x):
    """Return mean and standard deviation of each data set along the last axis."""
    return np.stack([x.mean(axis=-1), x.std(axis=-1)], axis=-1)


def exact_posterior(mu, sigma):
    """Return the exact posterior density, not normalised, on a grid."""
    log_p = stats.norm.logpdf(mu, 0.0, 3.0) + stats.halfnorm.logpdf(sigma, scale=3.0)
    for y in OBSERVED:
        log_p = log_p + stats.norm.logpdf(y, mu, sigma)
    return np.exp(log_p - log_p.max())


def heights(density, shares):
    """Return the heights above which a density on a grid holds the given shares of its mass."""
    ordered = np.sort(density, axis=None)[::-1]
    held = np.cumsum(ordered) / ordered.sum()
    return sorted(ordered[np.searchsorted(held, share)] for share in shares)


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out = parser.parse_args().out
    with pm.Model():
        mu = pm.Normal("mu", 0.0, 3.0)
        sigma = pm.HalfNormal("sigma", 3.0)
        pm.Simulator(
            "y", simulate, mu, sigma, sum_stat=summaries, epsilon=EPSILON, observed=OBSERVED
        )
        found = amc.sample_abc_tree(
            max_simulations=50_000,
            adjust="none",
            batched=True,
            draws=250,
            random_seed=1,
            progressbar=False,
        )
    grid_mu, grid_sigma = np.meshgrid(np.linspace(-0.2, 2.4, 300), np.linspace(0.6, 2.4, 300))
    density = exact_posterior(grid_mu, grid_sigma)
    posterior = found["posterior"]
    figure, axis = plt.subplots(figsize=(5.2, 4.2), layout="constrained")
    axis.plot(
        posterior["mu"].values.ravel(), posterior["sigma"].values.ravel(), ".", ms=4, color=ORANGE,
        alpha=0.6,
    )  # fmt: skip
    axis.contour(grid_mu, grid_sigma, density, levels=heights(density, (0.95, 0.5)), colors=BLUE)
    axis.set(
        xlabel="mu", ylabel="sigma",
        title=f"50,000 simulations, distance at most {EPSILON * posterior.attrs['tolerance']:.2f}",
    )  # fmt: skip
    axis.spines[["top", "right"]].set_visible(False)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "abc_posterior.png", dpi=110)


if __name__ == "__main__":
    main()
