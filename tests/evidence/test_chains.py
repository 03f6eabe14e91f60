"""Many short chains: where they go, what they say of themselves, what they take."""

import math

import numpy as np
import pytest

from amc_pymc.evidence.chains import ChainSettings, run_chains, split_r_hat
from tests.evidence.annealing.problems import FromPrior, TwoModes


class Correlated(FromPrior):
    """A Gaussian with correlations of 0.9 and scales from 0.01 to 100."""

    n_dim = 6

    def __init__(self):
        super().__init__()
        self.scales = np.logspace(-2.0, 2.0, self.n_dim)
        self.mean = self.scales * np.arange(self.n_dim)
        correlation = 0.9 + 0.1 * np.eye(self.n_dim)
        self.covariance = correlation * np.outer(self.scales, self.scales)
        self.precision = np.linalg.inv(self.covariance)

    def terms(self, x):
        away = x - self.mean
        return np.array([-0.5 * np.vecdot(away @ self.precision, away), np.zeros(len(x))])

    def slopes(self, x):
        return np.array([-(x - self.mean) @ self.precision, np.zeros_like(x)])

    def rough(self, n, rng):
        z = 2.0 * rng.standard_normal((n, self.n_dim))
        return self.mean + z @ np.linalg.cholesky(self.covariance).T


@pytest.fixture(scope="module")
def correlated():
    path, rng = Correlated(), np.random.default_rng(1)
    return path, run_chains(path, path.rough(100, rng), rng)


def test_moments(correlated):
    """Of 4,096 draws at least, whose autocorrelation leaves a tenth of them effective, by far."""
    path, found = correlated
    flat = found.draws.reshape(-1, path.n_dim)
    z = (flat - path.mean) / path.scales
    error = math.sqrt(10.0 / len(flat))
    assert np.abs(z.mean(axis=0)).max() < 5.0 * error
    np.testing.assert_allclose(z.var(axis=0), 1.0, atol=5.0 * math.sqrt(2.0) * error)
    assert found.r_hat < 1.05
    assert found.draws.shape[0] == 32


def test_gradients_are_counted(correlated):
    path, found = correlated
    assert found.gradients == path.differentiated


def test_chains_that_cannot_meet_say_so():
    """At two modes forty standard deviations apart they are given up, because four times the most would not do."""
    path = TwoModes(3, sd=0.1)
    rng = np.random.default_rng(2)
    x = rng.choice([-2.0, 2.0], (64, 1)) + 0.1 * rng.standard_normal((64, 3))
    brief = ChainSettings(chains=16, warm_up=6, rounds=(2, 2), draws=(32, 128), leapfrog=8)
    found = run_chains(path, x, rng, brief)
    assert found.draws.shape[1] == 32
    assert found.r_hat > 2.0


def test_chains_that_mix_may_be_longer_than_others(correlated):
    """One doubling beyond the maximum is enough here; other estimators would cost far more."""
    path, rng = Correlated(), np.random.default_rng(1)
    brief = ChainSettings(draws=(128, 128), r_hat=math.sqrt(0.5 + 0.5 * correlated[1].r_hat ** 2))
    found = run_chains(path, path.rough(100, rng), rng, brief)
    assert found.draws.shape[1] in (256, 512)
    assert found.r_hat < correlated[1].r_hat


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_chains_keep_to_a_budget(share, correlated):
    most, path, rng = share * 2.0 * correlated[1].gradients, Correlated(), np.random.default_rng(1)
    found = run_chains(
        path,
        path.rough(100, rng),
        rng,
        budget=lambda cost: 2.0 * path.differentiated + cost <= most,
    )
    assert 0.5 * most < 2.0 * found.gradients < 1.2 * most
    assert found.draws.shape[1] < 128


def test_r_hat_of_halves():
    x = np.random.default_rng(3).standard_normal((8, 1000, 2))
    assert split_r_hat(x) < 1.01
    drift = x + np.linspace(0.0, 2.0, 1000)[:, None]
    assert split_r_hat(drift) > 1.1
    assert split_r_hat(np.ones((4, 10, 1))) == math.inf
