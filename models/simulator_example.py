"""Simulators with a prior, for testing likelihood-free samplers."""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pymc as pm

from amc_pymc.rng import as_generator

Simulate = Callable[[np.random.Generator, np.ndarray], np.ndarray]
Draws = Callable[[np.random.Generator, int], np.ndarray]
ToleranceDraws = Callable[[np.random.Generator, int, float], np.ndarray]


@dataclass(frozen=True)
class SimulatorExample:
    """Prior, simulator and data, for PyMC and in plain NumPy.

    Parameters are rows (D,): the model's free variables in its own order, each flattened in C order
    and on its own scale. Summaries are rows (S,).

    Parameters
    ----------
    name : str
    prior : callable
        Function that adds the free variables to the PyMC model of the context, and returns them.
    simulate : callable
        Function of a generator and parameters (n, D) that returns summaries (n, S). A row that failed is NaN.
    cube : callable
        Function from the unit cube (n, D) to parameters (n, D) with the prior distribution.
    observed : array (S,)
        Summaries of the data.
    epsilon : float
        Tolerance that a user might choose, in units of :meth:`distance`.
    shapes : mapping of str to tuple of int
        Free variables of the model, in order.
    scale : float or array (S,)
        Divisors of the differences of summaries.
    truth : array (D,) or None
        Parameters from which the data were simulated.
    reference : callable or None
        Function of a generator and n that returns exact draws (n, D) from the posterior given the summaries,
        unless the example's builder says otherwise.
    epsilon_reference : callable or None
        Function of a generator, n and a tolerance that returns draws (n, D) from the prior given that the distance is
        below the tolerance.
    mode : array (D,) or None
        Mode of the exact posterior on the scale of the parameters; None if it is unknown or not
        unique.
    """

    name: str
    prior: Callable[[], list]
    simulate: Simulate
    cube: Callable[[np.ndarray], np.ndarray]
    observed: np.ndarray
    epsilon: float
    shapes: Mapping[str, tuple[int, ...]]
    scale: float | np.ndarray = 1.0
    truth: np.ndarray | None = None
    reference: Draws | None = None
    epsilon_reference: ToleranceDraws | None = None
    mode: np.ndarray | None = None

    def model(self) -> pm.Model:
        """Return a new model with one ``pm.Simulator`` of the summaries, which also accepts a batch: see :func:`batched`."""
        with pm.Model() as model:
            parameters = self.prior()
            core_ndims = tuple(parameter.ndim for parameter in parameters)
            inputs = ",".join("(d)" if ndim else "()" for ndim in core_ndims)
            pm.Simulator(
                "x", batched(self.simulate, core_ndims), *parameters,
                signature=f"{inputs}->()" if any(core_ndims) else None,
                epsilon=self.epsilon * self.scale, observed=self.observed,
            )  # fmt: skip
        return model

    @property
    def n_dim(self) -> int:
        """Number of parameters D."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the free variables of the model."""
        return tuple(self.shapes)

    def prior_sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draw independently from the prior (n, D)."""
        return self.cube(rng.random((n, self.n_dim)))

    def distance(self, summaries: np.ndarray) -> np.ndarray:
        """Return the Euclidean distance (n,) of summaries (n, S) to the data, over `scale`; inf for NaN."""
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.square((summaries - self.observed) / self.scale).sum(axis=1)
        return np.where(np.isnan(squares), np.inf, np.sqrt(squares))

    def columns(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return parameters (n, D) from the variables (n, *shape) by name."""
        parts = [np.asarray(values[name]) for name in self.names]
        return np.column_stack([part.reshape(len(part), -1) for part in parts])


def batched(simulate: Simulate, core_ndims: tuple[int, ...]) -> Callable[..., np.ndarray]:
    """Return a function for ``pm.Simulator`` of one row of summaries, which also accepts whole batches.

    PyMC passes parameters with a leading axis of length one and the shape of the data as `size`.
    A batch of B simulations has parameters (B, 1, *core) and size (B, S). `size` is the last argument or given by
    name.

    Parameters
    ----------
    simulate : callable
        Function of a generator and parameters (n, D) that returns summaries (n, S).
    core_ndims : tuple of int
        Number of dimensions of each parameter: 0 for a scalar, 1 for a vector.

    Examples
    --------
    >>> import numpy as np
    >>> from models.simulator_example import batched
    >>> fn = batched(lambda rng, theta: theta @ [[1.0, 0.0], [1.0, 1.0]], (0, 0))
    >>> fn(None, np.array([1.0]), np.array([2.0]), (2,))
    array([3., 2.])
    >>> fn(None, np.ones((3, 1)), np.arange(3.0)[:, None], size=(3, 2)).shape
    (3, 2)
    """

    def function(rng, *parameters, size=None):
        if size is None:
            *parameters, size = parameters
        lead, width = tuple(size[:-1]), int(size[-1])
        columns = []
        for parameter, core_ndim in zip(parameters, core_ndims, strict=True):
            parameter = np.asarray(parameter, dtype=np.float64)
            core = parameter.shape[parameter.ndim - core_ndim :]
            full = np.broadcast_to(parameter, (*lead, 1, *core))
            columns.append(full.reshape(math.prod(lead), -1))
        summaries = simulate(rng, np.column_stack(columns))
        return summaries.reshape(*lead, width)

    return function


def noise_scale(simulate: Simulate, theta: np.ndarray, n: int = 2000, seed: int = 0) -> np.ndarray:
    """Return standard deviations (S,) of summaries at one parameter vector (D,), by simulation.

    This replaces the pilot run in which a user finds how much each summary varies.
    """
    summaries = simulate(as_generator(seed), np.tile(theta, (n, 1)))
    return np.nanstd(summaries, axis=0)


def accepted_draws(
    propose: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]],
    rng: np.random.Generator, n: int, *, batch: int = 4096,
) -> np.ndarray:  # fmt: skip
    """Return the first n draws (n, D) that are accepted.

    Parameters
    ----------
    propose : callable
        Function of a generator and m that returns draws (m, D) and whether each is accepted (m,).
    rng : numpy.random.Generator
    n : int
    batch : int
        Initial number of proposals at a time; later as many as are expected to suffice.

    Raises
    ------
    RuntimeError
        If more than five million proposals are needed per accepted draw, or for the first one.
    """
    parts, found, tried = [], 0, 0
    while found < n:
        if tried >= 5_000_000 * max(found, 1):
            raise RuntimeError(
                f"{tried} proposals gave {found} of {n} draws: the data may be out of reach"
            )
        draws, accepted = propose(rng, batch)
        parts.append(draws[accepted])
        found += len(parts[-1])
        tried += batch
        rate = max(found, 1) / tried
        batch = int(np.clip(1.1 * (n - found) / rate, 1024, 1_000_000))
    return np.concatenate(parts)[:n]


def in_ball(rng: np.random.Generator, n: int, d: int, radius: float) -> np.ndarray:
    """Draw points (n, d) uniformly from a ball around zero."""
    direction = rng.standard_normal((n, d))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return radius * rng.random((n, 1)) ** (1.0 / d) * direction
