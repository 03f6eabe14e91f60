"""The decoder, its categories and what it takes for an image."""

import numpy as np
import pytest
import sklearn.datasets

from models import masked_digits as md


@pytest.mark.slow
def test_decoder_rebuilds_and_separates_digits():
    network = md.decoder(5)
    assert md.decoder() is md.decoder(d=5, data="digits") is network
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


def test_pixels_are_a_part_of_the_image():
    network, theta = md.decoder(5), np.random.default_rng(1).standard_normal((6, 5))
    whole = network.decode(theta)
    assert whole.shape == (6, 64)
    np.testing.assert_allclose(network.decode(theta, np.array([3, 60])), whole[:, [3, 60]])
    for bad in (theta[0], theta[:, :4]):
        with pytest.raises(ValueError, match=r"theta must have shape \(n, 5\)"):
            network.decode(bad)
    with pytest.raises(ValueError, match=r"theta must have at least one row, got shape \(0, 5\)"):
        network.digit(theta[:0])


def test_halves():
    grid = np.arange(64).reshape(8, 8)
    for seen, part in (("top", grid[:4]), ("left", grid[:, :4]), ("right", grid[:, 4:])):
        np.testing.assert_array_equal(md.seen_pixels(seen, 8), part.ravel())
    top, bottom = (set(md.seen_pixels(seen, 7)) for seen in ("top", "bottom"))
    assert len(top) == 21 and top | bottom == set(range(49)) and not top & bottom
    with pytest.raises(ValueError, match=r"seen must be one of .*'top'.*, got 'middle'"):
        md.seen_pixels("middle", 8)


def test_noise_on_the_pixels():
    example, network = md.masked_digits(), md.decoder(5)
    theta = np.random.default_rng(2).standard_normal((1, 5))
    x = example.simulate(np.random.default_rng(3), np.repeat(theta, 20_000, axis=0))
    expected = network.decode(theta, md.seen_pixels("top", 8))[0]
    assert np.abs((x.mean(axis=0) - expected) / (0.05 / np.sqrt(20_000))).max() < 4.5
    np.testing.assert_allclose(x.std(axis=0), 0.05, rtol=4.5 / np.sqrt(40_000))


def test_a_half_seen_digit_is_found():
    """Nearest simulations of an image are mostly of its digit, and not all of them."""
    example, network = md.masked_digits(image=0, seen="left"), md.decoder(5)
    rng = np.random.default_rng(4)
    theta = example.prior_sample(rng, 20_000)
    near = theta[np.argsort(example.distance(example.simulate(rng, theta)))[:300]]
    shares = network.shares(near)
    assert shares[0] > 0.4 > network.shares(theta)[0] and shares[0] < 1.0
    assert shares.sum() == pytest.approx(1.0)


def test_arguments():
    with pytest.raises(ValueError, match="prior must be 'normal' or 'uniform', got 'flat'"):
        md.masked_digits(prior="flat")
    with pytest.raises(ValueError, match="image must be one of 1797, got 1797"):
        md.masked_digits(image=1797)
    with pytest.raises(ValueError, match="data must be 'digits' or 'mnist', got 'letters'"):
        md.masked_digits(data="letters")
    with pytest.raises(TypeError, match=r"d must be an integer, got 2\.0"):
        md.decoder(2.0)


def test_mnist_without_a_connection(monkeypatch):
    """What `fetch_openml` gives, 784 pixels up to 255 and digits as text, from a stand-in."""

    class Fetched:
        data = np.zeros((300, 784), dtype=np.int64)
        target = np.array([str(i % 10) for i in range(300)], dtype=object)

    Fetched.data[np.arange(300), np.arange(300) % 10 * 70] = 255
    asked = []

    def fetch_openml(name, **options):
        asked.append(name)
        return Fetched

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch_openml)
    try:
        example = md.masked_digits(2, image=3, data="mnist", seen="bottom")
        assert example.name == "masked_mnist_2" and example.observed.shape == (392,)
        assert md.decoder(2, "mnist").labels[3] == 3 and asked == ["mnist_784"]
        assert md.decoder(2, "mnist").images.max() == 1.0
        assert example.simulate(np.random.default_rng(5), np.zeros((4, 2))).shape == (4, 392)
    finally:
        md.trained.cache_clear()
