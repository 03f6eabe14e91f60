"""Log densities of the parts of a model, derived once while a step is created."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor import as_tensor, constant, zeros
from pytensor.tensor.math import variadic_add
from pytensor.tensor.variable import TensorConstant

from amc_pymc.reading.graphs import rebuilt
from amc_pymc.reading.memo import remembered

__all__ = ["log_densities", "log_density"]


def log_densities(model, parts: Sequence[Variable]) -> list[Variable]:
    """Return ``model.logp(vars=parts, sum=False)``: one graph per random variable or potential.

    Rows without parameters are of double precision: PyTensor would compute those of ``pm.Bernoulli(p=0.5)`` in single
    precision, an error of 0.002 nat for 100,000 rows. PyMC derives the densities of all variables at every call. Inside
    :func:`~amc_pymc.reading.memo.remembering` they are cached, and must not be changed in place.

    Raises
    ------
    Exception
        The error of PyMC if one of ``parts`` has no density.

    Examples
    --------
    >>> import pymc as pm
    >>> from amc_pymc.reading.log_density import log_densities
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x")
    ...     y = pm.Normal("y", x, shape=3)
    >>> [term.type.ndim for term in log_densities(model, [y, x])]
    [1, 0]
    """
    parts = list(parts)
    try:
        terms = {} if len(set(parts)) < len(parts) else _terms(model)
    except Exception:  # another part may have no density
        terms = {}
    if all(part in terms for part in parts):
        return [terms[part] for part in parts]
    return _derived(model, parts)


@remembered
def _terms(model) -> dict[Variable, Variable]:
    # A Potential may be a random variable itself.
    parts = list(dict.fromkeys([*model.basic_RVs, *model.potentials]))
    return dict(zip(parts, _derived(model, parts), strict=True))


def _derived(model, parts: list[Variable]) -> list[Variable]:
    read = set(model.value_vars)
    graphs = model.logp(vars=parts, sum=False)
    return [
        _in_double(g) if g is not None and read.isdisjoint(ancestors([g])) else g for g in graphs
    ]


def _in_double(graph: Variable) -> Variable:
    """Return a graph with numbers of double precision."""
    numbers = [v for v in ancestors([graph]) if isinstance(v, TensorConstant) and v.data.size == 1]
    double = {v: constant(v.data.astype(float)) for v in numbers if v.dtype == "float32"}
    return rebuilt([graph], double)[0]


def log_density(model, parts: Sequence[Variable]) -> Variable:
    """Return ``model.logp(vars=parts)``: the sum of :func:`log_densities`, zero for no parts."""
    terms = [as_tensor(t, allow_xtensor_conversion=True) for t in log_densities(model, parts)]
    return variadic_add(*(t.sum() for t in terms)) if terms else zeros(())
