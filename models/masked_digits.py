r"""Latent vectors of a small decoder given part of an image, for recognising a masked digit.

.. math:: X = G(\theta) + \epsilon, \qquad \theta \sim U(-4, 4)^d, \qquad \epsilon \sim N(0, 0.05^2 I)

of which some pixels are observed. O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*,
section 5 and appendices B.5 and C.3, figures 8-10 and 13-20: five latent dimensions for the
posterior, two for its mode. Differences from the paper:

- The decoder. The paper trains a Wasserstein autoencoder on MNIST, with the labels as additional information, and
  does not describe its layers. Here one network with a bottleneck learns images and labels from images,
  scikit-learn's 1797 digits of 8 x 8 pixels, in seconds and without a download.
- The prior. The paper states a normal prior and samples from uniform ones, on :math:`[-8, 8]^5`
  and :math:`[-12, 12]^2`, as wide as its codes. Here it is uniform on :math:`[-4, 4]^d`, as wide as the
  whitened codes.
- The images and masks, which the paper only shows. Here half of an image is observed. The right half
  of image 17, a seven that in two dimensions could be a one, resembles the paper's example for the mode.

As in the paper, the digit of a latent vector is determined by its ten nearest neighbours among the codes of
the training images. The only reference is long runs of rejection.
"""

from __future__ import annotations

import functools
import warnings

from dataclasses import dataclass

import numpy as np
import pymc as pm

from models.simulator_example import SimulatorExample

NOISE = 0.05
HALF_WIDTH = 4.0
HIDDEN = 100
EPOCHS = 150


@dataclass(frozen=True)
class Decoder:
    """Decoder from latent vectors to images, with its training data.

    Attributes
    ----------
    weights, biases : list of array
        Parameters of the two layers from the latent vector to pixels; the first acts on tanh of the codes.
    centre : array (d,)
        Mean of the raw codes.
    root : array (d, d)
        Cholesky factor of their covariance matrix.
    images : array (n, P)
        Training images, between 0 and 1.
    labels : array (n,) of int
        Digits of the images.
    codes : array (n, d)
        Whitened codes of the images.
    """

    weights: list[np.ndarray]
    biases: list[np.ndarray]
    centre: np.ndarray
    root: np.ndarray
    images: np.ndarray
    labels: np.ndarray
    codes: np.ndarray

    @property
    def side(self) -> int:
        """Number of pixels along an edge."""
        return round(self.images.shape[1] ** 0.5)

    def decode(self, theta: np.ndarray, pixels=slice(None)) -> np.ndarray:
        """Return images (n, P), or some of their pixels, of latent vectors (n, d)."""
        hidden = np.tanh(self.centre + theta @ self.root.T)
        hidden = np.tanh(hidden @ self.weights[0] + self.biases[0])
        return hidden @ self.weights[1][:, pixels] + self.biases[1][pixels]

    def digit(self, theta: np.ndarray, neighbours: int = 10) -> np.ndarray:
        """Return digits (n,) of latent vectors (n, d), the most frequent among the nearest codes."""
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(neighbours).fit(self.codes, self.labels).predict(theta)

    def shares(self, theta: np.ndarray) -> np.ndarray:
        """Return the shares (10,) of the digits among latent vectors (n, d)."""
        return np.bincount(self.digit(theta), minlength=10) / len(theta)


@functools.cache
def decoder(d: int = 5) -> Decoder:
    """Train a network of layers P-100-d-100-(P + 10) and keep its upper half, once for all calls.

    Parameters
    ----------
    d : int
        Number of latent dimensions.
    """
    from sklearn.datasets import load_digits
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    network = MLPRegressor(
        hidden_layer_sizes=(HIDDEN, d, HIDDEN), activation="tanh", learning_rate_init=3e-3,
        batch_size=100, max_iter=EPOCHS, tol=0.0, n_iter_no_change=EPOCHS, random_state=0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(images, np.hstack([images, np.eye(10)[labels]]))
    hidden = np.tanh(images @ network.coefs_[0] + network.intercepts_[0])
    raw = hidden @ network.coefs_[1] + network.intercepts_[1]
    centre, root = raw.mean(axis=0), np.linalg.cholesky(np.cov(raw.T).reshape(d, d))
    n_pixels = images.shape[1]
    return Decoder(
        weights=[network.coefs_[2], network.coefs_[3][:, :n_pixels]],
        biases=[network.intercepts_[2], network.intercepts_[3][:n_pixels]], centre=centre,
        root=root, images=images, labels=labels, codes=np.linalg.solve(root, (raw - centre).T).T,
    )  # fmt: skip


def seen_pixels(seen: str, side: int) -> np.ndarray:
    """Return the indices of the pixels of one half of an image, row by row."""
    grid = np.arange(side * side).reshape(side, side)
    half = side // 2
    halves = {
        "top": grid[:half], "bottom": grid[half:], "left": grid[:, :half], "right": grid[:, half:],
    }  # fmt: skip
    return halves[seen].ravel()


def masked_digits(d: int = 5, *, image: int = 0, seen: str = "top") -> SimulatorExample:
    """Build the example: the latent vector of a training image of which one half is observed.

    :func:`decoder` with the same `d` is the decoder, which completes images and recognises digits.

    Parameters
    ----------
    d : int
        Number of latent dimensions.
    image : int
        Index of the image; in scikit-learn's data, 0 is a zero and 7 a seven.
    seen : {"top", "bottom", "left", "right"}
        Observed half of the image.
    """
    network = decoder(d)
    pixels = seen_pixels(seen, network.side)
    observed = network.images[image, pixels]

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        visible = network.decode(theta, pixels)
        return visible + NOISE * rng.standard_normal(visible.shape)

    return SimulatorExample(
        name=f"masked_digits_{d}", simulate=simulate, observed=observed, epsilon=1.0,
        prior=lambda: [pm.Uniform("theta", -HALF_WIDTH, HALF_WIDTH, shape=d)],
        cube=lambda u: HALF_WIDTH * (2.0 * u - 1.0), shapes={"theta": (d,)},
    )  # fmt: skip
