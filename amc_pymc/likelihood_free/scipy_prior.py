"""Priors from SciPy distributions, which may depend on earlier parameters."""

from __future__ import annotations

import inspect
import math

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amc_pymc.likelihood_free.problem import labels


class ScipyPrior:
    """Prior with parameters that are successive quantiles of SciPy distributions (Rosenblatt transformation).

    Parameters
    ----------
    prior : mapping of str to distribution, or to (distribution, shape)
        Frozen distributions, such as ``scipy.stats.norm(0, 1)``, or functions of earlier parameters, by name, that
        return one, such as ``lambda mu: stats.norm(mu, 1)``. Functions get arrays (n, *shape). If an earlier parameter
        has fewer axes than the new one, axes of length one are inserted after the first, which broadcasts scalars.

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
    >>> prior = ScipyPrior({"mu": stats.norm(1.0, 2.0), "x": (lambda mu: stats.norm(mu, 1.0), 2)})
    >>> prior.coordinates
    ['mu', 'x[0]', 'x[1]']
    >>> prior.values(np.full((1, 3), 0.5))["x"]
    array([[1., 1.]])
    """

    def __init__(self, prior: Mapping[str, Any]):
        self._given: dict[str, Any] = {}
        self._parents: dict[str, list[str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, given in prior.items():
            own, shape = given if isinstance(given, tuple) else (given, None)
            shape = None if shape is None else _shape(name, shape)
            if _is_function(own):
                self._parents[name] = _parents(name, own, list(self._given))
            self._given[name] = own
            median = self._first_median(name, shape)
            if median is None:
                raise TypeError(
                    f"prior[{name!r}] must be a frozen distribution with ppf and logpdf or logpmf, as "
                    "scipy.stats.norm(0, 1), a function of earlier parameters that returns one, or a pair of one and a "
                    f"shape; got {given!r}."
                )
            self.shapes[name] = _fitting(name, median, shape)
        self.n_dim = sum(math.prod(s) for s in self.shapes.values())
        self.coordinates = [
            label for name, shape in self.shapes.items() for label in labels(name, shape)
        ]

    def values(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """Return quantiles (n, *shape) of each parameter at points (n, D) of the unit cube.

        Raises
        ------
        ValueError
            If a parameter that depends on others has no valid distribution for some of their values.
        """
        out: dict[str, np.ndarray] = {}
        start = 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            frozen = self._frozen(name, out, len(shape))
            found = np.asarray(frozen.ppf(u[:, start:stop].reshape(len(u), *shape)))
            if name in self._parents and np.isnan(found).any():
                row = int(np.argwhere(np.isnan(found))[0, 0])
                told = ", ".join(f"{p}={out[p][row]}" for p in self._parents[name])
                raise ValueError(f"prior[{name!r}] is no distribution for {told}.")
            out[name] = found.astype(int) if _is_discrete(frozen) else found
            start = stop
        return out

    def log_density(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the natural log density or mass (n,) of parameters (n, *shape)."""
        total: Any = 0.0
        for name, shape in self.shapes.items():
            frozen = self._frozen(name, values, len(shape))
            log = frozen.logpmf if _is_discrete(frozen) else frozen.logpdf
            found = np.asarray(log(values[name]))
            total = total + found.reshape(len(found), math.prod(shape)).sum(axis=1)
        density: np.ndarray = total
        return density

    def _frozen(self, name: str, values: Mapping[str, np.ndarray], ndim: int) -> Any:
        """Return the distribution of a parameter with `ndim` axes, given those before it."""
        own = self._given[name]
        if name not in self._parents:
            return own
        return own(**{p: _broadcastable(values[p], ndim) for p in self._parents[name]})

    def _first_median(self, name: str, shape: tuple[int, ...] | None) -> np.ndarray | None:
        """Return the median of a parameter given medians of those before it; None if it has no distribution."""
        if name not in self._parents:
            return _median(self._given[name])
        medians: dict[str, np.ndarray] = {}
        for other, known in self.shapes.items():
            found = self._frozen(other, medians, len(known)).ppf(np.full((1, *known), 0.5))
            medians[other] = np.broadcast_to(found, (1, *known))
        try:
            frozen = self._frozen(name, medians, 0 if shape is None else len(shape))
        except Exception as error:
            raise ValueError(
                f"the function prior[{name!r}] raised {type(error).__name__}: {error}; parameters come as arrays "
                "with a first axis n."
            ) from error
        median = _median(frozen)
        return median if median is None or median.ndim == 0 else median[0]


def _broadcastable(value: np.ndarray, ndim: int) -> np.ndarray:
    """Return an array (n, *shape) with at least `ndim` axes after the first."""
    missing = max(0, 1 + ndim - value.ndim)
    return value.reshape(len(value), *(1,) * missing, *value.shape[1:])


def _is_function(own: object) -> bool:
    return callable(own) and not callable(getattr(own, "ppf", None))


def _parents(name: str, function: Callable[..., Any], before: list[str]) -> list[str]:
    """Return names of the earlier parameters that a function takes."""
    found = []
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL, p.POSITIONAL_ONLY):
            raise TypeError(f"the function prior[{name!r}] must name its parameters, got {p}.")
        if p.name in before:
            found.append(p.name)
        elif p.default is p.empty:
            told = ", ".join(before) or "none"
            raise TypeError(
                f"the function prior[{name!r}] takes {p.name!r}, which is no earlier parameter ({told}); a prior may depend on "
                "those before it."
            )
    return found


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


def _shape(name: str, given: object) -> tuple[int, ...]:
    shape = np.atleast_1d(np.asarray(given, dtype=object)).tolist()
    if any(not isinstance(s, int | np.integer) or isinstance(s, bool) or s < 0 for s in shape):
        raise ValueError(f"prior[{name!r}]: shape must be whole numbers, got {given!r}.")
    return tuple(int(s) for s in shape)


def _fitting(name: str, median: np.ndarray, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shape of a parameter whose distribution has this median."""
    if np.isnan(median).any():
        raise ValueError(f"prior[{name!r}] has no median: its parameters are impossible.")
    own = np.shape(median)
    if shape is None:
        return own
    try:
        np.broadcast_to(median, shape)
    except ValueError:
        raise ValueError(
            f"prior[{name!r}]: parameters of shape {own} do not fit into {shape}."
        ) from None
    return shape
