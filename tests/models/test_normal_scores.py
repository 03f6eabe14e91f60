"""Three ways to an evidence from a prior that is a function of normal scores, and the priors themselves."""

import math

import numpy as np
import pytest

from scipy import stats
from scipy.special import ndtr

from models import normal_scores

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
