"""Parts of a model that make chains slow, however few rows a decision reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pymc import Model
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Identity, Mul, Switch, TrueDiv
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from amc_pymc.samplers.preparation import Preparation

__all__ = ["slow_parts"]

#: Number of hyperparameters up to which nested moves mix well.
_FEW_HYPERPARAMETERS = 3
_INDEXING = (AdvancedSubtensor, Subtensor)


def slow_parts(model: Model, prepared: Preparation) -> dict[str, str]:
    """Return the sampled variables that a chain would move slowly, and what they depend on.

    These are vectors that rows read multiplied by other variables (non-centred effects), coefficients
    that a discrete variable switches off, and vectors whose priors depend on hyperparameters for which
    there are no nested moves, or many.
    """
    layout = prepared.densities.layout
    sizes = {model.values_to_rvs[v]: layout.indices([v.name]).size for v in model.value_vars
             if v.name in layout.names}  # fmt: skip
    free, found = set(model.free_RVs), {}
    discrete = {rv for rv in free if not rv.dtype.startswith("float")}
    raced = [rv for rv in model.observed_RVs if rv.name in prepared.densities.observed_vars]
    parameters = [v for rv in raced for v in rv.owner.inputs]
    for node in {v.owner for v in ancestors(parameters, free) if v.owner and v not in free}:
        for rv, others in _products(node, free):
            if rv not in discrete and (sizes.get(rv, 0) > 1 or others & discrete):
                found[rv.name] = f"is multiplied or chosen by {_names(others)}"
    nested = prepared.nested is not None and prepared.nested.prior.phi.size <= _FEW_HYPERPARAMETERS
    for rv in sizes:
        above = free & set(ancestors(rv.owner.inputs))
        if sizes[rv] > 1 and above and not nested:
            found.setdefault(rv.name, f"has a prior that depends on {_names(above)}")
    return {name: found[name] for name in (rv.name for rv in sizes) if name in found}


def _products(node: Apply, free: set[Variable]) -> Iterator[tuple[Variable, set[Variable]]]:
    """Yield variables that a node multiplies or chooses from, and those that they depend on there."""
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    scalar = isinstance(op, Elemwise) and isinstance(op.scalar_op, Mul | TrueDiv | Switch)
    if not (scalar or isinstance(op, (Dot, *_INDEXING))):
        return
    for k, one in enumerate(node.inputs):
        others = free & set(ancestors([v for j, v in enumerate(node.inputs) if j != k], free))
        rv = _bare(one, free)
        if rv is not None and others - {rv}:
            yield rv, others - {rv}


def _bare(v: Variable, free: set[Variable]) -> Variable | None:
    """Return the free variable of which v holds entries, unchanged; None if v is something else."""
    while v not in free:
        node = v.owner
        if node is None or (
            isinstance(node.op, Elemwise) and not isinstance(node.op.scalar_op, Identity)
        ):
            return None
        v = node.inputs[0]
    return v


def _names(variables: Any) -> str:
    return " and ".join(sorted(str(v.name) for v in variables))
