"""Picture of inclusion probabilities of covariates, from indicators drawn by RacingGibbs.

    python examples/gallery/indicators.py [--out docs/images/gallery]

A linear regression of 20,000 rows has an indicator for each of twelve covariates, six of which are in the simulated
model. The exact probabilities are known by enumeration of all 4,096 models. To see: the draws agree with them, for
clear and for doubtful covariates.
"""

import argparse
import sys

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import amc_pymc as amc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.variable_selection import inclusion_probabilities, selection_model, sparse_data

BLUE, ORANGE, GREY = "#0b6e99", "#d1662f", "#bbbbbb"


def main():
    """Make the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    data = sparse_data(20_000, family="normal", rng=np.random.default_rng(1))
    exact = inclusion_probabilities(data.X, data.y).inclusion
    with selection_model(data.X, data.y, family="normal", names=data.names) as model:
        indicators = amc.RacingGibbs([model["gamma"]], progressbar=False)
        coefficients = amc.RacingMetropolis([model["beta"], model["intercept"]], progressbar=False)
        idata = pm.sample(
            1000, tune=200, step=[indicators, coefficients], chains=2, cores=1, random_seed=1,
            progressbar=False, quiet=True, compute_convergence_checks=False,
        )  # fmt: skip
    found = idata["posterior"]["gamma"].mean(("chain", "draw")).values
    rows = idata["sample_stats"]["race_rows"].values[..., 0].mean() / len(found)

    plt.rc("axes.spines", top=False, right=False)
    figure, axis = plt.subplots(figsize=(9.6, 5.6), layout="constrained")
    at, simulated = np.arange(len(found)), data.beta != 0.0
    for which, colour, label in (
        (simulated, BLUE, "in the simulated model"),
        (~simulated, GREY, "not in it"),
    ):
        axis.barh(at[which], found[which], 0.7, color=colour, label=f"{label}, drawn")
    axis.plot(exact, at, "D", color=ORANGE, ms=7, mec="white", label="exact", clip_on=False)
    axis.set(
        xlim=(0.0, 1.0), xlabel="posterior probability of inclusion", ylabel="covariate",
        title=f"Draws of twelve indicators agree with enumeration and read {rows:,.0f} of 20,000 rows each",
    )  # fmt: skip
    axis.set_yticks(at, data.names)
    axis.invert_yaxis()
    axis.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, -0.24))
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "indicators.png", dpi=125)


if __name__ == "__main__":
    main()
