"""One small result of each function that returns draws, and the models that they are of."""

from __future__ import annotations

import functools
import warnings

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from scipy import stats

import amc_pymc as amc

N_ROWS = 600
QUIET = {"random_seed": 1, "progressbar": False}
SHORT = {"draws": 100, "tune": 100, "chains": 2, "cores": 1, "compute_convergence_checks": False}

_RNG = np.random.default_rng(7)
X = np.column_stack([np.ones(N_ROWS), _RNG.normal(size=N_ROWS)])
Y = _RNG.normal(X @ [0.5, -1.0], 0.7)
GROUP = np.repeat(np.arange(60), N_ROWS // 60)
Y_GROUPS = _RNG.normal(_RNG.normal(size=60)[GROUP], 1.0)


class Result(NamedTuple):
    """What a function returned, and the model whose draws are in ``draws["posterior"]``."""

    model: pm.Model
    tree: xr.DataTree
    draws: xr.DataTree


# --- models ---------------------------------------------------------------------------------------


@functools.cache
def line(prior_sd: float = 2.0) -> pm.Model:
    """Linear regression with mutable data, coords and a deterministic variable."""
    with pm.Model(coords={"term": ["constant", "slope"]}) as model:
        beta = pm.Normal("beta", 0.0, prior_sd, dims="term")
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Deterministic("total", beta.sum())
        pm.Normal("y", pm.Data("X", X) @ beta, sigma, observed=Y)
    return model


@functools.cache
def selection() -> pm.Model:
    """Indicators, whose posterior is discrete and undecided."""
    with pm.Model(coords={"term": ["constant", "slope"]}) as model:
        included = pm.Bernoulli("included", 0.5, dims="term")
        pm.Normal("y", X @ (included * np.array([0.05, -0.05])), 10.0, observed=Y)
    return model


@functools.cache
def groups() -> pm.Model:
    """Means of groups, which racing steps integrate out."""
    with pm.Model(coords={"group": [f"g{i}" for i in range(60)]}) as model:
        effect = pm.Normal("effect", 0.0, pm.HalfNormal("sd", 2.0), dims="group")
        pm.Normal("y", effect[GROUP], 1.0, observed=Y_GROUPS)
    return model


def normal_pair(rng, mu, size):
    return rng.normal(mu, 0.5, size=size)


@functools.cache
def simulated() -> pm.Model:
    """Two means of a simulator."""
    with pm.Model(coords={"place": ["a", "b"]}) as model:
        mu = pm.Normal("mu", 0.0, 1.0, dims="place")
        pm.Simulator("y", normal_pair, mu, epsilon=0.3, observed=[0.8, -0.6])
    return model


# --- results --------------------------------------------------------------------------------------


def sample(model, step) -> xr.DataTree:
    """A short, quiet ``pm.sample``."""
    return pm.sample(step=step, model=model, quiet=True, **QUIET, **SHORT)


def _own(model: pm.Model, tree: xr.DataTree) -> Result:
    return Result(model, tree, tree)


def _racing(step: Callable[..., object], model: pm.Model, **options: object) -> Result:
    return _own(model, sample(model, step(model=model, progressbar=False, **options)))


def _from_draws() -> Result:
    idata = result("racing_metropolis").tree
    return _own(line(), amc.estimate_evidence(line(), idata=idata, **QUIET))


def _product_space() -> Result:
    models = {"line": line(), "wide": line(4.0)}
    tree = amc.sample_product_space(models, draws=100, tune=100, chains=2, cores=1, **QUIET)
    return Result(line(), tree, tree["models/line"])


def _recovered() -> Result:
    step = amc.RacingMetropolis(model=groups(), recover=False, progressbar=False)
    idata = sample(groups(), step)
    return _own(groups(), amc.recover_marginals(idata, model=groups(), **QUIET))


def _abc(
    sampler: Callable[..., xr.DataTree], problem: pm.Model | amc.SimulatorProblem
) -> xr.DataTree:
    return sampler(model=problem, max_simulations=4_000, batched=True, draws=100, **QUIET)


def _mode() -> xr.DataTree:
    options = {"max_simulations": 4_000, "batched": True, "return_raw": True}
    return amc.find_MAP_tree(model=simulated(), **options, **QUIET)[1]


def _combined() -> xr.DataTree:
    arms = {"sharp": lambda rng: rng.normal(1.0, 0.1), "vague": lambda rng: rng.normal(1.0, 5.0)}
    return amc.combine_estimators(arms, draws=400, **QUIET)


def _without_a_model() -> xr.DataTree:
    problem = amc.SimulatorProblem(
        {"mu": stats.norm(0.0, 1.0)}, lambda rng, mu: rng.normal(mu, 0.5), observed=0.8
    )
    return _abc(amc.sample_abc_tree, problem)


#: Results with draws of a PyMC model.
_WITH_DRAWS: dict[str, Callable[[], Result]] = {
    "racing_metropolis": lambda: _racing(amc.RacingMetropolis, line()),
    "racing_gibbs": lambda: _racing(amc.RacingGibbs, selection()),
    "sample_ais": lambda: _own(
        line(), amc.sample_ais(line(), draws=100, n_steps=100, chains=2, **QUIET)
    ),
    "estimate_evidence": lambda: _own(line(), amc.estimate_evidence(line(), draws=100, **QUIET)),
    "evidence_from_draws": _from_draws,
    "product_space": _product_space,
    "recover_marginals": _recovered,
    "sample_abc_tree": lambda: _own(simulated(), _abc(amc.sample_abc_tree, simulated())),
}
#: Other results.
_OTHERS: dict[str, Callable[[], xr.DataTree]] = {
    "find_MAP_tree": _mode,
    "combine_estimators": _combined,
    "simulator_problem": _without_a_model,
}
WITH_DRAWS, ALL = list(_WITH_DRAWS), [*_WITH_DRAWS, *_OTHERS]
OF_SIMULATORS = {"sample_abc_tree"}


@functools.cache
def result(name: str) -> Result:
    """Return a result of :data:`WITH_DRAWS`, which is made once in a process."""
    with warnings.catch_warnings(action="ignore"):  # flags of runs as short as these
        return _WITH_DRAWS[name]()


@functools.cache
def tree_of(name: str) -> xr.DataTree:
    """Return what a function of :data:`ALL` returned."""
    if name in _WITH_DRAWS:
        return result(name).tree
    with warnings.catch_warnings(action="ignore"):
        return _OTHERS[name]()
