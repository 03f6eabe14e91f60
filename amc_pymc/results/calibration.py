"""Calibration of posterior intervals over repeated experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy  # whose statistics are imported when they are used
import xarray as xr

from amc_pymc.results.common import result_group
from amc_pymc.results.decision_error import check_confidence

__all__ = ["calibration"]

_SOURCE = "pymc.sample or a sampler of amc_pymc"


def calibration(
    posteriors: Sequence[xr.DataTree],
    truths: Sequence[Mapping[str, Any]],
    *,
    levels: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    confidence: float = 0.95,
) -> xr.DataTree:
    r"""Compare the coverage of posterior intervals with their level, over repeated experiments.

    Each experiment simulates data from known parameters, drawn from the prior, and infers them. A central interval
    of level :math:`p` of an exact posterior then holds the true value with probability :math:`p` (Cook, Gelman &
    Rubin 2006). An interval that covers too often is too wide, one that covers too seldom is too narrow or
    misplaced.

    Parameters
    ----------
    posteriors : sequence of DataTree (n,)
        Results with a group ``posterior``, one of each experiment.
    truths : sequence of mapping of {str : scalar or array} (n,)
        True values by variable, in the shape of the variable. Other variables are left out.
    levels : sequence of float (L,)
        Levels of the intervals, in (0, 1).
    confidence : float
        Probability that the coverage of exact intervals is between the bounds of ``chance``, in (0, 1).

    Returns
    -------
    DataTree
        ``coverage``: share of the experiments whose interval holds the true value, and ``width``: mean width of
        the intervals, both with the variables of `truths` and a dimension ``level``. ``chance``: ``lower`` and
        ``upper`` (level), the bounds of the coverage of exact intervals. Attribute ``experiments``: n.

    Raises
    ------
    TypeError, ValueError
        If numbers of results and truths differ or are zero, a result has no draws of a variable, shapes differ, or
        a level is not in (0, 1).

    See Also
    --------
    amc_pymc.plot_calibration : plot of this result.

    References
    ----------
    Cook, Gelman & Rubin (2006), Validation of software for Bayesian models using posterior quantiles, Journal of
    Computational and Graphical Statistics 15:675-692, doi:10.1198/106186006X136976.

    Examples
    --------
    The mean of a normal distribution, inferred from one observation under a flat prior:

    >>> import numpy as np
    >>> from arviz_base import from_dict
    >>> from amc_pymc.results import calibration
    >>> rng = np.random.default_rng(1)
    >>> mu = rng.uniform(-10.0, 10.0, size=200)
    >>> posteriors = [
    ...     from_dict({"posterior": {"mu": rng.normal(rng.normal(m, 1.0), 1.0, size=(1, 1000))}})
    ...     for m in mu
    ... ]
    >>> found = calibration(posteriors, [{"mu": m} for m in mu], levels=[0.5, 0.8])
    >>> found["coverage"]["mu"].values.tolist(), found["chance"]["upper"].values.tolist()
    ([0.475, 0.795], [0.57, 0.855])
    """
    p = _levels(levels)
    check_confidence(confidence)
    posteriors, truths = list(posteriors), list(truths)
    if not posteriors or len(posteriors) != len(truths):
        raise ValueError(
            "posteriors and truths must have one element for each experiment and at least one, got "
            f"{len(posteriors)} and {len(truths)}."
        )
    _check_names(truths)
    coverage, width = {}, {}
    for name in truths[0]:
        draws = [_draws(dt, name, i) for i, dt in enumerate(posteriors)]
        shape = draws[0].isel(sample=0, drop=True)
        true = [_value(t[name], shape, f"truths[{i}][{name!r}]") for i, t in enumerate(truths)]
        tails = 0.5 * (1.0 - p)
        lower, upper = (
            np.array([np.quantile(d.values, q, axis=-1) for d in draws])
            for q in (tails, 1.0 - tails)
        )
        inside = (lower <= np.array(true)[:, None]) & (np.array(true)[:, None] <= upper)
        dims = ("level", *shape.dims)
        coverage[name] = dims, inside.mean(axis=0)
        width[name] = dims, (upper - lower).mean(axis=0)
    n = len(posteriors)
    exact, tail = scipy.stats.binom(n, p), 0.5 * (1.0 - confidence)
    chance = {k: ("level", exact.ppf(q) / n) for k, q in (("lower", tail), ("upper", 1.0 - tail))}
    at = {"level": p}
    tree = xr.DataTree.from_dict(
        {
            "coverage": xr.Dataset(coverage, at),
            "width": xr.Dataset(width, at),
            "chance": xr.Dataset(chance, at, {"confidence": confidence}),
        }
    )
    tree.attrs = {"experiments": n}
    return tree


def _check_names(truths: list[Mapping[str, Any]]) -> None:
    for i, truth in enumerate(truths):
        if not isinstance(truth, Mapping) or not truth:
            raise TypeError(f"truths[{i}] must map variables to their values, got {truth!r}.")
        if set(truth) != set(truths[0]):
            raise ValueError(
                f"truths must name the same variables, got {list(truths[0])} and {list(truth)}."
            )


def _draws(dt: xr.DataTree, variable: str, number: int) -> xr.DataArray:
    """Return all draws of a variable, along the last dimension."""
    group = result_group(dt, "posterior", [variable], _SOURCE, name=f"posteriors[{number}]")
    return group[variable].stack(sample=("chain", "draw")).reset_index("sample", drop=True)


def _value(value: Any, like: xr.DataArray, name: str) -> np.ndarray:
    found = np.asarray(value, float)
    if found.shape != like.shape:
        raise ValueError(
            f"{name} must have the shape {like.shape} of the variable, got {found.shape}."
        )
    return found


def _levels(levels: Sequence[float]) -> np.ndarray:
    found = np.asarray(levels, float)
    if found.ndim != 1 or not found.size or not ((found > 0.0) & (found < 1.0)).all():
        raise ValueError(f"levels must be between 0 and 1, got {levels!r}.")
    return found
