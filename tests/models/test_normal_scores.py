"""Three ways to an evidence from a prior that is a function of normal scores, and the priors themselves."""

import math

import numpy as np
import pytest

from scipy import stats
from scipy.special import ndtr

from models import normal_scores
from models.normal_scores import NormalScores


def gaussian(d=2, mean=2.0, sd=0.5):
    """A normal likelihood under the standard normal prior, and its log evidence."""

    def log_likelihood(theta):
        return stats.norm.logpdf(theta, mean, sd).sum(axis=1)

    exact = d * stats.norm.logpdf(mean, 0.0, math.sqrt(1.0 + sd**2))
    return NormalScores(d, lambda z: z, log_likelihood), exact


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
