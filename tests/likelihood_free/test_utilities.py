"""Proposals are the maximisers that they are said to be."""

import math

import numpy as np
import pytest

from amc_pymc.likelihood_free.proposal import UTILITIES, best_proposal, draws_per_simulation

K = 7


def posterior(seed, zeros=0):
    rng = np.random.default_rng(seed)
    pi, mu = rng.dirichlet(np.ones(K)), rng.random(K) ** 3
    mu[:zeros] = 0.0
    return pi * mu / (pi @ mu), pi


def sampling_efficiency(q, p, pi):
    some = p > 0
    return (q * p / pi).sum() / (p[some] * pi[some] / q[some]).sum()


def regularised_acceptance(q, p, pi):
    some = q > 0
    return math.log((q * p / pi).sum()) - (q[some] * np.log(q[some] / p[some])).sum()


GOALS = {
    "ess": lambda q, p, pi: draws_per_simulation(p, pi, q),
    "posterior": lambda q, p, pi: -((q - p) ** 2).sum(),
    "efficiency": sampling_efficiency,
    "kl": regularised_acceptance,
}


@pytest.mark.parametrize("zeros", [0, 3])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("utility", UTILITIES)
def test_nothing_near_is_better(utility, seed, zeros):
    p, pi = posterior(seed, zeros)
    goal, q = GOALS[utility], best_proposal(p, pi, utility)
    assert q.sum() == pytest.approx(1.0)
    assert (q[p == 0.0] == 0.0).all()
    best, rng = goal(q, p, pi), np.random.default_rng(seed + 100)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(50):
            other = q * np.exp(size * rng.standard_normal(K))
            assert goal(other / other.sum(), p, pi) <= best + 1e-12
    for other in UTILITIES:
        assert goal(best_proposal(p, pi, other), p, pi) <= best + 1e-12


@pytest.mark.parametrize("utility", UTILITIES)
def test_the_scale_of_p_does_not_matter(utility):
    p, pi = posterior(1)
    for factor in (1e-200, 1e200):
        np.testing.assert_allclose(
            best_proposal(factor * p, pi, utility), best_proposal(p, pi, utility)
        )


def test_simulated_efficiency():
    """Kish's effective draws per simulation, over the acceptance of rejection, by simulation."""
    rng = np.random.default_rng(4)
    pi, mu = rng.dirichlet(np.ones(K)), 0.3 * rng.random(K) ** 2
    p = pi * mu
    for utility in UTILITIES:
        q = best_proposal(p, pi, utility)
        w = (pi / q)[k := rng.choice(K, (50, 20_000), p=q)] * (rng.random(k.shape) < mu[k])
        kish = w.sum(axis=1) ** 2 / (w**2).sum(axis=1) / w.shape[1]
        wanted = (pi @ mu) * draws_per_simulation(p, pi, q)
        assert abs(kish.mean() - wanted) < 4.0 * kish.std() / np.sqrt(50) + wanted / 1000


def test_errors():
    p, pi = posterior(5)
    with pytest.raises(ValueError, match=r"utility must be one of ess, .*'best'"):
        best_proposal(p, pi, "best")
    for bad in (np.zeros(K), np.full(K, np.nan), np.full(K, np.inf)):
        with pytest.raises(ValueError, match="p must have a positive, finite sum"):
            best_proposal(bad, pi)
