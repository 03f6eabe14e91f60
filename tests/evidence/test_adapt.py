"""Adaptive importance sampling: frozen mixtures, tested by independent draws from them."""

import math

from typing import NamedTuple

import numpy as np
import pytest

from scipy.special import gammaln

from amc_pymc.evidence import adapt
from amc_pymc.evidence.adapt import adapt_mixture
from amc_pymc.evidence.modes import laplace_components, maximise
from amc_pymc.mixtures import StudentTMixture, log_mixture_density

SHARE = 0.1


class Problem(NamedTuple):
    """A target with known log Z, a normal prior (for the defence only) and a rough start."""

    log_target: object
    log_z: float
    prior_sd: np.ndarray
    start: StudentTMixture

    def prior(self, x):
        z = x / self.prior_sd
        return -0.5 * (z**2).sum(axis=1) - np.log(self.prior_sd * math.sqrt(2.0 * math.pi)).sum()

    def prior_draws(self, n, rng):
        return self.prior_sd * rng.standard_normal((n, self.prior_sd.size))

    def adapt(self, seed=1, **settings):
        settings = {"share": SHARE} | settings
        return adapt_mixture(self.log_target, self.prior, self.prior_draws, self.start,
                             np.random.default_rng(seed), **settings)  # fmt: skip

    def weigh(self, q, n, seed=99):
        """Independent log-weights from a frozen mixture."""
        rng = np.random.default_rng(seed)
        k = round(SHARE * n)
        x = np.concatenate([self.prior_draws(k, rng), q.sample(n - k, rng)])
        return self.log_target(x) - log_mixture_density(q.log_density(x), self.prior(x), SHARE)


def autoregressive(d, rho):
    return rho ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))


def gaussian(d, *, rho=0.9, off=1.5, factor=2.0):
    """Every coordinate of the start `off` standard deviations away, and `factor` times as wide."""
    root = np.linalg.cholesky(autoregressive(d, rho))
    inverse = np.linalg.inv(root)
    log_z = 3.0 + 0.5 * d * math.log(2.0 * math.pi) + np.log(np.diag(root)).sum()
    signs = np.where(np.arange(d) % 3 == 0, -1.0, 1.0)
    start = StudentTMixture([1.0], [off * root @ signs], [factor * root], 5.0)

    def log_target(x):
        return 3.0 - 0.5 * ((x @ inverse.T) ** 2).sum(axis=1)

    return Problem(log_target, log_z, np.full(d, 5.0), start)


def two_modes(d, *, weight=0.01, factor=1.0, off=0.0):
    """Shares 0.3 and 0.7 at -2 and 2, sd 1/2; the start gives the first one `weight`."""

    def log_target(x):
        left, right = (-2.0 * ((x - m) ** 2).sum(axis=1) for m in (-2.0, 2.0))
        return -700.0 + np.logaddexp(math.log(0.3) + left, math.log(0.7) + right)

    start = StudentTMixture(
        [weight, 1.0 - weight],
        [np.full(d, -2.0 + 0.5 * off), np.full(d, 2.0 - 0.5 * off)],
        [0.5 * factor * np.eye(d)] * 2,
        5.0,
    )
    log_z = -700.0 + 0.5 * d * math.log(2.0 * math.pi * 0.25)
    return Problem(log_target, log_z, np.full(d, 3.0), start)


def banana(d=2, bend=0.5):
    def log_target(x):
        straight = x[:, 1] + bend * (x[:, 0] ** 2 - 1.0)
        return -0.5 * (x[:, 0] ** 2 + straight**2 + (x[:, 2:] ** 2).sum(axis=1))

    start = StudentTMixture([1.0], [bend * np.eye(d)[1]], [np.eye(d)], 5.0)
    return Problem(log_target, 0.5 * d * math.log(2.0 * math.pi), np.full(d, 3.0), start)


