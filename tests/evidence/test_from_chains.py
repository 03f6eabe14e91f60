"""Evidence from chains: when it is an answer, and what the pilot run holds against it."""

import math

from dataclasses import replace

import numpy as np
import pytest

from amc_pymc.evidence.adapt import prior_error
from amc_pymc.evidence.chains import bridge_chains
from amc_pymc.evidence.mcmc import make_kernel
from amc_pymc.evidence.modes import PilotSettings
from amc_pymc.evidence.pilot import explore
from tests.evidence.annealing.problems import FromPrior, Gaussian, log_normal

HMC = make_kernel("hmc")


class Sharp(FromPrior):
    """x ~ N(0, I); the likelihood of each coordinate, exp(a x - e^x), is lopsided."""

    a = 1.5

    def __init__(self, n_dim):
        super().__init__()
        self.n_dim = n_dim
        grid = np.linspace(-12.0, 8.0, 200_001)
        one = log_normal(grid[:, None], 0.0, 1.0) + self.a * grid - np.exp(grid)
        top = one.max()
        self.log_z = n_dim * (top + math.log(np.exp(one - top).sum() * (grid[1] - grid[0])))

    def terms(self, x):
        slope = self.a * x - np.exp(np.minimum(x, 300.0))
        return np.array([log_normal(x, 0.0, 1.0), slope.sum(axis=1)])

    def slopes(self, x):
        return np.array([-x, self.a - np.exp(np.minimum(x, 300.0))])

    def draw_prior(self, n, rng):
        return rng.standard_normal((n, self.n_dim))


#: Laplace's approximation is never good enough, so that chains are asked for.
UNFIT = PilotSettings(laplace_enough=0.0)


@pytest.fixture(scope="module")
def sharp():
    path, rng = Sharp(50), np.random.default_rng(1)
    pilot = explore(path, HMC, rng, chains=True, settings=UNFIT)
    spent = path.evaluated + 2 * path.differentiated
    found = bridge_chains(path, pilot, HMC, rng, target=0.05, budget=lambda cost: True)
    return path, pilot, found, path.evaluated + 2 * path.differentiated - spent


def test_the_evidence(sharp):
    path, pilot, found, _ = sharp
    assert found.mcse <= 0.05
    assert abs(found.log_z - path.log_z) < 4.0 * found.mcse
    assert found.answers(0.05, pilot)
    assert not found.answers(0.5 * found.mcse, pilot)


def test_what_it_took(sharp):
    """But for the evaluations at the draws by which halves are set up, which are counted once more at most."""
    _, _, found, spent = sharp
    cost = 2 * found.chains.gradients + sum(stage.cost for stage in found.stages)
    assert cost == pytest.approx(spent, rel=0.05)


def test_nothing_is_fitted_in_many_dimensions(sharp):
    pilot = sharp[1]
    assert pilot.unfit
    assert pilot.adapted is None
    assert pilot.reference is None
    assert len(pilot.modes) == 1
    assert len(pilot.ladder.particles.x) == UNFIT.few_particles


def test_laplace_will_do_in_many_dimensions():
    path = Gaussian(np.linspace(-1.0, 1.0, 50), 0.5)
    found = explore(path, HMC, np.random.default_rng(2), chains=True)
    assert not found.unfit
    assert found.relative_variance < 0.5
    assert found.adapted.log_mean == pytest.approx(path.log_z, abs=0.1)


def test_the_error_counts_chains_that_differ(sharp):
    found = sharp[2]
    worse = found._replace(chains=found.chains._replace(r_hat=1.2))
    assert worse.mcse == pytest.approx(math.hypot(found.stages[-1].mcse, 0.2))
    assert not worse.mixed
    assert not worse.answers(1.0, sharp[1])


@pytest.mark.parametrize(("more", "missing"), [(0.0, False), (0.5, False), (8.0, True)])
def test_what_the_climb_from_the_prior_has_found(sharp, more, missing):
    _, pilot, found, _ = sharp
    seen = replace(pilot, ladder=replace(pilot.ladder, log_z=found.log_z + more))
    gap = seen.exceeds(found.log_z, found.mcse)
    assert gap == pytest.approx(more if missing else 0.0)
    assert found.answers(None, seen) is not missing


def test_errors_of_climbs_are_not_understated():
    """Of 30 climbs to a posterior of 10 dimensions."""
    path = Sharp(10)
    few = PilotSettings(particles=128, second=100, checked=200)
    from amc_pymc.evidence.annealing import climb

    ladders = [
        climb(path, path.draw_prior(few.particles, rng), HMC, rng, n_moves=3)
        for rng in map(np.random.default_rng, range(30))
    ]
    spread = np.std([ladder.log_z for ladder in ladders], ddof=1)
    assert 0.3 < spread / np.mean([prior_error(ladder) for ladder in ladders]) < 1.3
    known = ladders[0]
    few = prior_error(replace(known, drawn=2**16, possible=0.001))
    counts = np.random.default_rng(1).binomial(2**16, 0.001, 20_000)
    assert few**2 - prior_error(known) ** 2 == pytest.approx(np.var(np.log(counts)), rel=0.1)
