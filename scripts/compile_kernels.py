"""Fill Numba's caches on disk, so that the first run of a demo or test does not wait for compilers.

`make venv` runs it once. Without it everything works, a minute or two slower the first time.
"""

import sys

from pathlib import Path

import numpy as np
import pymc as pm

import amc_pymc as amc

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def main(n_rows: int = 400, n_columns: int = 10) -> None:
    """Build RacingMetropolis for three regressions and for the flights."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(n_rows, n_columns))
    for family in ("negative binomial", "logistic"):
        with pm.Model():
            beta = pm.Normal("beta", shape=n_columns)
            eta = pm.Data("X", features) @ beta
            if family == "logistic":
                pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, n_rows))
            else:
                alpha = pm.HalfNormal("alpha", 2.0)
                counts = rng.poisson(1.0, n_rows)
                pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=alpha, observed=counts)
            amc.RacingMetropolis()
    with pm.Model():  # coefficients that are functions of parameters
        scaled = pm.Normal("z", shape=n_columns) * pm.HalfNormal("sd")
        pm.Normal("y", pm.Data("X", features) @ scaled, 1.0, observed=features[:, 0])
        amc.RacingMetropolis()
    with flights() as model:  # groups have kernels of their own
        step = amc.RacingMetropolis()
        step.step(model.initial_point())  # and so have their effects


def flights() -> pm.Model:
    """The model of examples/flights.py, with all its data: kernels depend on the numbers of levels."""
    sys.path.insert(0, str(EXAMPLES))
    import flights as example

    return example.build_model(example.load_flights())


if __name__ == "__main__":
    main()
