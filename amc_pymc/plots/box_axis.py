"""Axes of coordinates that are cut into cells at the bounds of boxes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Axis", "box_axis"]

#: Absolute value above which bounds count as infinite.
_HUGE = 1e300
#: Maximum number of cells along one coordinate.
MOST_CELLS = 400
#: Ratio of prior densities in the last two cells above which the outermost cell counts as unbounded.
_THIN = 5.0
#: Margin around the draws, relative to their range.
_MARGIN = 0.06


class Axis(NamedTuple):
    """Axis of one coordinate, cut into cells at the bounds of boxes.

    Attributes
    ----------
    label : str
    lower, upper : arrays (K,)
        Bounds of the boxes in the unit cube.
    knots : array (N,)
        All bounds in the cube, ascending.
    knot_places : array (N,)
        Positions of the knots, ascending and finite: on the scale of the parameter, or in the cube.
    edges, places : arrays (C + 1,)
        Knots at the edges of cells (all knots, unless there are too many), and their positions.
    view : (float, float)
        Range shown.
    draws : array (n,) or None
        Draws on the scale of the parameter; None in the cube.
    """

    label: str
    lower: np.ndarray
    upper: np.ndarray
    knots: np.ndarray
    knot_places: np.ndarray
    edges: np.ndarray
    places: np.ndarray
    view: tuple[float, float]
    draws: np.ndarray | None

    @property
    def drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions (K,) of the bounds of the boxes."""
        at = (np.searchsorted(self.knots, ends) for ends in (self.lower, self.upper))
        low, high = (self.knot_places[i] for i in at)
        return low, high


def box_axis(
    label: str,
    lower: np.ndarray,
    upper: np.ndarray,
    theta: tuple[np.ndarray, np.ndarray] | None,
    draws: np.ndarray | None,
    *,
    zoom: bool = True,
) -> Axis:
    """Make the axis of one coordinate.

    The axis is on the scale of the parameter if there are draws, and increasing bounds that depend on
    this coordinate only. Otherwise it is in the unit cube.

    Parameters
    ----------
    label : str
    lower, upper : arrays (K,)
        Bounds of boxes in the cube.
    theta : two arrays (K,), optional
        Bounds on the scale of the parameter. Infinite bounds are truncated at the range of `draws`, and so
        are finite ones in a tail where the prior is very thin.
    draws : array (n,), optional
        Finite draws.
    zoom : bool
        Whether to show only the range of the draws.

    Returns
    -------
    Axis

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.plots.box_axis import box_axis
    >>> cube, theta = np.array([0.0, 0.5, 1.0]), np.array([-np.inf, 0.0, np.inf])
    >>> draws = np.array([-1.0, 3.0])
    >>> found = box_axis("mu", cube[:-1], cube[1:], (theta[:-1], theta[1:]), draws)
    >>> found.places.round(2), found.edges
    (array([-1.24,  0.  ,  3.24]), array([0. , 0.5, 1. ]))
    """
    ends = np.concatenate([lower, upper])
    knots, first, inverse = np.unique(ends, return_index=True, return_inverse=True)
    places, view = knots, (float(knots[0]), float(knots[-1]))
    found = None if theta is None or draws is None else _places(theta, first, inverse)
    if found is None:
        draws = None
    else:
        assert draws is not None
        places, view = _cut(_without_ends(knots, found), (found[0], found[-1]), draws, zoom)
    kept = _kept(places, view)
    return Axis(label, lower, upper, knots, places, knots[kept], places[kept], view, draws)


def _places(
    theta: tuple[np.ndarray, np.ndarray], first: np.ndarray, inverse: np.ndarray
) -> np.ndarray | None:
    """Return parameter values at the knots, or None if they are not a strictly increasing function of them."""
    values = np.concatenate(theta).astype(float)
    values = np.where(np.abs(values) > _HUGE, np.copysign(np.inf, values), values)
    at: np.ndarray = values[first]
    with np.errstate(invalid="ignore"):
        rising = bool((np.diff(at) > 0.0).all()) and np.isfinite(at[1:-1]).all()
    if not rising or not np.allclose(values, at[inverse], rtol=1e-9, atol=0.0):
        return None
    return at


def _without_ends(knots: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Replace the outermost values at the knots by infinity if the prior seems to be unbounded.

    Quantile functions are truncated at levels close to 0 and 1, so unbounded priors seem to be bounded.
    An outermost cell counts as unbounded if the prior is much thinner in it than in the next cell, or if
    there are at most two cells, unless the prior is uniform.
    """
    slopes = np.diff(places) / np.diff(knots)
    if len(slopes) > 2:
        first, last = slopes[0] > _THIN * slopes[1], slopes[-1] > _THIN * slopes[-2]
    else:
        first = last = not (len(slopes) == 2 and np.isclose(slopes[0], slopes[1]))
    places = places.copy()
    places[0] = -np.inf if first else places[0]
    places[-1] = np.inf if last else places[-1]
    return places


def _cut(
    places: np.ndarray, bounds: tuple[float, float], draws: np.ndarray, zoom: bool
) -> tuple[np.ndarray, tuple[float, float]]:
    """Truncate infinite values at the knots to the range of the draws; also return the range to show."""
    inner = places[np.isfinite(places)]
    low, high = float(draws.min()), float(draws.max())
    width = high - low
    if width <= 0.0:
        width = float(np.ptp(inner) if len(inner) else 0.0) or max(abs(low), 1.0)
    margin = _MARGIN * width
    # An unbounded cell must begin within the range, so that a part of it remains.
    ends = [low, high, *(inner[[0, -1]] if len(inner) else [])]
    places = np.clip(places, max(min(ends) - margin, bounds[0]), min(max(ends) + margin, bounds[1]))
    if not zoom:
        return places, (float(places[0]), float(places[-1]))
    return places, (max(low - margin, float(places[0])), min(high + margin, float(places[-1])))


def _kept(places: np.ndarray, view: tuple[float, float]) -> np.ndarray:
    """Return the indices of the knots at the edges of cells."""
    n = len(places)
    if n <= MOST_CELLS + 1:
        return np.arange(n)
    near = np.searchsorted(places, np.linspace(*view, MOST_CELLS - 1))
    return np.unique(np.r_[0, near.clip(0, n - 1), n - 1])
