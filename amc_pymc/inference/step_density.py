"""The step-function posterior of a likelihood-free run, as something to call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

__all__ = ["StepDensity", "step_density"]

#: Comparisons of points with boxes made at once.
_AT_ONCE = 2**22


class StepDensity:
    """A posterior that is constant, relative to the prior, in each box.

    Made by :func:`step_density`.

    Attributes
    ----------
    coordinates : list of str
        Elements of parameters, or what the coordinates of the cube belong to.
    lower, upper : arrays (K, D)
        Boxes of the unit cube, in which the prior is uniform.
    mass : array (K,)
        Posterior masses, which sum to one.
    """

    def __init__(self, boxes: xr.Dataset):
        self.coordinates: list[str] = [str(c) for c in boxes.coords["coordinate"].values]
        self.lower, self.upper = boxes["lower"].values, boxes["upper"].values
        self.mass = boxes["mass"].values
        self._theta = None
        if "theta_lower" in boxes:
            self._theta = boxes["theta_lower"].values, boxes["theta_upper"].values

    def cube(self, u: np.ndarray) -> np.ndarray:
        """Density (n,) at points (n, D) of the unit cube; its integral there is one."""
        u = np.asarray(u, dtype=float)
        if u.ndim != 2 or u.shape[1] != len(self.coordinates):
            raise ValueError(f"u must have shape (n, {len(self.coordinates)}), got {u.shape}.")
        return self._at(u, self.lower, self.upper)

    def ratio(self, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
        """Density of posterior over prior (n,).

        Parameters
        ----------
        parameters : mapping of str to array (n,)
            Values of every element, as ``{"mu[0]": ..., "sigma": ...}``; zero comes out where the prior
            has nothing.

        Raises
        ------
        ValueError
            If elements are missing, or depend on each other in the prior, so that boxes of the cube
            are no boxes of parameters.
        """
        if self._theta is None:
            raise ValueError(
                "parameters depend on each other in the prior: boxes are on the unit cube only; use cube(u)."
            )
        missing = [c for c in self.coordinates if c not in parameters]
        if missing:
            raise ValueError(f"parameters lacks {', '.join(missing)}.")
        theta = np.stack([np.ravel(parameters[c]).astype(float) for c in self.coordinates], axis=1)
        return self._at(theta, *self._theta)

    def _at(self, x: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        density = self.mass / np.prod(self.upper - self.lower, axis=1)
        # Boxes are half-open, but for those at the end.
        end = upper == upper.max(axis=0)
        out = np.zeros(len(x))
        step = max(1, _AT_ONCE // max(1, lower.size))
        for start in range(0, len(x), step):
            some = x[start : start + step, None, :]
            inside = (some >= lower) & ((some < upper) | (end & (some == upper)))
            out[start : start + step] = inside.all(axis=2) @ density
        return out


def step_density(data: xr.DataTree) -> StepDensity:
    """The step-function posterior of :func:`sample_abc_tree`.

    Parameters
    ----------
    data : xarray.DataTree
        With a group ``step_posterior``.

    Returns
    -------
    StepDensity

    Raises
    ------
    TypeError, ValueError
        If `data` is none, or has no such group.

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
