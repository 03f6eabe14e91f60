"""The posterior as a step function on boxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from numpy.typing import ArrayLike

from amc_pymc.likelihood_free.partition import whole_cube
from amc_pymc.likelihood_free.problem import Problem, are_whole, labels
from amc_pymc.likelihood_free.trees import Cart
from amc_pymc.rng import as_generator

__all__ = ["StepPosterior", "fit_step_posterior", "quantile_corners", "step_density"]

#: Minimum average number of accepted simulations per box.
_PER_BOX = 20
_MOST_BOXES, _MIN_SAMPLES = 1000, 20
#: Maximum number of comparisons of points with boxes at once.
_AT_ONCE = 2**22
#: Number of points that test whether coordinates are quantiles of single parameters.
_TRIED = 32


class StepPosterior(NamedTuple):
    """A posterior whose density relative to the prior is constant in each box.

    :func:`step_density` describes how coarse it is.

    Attributes
    ----------
    coordinates : list of str
        Parameter elements that the coordinates of the cube belong to.
    lower, upper : arrays (K, D)
        Corners of the boxes in the unit cube, where the prior is uniform.
    mass : array (K,)
        Posterior masses of the boxes, which sum to one.
    accepted : array of int (K,)
        Number of accepted simulations in each box that masses are estimated from.
    theta_lower, theta_upper : arrays (K, D) or None
        Corners on the scale of the parameters; None if boxes of the cube are not boxes of parameters.
    """

    coordinates: list[str]
    lower: np.ndarray
    upper: np.ndarray
    mass: np.ndarray
    accepted: np.ndarray
    theta_lower: np.ndarray | None = None
    theta_upper: np.ndarray | None = None

    def cube(self, u: np.ndarray) -> np.ndarray:
        """Return the density (n,) at points (n, D) of the unit cube; it integrates to one."""
        u = np.asarray(u, dtype=float)
        if u.ndim != 2 or u.shape[1] != len(self.coordinates):
            raise ValueError(f"u must have shape (n, {len(self.coordinates)}), got {u.shape}.")
        if np.isnan(u).any():
            raise ValueError(f"u must not be nan, {np.isnan(u).sum()} of {u.size} are.")
        # Boxes are half-open, except at the upper end of the cube.
        inside = np.where((u >= 0.0) & (u <= 1.0), np.minimum(u, 1.0 - 2.0**-53), -1.0)
        return self._density(inside, self.lower, self.upper)

    def ratio(self, parameters: Mapping[str, ArrayLike]) -> np.ndarray:
        """Return the ratio (n,) of posterior to prior density.

        Parameters
        ----------
        parameters : mapping of str to array (n,)
            Values of every element, such as ``{"mu[0]": ..., "sigma": ...}``. The ratio is zero outside the support
            of the prior.

        Raises
        ------
        ValueError
            If elements are missing or not numeric, are whole numbers, or depend on each other in the prior: boxes of
            the cube are then not boxes of parameters.
        """
        if self.theta_lower is None or self.theta_upper is None:
            raise ValueError(
                "parameters are whole numbers or depend on each other in the prior: boxes are on the unit cube only; "
                "use cube(u)."
            )
        missing = [c for c in self.coordinates if c not in parameters]
        if missing:
            raise ValueError(f"parameters lacks {', '.join(missing)}.")
        columns = [np.atleast_1d(np.asarray(parameters[c], float)) for c in self.coordinates]
        theta = np.stack(columns, axis=1)
        if theta.ndim != 2 or np.isnan(theta).any():
            raise ValueError("parameters must be numbers or arrays (n,), and not nan.")
        return self._density(theta, self.theta_lower, self.theta_upper)

    def _density(self, x: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        """Return the densities (n,) of the boxes that contain points (n, D)."""
        density, out = self.mass / np.prod(self.upper - self.lower, axis=1), np.zeros(len(x))
        step = max(1, _AT_ONCE // max(1, lower.size))
        for start in range(0, len(x), step):
            some = x[start : start + step, None, :]
            out[start : start + step] = ((some >= lower) & (some < upper)).all(axis=2) @ density
        return out


def fit_step_posterior(
    u: np.ndarray,
    kernel_values: np.ndarray,
    hit: np.ndarray,
    weight: np.ndarray,
    rng: np.random.Generator,
    coordinates: list[str],
) -> StepPosterior:
    r"""Fit the boxes of a regression tree and their posterior masses.

    The share of a box in its parent's mass is

    .. math:: \frac{N_k + c\, |\Omega_k| / |\Omega_{\mathrm{parent}}|}{N_{\mathrm{parent}} + c}

    with c = 1 and N the effective number of accepted simulations in a box, from the half that was not used for
    choosing cuts.

    Parameters
    ----------
    u : array (N, D)
        Points of all simulations.
    kernel_values : array (N,)
        Kernel values of the simulations, for choosing cuts.
    hit : array of int (A,)
        Indices of the accepted simulations.
    weight : array (A,)
        Weights of the accepted simulations, which sum to one.
    rng : numpy.random.Generator
    coordinates : list of str

    Returns
    -------
    StepPosterior

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.step_posterior import fit_step_posterior
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> u = rng.random((2000, 1))
    >>> hit = np.flatnonzero(u[:, 0] < 0.1)
    >>> weight = np.full(len(hit), 1 / len(hit))
    >>> found = fit_step_posterior(u, (u[:, 0] < 0.1).astype(float), hit, weight, rng, ["x"])
    >>> found.cube(np.array([[0.05], [0.5]])).round(1)
    array([9.8, 0. ])
    """
    boxes = int(np.clip(len(hit) / _PER_BOX, 2, _MOST_BOXES))
    # Masses estimated from the simulations used for choosing cuts would be too large in small boxes.
    for_cuts = rng.random(len(u)) < 0.5
    partition = whole_cube(u.shape[1])
    if for_cuts.any():
        partition = Cart(boxes, _MIN_SAMPLES)(u[for_cuts], kernel_values[for_cuts], None, rng)
    others = ~for_cuts[hit]
    if others.any() and weight[others].sum() > 0.0:
        hit, weight = hit[others], weight[others] / weight[others].sum()
    share, count = partition.sums(u[hit], weight, np.ones(len(hit)))
    n, leaves = share / float(weight @ weight), partition.leaves
    volume, mass = np.zeros(len(n)), np.ones(len(n))
    volume[leaves] = partition.volumes
    for node in range(len(n) - 1, 0, -1):
        volume[partition.parent[node]] += volume[node]
    for node, above in enumerate(partition.parent[1:], start=1):
        part = volume[node] / volume[above]
        mass[node] = mass[above] * (n[node] + part) / (n[above] + 1.0)
    counts = np.round(count[leaves]).astype(np.int64)
    return StepPosterior(coordinates, partition.lower, partition.upper, mass[leaves], counts)


def quantile_corners(problem: Problem, corners: np.ndarray) -> np.ndarray | None:
    """Return parameters (n, D) at points (n, D) of the cube, one for each coordinate.

    None if any coordinate belongs to a whole number, or does not alone determine one parameter, which increases with it.
    """

    def in_order(u: np.ndarray) -> np.ndarray:
        columns = {
            label: column
            for name, value in problem.parameters(u).items()
            for label, column in zip(
                labels(name, value.shape[1:]), value.reshape(len(u), -1).T, strict=True
            )
        }
        return np.stack([columns[c].astype(float) for c in problem.coordinates], axis=1)

    rng = as_generator(0)
    elements = [c for name, shape in problem.shapes.items() for c in labels(name, shape)]
    u = np.sort(rng.random((_TRIED, problem.n_dim)), axis=0)
    if sorted(elements) != sorted(problem.coordinates) or problem.log_density(u) is not None:
        return None
    theta = in_order(u)
    if are_whole(problem).any() or not (np.diff(theta, axis=0) > 0.0).all():
        return None
    for d in range(problem.n_dim):
        other = rng.random(u.shape)
        other[:, d] = u[:, d]
        if not np.array_equal(in_order(other)[:, d], theta[:, d]):
            return None
    return in_order(corners)


def step_density(data: xr.DataTree) -> StepPosterior:
    """Return the step-function posterior of :func:`sample_abc_tree`.

    It is coarse: one box per 20 accepted simulations, at least two. Half of the simulations choose the boxes; the
    others determine their masses. With 500 accepted simulations there are 25 boxes in total, which in many
    dimensions are far wider than the posterior. The density shows where the posterior is, and regions that the
    draws miss. For means and intervals use the draws. It is fitted to simulations accepted before any adjustment,
    such as ``adjust="regression"``.

    Parameters
    ----------
    data : xarray.DataTree
        Result with a group ``step_posterior``.

    Returns
    -------
    StepPosterior

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
    boxes = data["step_posterior"].to_dataset()
    names = ("lower", "upper", "mass", "accepted", "theta_lower", "theta_upper")
    columns = [boxes[name].values for name in names if name in boxes]
    return StepPosterior([str(c) for c in boxes.coords["coordinate"].values], *columns)
