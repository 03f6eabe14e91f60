"""Transformation of a model's variables to its unconstrained vector, for many points."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.graph.replace import clone_replace, vectorize_graph

from amc_pymc.reading.interpreted import interpreted_mode
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.signals import raise_if_signalled

__all__ = ["unconstrain"]

#: Number of points at which batched transforms are compared with those of single points.
_CHECKED = 2


def unconstrain(model, layout: FlatLayout, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the flat unconstrained vectors of draws of a model's free variables.

    Parameters
    ----------
    model : pm.Model
    layout : FlatLayout
        Layout of all free variables or some.
    values : mapping of str to array (P, ...)
        One array for each of these free random variables, by its name.

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
    >>> from amc_pymc.reading.particles.densities import extract_particles
    >>> from amc_pymc.reading.particles.unconstrain import unconstrain
    >>> with pm.Model() as model:
    ...     sigma = pm.HalfNormal("sigma", 1.0)
    ...     y = pm.Normal("y", 0.0, sigma, observed=[3.0])
    >>> densities = extract_particles(model)
    >>> unconstrain(model, densities.layout, {"sigma": np.array([1.0, np.e])})
    array([[0.],
           [1.]])
    """
    free = [rv for rv in model.free_RVs if model.rvs_to_values[rv].name in layout.names]
    missing = [rv.name for rv in free if rv.name not in values]
    if missing:
        raise ValueError(f"draws of {', '.join(missing)} are missing.")
    inputs = [rv.type(name=rv.name) for rv in free]
    outputs = []
    for rv in free:
        transform = model.rvs_to_transforms[rv]
        outputs.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
    outputs = clone_replace(outputs, dict(zip(free, inputs, strict=True)), rebuild_strict=False)
    arrays = [np.asarray(values[rv.name]) for rv in free]
    n = len(arrays[0])
    for rv, array in zip(free, arrays, strict=True):
        if array.ndim != rv.type.ndim + 1 or len(array) != n:
            raise ValueError(
                f"draws of {rv.name!r} must have shape ({n}, ...) with {rv.type.ndim} more dimensions, got "
                f"{array.shape}."
            )
    arrays = [a.astype(rv.dtype) for rv, a in zip(free, arrays, strict=True)]
    first = _one_by_one(inputs, outputs, [a[:_CHECKED] for a in arrays], layout.size)
    if n <= _CHECKED:
        return first
    try:
        found = _at_once(inputs, outputs, arrays)
        np.testing.assert_allclose(found[:_CHECKED], first, rtol=1e-9)
    except Exception as error:  # a transform cannot be vectorised, or not correctly
        raise_if_signalled(error)
        return _one_by_one(inputs, outputs, arrays, layout.size)
    return found


def _one_by_one(inputs: list, outputs: list, arrays: list[np.ndarray], size: int) -> np.ndarray:
    """Transform points (P, D) one at a time."""
    fn = pytensor.function(inputs, outputs, mode=interpreted_mode(), on_unused_input="ignore")
    out = np.empty((len(arrays[0]), size))
    for i in range(len(out)):
        out[i] = np.concatenate([np.ravel(v) for v in fn(*(a[i] for a in arrays))])
    return out


def _at_once(inputs: list, outputs: list, arrays: list[np.ndarray]) -> np.ndarray:
    """Transform points (P, D) in one call."""
    many = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in inputs]
    graphs = vectorize_graph(outputs, dict(zip(inputs, many, strict=True)))
    fn = pytensor.function(many, graphs, mode=interpreted_mode(), on_unused_input="ignore")
    n = len(arrays[0])
    parts = [np.asarray(v, float).reshape(n, -1) for v in fn(*arrays)]
    return np.concatenate(parts, axis=1)