def log_gamma(d, shape, *, rough=False):
    """Logarithms of gamma variables: skewed."""

    def log_target(x):
        with np.errstate(over="ignore"):
            return (shape * x - np.exp(x)).sum(axis=1)

    def value_and_gradient(x):
        return log_target(x), shape - np.exp(np.minimum(x, 700.0))

    if rough:
        start = StudentTMixture([1.0], np.full((1, d), -2.0), [0.5 * np.eye(d)], 5.0)
    else:
        x, _ = maximise(value_and_gradient, np.zeros((1, d)))
        start = laplace_components(value_and_gradient, x, -np.diag(np.exp(x[0]))[None])
    return Problem(log_target, d * float(gammaln(shape)), np.full(d, 4.0), start)


def heavy_tails(d, dof):
    def log_target(x):
        return -0.5 * (dof + d) * np.log1p((x**2).sum(axis=1) / dof)

    log_z = float(gammaln(0.5 * dof) - gammaln(0.5 * (dof + d))) + 0.5 * d * math.log(dof * math.pi)
    return Problem(log_target, log_z, np.full(d, 10.0),
                   StudentTMixture([1.0], np.ones((1, d)), [np.eye(d)], 30.0))  # fmt: skip


def box(d):
    """Most of the first draws are outside."""

    def log_target(x):
        return np.where((np.abs(x - 1.0) < 0.5).all(axis=1), 0.0, -math.inf)

    start = StudentTMixture([1.0], np.zeros((1, d)), [np.eye(d)], 5.0)
    return Problem(log_target, 0.0, np.full(d, 2.0), start)


CASES = {
    "hard bounds": (box(3), {}, 2.5),
    "correlated Gaussian, wide start": (gaussian(10), {}, 0.3),
    "correlated Gaussian, narrow start": (gaussian(10, factor=0.5), {}, 0.3),
    "correlated Gaussian, 30 dimensions": (gaussian(30, off=1.0), {"n_per_round": 2000}, 0.8),
    "two modes, wrong weights, places and widths": (two_modes(10, factor=2.0, off=1.0), {}, 0.3),
    "banana in 6 dimensions": (banana(6), {}, 0.6),
    "one log-gamma": (log_gamma(1, 0.5), {}, 0.3),
    "log-gamma, from far away": (log_gamma(5, 1.0, rough=True), {}, 0.8),
    "log-gamma, 20 dimensions": (log_gamma(20, 10.0), {}, 1.5),
    "heavy tails": (heavy_tails(5, 2.0), {}, 0.3),
}


@pytest.mark.parametrize("name", CASES)
def test_the_frozen_mixture_integrates_the_target(name):
    problem, settings, bound = CASES[name]
    found = problem.adapt(**settings)
    n = 20_000
    log_w = problem.weigh(found.mixture, n)
    top = log_w.max()
    w = np.exp(log_w - top)
    variance = w.var() / w.mean() ** 2
    assert variance < bound
    assert abs(math.log(w.mean()) + top - problem.log_z) < 4.0 * math.sqrt(variance / n)
    # What is reported was seen by few draws: right within a factor.
    assert 0.4 * variance < found.relative_variance < 2.5 * variance
    assert found.relative_variance == found.relative_variances.min()
    # The draws of the adaptation say nearly the same.
    assert abs(found.log_mean - problem.log_z) < 6.0 / math.sqrt(found.ess)


def test_a_mode_of_hardly_any_weight_is_drawn_from():
    found = two_modes(10, weight=1e-7).adapt()
    assert abs(found.mixture.weights[found.mixture.means[:, 0] < 0.0].sum() - 0.3) < 0.06


def test_a_good_start_is_taken_as_it_is():
    problem = gaussian(3, off=0.0, factor=1.0)
    problem = problem._replace(
        start=StudentTMixture([1.0], np.zeros((1, 3)), problem.start.choleskys, 40.0)
    )
    found = problem.adapt()
    assert found.mixture is problem.start


def test_more_components_are_not_made_than_asked_for():
    assert banana(bend=1.5).adapt(max_components=1).mixture.components == 1
    assert banana(bend=1.5).adapt(max_components=3, enough=0.0).mixture.components <= 3


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_few_draws(n):
    """No promise but that it works, and that the prior keeps its share."""
    problem = gaussian(3, off=0.5)
    drawn = []

    def prior_draws(k, rng):
        drawn.append(k)
        return problem.prior_draws(k, rng)

    found = adapt_mixture(problem.log_target, problem.prior, prior_draws, problem.start,
                          np.random.default_rng(1), n_per_round=n, rounds=5)  # fmt: skip
    assert np.isfinite(found.log_mean)
    assert all(k == max(round(0.1 * n), 1) for k in drawn)
    assert bool(drawn) == (n > 1)


