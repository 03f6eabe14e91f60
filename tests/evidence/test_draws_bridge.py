"""Evidence from draws: halves, fits and annealing on densities written in NumPy."""

import math

import numpy as np
import pytest

from scipy.special import gammaln
from scipy.stats import norm, t

from amc_pymc.evidence.bridge import (
    STEPS,
    Bridge,
    Stage,
    _explained,
    bridge_draws,
    bridge_stage,
    halves_of,
    tension_of,
)
from amc_pymc.evidence.mcmc import HMC
from amc_pymc.rng import as_generator
from tests.evidence.test_bridge import autoregressive


class Gaussian:
    """exp(-|x|^2 / 2)."""

    def __init__(self, n_dim):
        self.n_dim = n_dim
        self.log_z = 0.5 * n_dim * math.log(2.0 * math.pi)
        self.values_seen = self.gradients_seen = 0

    def values(self, x):
        self.values_seen += len(x)
        return np.array([-0.5 * np.vecdot(x, x), np.zeros(len(x))])

    def gradients(self, x):
        self.gradients_seen += len(x)
        terms = np.array([-0.5 * np.vecdot(x, x), np.zeros(len(x))])
        return terms, np.array([-x, np.zeros_like(x)])

    def draws(self, seed, *, length=500, rho=0.5):
        rng = np.random.default_rng(seed)
        chains = [autoregressive(rng, (4, length), rho) for _ in range(self.n_dim)]
        return np.stack(chains, axis=2)


class Heavy(Gaussian):
    """Independent coordinates with Student t densities of five degrees of freedom."""

    def __init__(self, n_dim):
        super().__init__(n_dim)
        self.log_z = n_dim * float(gammaln(2.5) - gammaln(3.0) + 0.5 * math.log(5.0 * math.pi))

    def values(self, x):
        return np.array([-3.0 * np.log1p(x**2 / 5.0).sum(axis=1), np.zeros(len(x))])

    def gradients(self, x):
        return self.values(x), np.array([-6.0 * x / (5.0 + x**2), np.zeros_like(x)])

    def draws(self, seed, **settings):
        return t(5.0).ppf(norm.cdf(super().draws(seed, **settings)))


def stages(density, seed, *, target=0.5, budget=lambda cost: True, **settings):
    x = density.draws(seed, **settings)
    rng = as_generator(1000 + seed)
    *_, stages = bridge_draws(density, x, HMC(), rng, target=target, budget=budget)
    return stages


def in_steps(density, seed, steps, **settings):
    """One stage with so many annealing steps."""
    from amc_pymc.evidence.bridge import _tuned

    rng, halves = as_generator(1000 + seed), halves_of(density, density.draws(seed, **settings))
    return bridge_stage(halves, steps, HMC(), _tuned(halves, HMC(), rng)[0], rng)


@pytest.mark.parametrize("density", [Gaussian(30), Heavy(5)], ids=type)
def test_errors(density):
    """Sixty seeds with autocorrelated draws: no bias, and errors as large as stated."""
    found = [stages(density, seed)[-1] for seed in range(60)]
    z = np.array([(f.log_z - density.log_z) / f.mcse for f in found])
    assert all(f.steps == 1 for f in found)
    assert abs(z.mean()) < 4.0 / math.sqrt(60)
    assert 0.63 < z.std() < 1.37  # four standard errors


@pytest.mark.slow
def test_errors_that_the_halves_share():
    """Three hundred short runs: without what is shared, errors would be a fifth larger than stated."""
    density = Gaussian(10)
    found = [stages(density, seed, rho=0.0, length=200)[-1] for seed in range(300)]
    z = np.array([(f.log_z - density.log_z) / f.mcse for f in found])
    assert 0.84 < z.std() < 1.16  # four standard errors


