"""Compilation of the package's loops, so that the first model does not wait for it.

    python -m amc_pymc.compile

Each loop is compiled once per installation, and is the same for all models. Without this module, those that a model needs
are compiled when it is first sampled. The loops are run on tiny models.
"""

from __future__ import annotations

import logging
import warnings

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor

from amc_pymc.engine.jit import reports_of_compiling
from amc_pymc.evidence.estimate_evidence import estimate_evidence
from amc_pymc.likelihood_free.find_map_tree import find_MAP_tree
from amc_pymc.likelihood_free.sample_abc_tree import sample_abc_tree
from amc_pymc.progress import progress
from amc_pymc.steps.product_space import sample_product_space
from amc_pymc.steps.racing_gibbs import RacingGibbs
from amc_pymc.steps.racing_metropolis import RacingMetropolis

_rng = np.random.default_rng(1)
_FEATURES, _BINARY = _rng.normal(size=(200, 3)), _rng.integers(0, 2, 200)
_GROUPS = _rng.integers(0, 20, 200)


def _rows() -> None:
    """Rows: a logistic regression."""
    with pm.Model():
        beta = pm.Normal("beta", shape=3)
        pm.Bernoulli("y", logit_p=pm.Data("X", _FEATURES) @ beta, observed=_BINARY)
        _draw(RacingMetropolis(progressbar=False))
        _draw(RacingMetropolis(race="normal", progressbar=False))


def _hyperparameters() -> None:
    """Coefficients that are functions of parameters."""
    with pm.Model():
        scaled = pm.Normal("z", shape=3) * pm.HalfNormal("sd")
        pm.Normal("y", pm.Data("X", _FEATURES) @ scaled, 1.0, observed=_FEATURES[:, 0])
        _draw(RacingMetropolis(progressbar=False))


def _discrete() -> None:
    """A discrete variable."""
    with pm.Model():
        chosen = pm.Categorical("chosen", np.full(3, 1 / 3))
        mean = pm.math.stack([0.0, 0.1, 0.2])[chosen]
        pm.Normal("y", mean, 1.0, observed=_FEATURES[:, 0])
        _draw(RacingGibbs(progressbar=False))


def _effects() -> None:
    """Groups with effects, and model evidence."""
    with pm.Model():
        effects = pm.Normal("effects", 0, pm.HalfNormal("sd"), shape=20)
        pm.Normal("y", pm.Normal("mean") + effects[_GROUPS], 1.0, observed=_FEATURES[:, 0])
        _draw(RacingMetropolis(progressbar=False))
        estimate_evidence(target_mcse=0.5, progressbar=False)


def _models() -> None:
    """A choice between models."""
    models: dict[str, pm.Model] = {}
    for sd in (1.0, 2.0):
        with pm.Model() as models[f"sd {sd:g}"]:
            pm.Normal("y", pm.Normal("mean"), sd, observed=_FEATURES[:, 0])
    sample_product_space(models, draws=5, tune=50, chains=1, cores=1, progressbar=False)


def _simulator() -> None:
    """A simulator."""
    with pm.Model():
        mean = pm.Normal("mean", shape=2)
        pm.Simulator(
            "y", lambda rng, mean, size: rng.normal(mean, size=size), mean, observed=[0.1, 0.2]
        )
        short: dict[str, Any] = {"max_simulations": 4_000, "batched": True, "progressbar": False}
        sample_abc_tree(draws=100, **short)
        find_MAP_tree(**short)


_TASKS: dict[str, Callable[[], None]] = {
    "rows": _rows,
    "coefficients that are functions": _hyperparameters,
    "discrete variables": _discrete,
    "groups and evidence": _effects,
    "choices between models": _models,
    "simulators": _simulator,
}


def _draw(step: object) -> None:
    """Take draws with a step; PyMC's own functions are not worth compiling."""
    quiet = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        pm.sample(5, tune=5, chains=1, step=step, **quiet)


def main() -> None:
    """Compile all loops, and show the progress."""
    warnings.simplefilter("ignore")
    logging.getLogger("amc_pymc").setLevel(logging.WARNING)
    with progress("Compiling", len(_TASKS), enabled=True, min_seconds=0.0) as bar:
        for name, task in _TASKS.items():

            def report(function: str, name: str = name) -> None:
                bar.advance(0, f"Compiling for {name}: {function}".rstrip(": "))

            with reports_of_compiling(report):
                task()
            bar.advance()
        bar.advance(0, "Compiled")


if __name__ == "__main__":
    main()
