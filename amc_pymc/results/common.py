"""What results have in common: groups, intervals and limits of estimates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr

from numpy.typing import ArrayLike

__all__ = ["LARGEST_K", "listed", "normal_interval", "result_group"]

#: Pareto shape of the largest weights above which a few of them dominate the sum.
LARGEST_K = 0.7


def normal_interval(centre: ArrayLike, error: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of 95 % intervals of normal estimates; infinite if estimate or error are unknown.

    Parameters
    ----------
    centre, error : arrays (...)
        Estimates and their standard errors.

    Returns
    -------
    lower, upper : arrays (...)

    Examples
    --------
    >>> from amc_pymc.results import normal_interval
    >>> lower, upper = normal_interval([2.0, 3.0], [0.1, float("nan")])
    >>> lower.round(3).tolist(), upper.round(3).tolist()
    ([1.804, -inf], [2.196, inf])
    """
    centre, error = np.asarray(centre, float), np.asarray(error, float)
    known = np.isfinite(centre) & np.isfinite(error)
    half = np.where(known, 1.959964 * error, np.inf)
    centre = np.where(known, centre, 0.0)
    return centre - half, centre + half


def result_group(
    dt: xr.DataTree, group: str, variables: Iterable[str], source: str, *, name: str = "dt"
) -> xr.Dataset:
    """Return a group of a result after checking that it has the required variables.

    Parameters
    ----------
    dt : DataTree
    group : str
    variables : iterable of str
    source : str
        Function that returns such results, for messages.
    name : str
        Name of the argument, for messages.
    """
    if not isinstance(dt, xr.DataTree):
        raise TypeError(
            f"{name} must be the xarray.DataTree that {source} returns, got {type(dt).__name__}."
        )
    if group not in dt.children:
        raise ValueError(
            f"{name} has no group {group!r}, only {sorted(map(str, dt.children))}; pass what "
            f"{source} returned, with all its groups."
        )
    data = dt[group].to_dataset()
    missing = [v for v in variables if v not in data]
    if missing:
        raise ValueError(
            f"Group {group!r} of {name} has no {', '.join(missing)}; pass what {source} returned."
        )
    return data


def listed(names: Iterable[Any], most: int = 8) -> str:
    """Return the first names, quoted, and the number of the others."""
    names = list(names)
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"
