"""Local quadratic fits of the logarithm of a mean."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from scipy import special

__all__ = ["LocalQuadratic", "fit_log_quadratic", "n_terms"]

_STEPS, _HALVINGS = 50, 20
#: Predicted decrease of the loss below which Newton's method stops.
_GAIN = 1e-8
#: Maximum logarithm of a mean, to prevent overflow.
_LARGEST = 50.0
#: Weight of the penalty on curvatures that differ from one in the units of the window.
_RIDGE = 1e-3


class LocalQuadratic(NamedTuple):
    r"""Local fit :math:`\log E[s(x)] = a + g^\top y + \tfrac12 y^\top C y` with :math:`y = R^{-1} (x - x_0)`.

    Attributes
    ----------
    centre : array (D,)
        Centre x_0.
    root : array (D, D)
        Matrix R.
    radius : float
        Maximum length of y; other draws are not used.
    diagonal : bool
        Whether C is diagonal.
    cubic : bool
        Whether the fit includes terms y_i^3, which come last.
    coefficients : array (p,)
    covariance : array (p, p)
        Sandwich covariance of the coefficients, valid even if the mean is not log-quadratic.
    rows : array of int (m,)
        Draws in the window.
    influence : array (m, p)
        Influence of each of these draws on the coefficients; the covariance is that of the sum.
    effective : float
        Effective number of labels, :math:`(\sum w s)^2 / \sum (w s)^2`: the number of 1s if all others are 0.
    """

    centre: np.ndarray
    root: np.ndarray
    radius: float
    diagonal: bool
    cubic: bool
    coefficients: np.ndarray
    covariance: np.ndarray
    rows: np.ndarray
    influence: np.ndarray
    effective: float

    def to_units(self, x: np.ndarray) -> np.ndarray:
        """Return points (n, D) in units of the window, y (n, D)."""
        return np.linalg.solve(self.root, (x - self.centre).T).T

    def values(self, y: np.ndarray) -> np.ndarray:
        """Return logarithms (n,) of the mean at y (n, D)."""
        return _terms(y, self.diagonal, self.cubic) @ self.coefficients

    def value_terms(self, y: np.ndarray) -> np.ndarray:
        """Return all terms (p,) at one point (D,)."""
        return _terms(y[None], self.diagonal, self.cubic)[0]

    def gradient_terms(self, y: np.ndarray) -> np.ndarray:
        """Return derivatives (D, p) of all terms at one point (D,)."""
        h = 1e-6 * np.eye(len(y))
        above, below = (_terms(y + sign * h, self.diagonal, self.cubic) for sign in (1.0, -1.0))
        return (above - below) / 2e-6

    def curvature(self) -> np.ndarray:
        """Return -C (D, D)."""
        d = len(self.centre)
        out, second = np.zeros((d, d)), self.coefficients[1 + d :]
        out[np.diag_indices(d)] = -2.0 * second[:d]
        if not self.diagonal:
            i, j = np.triu_indices(d, 1)
            out[i, j] = out[j, i] = -second[d : d + len(i)]
        return out

    def skewness(self) -> float:
        """Return the p-value of a Wald test of the cubic terms; it is small if the peak is skewed."""
        d = len(self.centre)
        found = self.coefficients[-d:]
        return float(special.chdtrc(d, found @ np.linalg.pinv(self.covariance[-d:, -d:]) @ found))


def n_terms(n_dim: int, *, diagonal: bool = False, cubic: bool = False) -> int:
    """Return the number of coefficients p."""
    off = 0 if diagonal else n_dim * (n_dim - 1) // 2
    return 1 + 2 * n_dim + off + (n_dim if cubic else 0)


def fit_log_quadratic(
    x: np.ndarray,
    labels: np.ndarray,
    centre: np.ndarray,
    root: np.ndarray,
    radius: float,
    *,
    diagonal: bool = False,
    cubic: bool = False,
) -> LocalQuadratic | None:
    r"""Fit the mean of labels in a window by a Poisson likelihood.

    Points have the weights :math:`1 - |y|^2 / r^2`, and nothing is assumed about where they were drawn. The fit
    estimates the mean of labels with any distribution; that labels are not Poisson affects only the covariance.

    Parameters
    ----------
    x : array (n, D)
    labels : array (n,)
        Nonnegative.
    centre : array (D,)
    root : array (D, D)
        Guess of the width of the peak: a root of the inverse of its negative second derivatives.
    radius : float
        Radius of the window, in units of `root`.
    diagonal, cubic : bool
        Leave out products of different coordinates; include cubes.

    Returns
    -------
    LocalQuadratic or None
        None if no label in the window is positive.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.map_tree.log_quadratic import fit_log_quadratic
    >>> x = np.linspace(-2.0, 2.0, 50)[:, None]
    >>> found = fit_log_quadratic(
    ...     x, np.exp(-0.5 * (x[:, 0] - 0.3) ** 2), np.zeros(1), np.eye(1), 2.0
    ... )
    >>> found.coefficients.round(3)
    array([-0.045,  0.3  , -0.5  ])
    """
    d = len(centre)
    y = np.linalg.solve(root, (x - centre).T).T
    squares = np.einsum("ij,ij->i", y, y) / radius**2
    inside = squares < 1.0
    w, f, s = 1.0 - squares[inside], _terms(y[inside], diagonal, cubic), labels[inside]
    total = float(w @ s)
    if not total > 0.0:
        return None
    shares = w * s / total
    effective = 1.0 / float(shares @ shares)
    guess, ridge = np.zeros(f.shape[1]), np.full(f.shape[1], _RIDGE)
    guess[1 + d : 1 + 2 * d], ridge[0] = -0.5, 0.0
    start = guess.copy()
    start[0] = math.log(total / float(w @ np.exp(f @ guess)))
    beta = _minimise(f, s, w, guess, ridge, start)
    mean = np.exp(np.minimum(f @ beta, _LARGEST))
    inverse = np.linalg.inv(_hessian(f, w * mean, ridge))
    influence = f * (w * (s - mean))[:, None] @ inverse
    return LocalQuadratic(
        centre, root, radius, diagonal, cubic, beta, influence.T @ influence,
        np.flatnonzero(inside), influence, effective,
    )  # fmt: skip


def _terms(y: np.ndarray, diagonal: bool, cubic: bool) -> np.ndarray:
    """Return 1, y_i, y_i^2, y_i y_j, y_i^3 as columns."""
    columns = [np.ones((len(y), 1)), y, y**2]
    if not diagonal:
        i, j = np.triu_indices(y.shape[1], 1)
        columns.append(y[:, i] * y[:, j])
    if cubic:
        columns.append(y**3)
    return np.concatenate(columns, axis=1)


def _hessian(f: np.ndarray, weights: np.ndarray, ridge: np.ndarray) -> np.ndarray:
    out = (f * weights[:, None]).T @ f + np.diag(ridge)
    out[np.diag_indices(len(out))] += 1e-9 * np.trace(out) / len(out)
    return out


def _minimise(
    f: np.ndarray,
    s: np.ndarray,
    w: np.ndarray,
    guess: np.ndarray,
    ridge: np.ndarray,
    beta: np.ndarray,
) -> np.ndarray:
    """Minimise the convex loss by Newton's method with step halving."""

    def loss(b: np.ndarray) -> float:
        eta = np.minimum(f @ b, _LARGEST)
        return float(w @ (np.exp(eta) - s * eta) + 0.5 * ridge @ (b - guess) ** 2)

    now = loss(beta)
    for _ in range(_STEPS):
        mean = np.exp(np.minimum(f @ beta, _LARGEST))
        downhill = f.T @ (w * (s - mean)) - ridge * (beta - guess)
        step = np.linalg.solve(_hessian(f, w * mean, ridge), downhill)
        gain, size = float(downhill @ step), 1.0
        if gain < _GAIN:
            break
        for _ in range(_HALVINGS):
            new = loss(beta + size * step)
            if new <= now - 1e-4 * size * gain:
                break
            size *= 0.5
        else:
            break
        beta, now = beta + size * step, new
    return beta