def test_nothing_found():
    start = StudentTMixture([1.0], np.zeros((1, 2)), [np.eye(2)], 5.0)
    problem = Problem(lambda x: np.full(len(x), -math.inf), -math.inf, np.ones(2), start)
    found = problem.adapt(rounds=3, n_per_round=50)
    assert found.relative_variance == math.inf
    assert (found.log_mean, found.ess) == (-math.inf, 0.0)
    assert found.mixture is start


def test_weights_are_those_of_the_balance_heuristic():
    problem = banana()
    record = adapt.Record(2, 0.25, problem.prior)
    rng = np.random.default_rng(5)
    sources = [StudentTMixture([1.0], [[m, 0.0]], [np.eye(2)], 5.0) for m in (0.0, 1.0, 3.0)]
    for q, n in zip(sources, (10, 30, 20), strict=True):
        x = q.sample(n, rng)
        record.add(q, q, x, problem.log_target(x))
    density = sum(
        share * (0.75 * np.exp(q.log_density(record.x)) + 0.25 * np.exp(problem.prior(record.x)))
        for q, share in zip(sources, (1 / 6, 1 / 2, 1 / 3), strict=True)
    )
    np.testing.assert_allclose(record.log_drawn(), np.log(density), rtol=1e-12)
    np.testing.assert_allclose(record.log_target, problem.log_target(record.x))
    assert record.counts == [10, 30, 20]


def test_variance_by_draws_of_others():
    """The relative variance of a mixture, by draws from another one."""
    problem = banana()
    rng = np.random.default_rng(7)
    drawn = StudentTMixture([1.0], [[0.0, 0.0]], [1.5 * np.eye(2)], 5.0)
    tested = StudentTMixture([1.0], [[0.3, 0.0]], [1.2 * np.eye(2)], 5.0)
    record = adapt.Record(2, 0.1, problem.prior)
    for n in (20_000, 30_000):
        x = np.concatenate([problem.prior_draws(n // 10, rng), drawn.sample(n - n // 10, rng)])
        record.add(tested, drawn, x, problem.log_target(x))
    direct = np.exp(problem.weigh(tested, 50_000))
    known = direct.var() / direct.mean() ** 2
    np.testing.assert_allclose(record.own, known, rtol=0.1)
    found = record.relative_variances(record.log_target - record.log_drawn())
    np.testing.assert_allclose(found, known, rtol=0.1)


def test_tempering_leaves_enough_draws():
    rng = np.random.default_rng(8)
    wild, flat = rng.normal(0.0, 30.0, 1000), np.zeros(1000)
    lw, gamma = adapt.temper_weights(wild, flat, 50.0)
    assert 0.0 < gamma < 0.2
    w = np.exp(lw - lw.max())
    assert 50.0 <= w.sum() ** 2 / (w @ w) < 60.0
    # Towards f^gamma q^(1 - gamma), by draws of something else.
    current = rng.normal(0.0, 1.0, 1000)
    lw, gamma = adapt.temper_weights(wild, current, 50.0)
    straight = gamma * wild + (1.0 - gamma) * current
    largest = np.logaddexp.reduce(straight) - 0.5 * np.log(1000)
    np.testing.assert_allclose(lw, np.minimum(straight, largest))
    tame = rng.normal(0.0, 0.5, 1000)
    lw, gamma = adapt.temper_weights(tame, flat, 50.0)
    assert gamma == 1.0
    np.testing.assert_array_equal(lw, tame)


def test_truncation():
    log_w = np.array([0.0] * 99 + [20.0])
    lw = adapt.truncate_weights(log_w)
    w = np.exp(log_w)
    np.testing.assert_allclose(np.exp(lw[-1]), 10.0 * w.mean())
    np.testing.assert_array_equal(lw[:-1], 0.0)
