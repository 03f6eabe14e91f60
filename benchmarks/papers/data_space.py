"""Control variates in data space, for the rows of an ARCH model.

The log-likelihood l of a row depends on its squared return u and on the variance s, a linear function of its squared lags.
It is expanded to second order in the data y = (u, squared lags) around the mean of the rows in the same bin, with bins as in
Chen & Ghahramani (2016), section 3.4, eq. 11, and appendix C.2: quantiles of the two directions along which the gradient
in the data varies most, without outlying rows.
"""

from __future__ import annotations

import numpy as np

from scipy.special import gammaln

from models.arch_order import Rows

_SUBSAMPLE = 5_000
#: Share of the gradient's variance below which a direction is considered a rounding error.
_NEGLIGIBLE = 1e-10


class DataControl:
    """Second-order expansion of rows in their data.

    Parameters
    ----------
    rows : Rows
    theta : (q + 2,) array
        Parameters alpha and nu at which gradients choose the directions of the bins.
    bins : int
        Quantile bins of each direction.
    outliers : float
        Share of the rows that have no control variate.
    rng : numpy.random.Generator
        Chooses the rows whose gradients are taken, if there are many.
    """

    def __init__(
        self, rows: Rows, theta: np.ndarray, bins: int, outliers: float, rng: np.random.Generator
    ):
        self.y = np.column_stack([rows.r**2, rows.squares])
        some = np.arange(len(self.y))
        if some.size > _SUBSAMPLE:
            some = np.sort(rng.choice(some.size, size=_SUBSAMPLE, replace=False))
        summary = self.y @ leading_axes(self.y[some], gradients(self.y[some], theta))
        label = quantile_bins(summary, bins)
        self.exact = outlying_rows(summary, label, outliers)
        raced = np.setdiff1d(np.arange(len(label)), self.exact)
        label = label[raced]
        count = np.maximum(np.bincount(label), 1)
        means = np.column_stack([np.bincount(label, weights=z) / count for z in self.y[raced].T])
        self.reference = np.full(self.y.shape, np.nan)
        self.reference[raced] = means[label]

    def residuals(self, theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return log-likelihoods (m,) of rows that are not outliers, less their expansions."""
        y, reference = self.y[rows], self.reference[rows]
        return log_likelihoods(y, theta) - expansions(y, reference, theta)


def log_likelihoods(y: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return log-likelihoods (m,) of data (m, q + 1), at parameters alpha (q + 1,) and nu."""
    nu, u, s = theta[-1], y[:, 0], theta[0] + y[:, 1:] @ theta[1:-1]
    constant = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi)
    return constant - 0.5 * np.log(s) - 0.5 * (nu + 1.0) * np.log1p(u / (nu * s))


def slopes(y: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivatives (m,) of log-likelihoods in u and in the variance s."""
    nu, u, s = theta[-1], y[:, 0], theta[0] + y[:, 1:] @ theta[1:-1]
    w = nu * s + u
    return -0.5 * (nu + 1.0) / w, 0.5 * nu * (1.0 / s - (nu + 1.0) / w)


def gradients(y: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return gradients (m, q + 1) of log-likelihoods in the data."""
    in_u, in_s = slopes(y, theta)
    return np.column_stack([in_u, in_s[:, None] * theta[1:-1]])


def expansions(y: np.ndarray, reference: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return second-order expansions (m,) of log-likelihoods at data y around references (m, q + 1)."""
    nu, s = theta[-1], theta[0] + reference[:, 1:] @ theta[1:-1]
    w = nu * s + reference[:, 0]
    in_u, in_s = slopes(reference, theta)
    du, ds = (y - reference)[:, 0], (y - reference)[:, 1:] @ theta[1:-1]
    second = 0.25 * (nu + 1.0) * ((du + nu * ds) / w) ** 2 - 0.25 * nu * (ds / s) ** 2
    return log_likelihoods(reference, theta) + in_u * du + in_s * ds + second


def leading_axes(y: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Return at most two directions (q + 1, S) in data space along which the gradient in the data varies."""
    scale = y.std(axis=0)
    scale[scale == 0.0] = 1.0
    spread = (gradients - gradients.mean(axis=0)) * scale
    values, vectors = np.linalg.eigh(spread.T @ spread)
    used = values[-2:] > _NEGLIGIBLE * np.square(gradients * scale).sum()
    axes = vectors[:, -2:][:, used][:, ::-1]
    return axes / scale[:, None]


def quantile_bins(summary: np.ndarray, bins: int) -> np.ndarray:
    """Assign rows to the non-empty cells of a grid of marginal quantiles of summaries (N, S).

    >>> import numpy as np
    >>> from benchmarks.papers.data_space import quantile_bins
    >>> quantile_bins(np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]]), 3)
    array([0, 0, 1, 1, 2, 2])
    """
    labels = np.zeros(len(summary), dtype=np.int64)
    levels = np.arange(1, bins) / bins
    for z in summary.T:
        labels = labels * bins + np.searchsorted(np.quantile(z, levels), z, side="right")
    return np.unique(labels, return_inverse=True)[1]


def outlying_rows(summary: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
    """Return a share of the rows, sorted: those farthest from the mean of their bin in the standardised summary.

    >>> import numpy as np
    >>> from benchmarks.papers.data_space import outlying_rows
    >>> outlying_rows(np.array([[0.0], [0.1], [0.2], [9.0], [5.0]]), np.array([0, 0, 0, 0, 1]), 0.2)
    array([3])
    """
    count, square = np.bincount(labels), np.zeros(len(summary))
    for z in summary.T:
        scale = z.std()
        if scale > 0.0:
            mean = np.bincount(labels, weights=z) / np.maximum(count, 1)
            square += np.square((z - mean[labels]) / scale)
    order = np.argsort(-square, kind="stable")[: int(share * len(summary))]
    return np.sort(order[square[order] > 0.0])
