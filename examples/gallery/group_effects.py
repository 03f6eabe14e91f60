"""Picture of group effects that were integrated out while sampling, and drawn afterwards.

    python examples/gallery/group_effects.py [--out docs/images/gallery]

RacingMetropolis samples the mean and the standard deviation of 300 group effects, with the effects integrated out;
recover_marginals then draws the effects. To see: effects of groups with few rows are shrunk towards the mean, and the
sampled standard deviation is that of the simulation, not that of the group means.
"""

import argparse

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import amc_pymc as amc

GROUPS, TRUE_SD = 300, 1.0
BLUE, ORANGE, GREY = "#0b6e99", "#d1662f", "#888888"


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 31, GROUPS)
    group = np.repeat(np.arange(GROUPS), sizes)
    y = rng.normal(rng.normal(0.0, TRUE_SD, GROUPS)[group], 2.0)
    with pm.Model() as model:
        mean, sd = pm.Normal("mean", 0.0, 2.0), pm.HalfNormal("sd", 2.0)
        effect = pm.Normal("effect", mean, sd, shape=GROUPS)
        pm.Normal("y", effect[group], 2.0, observed=y)
        step = amc.RacingMetropolis(recover=False, progressbar=False)
        idata = pm.sample(
            1000, tune=300, step=step, chains=2, cores=1, random_seed=1,
            progressbar=False, quiet=True, compute_convergence_checks=False,
        )  # fmt: skip
    idata = amc.recover_marginals(idata, model=model, random_seed=1, progressbar=False)

    raw = np.bincount(group, y) / sizes
    posterior = idata["posterior"]
    middle = posterior["effect"].mean(("chain", "draw")).values
    plt.rc("axes.spines", top=False, right=False)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 5.6), width_ratios=(3, 2), layout="constrained")
    axes[0].axline((0.0, 0.0), slope=1.0, color=GREY, lw=1.0, ls="--")
    axes[0].text(1.9, 2.3, "no shrinkage", color=GREY, rotation=45, ha="center", va="center")
    dots = axes[0].scatter(raw, middle, 18, sizes, cmap="viridis_r")
    figure.colorbar(dots, label="rows of the group", location="bottom", shrink=0.8)
    axes[0].set(
        xlabel="mean of the rows of a group", ylabel="posterior mean of its effect",
        title="Few rows: shrunk the most", aspect="equal",
    )  # fmt: skip
    axes[1].hist(
        posterior["sd"].values.ravel(), 40, density=True, color=BLUE, alpha=0.6, label="posterior"
    )
    axes[1].axvline(TRUE_SD, color="black", lw=1.2, label="simulated")
    axes[1].axvline(raw.std(), color=ORANGE, ls="--", label="of group means")
    axes[1].set(
        xlabel="standard deviation of the effects", ylabel="density", title="Effects integrated out"
    )
    axes[1].legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "group_effects.png", dpi=125)


if __name__ == "__main__":
    main()
