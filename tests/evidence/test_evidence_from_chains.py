"""Evidence where no fitted mixture will do: chains and a bridge, or estimators from the prior, that must agree."""

import dataclasses
import functools
import importlib
import math

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

from scipy.special import logsumexp

import amc_pymc as amc

from amc_pymc.evidence.chains import BridgedChains
from amc_pymc.evidence.estimate_evidence import __name__ as MODULE
from amc_pymc.evidence.from_draws import TimeLimit
from amc_pymc.evidence.pilot import Pilot
from amc_pymc.evidence.results import Evidence, covering_error, unlike_chains
from tests.evidence.evidence_models import (
    Known,
    compile_before,
    compiled_once,  # noqa: F401
    normal_log,
    regression,
)

Y = np.random.default_rng(14).normal(0.5, 1.2, 48)


@functools.cache
def horseshoe():
    """Ten coefficients of which two are large; a reference by 2,000,000 draws, the coefficients integrated out."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((30, 10))
    y = x[:, :2] @ [2.0, -1.5] + rng.standard_normal(30)
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 0.5)
        scales = pm.HalfCauchy("scales", 1.0, shape=10)
        z = pm.Normal("z", 0.0, 1.0, shape=10)
        pm.Normal("y", x @ (z * scales * tau), 1.0, observed=y)
    compile_before(model)
    return Known(model, -55.470)


@functools.cache
def grouped():
    """48 group means of unknown spread, each seen once: 50 dimensions, one integral over the spread."""
    with pm.Model(coords={"group": range(len(Y))}) as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        tau = pm.HalfNormal("tau", 1.0)
        z = pm.Normal("z", 0.0, 1.0, dims="group")
        pm.Normal("y", mu + tau * z, 1.0, observed=Y)
    compile_before(model)
    log_tau = np.linspace(-12.0, 2.5, 4001)
    tau = np.exp(log_tau)
    v, n = 1.0 + tau**2, len(Y)
    total, squares = Y.sum(), Y @ Y
    # N(0, v I + 4 1 1^T), the mean integrated out.
    quadratic = squares / v - 4.0 * (total / v) ** 2 / (1.0 + 4.0 * n / v)
    log_det = n * np.log(v) + np.log1p(4.0 * n / v)
    log_f = -0.5 * (n * math.log(2.0 * math.pi) + log_det + quadratic)
    log_f += math.log(2.0) + normal_log(tau, 0.0, 1.0) + log_tau
    return Known(model, float(logsumexp(log_f) + math.log(log_tau[1] - log_tau[0])))


def estimate(known, seed=1, **settings):
    settings = {"marginalize": None, **settings}
    return amc.estimate_evidence(known.model, random_seed=seed, progressbar=False, **settings)


@pytest.fixture(scope="module")
def tree():
    return estimate(grouped(), draws=50, chains=3)


def test_the_evidence_of_many_dimensions(tree):
    numbers = tree["evidence"].to_dataset()
    assert (
        abs(numbers["log_evidence"] - grouped().log_evidence) < 4.0 * numbers["log_evidence_mcse"]
    )
    assert numbers["log_evidence_mcse"] <= 0.05
    assert numbers.attrs["flags"] == ""


def test_it_says_where_the_number_comes_from(tree):
    numbers = tree["evidence"].to_dataset()
    assert numbers.attrs["method"] == "bridge between own Hamiltonian chains and a Gaussian"
    assert numbers.attrs["unbiased"].startswith("no, ")
    assert numbers["log_evidence_iv"] == numbers["log_evidence"]
    assert numbers["r_hat"] < 1.05
    arms = tree["arms"].to_dataset()
    assert arms["weight"].values[-1] == 1.0
    assert arms["log_evidence"].values[-1] == numbers["log_evidence"]
    assert "no fitted mixture" in arms.attrs["left_out"]
    assert numbers["n_gradient"] < 150_000


def test_posterior_of_the_chains(tree):
    posterior = tree["posterior"].to_dataset()
    assert posterior.sizes == {"chain": 3, "draw": 50, "group": len(Y)}
    assert posterior.attrs["source"] == "own chains of Hamiltonian Monte Carlo"
    flat = posterior["mu"].values.ravel()
    assert len(np.unique(flat)) == 150
    spread = math.sqrt(np.var(Y) / len(Y))
    assert abs(flat.mean() - Y.mean()) < spread
    assert set(tree.children) >= {"evidence", "arms", "posterior", "sample_stats", "observed_data"}


@pytest.fixture
def unfit(monkeypatch):
    """Pilot runs say that no mixture will do, of a model where one would."""
    module = importlib.import_module(MODULE)
    explored = module.explored
    monkeypatch.setattr(
        module, "explored", lambda *a, **k: dataclasses.replace(explored(*a, **k), unfit=True)
    )
    return module


def test_chains_answer_where_no_mixture_will_do(unfit):
    found = estimate(regression(), target_mcse=0.1)
    numbers = found["evidence"].to_dataset()
    assert "method" in numbers.attrs
    assert abs(numbers["log_evidence"] - regression().log_evidence) < 0.2


def test_chains_too_short_for_the_target_are_flagged(unfit, monkeypatch):
    """The bridge is as good as exact, and no time is left for estimators from the prior, but enough for chains."""
    monkeypatch.setattr(TimeLimit, "over", lambda limit, needed=0.0: needed == 0.0)
    monkeypatch.setattr(BridgedChains, "mcse", property(lambda self: 5e-4))
    with pytest.warns(UserWarning, match="where target_mcse=0.0001 was wanted, most of it from"):
        found = estimate(regression(), target_mcse=1e-4, max_time=1e-6)["evidence"].to_dataset()
    assert found.attrs["flag_names"] == "own_chains_too_short"
    assert found["log_evidence_mcse"] == 5e-4
    assert abs(found["log_evidence"] - regression().log_evidence) < 4.0 * found["log_evidence_mcse"]


def test_estimators_and_chains_that_disagree_are_flagged(unfit, monkeypatch):
    monkeypatch.setattr(BridgedChains, "answers", lambda self, target, pilot: False)
    monkeypatch.setattr(
        BridgedChains, "log_z", property(lambda self: regression().log_evidence + 3.0)
    )
    with pytest.warns(UserWarning, match="own chains and a bridge find another evidence"):
        found = estimate(regression(), target_mcse=0.1)
    assert "method" not in found["evidence"].attrs
    assert set(found["arms"]["arm"].values) == {"smc"}
    assert "no fitted mixture is close" in found["arms"].attrs["left_out"]
    numbers = found["evidence"].to_dataset()
    assert abs(numbers["log_evidence"] - regression().log_evidence) < 0.5
    assert numbers["log_evidence_upper"] > regression().log_evidence + 2.9


def test_the_error_covers_what_disagrees():
    particles = SimpleNamespace(x=np.zeros((512, 2)))
    ladder = SimpleNamespace(
        log_z=-3.0, betas=np.zeros(11), particles=particles, drawn=0, lineages=100.0
    )
    pilot = Pilot(ladder, None, None, particles.x[:0], np.empty(0), 0.0)
    numbers = Evidence(log_evidence=-3.1, log_evidence_mcse=0.02)
    assert covering_error(*numbers.estimate, pilot, None) == 0.02
    numbers["log_evidence"] = -8.0
    assert covering_error(*numbers.estimate, pilot, None) == pytest.approx(5.0 / 1.959964)
    numbers["log_evidence"] = 1.0  # the climb finds less more often than not
    assert covering_error(*numbers.estimate, pilot, None) == 0.02
    chains = SimpleNamespace(believed=True, log_z=-1.0, mcse=0.1)
    assert covering_error(*numbers.estimate, pilot, chains) == pytest.approx(2.0 / 1.959964)
    assert len(unlike_chains(*numbers.estimate, chains)) == 1
    chains.believed = False
    assert covering_error(*numbers.estimate, pilot, chains) == 0.02
    assert unlike_chains(*numbers.estimate, chains) == []
    chains.believed, chains.log_z = True, 0.6
    assert unlike_chains(*numbers.estimate, chains) == []


def right_or_flagged(known, seed, target):
    found = estimate(known, seed, target_mcse=target)["evidence"]
    off = abs(float(found["log_evidence"]) - known.log_evidence)
    assert off < 4.0 * float(found["log_evidence_mcse"]) + 0.01 or found.attrs["flags"]
    assert off < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_horseshoe(seed):
    """Right, or flagged."""
    right_or_flagged(horseshoe(), seed, 0.1)
