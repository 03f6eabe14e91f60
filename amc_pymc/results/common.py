"""What results have in common: groups, intervals and limits of estimates."""

from __future__ import annotations

import math
import textwrap

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from arviz_stats.base import array_stats
from numpy.typing import ArrayLike

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


def pareto_k(log_weights: np.ndarray) -> float:
    """Return the generalised Pareto shape of the largest weights; nan for fewer than 25, or if they are equal."""
    with np.errstate(over="ignore", invalid="ignore"):
        logs = log_weights - log_weights.max(initial=-np.inf)
    logs = logs[logs > -np.inf]
    if logs.size < 25:
        return math.nan
    try:
        return float(np.squeeze(array_stats.psislw(-logs)[1]))
    except ValueError:  # all weights in the tail are equal
        return math.nan


def with_error(value: float, error: float, least: int = 0) -> str:
    """Format a number and its standard error to two digits of the error.

    Examples
    --------
    >>> from amc_pymc.results import with_error
    >>> with_error(-1234.5678, 0.0321), with_error(0.5, float("nan"))
    ('-1234.568 ± 0.032', '0.500 ± ?')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    if not math.isfinite(error):
        return f"{value:.3f} ± ?"
    digits = 3 if error <= 0.0 else min(max(1 - math.floor(math.log10(error)), least), 6)
    return f"{value:.{digits}f} ± {error:.{digits}f}"


class CompactTable(pd.DataFrame):  # type: ignore[misc]  # pandas has no annotations
    """A table whose text has what a reader needs in 80 columns; all columns are there as ever.

    Parts of it are plain tables.
    """

    _metadata = ["summary"]
    #: Makes the table that is shown, and notes below it by row.
    summary: Callable[[pd.DataFrame], tuple[pd.DataFrame, dict[Any, str]]] | None

    @classmethod
    def of(
        cls,
        table: pd.DataFrame,
        summary: Callable[[pd.DataFrame], tuple[pd.DataFrame, dict[Any, str]]],
    ) -> CompactTable:
        """Give a table a summary."""
        found = cls(table)
        found.summary = summary
        return found

    @property
    def _constructor(self) -> Any:
        return pd.DataFrame

    def __repr__(self) -> str:
        """Return the summary."""
        if self.summary is None:
            return str(super().__repr__())
        shown, notes = self.summary(pd.DataFrame(self))
        lines = [shown.to_string()]
        for name, text in notes.items():
            if text:
                lines += textwrap.wrap(f"{name}: {text}", 80, subsequent_indent="    ")
        return "\n".join(lines)
