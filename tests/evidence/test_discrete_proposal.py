"""Proposals for discrete coordinates: normalised, drawn from as they say, close to what they are fitted to."""

import itertools
import math

import numpy as np
import pytest

from scipy import stats
from scipy.special import logsumexp

from amc_pymc.evidence.arms import ImportanceArm
from amc_pymc.evidence.discrete_proposal import adapt_discrete_proposal, fit_discrete_proposal
from tests.evidence.annealing.problems import FromPrior, assert_mean

#: Two states, four, one, fifteen, no end.
STATES = ((0, 1), (-3, 1, 2, 8), (5,), tuple(range(15)), None)


def rows_of_all_kinds(n, rng):
    """A coin, a label that goes with it, a constant, a number of few states, a count beside it."""
    coin = rng.integers(2, size=n)
    label = np.array(STATES[1])[np.minimum(rng.integers(4, size=n), 1 + 2 * coin)]
    few = rng.binomial(14, 0.4, n)
    count = few + 3 * coin + rng.poisson(2.0, n)
    return np.column_stack([coin, label, np.full(n, 5), few, count]).astype(float)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(1)
    x = rows_of_all_kinds(1500, rng)
    return fit_discrete_proposal(x, rng.random(1500) + 0.1, range(5), STATES, rng)


def every_point(counts):
    return np.array(list(itertools.product(*STATES[:4], counts)), float)


def test_probabilities_sum_to_one(fitted):
    x = every_point(range(-60, 120))
    assert logsumexp(fitted.log_density(x)) == pytest.approx(0.0, abs=1e-9)


def test_draws_are_from_the_density(fitted):
    """Of more points than are looked at together."""
    n = 20_000
    x = fitted.sample(n, np.random.default_rng(2))
    possible = every_point(range(-5, 40))
    p = np.exp(fitted.log_density(possible))
    place = {tuple(row): i for i, row in enumerate(possible)}
    seen = np.bincount([place[tuple(row)] for row in x], minlength=len(possible))
    often = n * p > 5.0
    found, wanted = [*seen[often], n - seen[often].sum()], [*p[often], 1.0 - p[often].sum()]
    assert often.sum() > 200
    assert stats.chisquare(found, n * np.array(wanted)).pvalue > 1e-3


def test_what_depends_on_what_is_found():
    rng = np.random.default_rng(3)
    x = rows_of_all_kinds(5000, rng)
    q = fit_discrete_proposal(x, np.ones(5000), range(5), STATES, rng)
    labels = np.array([[c, s, 5, 6, 8] for c in (0, 1) for s in STATES[1]], float)
    p = np.exp(q.log_density(labels)).reshape(2, 4)
    p /= p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p[0], [0.25, 0.75, 0.0, 0.0], atol=0.05)
    np.testing.assert_allclose(p[1], 0.25, atol=0.05)
    counts = np.array([[c, 1, 5, 6, k] for c in (0, 1) for k in range(40)], float)
    p = np.exp(q.log_density(counts)).reshape(2, 40)
    means = p @ np.arange(40) / p.sum(axis=1)
    np.testing.assert_allclose(means, [8.0, 11.0], atol=0.3)


def test_a_number_decides_by_its_square():
    """Two good measurements of m and a bad one: labels given m have log odds quadratic in it."""
    rng = np.random.default_rng(4)
    m = rng.standard_normal(4000)
    label = rng.random(4000) < 1.0 / (1.0 + np.exp(2.0 - 2.0 * m**2))
    x = np.column_stack([label, m]).astype(float)
    q = fit_discrete_proposal(x, np.ones(4000), [0], [(0, 1)], rng)
    at = np.array([-1.5, 0.0, 1.5])
    ones, zeros = (q.log_density(np.column_stack([np.full(3, c), at])) for c in (1.0, 0.0))
    np.testing.assert_allclose(ones - zeros, [2.5, -2.0, 2.5], atol=0.5)
    total = stats.norm.logpdf(at)
    np.testing.assert_allclose(np.logaddexp(ones, zeros), total, atol=0.15)


@pytest.mark.parametrize(
    ("place", "value"), [(0, 2.0), (0, 0.5), (1, -1.0), (1, 99.0), (3, 15.0), (3, -1.0), (4, 0.5)]
)
def test_points_that_cannot_be_drawn(fitted, place, value):
    x = np.array([[0.0, 1.0, 5.0, 3.0, 6.0]] * 2)
    x[1, place] = value
    found = fitted.log_density(x)
    assert np.isfinite(found[0])
    assert found[1] == -np.inf


def test_states_that_were_not_seen_keep_a_chance():
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(600), rng.integers(2, size=600)]).astype(float)
    for states in ((0, 1), tuple(range(20))):
        q = fit_discrete_proposal(x, np.ones(600), [0, 1], [states, (0, 1)], rng)
        log_p = q.log_density(np.array([[0.0, 0.0], [1.0, 0.0]]))
        assert log_p[0] > math.log(1e-5)
        assert log_p[1] > math.log(0.45)


