"""Likelihood-free problems without PyMC."""

from __future__ import annotations

import numpy as np
import pytest

from scipy import stats

from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem
from amc_pymc.likelihood_free.trial import try_simulator

OBSERVED = np.array([1.0, -0.5, 2.0])
PRIOR = {
    "mu": stats.norm(1.0, 2.0),
    "k": stats.poisson(3.0),
    "w": (stats.gamma(2.0), (2, 3)),
    "v": stats.norm([0.0, 5.0], [1.0, 2.0]),
}


def normal(rng, mu, k, w, v):
    """One row, or a batch of them."""
    mu = np.asarray(mu)[..., None]
    return rng.normal(mu, 1.0, size=(*mu.shape[:-1], 3))


def problem(simulator=normal, prior=PRIOR, observed=OBSERVED, **settings):
    return SimulatorProblem(prior, simulator, observed, **settings)


def points(p, n=50, seed=1):
    return np.random.default_rng(seed).uniform(size=(n, p.n_dim))


def test_parameters_are_quantiles():
    p = problem()
    assert p.shapes == {"mu": (), "k": (), "w": (2, 3), "v": (2,)}
    assert p.n_dim == 10
    assert p.tolerance is None
    u = points(p)
    values = p.parameters(u)
    np.testing.assert_array_equal(values["mu"], stats.norm.ppf(u[:, 0], 1.0, 2.0))
    np.testing.assert_array_equal(values["k"], stats.poisson.ppf(u[:, 1], 3.0))
    assert values["k"].dtype.kind == "i"
    np.testing.assert_allclose(values["w"].reshape(50, 6), stats.gamma.ppf(u[:, 2:8], 2.0))
    np.testing.assert_allclose(values["v"][:, 1], stats.norm.ppf(u[:, 9], 5.0, 2.0))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    ("distance", "wanted"),
    [
        ("euclidean", lambda x: np.sqrt(((x - OBSERVED) ** 2).sum(axis=1))),
        (
            lambda x, o: np.abs(x.mean(axis=-1) - o.mean()),
            lambda x: np.abs(x.mean(axis=1) - OBSERVED.mean()),
        ),
    ],
)
def test_distances(distance, wanted, batched):
    p = problem(distance=distance)
    u = points(p)
    found = p.simulate(u, np.random.default_rng(3), batched=batched)
    rng, mu = np.random.default_rng(3), p.parameters(u)["mu"]
    x = rng.normal(mu[:, None], 1.0, size=(50, 3))
    np.testing.assert_allclose(found.distance, wanted(x))
    assert found.failures == []


@pytest.mark.parametrize("batched", [False, True])
def test_negative_distances_end_a_run(batched):
    p = problem(distance=lambda x, o: -np.abs(x - o).sum(axis=-1))
    with pytest.raises(ValueError, match="distance must not be negative, got -"):
        p.simulate(points(p), np.random.default_rng(1), batched=batched)


def overwriting(rng, mu):
    """Raises where mu is large, when it has spoiled what it was given."""
    large = (mu > 1.0).any()
    x = rng.normal(mu, 0.01)
    mu += 100.0
    if large:
        raise ValueError("mu is large")
    return x


def test_an_error_in_a_batch_spares_other_rows():
    p = problem(overwriting, {"mu": stats.norm()}, 0.0, distance=lambda x, o: np.abs(x - o))
    u = points(p, 50)
    mu = p.parameters(u)["mu"]
    found = p.simulate(u, np.random.default_rng(1), batched=True)
    failed = np.flatnonzero(mu > 1.0)
    assert 2 <= len(failed) <= 10
    assert [f.index for f in found.failures] == failed.tolist()
    assert np.isinf(found.distance[failed]).all()
    good = mu <= 1.0
    np.testing.assert_allclose(found.distance[good], np.abs(mu[good]), atol=0.05)


def test_checks_tell_shapes():
    p = problem(lambda rng, mu: np.zeros(4), {"mu": stats.norm()})
    with pytest.raises(ValueError, match=r"simulation of shape \(4,\), the data call for \(3,\)"):
        try_simulator(p)
    with pytest.raises(ValueError, match=r"shape \(4,\), the data call for \(3, 3\).*batched=True"):
        try_simulator(p, batched=True)
    try_simulator(problem())
    try_simulator(problem(), batched=True)