@pytest.mark.parametrize(
    "density", [Gaussian(5), pytest.param(Heavy(20), marks=pytest.mark.slow)], ids=type
)
def test_errors_with_annealing(density):
    found = [in_steps(density, seed, 8) for seed in range(40)]
    z = np.array([(f.log_z - density.log_z) / f.mcse for f in found])
    assert abs(z.mean()) < 4.0 / math.sqrt(40)
    assert 0.55 < z.std() < 1.45


def test_steps_grow_until_the_target_is_met():
    found = stages(Heavy(30), 1, target=0.01)
    steps = [s.steps for s in found]
    assert steps == sorted(set(steps) & set(STEPS))
    assert all(s.mcse > 0.01 for s in found[:-1])
    assert found[-1].mcse <= 0.01
    assert abs(found[-1].log_z - Heavy(30).log_z) < 4.0 * found[-1].mcse


def test_costs_are_what_was_evaluated():
    density = Gaussian(3)
    found = stages(density, 1, target=None, budget=lambda cost: cost < 4e4, length=100)
    assert len(found) > 1
    assert sum(s.cost for s in found) == density.values_seen + 2 * density.gradients_seen


def test_fits_do_not_see_the_draws_they_are_bridged_with():
    density = Gaussian(3)
    x = density.draws(1)
    changed = x.copy()
    changed[:, 250:] *= 2.0
    first, second = halves_of(density, x), halves_of(density, changed)
    roots = [[half.path.reference.choleskys for half in halves] for halves in (first, second)]
    np.testing.assert_array_equal(roots[0][1], roots[1][1])
    assert not np.array_equal(roots[0][0], roots[1][0])
    np.testing.assert_array_equal(first[0].x, x[:, :250])


@pytest.mark.parametrize(("shared", "factor"), [(0.0, np.sqrt(0.5)), (1.0, 1.0)])
def test_error_of_the_mean_of_the_halves(shared, factor):
    """It is that of one half if they share all errors, and smaller by a root of two if they share none."""
    half = Bridge(0.0, 0.04, 0.04, 1.0, 100.0, 1.0, 0.0, 0.1)
    assert Stage(1, (half, half), 100, 100, shared).mcse == pytest.approx(0.2 * factor)


def test_shared_errors():
    """Of a Gaussian posterior the errors of the fits explain all, of another one little."""
    gaussian, heavy = (halves_of(d, d.draws(1)) for d in (Gaussian(20), Heavy(20)))
    assert gaussian[0].shared > 0.6
    assert heavy[0].shared < 0.2


def test_the_share_that_errors_of_the_fits_explain():
    """Of Gaussians whose means are one apart, half of which is an error of each, and works of variance four."""
    rng = np.random.default_rng(3)
    z = rng.standard_normal((100_000, 3))
    works = rng.normal(0.0, 2.0, len(z))
    assert _explained(works, norm.logpdf(z[:, 0]) - norm.logpdf(z[:, 0], 1.0)) == pytest.approx(
        0.125, rel=0.05
    )


def test_the_difference_between_the_ends_is_the_mean_of_independent_halves():
    halves = [
        Bridge(0.0, 0.04, 0.04, 1.0, 100.0, 1.0, gap, error)
        for gap, error in ((0.4, 0.3), (0.2, 0.4))
    ]
    stage = Stage(1, (halves[0], halves[1]), 100, 100, 0.0)
    assert stage.tension == pytest.approx((0.3, 0.25))
    assert tension_of([stage]) == 0.0
    far = [h._replace(tension=1.0) for h in halves]
    assert tension_of([stage, stage._replace(halves=(far[0], far[1]))]) == 0.0
    far = [h._replace(tension=-1.3) for h in halves]
    assert tension_of([stage, stage._replace(halves=(far[0], far[1]))]) == pytest.approx(-1.3)


def test_halves_that_differ_are_not_believed():
    density = Gaussian(2)
    x = density.draws(1)
    x[:, 250:] += 4.0
    ((stage,),) = bridge_draws(
        density, x, HMC(), as_generator(1), target=0.5, budget=lambda cost: False
    )
    assert not stage.believed
