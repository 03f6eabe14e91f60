"""Three ways to an evidence from a prior that is a function of normal scores, and the priors themselves."""

import math

import numpy as np
import pytest

from scipy import stats
from scipy.special import ndtr

from models import normal_scores
from models.normal_scores import NormalScores
from models.student_importance import Reference


def gaussian(d=2, mean=2.0, sd=0.5):
    """A normal likelihood under the standard normal prior, and its log evidence."""

    def log_likelihood(theta):
        return stats.norm.logpdf(theta, mean, sd).sum(axis=1)

    exact = d * stats.norm.logpdf(mean, 0.0, math.sqrt(1.0 + sd**2))
    return NormalScores(d, lambda z: z, log_likelihood), exact


def two_sided():
    """A likelihood of the square of the first score: two modes."""
    scores = NormalScores(
        2,
        lambda z: z,
        lambda t: stats.norm.logpdf(t[:, 0] ** 2, 2.0, 0.5) + stats.norm.logpdf(t[:, 1], 1.0, 1.0),
    )
    x = np.linspace(-10.0, 10.0, 100_001)
    first = np.log(np.sum(stats.norm.pdf(x) * stats.norm.pdf(x**2, 2.0, 0.5)) * (x[1] - x[0]))
    return scores, float(first + stats.norm.logpdf(1.0, 0.0, math.sqrt(2.0)))


@pytest.mark.parametrize(("problem", "step"), [(gaussian, 0.25), (two_sided, 0.04)])
def test_grid(problem, step):
    scores, exact = problem()
    found = normal_scores.grid_evidence(scores, step=step, reach=7.0, particles=512)
    assert found.log_evidence == pytest.approx(exact, abs=1e-6)
    assert found.error < 1e-3


@pytest.mark.parametrize("problem", [gaussian, two_sided])
def test_sampled(problem):
    scores, exact = problem()
    found = normal_scores.sampled_evidence(
        scores, n_components=2, log2_points=9, replicates=8, particles=512
    )
    assert abs(found.log_evidence - exact) < 4.0 * found.error < 0.05


def test_annealed():
    scores, exact = gaussian(4)
    found = normal_scores.annealed_evidence(
        scores.log_joint, np.ones(4), np.eye(4), particles=500, replicates=8
    )
    assert abs(found.log_evidence - exact) < 4.0 * found.error < 0.2
    with pytest.raises(ValueError, match="replicates must be at least 2"):
        normal_scores.annealed_evidence(scores.log_joint, np.ones(4), np.eye(4), replicates=1)


def test_slice_moves_leave_the_posterior_as_it_is():
    """Draws of the exact posterior, moved, are draws of it."""
    scores, _ = gaussian(1)
    rng = np.random.default_rng(1)
    variance = 1.0 / (1.0 + 4.0)
    z = rng.normal(2.0 * 4.0 * variance, math.sqrt(variance), (4_000, 1))
    values = scores.log_given(z)
    for _ in range(3):
        z, values = normal_scores.slice_move(z, values, scores.log_given, 1.0, rng)
    expected = stats.norm(1.6, math.sqrt(variance))
    assert stats.kstest(z[:, 0], expected.cdf).pvalue > 1e-3
    np.testing.assert_allclose(values, scores.log_given(z))


def test_what_is_not_a_number_is_impossible():
    scores = NormalScores(1, lambda z: z, lambda theta: np.log(theta[:, 0]))
    with np.errstate(invalid="ignore"):
        assert scores.log_given(np.array([[-1.0], [1.0]])).tolist() == [-np.inf, 0.0]


Z = np.array([-7.5, -5.0, -1.0, 0.0, 0.3, 4.0, 7.5])


@pytest.mark.parametrize(
    ("found", "law"),
    [
        (normal_scores.half_normal(Z, 2.0), stats.halfnorm(scale=2.0)),
        (normal_scores.half_cauchy(Z, 5.0), stats.halfcauchy(scale=5.0)),
        (normal_scores.exponential(Z, 0.5), stats.expon(scale=2.0)),
        (normal_scores.gamma(Z, 25.0, 4.0), stats.gamma(25.0, scale=0.25)),
        (normal_scores.beta(Z, 9.0, 2.0), stats.beta(9.0, 2.0)),
        (normal_scores.uniform(Z, 1.0, 3.0), stats.uniform(1.0, 2.0)),
    ],
    ids=["half_normal", "half_cauchy", "exponential", "gamma", "beta", "uniform"],
)
def test_priors(found, law):
    """Both tails, each by the side of the distribution on which it is small."""
    np.testing.assert_allclose(law.cdf(found), ndtr(Z), rtol=1e-6, atol=1e-16)
    upper = Z > 0.0
    smallest = 1e-6 * law.std() if math.isfinite(law.std()) else 0.0
    if law.support()[1] == math.inf:
        np.testing.assert_allclose(law.sf(found[upper]), ndtr(-Z[upper]), rtol=1e-6)
    assert np.all(np.diff(found) > -smallest)


def test_problem():
    scores, exact = gaussian(2)
    problem = normal_scores.scored_problem(
        "p", dict, scores, Reference(exact, 0.1), "s", easy=False
    )
    assert (problem.log_evidence, problem.error, problem.easy) == (exact, 0.1, False)
    np.testing.assert_allclose(problem.prior_transform(np.array([0.5, 0.975])), [0.0, 1.959964])
    assert problem.log_likelihood([2.0, 2.0]) == pytest.approx(
        2.0 * stats.norm.logpdf(0.0, 0.0, 0.5)
    )
