"""Classification of accepted points by mode, for regressions that differ between modes."""

from __future__ import annotations

import numpy as np

__all__ = ["classify", "split_by_sign"]

#: Kurtosis below which a direction counts as bimodal: it is 1 for two points, 1.8 for a uniform distribution, 3
#: for a normal one.
_TWO_MODES = 1.75
#: Maximum number of bimodal directions.
_DIRECTIONS = 2
#: Maximum number of times that points are reclassified.
_AGAIN = 4
#: Fraction of a variance that is added to it.
_RIDGE = 1e-6


def split_by_sign(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Assign points to modes by the signs of bimodal coordinates or principal axes.

    Parameters
    ----------
    x : array (n, D)
    weight : array (n,)
        Weights that sum to one.

    Returns
    -------
    array of int (n,)
        Mode of each point, numbered from zero; all zero if there is only one mode.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.modes import split_by_sign
    >>> x = np.random.default_rng(1).normal(size=(400, 2))
    >>> x[200:, 0] += 10.0
    >>> mode = split_by_sign(x, np.full(400, 1 / 400))
    >>> set(mode[:200].tolist()), set(mode[200:].tolist())
    ({0}, {1})
    """
    d = x.shape[1]
    z = x - weight @ x
    sd = np.sqrt(weight @ z**2)
    z = z / np.where(sd > 0.0, sd, 1.0)
    _, axes = np.linalg.eigh((z * weight[:, None]).T @ z)
    along = np.concatenate([z, z @ axes], axis=1) if d > 1 else z
    squares = weight @ along**2
    with np.errstate(divide="ignore", invalid="ignore"):
        kurtosis = weight @ along**4 / squares**2
    # Axes without variance are excluded; axes similar to one already taken are skipped below.
    kurtosis = np.where(squares > _RIDGE, kurtosis, np.inf)
    out = np.zeros(len(x), int)
    taken: list[np.ndarray] = []
    for k in np.argsort(kurtosis, kind="stable"):
        if not kurtosis[k] < _TWO_MODES or len(taken) == _DIRECTIONS:
            break
        side = along[:, k] > 0.0
        if any(
            abs(weight @ (np.where(side, 1.0, -1.0) * np.where(t, 1.0, -1.0))) > 0.5 for t in taken
        ):
            continue
        taken.append(side)
        out = 2 * out + side
    return np.unique(out, return_inverse=True)[1]


def classify(
    x: np.ndarray, design: np.ndarray, weight: np.ndarray, mode: np.ndarray, least: float
) -> np.ndarray:
    """Reclassify points by linear regressions within modes, with normal residuals.

    This is classification EM for a mixture of regressions.

    Parameters
    ----------
    x : array (n, D)
    design : array (n, P)
    weight : array (n,)
        Weights that sum to one.
    mode : array of int (n,)
        Initial modes.
    least : float
        Minimum number of effective points in a mode; smaller modes are dropped.

    Returns
    -------
    array of int (n,)
    """
    for _ in range(_AGAIN):
        log = []
        for k in range(int(mode.max()) + 1):
            w = np.where(mode == k, weight, 0.0)
            if not (w.any() and w.sum() ** 2 / (w @ w) >= least):
                continue
            share = w.sum()
            w = w / share
            gram = (design * w[:, None]).T @ design
            gram += _RIDGE * np.diag(np.diag(gram) + _RIDGE)
            residuals = x - design @ np.linalg.solve(gram, (design * w[:, None]).T @ x)
            covariance = (residuals * w[:, None]).T @ residuals
            covariance += np.diag(_RIDGE * np.diag(covariance) + 1e-12)
            root = np.linalg.cholesky(covariance)
            z = np.linalg.solve(root, residuals.T)
            log.append(np.log(share) - 0.5 * (z**2).sum(axis=0) - np.log(np.diag(root)).sum())
        if not log:
            return np.zeros(len(x), int)
        found = np.argmax(log, axis=0)
        if np.array_equal(found, mode):
            break
        mode = np.unique(found, return_inverse=True)[1]
    return mode
