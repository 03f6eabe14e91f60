"""Priors from SciPy distributions."""

from __future__ import annotations

import math

from collections.abc import Mapping
from typing import Any

import numpy as np

from amc_pymc.likelihood_free.problem import labels


class ScipyPrior:
    """Prior of independent parameters with SciPy distributions.

    Parameters
    ----------
    prior : mapping of str to distribution, or to (distribution, shape)
        Frozen distributions, such as ``scipy.stats.norm(0, 1)``.

    Attributes
    ----------
    shapes : dict of str to tuple of int
    n_dim : int
        Number of elements of all parameters, D.
    coordinates : list of str

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import stats
    >>> from amc_pymc.likelihood_free.scipy_prior import ScipyPrior
    >>> prior = ScipyPrior({"mu": stats.norm(1.0, 2.0), "x": (stats.norm(1.0, 1.0), 2)})
    >>> prior.coordinates
    ['mu', 'x[0]', 'x[1]']
    >>> prior.values(np.full((1, 3), 0.5))["x"]
    array([[1., 1.]])
    """

    def __init__(self, prior: Mapping[str, Any]):
        self._frozen: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, given in prior.items():
            own, shape = given if isinstance(given, tuple) else (given, None)
            median = _median(own)
            if median is None:
                raise TypeError(
                    f"prior[{name!r}] must be a frozen distribution with ppf and logpdf or logpmf, as "
                    f"scipy.stats.norm(0, 1), or a pair of one and a shape; got {given!r}. For a distribution that "
                    "depends on other parameters, give a pm.Model with a pm.Simulator instead."
                )
            self._frozen[name] = own
            self.shapes[name] = _fitting(name, median, shape)
        self.n_dim = sum(math.prod(s) for s in self.shapes.values())
        self.coordinates = [
            label for name, shape in self.shapes.items() for label in labels(name, shape)
        ]

    def values(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """Return quantiles (n, *shape) of each parameter at points (n, D) of the unit cube."""
        out: dict[str, np.ndarray] = {}
        start = 0
        for name, shape in self.shapes.items():
            stop, frozen = start + math.prod(shape), self._frozen[name]
            found = np.asarray(frozen.ppf(u[:, start:stop].reshape(len(u), *shape)))
            out[name] = found.astype(int) if _is_discrete(frozen) else found
            start = stop
        return out

    def log_density(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the natural log density or mass (n,) of parameters (n, *shape)."""
        total: Any = 0.0
        for name, shape in self.shapes.items():
            frozen = self._frozen[name]
            log = frozen.logpmf if _is_discrete(frozen) else frozen.logpdf
            found = np.asarray(log(values[name]))
            total = total + found.reshape(len(found), math.prod(shape)).sum(axis=1)
        density: np.ndarray = total
        return density


def _median(frozen: Any) -> np.ndarray | None:
    """Return the median of a frozen distribution; None if the object is not one."""
    if not any(callable(getattr(frozen, log, None)) for log in ("logpdf", "logpmf")):
        return None
    try:
        return np.asarray(frozen.ppf(0.5), dtype=float)
    except (AttributeError, TypeError):
        return None


def _is_discrete(frozen: object) -> bool:
    return not callable(getattr(frozen, "logpdf", None))


def _fitting(name: str, median: np.ndarray, given: object) -> tuple[int, ...]:
    """Return the shape of a parameter whose distribution has this median."""
    if np.isnan(median).any():
        raise ValueError(f"prior[{name!r}] has no median: its parameters are impossible.")
    own = np.shape(median)
    if given is None:
        return own
    shape = np.atleast_1d(np.asarray(given, dtype=object)).tolist()
    if any(not isinstance(s, int | np.integer) or isinstance(s, bool) or s < 0 for s in shape):
        raise ValueError(f"prior[{name!r}]: shape must be whole numbers, got {given!r}.")
    try:
        np.broadcast_to(median, shape)
    except ValueError:
        raise ValueError(
            f"prior[{name!r}]: parameters of shape {own} do not fit into {tuple(shape)}."
        ) from None
    return tuple(int(s) for s in shape)
