"""Picture of the calibration of likelihood-free intervals, on a problem with a known posterior.

    python examples/gallery/calibration.py [--out docs/images/gallery]

The mean of ten normal observations is inferred from their average, for 25 data sets with means from the prior. To see:
intervals at a large tolerance are too wide, so they cover too often; a linear adjustment of the same simulations makes
them as wide as the exact ones.
"""

import argparse
import warnings

from pathlib import Path

import numpy as np

from scipy import stats

import amc_pymc as amc

from amc_pymc.results import calibration

DATA_SETS, PRIOR_SD, SD, TOLERANCE = 25, 2.0, 10**-0.5, 0.8
CASES = {"no adjustment": "none", "regression": "regression"}


def simulate(rng, mu):
    """Return averages (n,) of ten observations."""
    return rng.normal(mu, SD)


def posterior(observed, adjust, seed):
    """Return the result of inference from one data set."""
    problem = amc.SimulatorProblem({"mu": stats.norm(0.0, PRIOR_SD)}, simulate, observed=observed)
    return amc.sample_abc_rejection(
        500, max_simulations=2_000, tolerance=TOLERANCE, adjust=adjust, model=problem, batched=True,
        random_seed=seed, progressbar=False,
    )  # fmt: skip


def main():
    """Make the picture."""
    # The tolerance is large on purpose.
    warnings.filterwarnings("ignore", message="Likelihood-free")
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    out = parser.parse_args().out
    rng = np.random.default_rng(1)
    means = rng.normal(0.0, PRIOR_SD, DATA_SETS)
    data, truths = simulate(rng, means), [{"mu": mean} for mean in means]
    found = {
        label: calibration([posterior(y, adjust, seed) for seed, y in enumerate(data)], truths)
        for label, adjust in CASES.items()
    }
    exact_sd = (PRIOR_SD**-2 + SD**-2) ** -0.5
    levels = found["no adjustment"]["width"]["level"].values
    picture = amc.plot_calibration(
        found,
        backend="matplotlib",
        figure_kwargs={"figsize": (9.6, 5.6), "figsize_units": "inches"},
        visuals={"legend": {"loc": "outside lower center", "ncols": 2}},
    )
    widths = picture.get_viz("plot", "mu", quantity="width")
    exact = 2.0 * exact_sd * stats.norm.ppf(0.5 + 0.5 * levels)
    widths.plot(levels, exact, "k--", label="exact")
    widths.legend(handles=widths.lines[-1:], frameon=False)
    out.mkdir(parents=True, exist_ok=True)
    picture.savefig(out / "calibration.png", dpi=125)


if __name__ == "__main__":
    main()
