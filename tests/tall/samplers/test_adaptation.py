"""Moments of visited points, in closed form."""

import numpy as np

from amc_pymc.tall.mode import Moments
from amc_pymc.tall.samplers.chain import Pieces


def moments_of(x):
    found = Moments()
    for point in x:
        found.add(point)
    return found


def test_mean_and_covariance():
    x = np.random.default_rng(1).normal(size=(50, 3)) + 1e3
    found = moments_of(x)
    np.testing.assert_allclose(found.mean, x.mean(axis=0))
    np.testing.assert_allclose(found.covariance(), np.cov(x.T), rtol=1e-9)


def test_the_share_between_pieces():
    """Independent draws, a trend, and a constant: where moves are smaller, more lies between."""
    noise, trend = np.random.default_rng(1).normal(size=1_000), np.arange(1_000.0)
    x = np.stack([noise, trend, np.full(1_000, 0.1)], axis=1)
    pieces = Pieces(1_000)
    for point in x:
        assert pieces.between() is None
        pieces.add(point)
    means = x[:, :2].reshape(10, 100, 2).mean(axis=1)
    expected = means.var(axis=0) / x[:, :2].var(axis=0)
    np.testing.assert_allclose(pieces.between(), [*expected, 1.0])
    assert expected[0] < 0.03 and expected[1] > 0.98


def test_the_factor_is_shrunk_to_the_prior():
    """The prior counts like as many points as its weight."""
    x = np.random.default_rng(2).normal(size=(30, 3)) @ [
        [1.0, 0.4, 0.0],
        [0.0, 2.0, 0.5],
        [0.3, 0.0, 1.0],
    ]
    prior, some = np.array([[2.0, 0.0], [1.5, 0.7]]), np.array([0, 2])
    factor = moments_of(x).factor(some, prior, 10.0)
    wanted = (30.0 * np.cov(x[:, some].T) + 10.0 * prior @ prior.T) / 40.0
    np.testing.assert_allclose(factor @ factor.T, wanted)
