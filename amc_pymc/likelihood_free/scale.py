"""Scales for comparing summary statistics, estimated from a pilot and then fixed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amc_pymc.likelihood_free.problem import lengths

#: Minimum simulations for estimating a scale.
FEWEST_PILOTS = 30
#: Median absolute deviation of a normal variable, over its standard deviation.
_MAD_OF_NORMAL = 0.6744897501960817


@dataclass(frozen=True)
class SummaryScale:
    r"""Distance of summary statistics from those of the data.

    .. math:: d = \lVert (s - s_{obs}) / \sigma \rVert

    Attributes
    ----------
    observed : array (S,)
        Summary statistics of the data.
    spread : array (S,)
        Scales :math:`\sigma`, in units of the summary statistics; inf for those that are left out.
    """

    observed: np.ndarray
    spread: np.ndarray

    def distance(self, summaries: np.ndarray) -> np.ndarray:
        """Return distances (n,) of summary statistics (n, S) from the data; inf where any is not finite."""
        good, out = np.isfinite(summaries).all(axis=1), np.full(len(summaries), np.inf)
        with np.errstate(over="ignore"):
            out[good] = lengths((summaries[good] - self.observed) / self.spread)
        return out


def pilot_scale(summaries: np.ndarray, observed: np.ndarray) -> SummaryScale:
    """Estimate the scale of summary statistics from all simulations of a pilot, near the data or not.

    Scales are median absolute deviations divided by 0.674, which are standard deviations for normal variables
    (Prangle 2017, doi:10.1214/16-BA1002), or the standard deviation if more than half of the values are equal.

    Parameters
    ----------
    summaries : array (n, S)
        Rows that are not finite are left out.
    observed : array (S,)

    Raises
    ------
    ValueError
        If too few rows are finite, or no statistic varies.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.scale import pilot_scale
    >>> s = np.linspace(-1.0, 1.0, 101)[:, None] * [1.0, 100.0]
    >>> scale = pilot_scale(s, np.zeros(2))
    >>> scale.spread.round(2)
    array([ 0.74, 74.13])
    >>> scale.distance(np.array([[0.0, 74.13]])).round(2)
    array([1.])
    """
    finite = summaries[np.isfinite(summaries).all(axis=1)]
    if len(finite) < FEWEST_PILOTS:
        raise ValueError(
            f"distance_scale='mad' needs {FEWEST_PILOTS} simulations with finite summary statistics in the first batch, "
            f"there are {len(finite)} of {len(summaries)}."
        )
    _, spread = centre_and_spread(finite)
    if not np.isfinite(spread).any():
        raise ValueError(
            f"distance_scale='mad': no summary statistic varies in {len(finite)} simulations from the prior."
        )
    return SummaryScale(observed, spread)


def centre_and_spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return medians and scales (S,) of values (n, S): median absolute deviations, or else standard deviations.

    Scales are those of normal variables, and inf for columns that do not vary.
    """
    centre = np.median(values, axis=0)
    spread = np.median(np.abs(values - centre), axis=0) / _MAD_OF_NORMAL
    spread = np.where(spread > 0.0, spread, values.std(axis=0))
    return centre, np.where(spread > 1e-12 * np.abs(centre), spread, np.inf)
