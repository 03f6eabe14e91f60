"""Parts of a model that make chains slow, however few rows a decision reads."""

from __future__ import annotations

from pymc import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Identity, Mul, Switch, TrueDiv
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from amc_pymc.samplers.preparation import Preparation

__all__ = ["slow_parts"]

#: Number of hyperparameters up to which nested moves were seen to mix well.
_FEW_HYPERPARAMETERS = 4
#: Operations by which one variable scales or selects another.
_JOINING = (Mul, TrueDiv, Switch, Dot, AdvancedSubtensor, Subtensor)


def slow_parts(model: Model, prepared: Preparation) -> list[str]:
    """Return statements about sampled variables that a chain would move slowly.

    These are vectors that rows read scaled by other variables (non-centred effects), coefficients that
    a discrete variable switches off, and vectors whose priors depend on hyperparameters for which there
    are no nested moves, or too many.
    """
    values = {v.name: v for v in model.value_vars}
    free, sizes = set(model.free_RVs), dict[Variable, int]()
    for name, place in prepared.densities.layout.slices.items():
        if prepared.densities.layout.is_continuous(name):
            sizes[model.values_to_rvs[values[name]]] = place.stop - place.start
    raced = [rv for rv in model.observed_RVs if rv.name in prepared.densities.observed_vars]
    parameters = [v for rv in raced for v in rv.owner.inputs]
    found = {}
    for v in ancestors(parameters, free):
        op = None if v in free or v.owner is None else getattr(v.owner.op, "core_op", v.owner.op)
        inputs = v.owner.inputs if isinstance(getattr(op, "scalar_op", op), _JOINING) else []
        for k, one in enumerate(inputs):
            rv = _read(one, free)
            others = free & set(ancestors(inputs[:k] + inputs[k + 1 :], free)) - {rv}
            discrete = any(not other.dtype.startswith("float") for other in others)
            if rv in sizes and others and (sizes[rv] > 1 or discrete):
                found[rv] = f"{rv.name} is scaled or selected by {_names(others)}"
    nested = prepared.nested is not None and prepared.nested.prior.phi.size <= _FEW_HYPERPARAMETERS
    for rv in [] if nested else [rv for rv in sizes if sizes[rv] > 1]:
        above = free & set(ancestors(rv.owner.inputs))
        if above:
            found.setdefault(rv, f"the prior of {rv.name} depends on {_names(above)}")
    return [found[rv] for rv in sizes if rv in found]


def _read(v: Variable, free: set[Variable]) -> Variable:
    """Return the free variable of which v holds unchanged entries, or another variable."""
    while v not in free and v.owner is not None:
        op = v.owner.op
        if isinstance(op, Elemwise) and not isinstance(op.scalar_op, Identity):
            break
        v = v.owner.inputs[0]
    return v


def _names(variables: set[Variable]) -> str:
    return " and ".join(sorted(str(v.name) for v in variables))
