"""Step-function posterior of a likelihood-free run as a callable density."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import xarray as xr

from numpy.typing import ArrayLike

__all__ = ["StepDensity", "step_density"]

#: Maximum number of comparisons of points with boxes at once.
_AT_ONCE = 2**22
_ENDS = ("lower", "upper")


class StepDensity:
    """Posterior whose density relative to the prior is constant in each box.

    Made by :func:`step_density`, which describes how coarse it is.

    Attributes
    ----------
    coordinates : list of str
        Parameter elements that the coordinates of the cube belong to.
    lower, upper : arrays (K, D)
        Corners of the boxes in the unit cube, where the prior is uniform.
    mass : array (K,)
        Posterior masses of the boxes, which sum to one.
    """

    def __init__(self, boxes: xr.Dataset):
        self.coordinates: list[str] = [str(c) for c in boxes.coords["coordinate"].values]
        self.lower, self.upper = boxes["lower"].values, boxes["upper"].values
        self.mass = boxes["mass"].values
        self._ends = None
        if "atom_lower" in boxes:
            self._ends = [(boxes[f"theta_{e}"].values, boxes[f"atom_{e}"].values) for e in _ENDS]
            self._whole = boxes["whole_numbers"].values.astype(bool)

    def cube(self, u: np.ndarray) -> np.ndarray:
        """Return the density (n,) at points (n, D) of the unit cube; it integrates to one."""
        u = np.asarray(u, dtype=float)
        if u.ndim != 2 or u.shape[1] != len(self.coordinates):
            raise ValueError(f"u must have shape (n, {len(self.coordinates)}), got {u.shape}.")
        _refuse_nan("u", u)
        # Boxes are half-open, except at the upper end of the cube.
        last = self.upper == 1.0

        def shares(points: np.ndarray) -> np.ndarray:
            inside: np.ndarray = (points >= self.lower) & (
                (points < self.upper) | (last & (points == 1.0))
            )
            return inside

        return self._mean(u, shares)

    def ratio(self, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the ratio (n,) of posterior to prior density.

        For whole numbers, and other values with a positive prior probability, it is the ratio of probabilities: the
        mean of the cube's density over all points that map to the value.

        Parameters
        ----------
        parameters : mapping of str to array (n,)
            Values of every element, such as ``{"mu[0]": ..., "sigma": ...}``. The ratio is zero outside the support
            of the prior.

        Raises
        ------
        TypeError, ValueError
            If elements are missing or not numeric, or depend on each other in the prior: boxes of the cube are then
            not boxes of parameters.
        """
        if self._ends is None:
            raise ValueError(
                "parameters depend on each other in the prior: boxes are on the unit cube only; use cube(u)."
            )
        theta = self._columns(parameters)
        (low, below_low), (high, below_high) = self._ends

        def shares(points: np.ndarray) -> np.ndarray:
            whole = ~self._whole | (points == np.floor(points))
            share: np.ndarray = whole * (
                _below(points, high, below_high) - _below(points, low, below_low)
            )
            return share

        return self._mean(theta, shares)

    def _columns(self, parameters: Mapping[str, ArrayLike]) -> np.ndarray:
        """Return the values (n, D) after checking them."""
        if not isinstance(parameters, Mapping):
            raise TypeError(
                f"parameters must map {', '.join(map(repr, self.coordinates))} to arrays, got {parameters!r}."
            )
        missing = [c for c in self.coordinates if c not in parameters]
        if missing:
            raise ValueError(f"parameters lacks {', '.join(missing)}.")
        columns = [_column(c, parameters[c]) for c in self.coordinates]
        sizes = [len(column) for column in columns]
        if len(set(sizes)) > 1:
            told = ", ".join(f"{c}: {n}" for c, n in zip(self.coordinates, sizes, strict=True))
            raise ValueError(f"parameters must have arrays of one length, got {told}.")
        return np.stack(columns, axis=1)

    def _mean(self, x: np.ndarray, shares: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return sums (n,) of box densities, weighted by the shares (m, K, D) of points (m, 1, D) in boxes."""
        density = self.mass / np.prod(self.upper - self.lower, axis=1)
        out = np.zeros(len(x))
        step = max(1, _AT_ONCE // max(1, self.lower.size))
        for start in range(0, len(x), step):
            some = x[start : start + step, None, :]
            out[start : start + step] = shares(some).prod(axis=2) @ density
        return out


def _below(points: np.ndarray, ends: np.ndarray, atom: np.ndarray) -> np.ndarray:
    """Return the share of each point below `ends`: 0 or 1, or `atom` for points equal to them."""
    return np.where(points == ends, atom, points < ends)


def _column(name: str, values: ArrayLike) -> np.ndarray:
    try:
        found = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(f"parameters[{name!r}] must be numbers, got {values!r}.") from None
    if found.ndim > 1:
        raise ValueError(
            f"parameters[{name!r}] must be a number or have shape (n,), got {found.shape}."
        )
    _refuse_nan(f"parameters[{name!r}]", found)
    return np.atleast_1d(found)


def _refuse_nan(name: str, values: np.ndarray) -> None:
    missing = int(np.isnan(values).sum())
    if missing:
        raise ValueError(f"{name} must not be nan, {missing} of {values.size} are.")


def step_density(data: xr.DataTree) -> StepDensity:
    """Return the step-function posterior of :func:`sample_abc_tree`.

    It is coarse: one box per 20 accepted simulations, at least two. Half of the simulations choose the boxes; the
    others determine their masses. With 500 accepted simulations there are 25 boxes in total, which in many
    dimensions are far wider than the posterior. The density shows where the posterior is, and regions that the
    draws miss. For means and intervals use the draws. It is fitted to simulations accepted before any adjustment,
    such as ``adjust="linear"``.

    Parameters
    ----------
    data : xarray.DataTree
        Result with a group ``step_posterior``.

    Returns
    -------
    StepDensity

    Raises
    ------
    TypeError, ValueError
        If `data` is not a DataTree, or has no such group.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> import numpy as np
    >>> from scipy import stats
    >>> def simulator(rng, mu):
    ...     return rng.normal(mu, 1.0)
    >>> problem = amc.SimulatorProblem({"mu": stats.uniform(-5.0, 10.0)}, simulator, observed=2.0)
    >>> found = amc.sample_abc_tree(
    ...     max_simulations=10_000, model=problem, batched=True, random_seed=1, progressbar=False
    ... )
    >>> density = amc.step_density(found)
    >>> bool(density.ratio({"mu": [2.0]}) > 5.0 * density.ratio({"mu": [-1.0]}))
    True
    """
    if not isinstance(data, xr.DataTree):
        raise TypeError(f"data must be a DataTree, got {type(data).__name__}.")
    if "step_posterior" not in data.children:
        raise ValueError("data has no group 'step_posterior'; pass what sample_abc_tree returned.")
    return StepDensity(data["step_posterior"].to_dataset())
