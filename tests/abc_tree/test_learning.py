"""Partitioners are checked, and a prior density up to a factor is enough to learn from."""

import numpy as np
import pytest

from abc_tree.problems import NormalMean, UniformProblem, run, settings

from amc_pymc.abc_tree import whole_cube
from amc_pymc.abc_tree.cart import Cart
from amc_pymc.abc_tree.dyadic import Dyadic
from amc_pymc.abc_tree.history import History, Round
from amc_pymc.abc_tree.learning import Learner, next_proposal
from amc_pymc.abc_tree.partition import from_cuts
from amc_pymc.abc_tree.proposal import prior_proposal
from amc_pymc.simulators.problem import Simulated

FOREST = Learner((Cart(random_cuts=True), Cart()), trees=2, rotate=True)


#: Log densities are multiples of it, so that adding whole numbers leaves their differences as they are.
GRID = 2.0**-20


def slope(u):
    return np.round(3.0 * u[:, 0] / GRID) * GRID


def narrow(u):
    return np.round(-0.5 * ((u[:, 0] - 0.32) / 0.003) ** 2 / GRID) * GRID


def two_arguments(u, kernel_values):
    return whole_cube(u.shape[1])


def nothing(u, kernel_values, before, rng):
    return None


def flat(u, kernel_values, before, rng):
    return whole_cube(1)


def broken(u, kernel_values, before, rng):
    raise KeyError("no such box")


class Named:
    def __call__(self, u, kernel_values, before):
        return whole_cube(1)

    def __repr__(self):
        return "Named()"


@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        (two_arguments, "partition=two_arguments must take four arguments .*: too many positional"),
        (Named(), r"partition=Named\(\) must take four arguments"),
        ((Cart(), two_arguments), "partition=two_arguments must take four arguments"),
        (lambda: None, "partition=<lambda> must take four"),
    ],
)
def test_partitioners_that_cannot_be_called(partitioner, message):
    with pytest.raises(TypeError, match=message):
        Learner(partitioner)


@pytest.mark.parametrize("partitioner", [Cart(), Dyadic(), flat, lambda *args, **more: None])
def test_partitioners_that_can_be_called(partitioner):
    assert Learner(partitioner).partitioner_of(3) is partitioner


def plane():
    return UniformProblem(lambda u, rng: np.abs(u - 0.5).max(axis=1), n_dim=2)


@pytest.mark.parametrize(
    ("partitioner", "error", "message"),
    [
        (nothing, TypeError, "partition=nothing must return an .*Partition, got None"),
        (flat, ValueError, "partition=flat must return a Partition .* dimension 2.* n_dim=1"),
        (broken, KeyError, "no such box"),
    ],
)
def test_partitioners_that_return_something_else(partitioner, error, message):
    with pytest.raises(error, match=message) as caught:
        run(plane(), 300, settings(partitioner), 1)
    if partitioner is broken:
        assert caught.value.__notes__[0].startswith("partition=broken was called with ")


@pytest.mark.parametrize("log_density", [slope, narrow])
@pytest.mark.parametrize("constant", [-1e5, 700.0, 1e5])
def test_factors_of_the_prior_density_change_nothing(log_density, constant):
    options = {"tolerance": 0.01, "accepts": 200}
    plain, found = (
        run(NormalMean(lambda u, c=c: c + log_density(u)), 2000, settings(FOREST, **options), 1)
        for c in (0.0, constant)
    )
    np.testing.assert_allclose(found.u, plain.u, rtol=1e-6)
    np.testing.assert_allclose(found.log_weight, plain.log_weight, atol=1e-6)
    np.testing.assert_allclose(found.density, plain.density, rtol=1e-6)
    assert found.density.max() == 1.0
    gains = [r.proposal.gain for r in found.rounds]
    assert max(gains) > 1.5
    np.testing.assert_allclose(gains, [r.proposal.gain for r in plain.rounds], rtol=1e-6)


@pytest.mark.parametrize("log_density", [slope, narrow, lambda u: slope(u) + 1e5])
def test_weights_have_mean_one_over_gains(log_density):
    history = run(NormalMean(log_density), 2000, settings(FOREST, tolerance=0.01), 2)
    gains = sum(r.proposal.gain * len(r.u) for r in history.rounds)
    assert np.exp(history.log_weight).sum() == pytest.approx(gains)
    raw = history.log_ratio + history.log_factor
    densities = np.concatenate([r.proposal.density(r.u) for r in history.rounds])
    # The shares of the prior are rounded up, so densities are those of the draws but for that.
    error = raw - (log_density(history.u) - np.log(densities))
    assert np.abs(error).max() < 0.3


