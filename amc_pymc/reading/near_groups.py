"""Variables that rows index by level but that cannot be integrated out, and the reasons.

They are searched for in the PyTensor graph, so a reason can be given even if the rows could not be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from pymc.distributions.transforms import Ordered, ZeroSumTransform
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.subtensor import AdvancedSubtensor

from amc_pymc.engine import Graph
from amc_pymc.reading.graphs import initial_point_of, log_densities, lowered
from amc_pymc.reading.interpreted import plain_function
from amc_pymc.reading.rows import row_count
from amc_pymc.reading.scalars import Index

__all__ = ["NearGroup", "Read", "near_groups"]


class NearGroup(NamedTuple):
    """A variable indexed by rows: its value variable, its number of levels and why it is refused."""

    name: str
    n_levels: int
    reason: str


class Read(NamedTuple):
    """How the rows of an observed variable read other variables.

    ``found`` holds the indices at which variables are read; ``problem`` says why the rows could not
    be read completely, if they could not.
    """

    observed: str
    graph: Graph
    found: dict[str, set[Index]]
    problem: str


def near_groups(
    model, observed: Sequence[Variable], reads: Sequence[Read], taken: Iterable[str]
) -> list[NearGroup]:
    """Return the variables indexed by rows that are not in ``taken``."""
    out = []
    for name, n_levels in _chosen_from(model, observed).items():
        if name not in taken:
            out.append(NearGroup(name, n_levels, _amiss(name, model, reads)))
    return out


def _chosen_from(model, observed: Sequence[Variable]) -> dict[str, int]:
    """Return the numbers of levels of variables that rows index, directly or through functions."""
    point = initial_point_of(model)
    found: dict[str, int] = {}
    nodes = [
        node
        for node in toposort(lowered(log_densities(model, observed)))
        if isinstance(node.op, AdvancedSubtensor) and node.inputs[0].type.ndim
    ]
    n_rows = {row_count(model, [rv]) for rv in observed}
    arrays, taken = _shapes([n.inputs[0] for n in nodes], [n.outputs[0] for n in nodes], model)
    for node, (n_levels, *_), shape in zip(nodes, arrays, taken):
        if n_levels < 2 or n_rows.isdisjoint(shape):
            continue
        above = set(ancestors([node.inputs[0]]))
        for value in model.value_vars:
            own = n_levels - isinstance(_transform(value, model), ZeroSumTransform)
            if value in above and np.shape(point[value.name])[:1] == (own,):
                found[value.name] = n_levels
    return found


def _shapes(one: Sequence[Variable], two: Sequence[Variable], model):
    """Return the shapes of two lists of variables at the initial point."""
    point, every = initial_point_of(model), [*one, *two]
    shapes = [v.type.shape for v in every]
    if any(None in shape for shape in shapes):
        evaluate = plain_function(model.value_vars, [v.shape for v in every])
        shapes = [tuple(s) for s in evaluate(*(point[v.name] for v in model.value_vars))]
    return shapes[: len(one)], shapes[len(one) :]


def _transform(value: Variable, model):
    return model.rvs_to_transforms.get(model.values_to_rvs[value])


def _amiss(name: str, model, reads: Sequence[Read]) -> str:
    value = next(v for v in model.value_vars if v.name == name)
    transform, user = _transform(value, model), model.values_to_rvs[value].name
    if isinstance(transform, ZeroSumTransform):
        return (
            "its prior is not a product over levels, which add up to zero (give it a Normal prior "
            "in the place of the ZeroSumNormal; the intercept takes up the mean)"
        )
    if isinstance(transform, Ordered):
        return "its prior is not a product over levels, which are ordered"
    for read in reads:
        reason = _way_of_reading(user, read, read.found.get(name, ()))
        if reason:
            return reason
    problems = [f"{r.observed}: {r.problem}" for r in reads if r.problem]
    if problems:
        return f"the density of a row cannot be written as a loop over numbers ({problems[0]})"
    return "rows do not read one entry of it, found by an index in the data"


def _way_of_reading(user: str, read: Read, indices: Iterable[Index]) -> str:
    g = read.graph
    firsts = {index[0] for index in indices if index}
    fixed = {n for n in firsts if g.number(n) is not None}
    by_parameters = {n for n in firsts - fixed if g.leaves([n], "entry")}
    by_data = firsts - fixed - by_parameters
    rows = f"rows of {read.observed}"
    if by_parameters:
        return f"{rows} choose its level by a parameter"
    if len(by_data) > 1:
        number = "two" if len(by_data) == 2 else "several"
        return f"{rows} read {number} levels of it at once, as {user}[i] - {user}[j] does"
    if by_data and fixed:
        return (
            f"{rows} read it in two ways, their own level and others, as {user}[i] - {user}.mean() "
            f"does (read {user}[i] alone; the intercept takes up the mean)"
        )
    if len(fixed) > 1:
        return f"{rows} read several levels of it at once, whatever their own"
    return ""