def test_weights_count():
    rng = np.random.default_rng(7)
    x = rng.integers(2, size=(4000, 1)).astype(float)
    q = fit_discrete_proposal(x, np.where(x[:, 0] == 1.0, 3.0, 1.0), [0], [(0, 1)], rng)
    assert np.exp(q.log_density(np.array([[1.0]])))[0] == pytest.approx(0.75, abs=0.03)


class Spins(FromPrior):
    """Eight coins in a ring that like their neighbours, one of which must not be heads with the next."""

    n_dim = 8

    def __init__(self, coupling=1.2):
        super().__init__()
        self.coupling = coupling
        x = np.array(list(itertools.product((0.0, 1.0), repeat=8)))
        self.log_z = float(logsumexp(self.terms(x).sum(axis=0)))

    def terms(self, x):
        agree = (x == np.roll(x, 1, axis=1)).sum(axis=1)
        slope = self.coupling * agree + 0.2 * x.sum(axis=1)
        slope[(x[:, 0] == 1.0) & (x[:, 1] == 1.0)] = -np.inf
        return np.array([np.full(len(x), -8.0 * math.log(2.0)), slope])

    def draw_prior(self, n, rng):
        return rng.integers(2, size=(n, 8)).astype(float)


def posterior_draws(path, n, rng):
    """From many draws of the prior, a few times each."""
    x = path.draw_prior(50 * n, rng)
    w = np.exp(path.terms(x)[1] - path.terms(x)[1].max())
    return x[rng.choice(len(x), n, p=w / w.sum())]


@pytest.mark.parametrize("start", ["posterior", "prior"])
def test_adapted_to_spins(start):
    path, rng = Spins(), np.random.default_rng(8)
    rough = posterior_draws(path, 512, rng) if start == "posterior" else path.draw_prior(512, rng)
    path.evaluated = 0
    found = adapt_discrete_proposal(path, rough, range(8), [(0, 1)] * 8, rng, share=0.1)
    log_w, _ = ImportanceArm(path, found.mixture).weigh(50_000, rng)
    assert_mean(log_w, path.log_z)
    variance = np.exp(log_w - path.log_z).var()
    assert variance < 0.4
    assert found.relative_variance == pytest.approx(variance, rel=0.4)
    assert found.log_mean == pytest.approx(path.log_z, abs=0.1)


def test_a_bad_fit_is_judged_with_its_share_of_the_prior():
    """All heads but the second, of which the posterior knows little."""
    path, rng = Spins(0.3), np.random.default_rng(14)
    rough = np.tile([1.0, 0.0, *[1.0] * 6], (20, 1))
    found = adapt_discrete_proposal(
        path, rough, range(8), [(0, 1)] * 8, rng, share=0.1, rounds=1, n_first=50_000
    )
    log_w, _ = ImportanceArm(path, found.mixture).weigh(50_000, rng)
    variance = np.exp(log_w - path.log_z).var()
    assert variance > 1.0
    assert found.relative_variance == pytest.approx(variance, rel=0.2)
    assert found.log_mean == pytest.approx(path.log_z, abs=0.05)


def test_counts_without_end():
    """A Poisson count of which some are seen: impossible below those."""

    class Seen(FromPrior):
        n_dim = 1

        def __init__(self):
            super().__init__()
            self.log_z = stats.poisson.logpmf(9, 0.3 * 20.0)

        def terms(self, x):
            k = x[:, 0]
            return np.array([stats.poisson.logpmf(k, 20.0), stats.binom.logpmf(9, k, 0.3)])

        def draw_prior(self, n, rng):
            return rng.poisson(20.0, (n, 1)).astype(float)

    path, rng = Seen(), np.random.default_rng(11)
    rough = 9.0 + rng.poisson(14.0, (512, 1))
    found = adapt_discrete_proposal(path, rough, [0], [None], rng, share=0.1)
    assert found.relative_variance < 0.4
    log_w, _ = ImportanceArm(path, found.mixture).weigh(50_000, rng)
    assert_mean(log_w, path.log_z)


def test_draws_of_a_round_count_as_their_effective_sample_size(monkeypatch):
    seen = []

    def fit(x, weights, *args, **kwargs):
        seen.append(weights)
        return fit_discrete_proposal(x, weights, *args, **kwargs)

    monkeypatch.setattr("amc_pymc.evidence.discrete_proposal.fit_discrete_proposal", fit)
    path, rng = Spins(), np.random.default_rng(8)
    adapt_discrete_proposal(path, path.draw_prior(64, rng), range(8), [(0, 1)] * 8, rng, share=0.1)
    assert len(seen) > 1
    last = seen[1][64:]
    assert last.sum() == pytest.approx(last.sum() ** 2 / (last**2).sum())


@pytest.mark.parametrize("n", [40, 5000])
def test_a_bad_fit_does_no_harm_to_the_mean(n):
    """Weights are right whatever is drawn from, and bounded by the prior's share."""
    path, rng = Spins(), np.random.default_rng(10)
    wrong = np.ones((n, 8))
    q = fit_discrete_proposal(wrong, np.ones(n), range(8), [(0, 1)] * 8, rng)
    log_w, _ = ImportanceArm(path, q).weigh(200_000, rng)
    assert_mean(log_w, path.log_z, precision=0.02)
