"""Gaussian priors of a model's coefficients given hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from numba import types
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import NormalRV

from amc_pymc.extract.centring import Centring
from amc_pymc.extract.held import Held
from amc_pymc.extract.interpreted import interpreted_mode
from amc_pymc.extract.layout import FlatLayout
from amc_pymc.extract.native import compile_graph, native_function

__all__ = ["GaussianPriors", "gaussian_priors"]

_PRIORS = types.float64[::1](types.float64[::1])


@dataclass(frozen=True, eq=False)
class GaussianPriors:
    """Gaussian priors of the coordinates ``theta`` (T,) given hyperparameters ``phi`` (F,).

    The last ``n_psi`` of theta are coordinates of transformed variables. ``block`` (T,) numbers the
    priors, -1 for a coordinate without one.
    """

    layout: FlatLayout
    theta: np.ndarray
    phi: np.ndarray
    n_psi: int
    block: np.ndarray
    n_blocks: int
    _graph: Any = None
    _point: Any = None

    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k not in ("native", "evaluate")}

    def __setstate__(self, state):
        self.__dict__.update(state)

    @cached_property
    def native(self):
        """First-class ``x (D,) -> (2B,)``: precisions, then means."""
        return native_function(compile_graph([self._point], self._graph), _PRIORS)

    @cached_property
    def evaluate(self):
        """The same function, interpreted."""
        return pytensor.function(
            [self._point], self._graph, mode=interpreted_mode(), on_unused_input="ignore"
        )


def gaussian_priors(
    model,
    layout: FlatLayout,
    reads: np.ndarray,
    active: np.ndarray,
    centring: Centring | None = None,
    held: Held | None = None,
) -> GaussianPriors | None:
    """Split the coordinates that a step moves into coefficients and hyperparameters.

    Parameters
    ----------
    model : pm.Model
    layout : FlatLayout
        Layout of x (D,).
    reads : (R,) int array
        Coordinates that rows depend on: the coefficients.
    active : (A,) int array
        Coordinates that are moved; those that rows do not read are hyperparameters.
    centring : Centring, optional
        Change of coordinates, if x holds effects in place of some variables.
    held : Held, optional
        Values of variables that are not in x.

    Returns
    -------
    GaussianPriors or None
        None if no coefficient has a Gaussian prior that depends on hyperparameters, or if not all
        coefficients are moved.
    """
    theta = np.intersect1d(reads, active)
    phi = np.setdiff1d(active, reads)
    if not phi.size or theta.size < reads.size:
        return None
    x = pt.vector("x")
    values = [v for v in model.value_vars if v.name in layout.names]
    below = {v for v in values if np.isin(layout.indices([v.name]), theta).any()}
    block = np.full(layout.size, -1)
    precisions: list = []
    means: list = []
    above = {v for v in values if np.isin(layout.indices([v.name]), phi).any()}
    depends = False
    for value in below:
        found = _normal(model, value, below)
        if found is None:
            continue
        if held is not None:
            found = held.substitute(found, model.value_vars)
        mean, sd = layout.substitute(found, values, x)
        scaled = centring is not None and value.name in centring.scales
        if scaled:
            mean, sd = (centring.scale(value.name, x) * v for v in (mean, sd))
        depends |= scaled or bool(above & set(ancestors(found)))
        shape = layout.shapes[layout.names.index(value.name)]
        alike = all(v.type.ndim == 0 or all(n == 1 for n in v.type.shape) for v in (mean, sd))
        size = 1 if alike else int(np.prod(shape))
        each = [pt.flatten(v if alike else pt.broadcast_to(v, shape))[:size] for v in (mean, sd)]
        number = sum(n for _, n in precisions)
        where = layout.indices([value.name])
        block[where] = number if alike else number + np.arange(size)
        precisions.append((1.0 / pt.sqr(each[1]), size))
        means.append(each[0])
    if not depends:
        return None
    parts = [p for p, _ in precisions] + means
    graph = pt.concatenate(parts).astype("float64")
    n_blocks = sum(n for _, n in precisions)
    psi = np.isin(theta, _transformed(model, layout, below))
    theta = np.concatenate([theta[~psi], theta[psi]])
    n_psi = int(psi.sum())
    return GaussianPriors(layout, theta, phi, n_psi, block[theta], n_blocks, graph, x)


def _transformed(model, layout: FlatLayout, values) -> np.ndarray:
    """Return the coordinates of variables that have a transform."""
    transforms = model.rvs_to_transforms
    names = [v.name for v in values if transforms.get(model.values_to_rvs[v]) is not None]
    return layout.indices(names)


def _normal(model, value, below):
    """Return mean and standard deviation of a prior that is normal given hyperparameters, else None."""
    rv = model.values_to_rvs[value]
    node = rv.owner
    if model.rvs_to_transforms.get(rv) is not None or node is None:
        return None
    if not isinstance(node.op, NormalRV):
        return None
    parameters = model.replace_rvs_by_values(list(node.op.dist_params(node)))
    if below & set(ancestors(parameters)):
        return None
    return parameters
