"""Parts of a model that make chains slow, however few rows a decision reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymc import Model
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Identity, Mul, Switch, TrueDiv
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from amc_pymc.tall.samplers.preparation import Preparation

__all__ = ["slow_parts"]

#: Operations by which one variable scales or selects another.
_JOINING = (Mul, TrueDiv, Switch, Dot, AdvancedSubtensor, Subtensor)


def slow_parts(model: Model, prepared: Preparation) -> list[str]:
    """Return statements about sampled variables that a chain would move slowly.

    These are coefficients that a discrete variable switches off and, where moves know nothing of the prior, vectors
    that rows read scaled by other variables (non-centred effects) and vectors whose priors depend on others.
    """
    places, raced = prepared.densities.layout.slices, prepared.densities.observed_vars
    sizes = {
        model.values_to_rvs[v]: places[v.name].stop - places[v.name].start
        for v in model.value_vars
        if v.name in places and v.dtype.startswith("float")
    }

    def above(inputs: Sequence[Any]) -> list[Any]:
        found = set(ancestors(inputs, model.free_RVs))
        return [v for v in model.free_RVs if v in found]

    found, surface = dict[Any, str](), prepared.surface
    plain = surface is None or not surface.knows_prior
    if plain:
        for rv in sizes:
            if sizes[rv] > 1 and (parents := above(rv.owner.inputs)):
                found[rv] = f"the prior of {rv.name} depends on {_names(parents)}"
    parameters = [v for rv in model.observed_RVs if rv.name in raced for v in rv.owner.inputs]
    for v in ancestors(parameters, model.free_RVs):
        op = None if v in model.free_RVs or v.owner is None else v.owner.op
        op = getattr(op, "core_op", op)
        inputs = v.owner.inputs if isinstance(getattr(op, "scalar_op", op), _JOINING) else []
        for k, rv in enumerate(_read(one, model.free_RVs) for one in inputs):
            others = [other for other in above(inputs[:k] + inputs[k + 1 :]) if other is not rv]
            discrete = any(not other.dtype.startswith("float") for other in others)
            if others and rv in sizes and (discrete or (plain and sizes[rv] > 1)):
                found[rv] = f"{rv.name} is scaled or selected by {_names(others)}"
    return list(found.values())


def _read(v: Any, free: Sequence[Any]) -> Any:
    """Return the free variable of which v holds unchanged entries, or another variable."""
    while v not in free and v.owner is not None:
        op = v.owner.op
        if isinstance(op, Elemwise) and not isinstance(op.scalar_op, Identity):
            break
        v = v.owner.inputs[0]
    return v


def _names(variables: Sequence[Any]) -> str:
    return " and ".join(str(v.name) for v in variables)