def test_a_uniform_prior_is_left_alone():
    history = run(NormalMean(), 2000, settings(FOREST, tolerance=0.01), 2)
    assert history.log_factor == 0.0
    np.testing.assert_array_equal(history.density, np.ones(2000))
    np.testing.assert_array_equal(history.log_density, np.zeros(2000))


def first_batch(log_density, distance, n_dim=2, n=20_000):
    """A history of one batch."""
    history, proposal = History(), prior_proposal(n_dim)
    u, log_ratio, box, _ = proposal.draw(n, np.random.default_rng(5))
    log = log_density(u)
    found = Simulated(distance(u), [])
    history.add(Round(proposal, np.inf, u, box, log_ratio + log, log, found))
    return history


def test_gains_are_those_over_a_uniform_batch():
    """Two halves, all accepted: effective draws are in proportion to 1 / E[density^2 / q]."""
    density = np.array([10.0, 1.0])
    history = first_batch(
        lambda u: np.log(density[(u[:, 0] > 0.5).astype(int)]), lambda u: np.zeros(len(u))
    )
    learner = Learner(lambda u, near, before, rng: from_cuts([(0, 0, 0.5)], 2), share=0.05)
    found = next_proposal(history, np.inf, learner, np.random.default_rng(1))
    gains = []
    for exponent in (0.5, 0.65, 0.8, 1.0):
        q = density**exponent / np.mean(density**exponent)
        gains.append(np.mean(density**2) / np.mean(density**2 / (0.05 + 0.95 * q)))
    assert found.gain == pytest.approx(max(gains), rel=0.02)
    assert max(gains) > 1.5


@pytest.mark.parametrize("rotate", [False, True])
def test_the_prior_is_next_to_nothing_near_the_data(rotate):
    history = first_batch(lambda u: np.where(u[:, 0] < 0.3, -1e4, 0.0), lambda u: u[:, 0], n=1000)
    learner = Learner(Cart(), trees=2, rotate=rotate)
    found = next_proposal(history, 0.1, learner, np.random.default_rng(1))
    u = found.draw(1000, np.random.default_rng(2)).u
    assert np.mean(u[:, 0] < 0.3) < 0.15


def cut(u):
    return np.where(u[:, 0] > 0.9, 0.0, -np.inf)


@pytest.mark.parametrize("learner", [FOREST, Cart()])
def test_tolerances_stay_where_the_prior_is(learner):
    """Simulations near the data have no prior density: those that have are at 0.6, give or take the noise."""
    history = run(NormalMean(cut), 3000, settings(learner, accepts=200), 1)
    tolerances = [r.tolerance for r in history.rounds[1:]]
    assert min(tolerances) > 0.5
    inside = [np.mean(r.u[:, 0] > 0.9) for r in history.rounds]
    assert inside[0] < 0.2 and min(inside[2:]) > 0.4


@pytest.mark.parametrize("fallback", [{}, {"cut": "a pm.Potential"}])
def test_zero_density_everywhere(fallback):
    problem = NormalMean(lambda u: np.full(len(u), -np.inf))
    problem.fallback = fallback
    message = r"prior density is zero at all 500 simulations; look at what it is made of"
    message += r": 'cut' \(a pm.Potential\)\.$" if fallback else r"\.$"
    with pytest.raises(ValueError, match=message):
        run(problem, 500, settings(FOREST), 1)


def test_zero_density_at_first():
    """Batches come from the prior until one has some density; that of all is normalised then."""
    problem = NormalMean(lambda u: np.where(u[:, 0] > 0.998, 900.0, -np.inf))
    history = run(problem, 3000, settings(FOREST, accepts=200), 3, sizes=[100] * 30)
    some = history.log_density > -np.inf
    first = history.number[some].min()
    assert first > 0 and some.sum() > 200
    for made in history.rounds[: first + 1]:
        np.testing.assert_allclose(made.proposal.density(made.u), 1.0)
    gains = sum(r.proposal.gain * len(r.u) for r in history.rounds)
    assert np.exp(history.log_weight).sum() == pytest.approx(gains)
