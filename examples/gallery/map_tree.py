"""Picture of the search for a posterior mode from simulations only.

    python examples/gallery/map_tree.py [--out docs/images/gallery]

Mean and standard deviation of twenty normal observations are inferred from those of the sample. The contours hold 50 and
95 % of the exact posterior. To see: the best box moves towards the mode while the tolerance falls, and the estimate
agrees with the exact mode within its error bars.
"""

import argparse

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from scipy import stats

import amc_pymc as amc

BLUE, ORANGE = "#0b6e99", "#d1662f"
OBSERVED = np.random.default_rng(1).normal(1.0, 2.0, size=20)
PRIOR = {"mu": stats.norm(0.0, 3.0), "sigma": stats.halfnorm(scale=3.0)}


def simulate(rng, mu, sigma):
    """Return mean and standard deviation (n, 2) of samples of twenty."""
    x = rng.normal(mu[:, None], sigma[:, None], (len(mu), len(OBSERVED)))
    return np.stack([x.mean(axis=1), x.std(axis=1)], axis=1)


def exact_posterior(mu, sigma):
    """Return the exact posterior density, not normalised, on a grid."""
    log_p = PRIOR["mu"].logpdf(mu) + PRIOR["sigma"].logpdf(sigma)
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
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    observed = np.array([OBSERVED.mean(), OBSERVED.std()])
    problem = amc.SimulatorProblem(PRIOR, simulate, observed=observed, tolerance=0.05)
    mode, found = amc.find_MAP_tree(
        max_simulations=20_000, batch_size=500, model=problem, batched=True, return_raw=True,
        random_seed=1, progressbar=False,
    )  # fmt: skip
    path = [
        PRIOR[n].ppf(u) for n, u in zip(PRIOR, found["rounds"]["incumbent"].values.T, strict=True)
    ]
    simulations = np.cumsum(found["rounds"]["simulations"].values)

    grid = np.meshgrid(np.linspace(0.2, 2.0, 400), np.linspace(0.6, 2.2, 400))
    density = exact_posterior(*grid)
    top = [g.flat[density.argmax()] for g in grid]
    plt.rc("axes.spines", top=False, right=False)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 5.6), width_ratios=(3, 2), layout="constrained")
    axes[0].contour(*grid, density, levels=heights(density, (0.95, 0.5)), colors="#bbbbbb")
    axes[0].plot(*path, "-", color=BLUE, lw=0.8)
    dots = axes[0].scatter(
        *path, 30, simulations, cmap="viridis_r", edgecolor="white", zorder=3, label="best box"
    )
    axes[0].errorbar(
        mode["mu"], mode["sigma"], xerr=2.0 * found["mode_se"]["mu"], yerr=2.0 * found["mode_se"]["sigma"], fmt="s",
        color=ORANGE, capsize=4, zorder=4, label="estimate, ± 2 standard errors",
    )  # fmt: skip
    axes[0].plot(*top, "k+", ms=22, mew=1.5, zorder=2, label="exact mode")
    axes[0].set(xlabel="mu", ylabel="sigma", title="The best box moves towards the mode")
    axes[0].legend(frameon=False, loc="upper left")
    figure.colorbar(
        dots, label="simulations", location="bottom", ticks=range(0, 20_001, 5_000),
        format="{x:,.0f}",
    )  # fmt: skip
    axes[1].plot(simulations, found["rounds"]["tolerance"], "o-", color=BLUE)
    axes[1].set(xlabel="simulations", ylabel="tolerance", yscale="log", title="The tolerance falls")
    axes[1].set_yticks((0.05, 0.1, 0.2, 0.5), ("0.05", "0.1", "0.2", "0.5"))
    axes[1].minorticks_off()
    axes[1].xaxis.set_major_formatter("{x:,.0f}")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "map_tree.png", dpi=125)


if __name__ == "__main__":
    main()
