"""Posterior draws beside an estimate: distribution, copies, what diagnostics make of them."""

import math

from types import SimpleNamespace

import arviz as az
import numpy as np
import pytest

from scipy import stats

from amc_pymc.evidence.adapt import effective_beside
from amc_pymc.evidence.mcmc import HMC
from amc_pymc.evidence.pilot import explore
from amc_pymc.evidence.results import posterior_draws
from amc_pymc.mixtures import DEFENSIVE_SHARE, StudentTMixture, log_mixture_density
from tests.evidence.annealing.problems import Gaussian

KERNEL = HMC()
N = 2000


@pytest.fixture(scope="module")
def path():
    return Gaussian([1.0, -2.0, 0.5], 0.5)


@pytest.fixture(scope="module")
def pilot(path):
    return explore(path, KERNEL, np.random.default_rng(1))


def hopeless(pilot):
    """A pilot run whose reference is of no use."""
    return SimpleNamespace(reference=None, relative_variance=math.inf, ladder=pilot.ladder)


def uneven(pilot, sd):
    """One that takes a reference of another width for a good one."""
    mean = pilot.ladder.particles.x.mean(axis=0)
    other = StudentTMixture([1.0], [mean], [sd * np.eye(3)], math.inf)
    return SimpleNamespace(
        reference=other,
        relative_variance=0.3,
        share=0.0,
        ladder=pilot.ladder,
    )


def ess_of(x, chains=4):
    """What ArviZ takes draws for, the worst coordinate."""
    return min(float(az.ess(c.reshape(chains, -1))) for c in x.T)


def assert_posterior(path, x, effective):
    """Mean and variance within four standard errors of those known."""
    mean, sd = path.moments(1.0)
    assert (np.abs(x.mean(axis=0) - mean) < 4.0 * sd / math.sqrt(effective)).all()
    assert (np.abs(x.var(axis=0) / sd**2 - 1.0) < 4.0 * math.sqrt(2.0 / effective)).all()


def test_weighted_draws(path, pilot):
    found = posterior_draws(path, pilot, KERNEL, N, np.random.default_rng(2))
    assert found.source.startswith("sampling importance resampling")
    assert found.x.shape == (N, 3)
    assert found.distinct == len(np.unique(found.x, axis=0)) > 0.9 * N
    assert_posterior(path, found.x, 0.5 * N)


def test_copies_stand_next_to_each_other(path, pilot):
    found = posterior_draws(path, uneven(pilot, 0.7), KERNEL, N, np.random.default_rng(3))
    runs = 1 + int((np.diff(found.x, axis=0) != 0.0).any(axis=1).sum())
    assert runs == len(np.unique(found.x, axis=0)) == found.distinct < 0.95 * N


def test_hopeless_weights_are_not_resampled(path, pilot):
    """Moved particles instead: all different, of the right distribution, and not taken for independent ones."""
    for given in (hopeless(pilot), uneven(pilot, 0.05)):
        found = posterior_draws(path, given, KERNEL, N, np.random.default_rng(4))
        assert found.source.startswith("particles of the pilot run")
        assert found.distinct == len(np.unique(found.x, axis=0)) > 0.95 * N
        # 512 particles are copied four times.
        assert 300.0 < ess_of(found.x) < 1.1 * N
        assert_posterior(path, found.x, 300.0)


class Stuck:
    """Moves nothing."""

    name = "stuck"
    needs_gradient = False

    def step(self, path, particles, beta, tuning, rng):
        return particles, None


@pytest.mark.parametrize("n", [100, 2000])
def test_copies_that_do_not_move_are_not_taken_for_independent(path, pilot, n):
    found = posterior_draws(path, hopeless(pilot), Stuck(), n, np.random.default_rng(5))
    assert found.distinct == len(np.unique(found.x, axis=0)) <= min(n, 512)
    # The error of an effective number of independent draws is a few percent.
    assert ess_of(found.x) < 1.2 * found.distinct
    shuffled = np.random.default_rng(6).permutation(found.x)
    assert n == 100 or ess_of(shuffled) > 2.0 * found.distinct


def test_prior_draws_beside_a_shifted_reference():
    """With even weights all draws count for which the prior's share of the density exceeds the reference's."""
    reference, share = StudentTMixture([1.0], [[2.0]], [[[1.0]]], math.inf), DEFENSIVE_SHARE

    def values(x):
        log_prior = stats.norm.logpdf(x[:, 0])
        log_f = log_mixture_density(reference.log_density(x), log_prior, share)
        return np.array([log_prior, log_f - log_prior])

    path = SimpleNamespace(values=values, draw_prior=lambda n, rng: rng.standard_normal((n, 1)))
    found = SimpleNamespace(adapted=SimpleNamespace(mixture=reference))
    # The densities' ratio is exp(2 x - 2).
    p = stats.norm.cdf(1.0 + 0.5 * math.log(share / (1.0 - share)))
    n = effective_beside(path, found.adapted, np.random.default_rng(1))
    assert n == pytest.approx(4096 * p, abs=4.0 * math.sqrt(4096 * p * (1.0 - p)))


def test_discrete_coordinates_alone_are_told_apart_by_ancestors(path, pilot):
    rng = np.random.default_rng(7)
    given = hopeless(pilot)
    found = posterior_draws(path, given, KERNEL, N, rng, discrete=np.ones(3, bool))
    assert found.distinct == 512