def test_simulators_that_take_one_row_only_are_refused_as_batches():
    def simulator(rng, mu):
        return np.asarray(rng.normal(mu if mu > 0.0 else -mu, 1.0))[..., None] + OBSERVED

    p = problem(simulator, {"mu": stats.norm()})
    with pytest.raises(ValueError, match=r"ambiguous.* \(in a call of 3 rows\).*batched=True"):
        try_simulator(p, batched=True)
    try_simulator(p)


class Multivariate:
    def logpdf(self, x):
        return 0.0


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"prior": {}}, TypeError, "prior must map names"),
        ({"prior": [stats.norm()]}, TypeError, "prior must map names"),
        ({"prior": {"a": stats.gamma}}, TypeError, r"prior\['a'\] must be a frozen"),
        ({"prior": {"a": Multivariate()}}, TypeError, r"prior\['a'\] must be a frozen"),
        ({"prior": {"a": 3.0}}, TypeError, r"prior\['a'\] must be a frozen"),
        ({"prior": {"a": stats.norm(0.0, -1.0)}}, ValueError, r"prior\['a'\] has no median"),
        ({"prior": {"a": (stats.norm(), (2, -1))}}, ValueError, "shape must be whole numbers"),
        ({"prior": {"a": (stats.norm(), (1.5,))}}, ValueError, "shape must be whole numbers"),
        ({"prior": {"a": (stats.norm([0.0, 1.0]), 3)}}, ValueError, r"do not fit into \(3,\)"),
        ({"prior": {"a": (stats.norm(), 0)}}, ValueError, "no numbers in it"),
        ({"simulator": 3}, TypeError, "simulator must be callable, got 3"),
        ({"distance": "cosine"}, ValueError, "'euclidean' or a callable, got 'cosine'"),
        ({"distance": 2.0}, ValueError, "or a callable, got 2.0"),
        ({"observed": [1.0, np.nan]}, ValueError, "observed: 1 of 2 values are nan"),
        ({"observed": [1.0, np.inf]}, ValueError, "observed: 1 of 2 values are infinite"),
        ({"observed": -np.inf}, ValueError, "observed: 1 of 1 values are infinite"),
        ({"observed": []}, ValueError, "observed: empty"),
        ({"observed": ["a"]}, TypeError, "observed must be numbers"),
        ({"tolerance": 0.0}, ValueError, "tolerance must be positive and finite, got 0.0"),
        ({"tolerance": np.nan}, ValueError, "tolerance must be positive and finite, got nan"),
        ({"tolerance": "1"}, TypeError, "tolerance must be a number or None"),
    ],
)
def test_bad_arguments_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        problem(**settings)


@pytest.mark.parametrize(
    ("simulator", "reason"),
    [
        (lambda mu: mu, "multiple values for argument 'mu'"),
        (lambda rng: 0.0, "unexpected keyword argument 'mu'"),
        (lambda rng, mu, sigma: 0.0, "missing a required argument: 'sigma'"),
        (lambda rng, mu, /: 0.0, "positional"),
    ],
)
def test_simulators_that_do_not_take_their_arguments(simulator, reason):
    with pytest.raises(TypeError, match=r"as simulator\(rng, mu\); its signature is .*" + reason):
        SimulatorProblem({"mu": stats.norm()}, simulator, 1.0)


def test_log_prior_is_the_sum_of_log_densities():
    p = problem()
    u = points(p)
    values = p.parameters(u)
    log = stats.norm.logpdf(values["mu"], 1.0, 2.0) + stats.poisson.logpmf(values["k"], 3.0)
    log += stats.gamma.logpdf(values["w"], 2.0).sum(axis=(1, 2))
    log += stats.norm.logpdf(values["v"], [0.0, 5.0], [1.0, 2.0]).sum(axis=1)
    np.testing.assert_allclose(p.log_prior(u), log)
    assert p.log_density(u) is None
