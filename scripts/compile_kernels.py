"""Fill Numba's caches on disk, so that the first run of a demo or test does not wait for compilers.

`make venv` runs it once. Without it everything works, a minute or two slower the first time. The
loops that it compiles are the same for all models; what a model adds is compiled in a moment.
"""

import sys

from pathlib import Path

import numpy as np
import pymc as pm
import pytensor

import amc_pymc as amc

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import flights
import tall_regression


def main(n_rows: int = 400, n_columns: int = 10) -> None:
    """Take a few draws with every step method, and build the examples that `make demo` runs."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(n_rows, n_columns))
    counts, groups = rng.integers(0, 2, n_rows), rng.integers(0, 5, n_rows)
    with pm.Model():
        beta = pm.Normal("beta", shape=n_columns)
        pm.Bernoulli("y", logit_p=pm.Data("X", features) @ beta, observed=counts)
        draw(amc.RacingMetropolis())
        amc.RacingMetropolis(proposal="langevin")
        draw(amc.RacingSlice())
        amc.estimate_evidence(target_mcse=0.5, progressbar=False)
    with pm.Model():  # coefficients that are functions of parameters
        scaled = pm.Normal("z", shape=n_columns) * pm.HalfNormal("sd")
        pm.Normal("y", pm.Data("X", features) @ scaled, 1.0, observed=features[:, 0])
        draw(amc.RacingMetropolis())
        draw(amc.RacingMetropolis(proxy=amc.DataProxy()))
    with pm.Model():
        chosen = pm.Categorical("chosen", np.full(3, 1 / 3))
        mean = pm.math.stack([0.0, 0.1, 0.2])[chosen]
        pm.Normal("y", mean, 1.0, observed=features[:, 0])
        draw(amc.RacingGibbs())
    with pm.Model():  # groups
        effects = pm.Normal("effects", 0, pm.HalfNormal("sd"), shape=5)
        pm.Normal("y", pm.Normal("mean") + effects[groups], 1.0, observed=features[:, 0])
        draw(amc.RacingMetropolis())
    with tall_regression.build_model(tall_regression.doctor_visits()):
        amc.RacingMetropolis()
    with flights.build_model(flights.load_flights()):
        amc.RacingMetropolis()


def draw(step) -> None:
    """Take draws with a step; PyMC's own functions are not worth compiling."""
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        pm.sample(
            5,
            tune=5,
            chains=1,
            step=step,
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )


if __name__ == "__main__":
    main()
