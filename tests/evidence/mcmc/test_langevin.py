"""The ratio of Metropolis and Hastings against densities of proposals."""

import numpy as np
import pytest

from scipy import stats

from amc_pymc.evidence.mcmc import Langevin, Tuning, log_target, start, target_gradient
from tests.evidence.mcmc.paths import Fixed, LogGamma

CHOL = np.array([[0.8, 0.0, 0.0], [0.3, 0.5, 0.0], [-0.4, 0.2, 1.1]])


@pytest.mark.parametrize("scale", [np.array([0.5, 1.0, 2.0]), CHOL], ids=["diagonal", "dense"])
@pytest.mark.parametrize("beta", [0.0, 0.6])
@pytest.mark.parametrize("size", [0.2, 1.3])
def test_the_ratio_is_that_of_the_densities(size, beta, scale):
    path, rng = LogGamma(), np.random.default_rng(1)
    x, z = path.draw(30, beta, rng), rng.standard_normal((30, 3))
    chol = np.diag(scale) if scale.ndim == 1 else scale
    covariance = chol @ chol.T

    def mean(x):
        return x + 0.5 * size**2 * target_gradient(path.slopes(x), beta) @ covariance

    def log_q(to, x):
        away = (to - mean(x)).T
        return stats.multivariate_normal(np.zeros(3), size**2 * covariance).logpdf(away.T)

    proposed = mean(x) + size * z @ chol.T
    log_ratio = log_target(path.terms(proposed), beta) - log_target(path.terms(x), beta)
    log_ratio += log_q(x, proposed) - log_q(proposed, x)
    particles = start(path, x, with_gradient=True)
    moved, move = Langevin().step(path, particles, beta, Tuning(size, scale), Fixed(z))
    np.testing.assert_allclose(move.acceptance, np.exp(np.minimum(log_ratio, 0.0)), rtol=1e-8)
    assert move.acceptance.std() > 0.001
    taken = move.acceptance > 0.0
    np.testing.assert_allclose(moved.x[taken], proposed[taken], rtol=1e-10)
    assert move.gradients == 30
