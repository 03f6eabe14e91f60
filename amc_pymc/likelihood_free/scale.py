"""Scales for comparing summary statistics, estimated from a pilot and then fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scipy.linalg import solve_triangular

__all__ = ["FEWEST_PILOTS", "ScaleName", "SummaryScale", "centre_and_spread", "pilot_scale"]

ScaleName = Literal["mad", "whiten"]

#: Minimum simulations for estimating a scale.
FEWEST_PILOTS = 30
#: Median absolute deviation of a normal variable, over its standard deviation.
_MAD_OF_NORMAL = 0.6744897501960817
#: Absolute value at which standardised summaries are clipped before their correlations are estimated.
_FAR = 3.0


@dataclass(frozen=True)
class SummaryScale:
    r"""Distance of summary statistics from those of the data.

    .. math:: d = \lVert L^{-1} (s - s_{obs}) / \sigma \rVert

    Attributes
    ----------
    observed : array (S,)
        Summary statistics of the data.
    spread : array (S,)
        Scales :math:`\sigma`, in units of the summary statistics; inf for those that are left out.
    root : array (S, S) or None
        Lower triangular L, where L L' is the correlation matrix; None for the identity.
    """

    observed: np.ndarray
    spread: np.ndarray
    root: np.ndarray | None = None

    @property
    def matrix(self) -> np.ndarray:
        """Matrix (S, S); the distance is the length of a gap, as a row vector, times this matrix."""
        with np.errstate(divide="ignore"):
            scaled = np.diag(1.0 / self.spread)
        if self.root is None:
            return scaled
        whole: np.ndarray = (
            scaled @ solve_triangular(self.root, np.eye(len(self.spread)), lower=True).T
        )
        return whole

    def distance(self, summaries: np.ndarray) -> np.ndarray:
        """Return distances (n,) of summary statistics (n, S) from the data; inf where any is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            z = (summaries - self.observed) / self.spread
            good = np.isfinite(summaries).all(axis=1)
            out = np.full(len(z), np.inf)
            z = z[good]
            if self.root is not None:
                z = solve_triangular(self.root, z.T, lower=True).T
            out[good] = np.sqrt(np.einsum("ij,ij->i", z, z))
        return out


def pilot_scale(summaries: np.ndarray, observed: np.ndarray, name: ScaleName) -> SummaryScale:
    """Estimate the scale of summary statistics from all simulations of a pilot, near the data or not.

    Parameters
    ----------
    summaries : array (n, S)
        Rows that are not finite are left out.
    observed : array (S,)
    name : {"mad", "whiten"}
        "mad": median absolute deviations divided by 0.674, which are standard deviations for normal variables
        (Prangle 2017, doi:10.1214/16-BA1002); the standard deviation if more than half of the values are equal.
        "whiten": also removes correlations, estimated from statistics clipped at three deviations with the
        shrinkage of Ledoit & Wolf (2004), doi:10.1016/S0047-259X(03)00096-4.

    Raises
    ------
    ValueError
        If too few rows are finite, or no statistic varies.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.scale import pilot_scale
    >>> s = np.linspace(-1.0, 1.0, 101)[:, None] * [1.0, 100.0]
    >>> scale = pilot_scale(s, np.zeros(2), "mad")
    >>> scale.spread.round(2)
    array([ 0.74, 74.13])
    >>> scale.distance(np.array([[0.0, 74.13]])).round(2)
    array([1.])
    """
    finite = summaries[np.isfinite(summaries).all(axis=1)]
    if len(finite) < FEWEST_PILOTS:
        raise ValueError(
            f"distance_scale={name!r} needs {FEWEST_PILOTS} simulations with finite summary statistics in the "
            f"first batch, there are {len(finite)} of {len(summaries)}."
        )
    centre, spread = centre_and_spread(finite)
    if not np.isfinite(spread).any():
        raise ValueError(
            f"distance_scale={name!r}: no summary statistic varies in {len(finite)} simulations from the prior."
        )
    if name == "mad":
        return SummaryScale(observed, spread)
    return SummaryScale(observed, spread, _root(np.clip((finite - centre) / spread, -_FAR, _FAR)))


def centre_and_spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return medians and scales (S,) of values (n, S): median absolute deviations, or else standard deviations.

    Scales are those of normal variables, and inf for columns that do not vary.
    """
    centre = np.median(values, axis=0)
    spread = np.median(np.abs(values - centre), axis=0) / _MAD_OF_NORMAL
    spread = np.where(spread > 0.0, spread, values.std(axis=0))
    return centre, np.where(spread > 1e-12 * np.abs(centre), spread, np.inf)


def _root(z: np.ndarray) -> np.ndarray:
    """Return the Cholesky factor of the correlations of z (n, S); identity rows for constant columns."""
    from sklearn.covariance import ledoit_wolf

    varies = z.std(axis=0) > 0.0
    out = np.eye(z.shape[1])
    held = z[:, varies]
    covariance, _ = ledoit_wolf(held)
    spread = np.sqrt(np.diagonal(covariance))
    out[np.ix_(varies, varies)] = np.linalg.cholesky(covariance / np.outer(spread, spread))
    return out
