"""The decoder, its categories and what it takes for an image."""

import numpy as np
import pytest

from models import masked_digits as md

pytestmark = pytest.mark.slow


def test_decoder_rebuilds_and_separates_digits():
    network = md.decoder(5)
    assert md.decoder(5) is network
    np.testing.assert_allclose(network.codes.mean(axis=0), 0.0, atol=1e-10)
    np.testing.assert_allclose(np.cov(network.codes.T), np.eye(5), atol=1e-10)
    rebuilt = network.decode(network.codes)
    error = np.square(rebuilt - network.images).sum()
    spread = np.square(network.images - network.images.mean(axis=0)).sum()
    # Principal components leave 45 % of the variance in five dimensions.
    assert error < 0.3 * spread
    assert (network.digit(network.codes) == network.labels).mean() > 0.95
    shares = network.shares(network.codes)
    np.testing.assert_allclose(shares, np.bincount(network.labels) / 1797, atol=0.01)


def test_a_half_seen_digit_is_found():
    """Nearest simulations of an image are mostly of its digit, and not all of them."""
    example, network = md.masked_digits(image=0, seen="left"), md.decoder(5)
    rng = np.random.default_rng(4)
    theta = example.prior_sample(rng, 20_000)
    near = theta[np.argsort(example.distance(example.simulate(rng, theta)))[:300]]
    shares = network.shares(near)
    assert shares[0] > 0.4 > network.shares(theta)[0] and shares[0] < 1.0
    assert shares.sum() == pytest.approx(1.0)
