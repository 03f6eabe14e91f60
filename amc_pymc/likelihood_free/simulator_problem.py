"""Likelihood-free problems in plain NumPy and SciPy."""

from __future__ import annotations

import inspect
import math

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amc_pymc.arguments import positive_or_none
from amc_pymc.likelihood_free.fail_safe import (
    Measure,
    NegativeDistance,
    checked_data,
    clipped,
    run_batch,
    run_each,
)
from amc_pymc.likelihood_free.problem import Simulated, flat, labels, lengths, shaped


class SimulatorProblem:
    """Likelihood-free problem with SciPy priors, a Python simulator and a distance.

    Parameters
    ----------
    prior : mapping of str to distribution, or to (distribution, shape)
        Frozen distributions with methods ``ppf`` and ``logpdf`` or ``logpmf``, as in ``scipy.stats``. Parameters and their
        elements are independent. If some depend on others, use a ``pm.Model`` with a ``pm.Simulator``.
    simulator : callable
        ``simulator(rng, **parameters)`` returns an array of the shape of `observed`. With ``batched=True`` it must
        take parameters ``(n, *shape)`` and return ``(n, *observed.shape)``.
    observed : array
        Observed data, finite.
    distance : "euclidean" or callable
        ``distance(simulated, observed)`` must be nonnegative; for a batch it maps ``(n, *observed.shape)`` to (n,).
    tolerance : float, optional
        Smallest tolerance of interest.

    Attributes
    ----------
    shapes : dict of str to tuple of int
    n_dim : int
        Number of elements of all parameters, D.
    coordinates : list of str
    tolerance : float or None
    observed : array
    observed_summaries : array (S,)
        Flattened data; simulations are their own summary statistics.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import stats
    >>> from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem
    >>> def simulator(rng, mu, sigma):
    ...     return rng.normal(mu, sigma, size=3)
    >>> prior = {"mu": stats.norm(0.0, 2.0), "sigma": stats.halfnorm()}
    >>> problem = SimulatorProblem(prior, simulator, observed=[1.0, 2.0, 1.5])
    >>> problem.parameters(np.array([[0.5, 0.5]]))["mu"]
    array([0.])
    >>> problem.simulate(np.full((4, 2), 0.5), np.random.default_rng(1)).distance.shape
    (4,)

    A simulator of whole batches gets parameters with a first axis of length n.

    >>> def batch(rng, mu, effect):
    ...     return rng.normal(mu[:, None] + effect, 0.5)  # (n, 3)
    >>> prior = {"mu": stats.norm(0.0, 2.0), "effect": (stats.norm(0.0, 1.0), 3)}
    >>> problem = SimulatorProblem(prior, batch, observed=[1.0, 2.0, 1.5])
    >>> u = np.random.default_rng(1).random((4, problem.n_dim))
    >>> problem.simulate(u, np.random.default_rng(2), batched=True).distance.shape
    (4,)
    """

    def __init__(
        self,
        prior: Mapping[str, Any],
        simulator: Callable[..., Any],
        observed: Any,
        distance: str | Callable[[np.ndarray, np.ndarray], Any] = "euclidean",
        *,
        tolerance: float | None = None,
    ):
        if not isinstance(prior, Mapping) or not prior:
            raise TypeError(f"prior must map names to distributions, got {prior!r}.")
        if not callable(simulator):
            raise TypeError(f"simulator must be callable, got {simulator!r}.")
        if not callable(distance) and distance != "euclidean":
            raise ValueError(f"distance must be 'euclidean' or a callable, got {distance!r}.")
        self._prior = {k: v[0] if isinstance(v, tuple) else v for k, v in prior.items()}
        self.shapes = {k: _shape(k, self._prior[k], given) for k, given in prior.items()}
        self.n_dim = sum(math.prod(shape) for shape in self.shapes.values())
        if self.n_dim == 0:
            raise ValueError(f"prior has no numbers in it: shapes are {self.shapes}.")
        self.coordinates = [c for k, shape in self.shapes.items() for c in labels(k, shape)]
        self.observed = checked_data("observed", np.asarray(observed)).astype(float)
        self.observed_summaries = self.observed.ravel()
        self.tolerance = positive_or_none("tolerance", tolerance)
        self._simulator, self._distance = simulator, distance
        _check_signature(simulator, list(self.shapes))

    def parameters(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """Return quantiles ``(n, *shape)`` of each parameter at points (n, D) of the unit cube."""
        out = shaped(clipped(u, self.n_dim), self.shapes)
        for name, frozen in self._prior.items():
            found = np.asarray(frozen.ppf(out[name]))
            out[name] = found.astype(int) if _is_discrete(frozen) else found
        return out

    def log_density(self, u: np.ndarray) -> None:
        """Return None because the prior is uniform in the cube."""

    def log_prior(self, u: np.ndarray) -> np.ndarray:
        """Return the natural log prior density or mass (n,)."""
        total = np.zeros(len(u))
        for name, values in self.parameters(u).items():
            frozen = self._prior[name]
            log = frozen.logpmf if _is_discrete(frozen) else frozen.logpdf
            total += flat([log(values)]).sum(axis=1)
        return total

    def simulate(
        self,
        u: np.ndarray,
        rng: np.random.Generator,
        *,
        batched: bool = False,
        summaries: bool = False,
    ) -> Simulated:
        """Simulate at points (n, D), one by one, or all in one call.

        Raises
        ------
        ValueError
            If a distance is negative.
        """
        values, n = self.parameters(u), len(u)
        measure = Measure(
            lambda found: self._distances(found[0], each=not batched),
            [self.observed.shape],
            flat if summaries else None,
            self.observed.size,
        )

        def one(i: int) -> list[Any]:
            return [self._simulator(rng, **{k: v[i] for k, v in values.items()})]

        def many(rows: np.ndarray, rng: np.random.Generator) -> list[Any]:
            # Computed again for parts, because the simulator may have modified its arguments.
            given = values if len(rows) == n else self.parameters(u[rows])
            return [self._simulator(rng, **given)]

        if batched:
            return run_batch(many, measure, np.arange(n), n, rng)
        return run_each(one, measure, np.arange(n), n)

    def _distances(self, simulated: np.ndarray, *, each: bool) -> np.ndarray:
        """Return distances (n,) of simulations (n, ...); a function of the user gets each, or all."""
        given = self._distance
        if not callable(given):
            with np.errstate(over="ignore"):
                return lengths(flat([simulated - self.observed]))
        if each:
            found = np.array([float(given(s, self.observed)) for s in simulated])
        else:
            found = np.asarray(given(simulated, self.observed), dtype=float)
        if (found < 0.0).any():
            raise NegativeDistance(f"distance must not be negative, got {found.min()}.")
        return found


def _is_discrete(frozen: object) -> bool:
    return not callable(getattr(frozen, "logpdf", None))


def _shape(name: str, frozen: Any, given: object) -> tuple[int, ...]:
    """Return the shape of a parameter; raise an error if it has no frozen distribution, or one of another shape."""
    try:
        if not any(callable(getattr(frozen, log, None)) for log in ("logpdf", "logpmf")):
            raise TypeError
        median = np.asarray(frozen.ppf(0.5), dtype=float)
    except (AttributeError, TypeError):
        raise TypeError(
            f"prior[{name!r}] must be a frozen distribution with ppf and logpdf or logpmf, as "
            f"scipy.stats.norm(0, 1), or a pair of one and a shape; got {given!r}. For a distribution that "
            "depends on other parameters, give a pm.Model with a pm.Simulator instead."
        ) from None
    if np.isnan(median).any():
        raise ValueError(f"prior[{name!r}] has no median: its parameters are impossible.")
    if not isinstance(given, tuple) or given[1] is None:
        return median.shape
    shape = np.atleast_1d(np.asarray(given[1], dtype=object)).tolist()
    if any(not isinstance(s, int | np.integer) or isinstance(s, bool) or s < 0 for s in shape):
        raise ValueError(f"prior[{name!r}]: shape must be whole numbers, got {given[1]!r}.")
    try:
        np.broadcast_to(median, shape)
    except ValueError:
        raise ValueError(
            f"prior[{name!r}]: parameters of shape {median.shape} do not fit into {tuple(shape)}."
        ) from None
    return tuple(int(s) for s in shape)


def _check_signature(simulator: Callable[..., Any], names: list[str]) -> None:
    """Raise a TypeError if a simulator does not take a generator and the parameters by name."""
    try:
        signature = inspect.signature(simulator)
    except (TypeError, ValueError):
        return  # compiled functions may have no signature
    try:
        signature.bind(None, **dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(
            f"simulator must take a generator first and then the parameters by name, as "
            f"simulator(rng, {', '.join(names)}); its signature is {signature}: {error}."
        ) from None
