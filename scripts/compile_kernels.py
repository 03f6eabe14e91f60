"""Fill the kernel cache on disk, so that the first run of a demo or test does not wait for compilers.

`make venv` runs it once. Without it everything works, but the first runs take some minutes longer.
The loops that it compiles are the same for all models; those of a model compile in a moment.
"""

import sys

from pathlib import Path

import numpy as np
import pymc as pm
import pytensor

import amc_pymc as amc

from amc_pymc.bandits.registry import POLICIES, make_policy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import flights
import tall_regression

from models.coreference import power_law_mentions, run_coreference
from models.lotka_volterra import hudson_bay
from models.simulator_suite import suite


def main(n_rows: int = 400, n_columns: int = 10) -> None:
    """Take a few draws with every step method, and run the simulators and the examples of `make demo`."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(n_rows, n_columns))
    counts, groups = rng.integers(0, 2, n_rows), rng.integers(0, 60, n_rows)
    with pm.Model():
        beta = pm.Normal("beta", shape=n_columns)
        pm.Bernoulli("y", logit_p=pm.Data("X", features) @ beta, observed=counts)
        draw(amc.RacingMetropolis())
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
        effects = pm.Normal("effects", 0, pm.HalfNormal("sd"), shape=60)
        pm.Normal("y", pm.Normal("mean") + effects[groups], 1.0, observed=features[:, 0])
        draw(amc.RacingMetropolis())
        amc.estimate_evidence(target_mcse=0.5, progressbar=False)
    with pm.Model():
        effects = pm.Normal("effects", 0, pm.HalfNormal("sd"), shape=60)
        pm.Bernoulli("y", logit_p=pm.Normal("mean") + effects[groups], observed=counts)
        amc.estimate_evidence(target_mcse=0.5, progressbar=False)
    models = {}
    for sd in (1.0, 2.0):
        with pm.Model() as models[f"sd {sd:g}"]:
            pm.Normal("y", pm.Normal("mean"), sd, observed=features[:, 0])
    amc.sample_product_space(models, draws=5, tune=50, chains=1, cores=1, progressbar=False)
    stored(features)
    with pm.Model():  # a simulator
        mean = pm.Normal("mean", shape=2)
        pm.Simulator(
            "y", lambda rng, mean, size: rng.normal(mean, size=size), mean, observed=[0.1, 0.2]
        )
        short = {"max_simulations": 4_000, "batched": True, "progressbar": False}
        amc.sample_abc_tree(draws=100, **short)
        amc.find_MAP_tree(**short)
    for name in sorted(POLICIES):
        pull(make_policy(name, 2, **SETTINGS.get(name, {})), rng)
    for example in (*suite(), hudson_bay()):
        example.simulate(rng, example.prior_sample(rng, 2))
    run_coreference(power_law_mentions(20, n_blocks=4, largest=30), n_sweeps=1)
    with tall_regression.build_model(tall_regression.doctor_visits()):
        amc.RacingMetropolis()
    with flights.build_model(flights.load_flights()):
        amc.RacingMetropolis()


def stored(features: np.ndarray) -> None:
    """Build steps whose rows are on disk, in double and in single precision."""
    tables = {"x": features[:, 0], "y": features[:, 1], "group": np.arange(len(features)) // 4}
    for dtype in ("float64", "float32"):
        with pm.Model():
            x, y = (pm.Data(name, tables[name][:8]) for name in ("x", "y"))
            slope = pm.math.stack([0.0, 0.5])[pm.Categorical("slope", np.full(2, 0.5))]
            pm.Normal("obs", slope * x, 1.0, observed=y)
            amc.RacingGibbs(rows=amc.Rows({"x": tables["x"], "y": tables["y"]}, dtype=dtype))
        with pm.Model():
            x, y, group = (pm.Data(name, tables[name][:8]) for name in tables)
            effects = pm.Normal("effects", 0, pm.HalfNormal("sd"), shape=100)
            pm.Normal("obs", pm.Normal("b") * x + effects[group], 1.0, observed=y)
            draw(amc.RacingMetropolis(rows=amc.Rows(tables, dtype=dtype), marginalize="effects"))


#: Arguments without which a policy cannot be made.
SETTINGS = {
    "lcb": {"values": "natural"},
}


def pull(policy, rng: np.random.Generator) -> None:
    """Pull arms of a bandit, one at a time and several."""
    for number in (1, 8):
        pulls = policy.ask(rng, number)
        policy.tell(pulls, rng.random(number), controls=rng.normal(size=(number, 1)))


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
