"""Fill Numba's caches on disk, so that the first run of a demo or test does not wait for compilers.

`make venv` runs it once. Without it everything works, a minute or two slower the first time.
"""

import sys

from pathlib import Path

import numpy as np
import pymc as pm

import amc_pymc as amc

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import flights
import tall_regression


def main(n_rows: int = 400, n_columns: int = 10) -> None:
    """Build RacingMetropolis for two regressions and for the examples that `make demo` runs."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(n_rows, n_columns))
    with pm.Model():
        beta = pm.Normal("beta", shape=n_columns)
        successes = rng.integers(0, 2, n_rows)
        pm.Bernoulli("y", logit_p=pm.Data("X", features) @ beta, observed=successes)
        amc.RacingMetropolis()
    with pm.Model():  # coefficients that are functions of parameters
        scaled = pm.Normal("z", shape=n_columns) * pm.HalfNormal("sd")
        pm.Normal("y", pm.Data("X", features) @ scaled, 1.0, observed=features[:, 0])
        amc.RacingMetropolis()
    with tall_regression.build_model(tall_regression.doctor_visits()):
        amc.RacingMetropolis()
    # The flights with all their data, as the example has them.
    with flights.build_model(flights.load_flights()) as model:
        step = amc.RacingMetropolis()
        step.step(model.initial_point())  # drawing effects has kernels of its own


if __name__ == "__main__":
    main()
