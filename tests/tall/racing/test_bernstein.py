"""The empirical Bernstein-Serfling bound."""

import math

import numpy as np
import pytest

from amc_pymc.tall.racing.bernstein import bernstein_serfling

KAPPA = 4.454653676892976  # 7/3 + 3/sqrt(2)


def test_factors_by_hand():
    # N = 10: log(5/0.05) = 4.60517; rho = 1 - 3/10 at n = 4, (1 - 8/10)(1 + 1/8) at n = 8.
    sd, width = bernstein_serfling(0.05, [4, 8, 10], 10)
    log = math.log(100)
    np.testing.assert_allclose(
        sd, [math.sqrt(2 * 0.7 * log / 4), math.sqrt(2 * 0.225 * log / 8), 0.0]
    )
    np.testing.assert_allclose(width, KAPPA * log / np.array([4, 8, 10]))


def test_shapes_broadcast():
    sd, width = bernstein_serfling(np.array([[0.1], [0.2]]), [1, 2, 3], 30)
    assert sd.shape == (2, 3) and np.shape(width) == (2, 3)
    np.testing.assert_allclose(sd[1], bernstein_serfling(0.2, [1, 2, 3], 30).sd)


@pytest.mark.parametrize("n", [3, 20, 45])
@pytest.mark.parametrize("rare", [0.02, 0.5])
def test_coverage_of_finite_populations(n, rare):
    """Loose: it must hold at least as often as it says."""
    n_rows, delta = 50, 0.5
    values = np.zeros(n_rows)
    values[: max(1, int(rare * n_rows))] = 1.0
    rng = np.random.default_rng([n, int(100 * rare)])
    samples = rng.permuted(np.tile(values, (4_000, 1)), axis=1)[:, :n]
    sd, width = bernstein_serfling(delta, n, n_rows)
    over = samples.mean(axis=1) - values.mean() > samples.std(axis=1) * sd + width
    assert over.mean() <= delta


@pytest.mark.parametrize("delta", [0.0, -1.0, 1.1, math.nan])
def test_bad_delta(delta):
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\], got"):
        bernstein_serfling(delta, 2, 10)


@pytest.mark.parametrize("n", [0, 11, math.nan])
def test_bad_sizes(n):
    with pytest.raises(ValueError, match="n must be between 1 and n_rows=10, got"):
        bernstein_serfling(0.1, n, 10)
    with pytest.raises(ValueError, match="n_rows must be at least 1, got 0"):
        bernstein_serfling(0.1, 1, 0)
