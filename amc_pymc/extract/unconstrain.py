"""From a model's variables to its unconstrained vector, for many points."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytensor

from pytensor.graph.replace import clone_replace

from amc_pymc.extract.layout import FlatLayout
from amc_pymc.extract.rows import interpreted_mode

__all__ = ["unconstrain"]


def unconstrain(model, layout: FlatLayout, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Flat unconstrained vectors of draws of a model's free variables.

    Parameters
    ----------
    model : pm.Model
    layout : FlatLayout
    values : mapping of str to array (P, ...)
        One array for each free random variable, by its name.

    Returns
    -------
    array (P, D)

    Raises
    ------
    ValueError
        If a variable is missing or has the wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> from amc_pymc.extract.particles import extract_particles
    >>> from amc_pymc.extract.unconstrain import unconstrain
    >>> with pm.Model() as model:
    ...     sigma = pm.HalfNormal("sigma", 1.0)
    ...     y = pm.Normal("y", 0.0, sigma, observed=[3.0])
    >>> densities = extract_particles(model)
    >>> unconstrain(model, densities.layout, {"sigma": np.array([1.0, np.e])})
    array([[0.],
           [1.]])
    """
    free = model.free_RVs
    missing = [rv.name for rv in free if rv.name not in values]
    if missing:
        raise ValueError(f"draws of {', '.join(missing)} are missing.")
    inputs = [rv.type(name=rv.name) for rv in free]
    outputs = []
    for rv in free:
        transform = model.rvs_to_transforms[rv]
        outputs.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
    outputs = clone_replace(outputs, dict(zip(free, inputs, strict=True)), rebuild_strict=False)
    fn = pytensor.function(inputs, outputs, mode=interpreted_mode(), on_unused_input="ignore")
    arrays = [np.asarray(values[rv.name]) for rv in free]
    n = len(arrays[0])
    for rv, array in zip(free, arrays, strict=True):
        if array.ndim != rv.type.ndim + 1 or len(array) != n:
            raise ValueError(
                f"draws of {rv.name!r} must have shape ({n}, ...) with {rv.type.ndim} more dimensions, got "
                f"{array.shape}."
            )
    out = np.empty((n, layout.size))
    for i in range(n):
        found = fn(*(a[i].astype(rv.dtype) for rv, a in zip(free, arrays, strict=True)))
        out[i] = np.concatenate([np.ravel(v) for v in found])
    return out
