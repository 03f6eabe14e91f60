"""Picture of the regret of four policies that allocate draws to five estimators.

    python examples/gallery/regret.py [--out docs/images/gallery]

The estimators are normal with the same mean and standard deviations of 1 to 3. Regret is the loss from draws of other
estimators than the best, in draws of the best. To see: the curve of "lcb" flattens after some hundred draws, those of
the policies of the papers later, and that of taking turns never.
"""

import argparse

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import amc_pymc as amc

from amc_pymc.results.plots.painting import COLOURS

SDS = (1.0, 1.5, 2.0, 2.5, 3.0)
POLICIES = ("lcb", "thompson", "ucbv", "round_robin")


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    arms = {f"sd {sd:g}": lambda rng, sd=sd: rng.normal(1.0, sd) for sd in SDS}
    excess = np.array([sd**2 / SDS[0] ** 2 - 1.0 for sd in SDS])
    figure, axis = plt.subplots(figsize=(9.6, 5.6), layout="constrained")
    for policy, colour in zip(POLICIES, COLOURS, strict=False):
        found = amc.combine_estimators(
            arms, policy=policy, draws=5_000, random_seed=1, progressbar=False
        )
        regret = excess[found["pulls"]["arm"].values].cumsum()
        axis.loglog(np.arange(1, regret.size + 1), regret, color=colour, label=policy)
    axis.set(
        xlabel="draws of all estimators", ylabel="regret, draws of the best estimator",
        title="The regret of a policy that learns flattens",
    )  # fmt: skip
    axis.legend(frameon=False)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "regret.png", dpi=125)


if __name__ == "__main__":
    main()
