"""Rows in terms of coefficients that are functions of parameters, and what a model's prior is made of."""

from __future__ import annotations

import logging

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from numba import types

from amc_pymc.engine import Family, Graph
from amc_pymc.engine.first_class import bound_function
from amc_pymc.engine.leaves import leaves_of
from amc_pymc.engine.machine import Printed
from amc_pymc.engine.row_kernels import RowProgram, TooLarge, printed_rows
from amc_pymc.reading.densities import ModelDensities, RowDensities
from amc_pymc.reading.group_densities import GroupedModel
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.native_rows import NativeRows, StoredRows
from amc_pymc.reading.prior_terms import prior_terms
from amc_pymc.reading.row_products import with_products
from amc_pymc.reading.scalars import NotScalar
from amc_pymc.tall.split import Parts
from amc_pymc.tall.terms import Written, printed_families, with_values
from amc_pymc.tall.wide import taken_apart, with_combinations, with_functions

__all__ = ["CoefficientForm", "CoefficientMap", "coefficient_form", "parts_of"]

_log = logging.getLogger("amc_pymc")
_MAP = types.float64[::1](types.float64[::1])
#: Name of the coefficients in the layout of z.
_COEFFICIENTS = "coefficients"


@dataclass(frozen=True, eq=False)
class CoefficientMap:
    """Map from x (D,) to z (D + W,): x, followed by the coefficients."""

    printed: Printed

    @cached_property
    def native(self) -> Any:
        """First-class ``x (D,) -> z (D + W,)``."""
        return bound_function(with_values, _MAP, list(self.printed.arrays))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        """Return z at x."""
        z: np.ndarray = with_values(np.asarray(x, float), *self.printed.arrays)
        return z

    def rough(self) -> np.ndarray:
        """Return no coordinates: all are continuous."""
        return np.empty(0, np.int64)

    def __getstate__(self):
        return {"printed": self.printed}


class CoefficientForm(NamedTuple):
    """Rows in terms of coefficients: expressions, coordinates of x that they read besides, and densities in z."""

    graph: Graph
    families: tuple[Family, ...]
    reads: np.ndarray
    map: CoefficientMap
    raced: RowDensities


def coefficient_form(densities: ModelDensities) -> CoefficientForm | None:
    """Return rows in terms of coefficients that are functions of parameters; None if there are none."""
    native = densities.native
    if not isinstance(native, NativeRows | StoredRows) or native.program is None:
        return None
    in_memory = isinstance(native, NativeRows)
    program, data = with_products(native.program, native.data, may_add=in_memory)
    if not program.families:
        return None
    layout, n = densities.layout, sum(len(f.table) for f in program.families)
    beside = FlatLayout(
        (*layout.names, _COEFFICIENTS), (*layout.shapes, (n,)), (*layout.dtypes, "float64")
    )
    alone = replace(program, families=(), n_parameters=layout.size + n)
    try:
        printed = printed_rows(alone)
    except TooLarge:
        return None
    reads = _coordinates_read(program, data)
    names = [k for k, s in layout.slices.items() if np.isin(reads, np.r_[s]).any()]
    rows = replace(densities.rows, layout=beside, value_vars=(*names, _COEFFICIENTS))
    out = RowDensities(rows, expand=beside.indices(rows.value_vars))
    packed = native.with_program(printed, alone, data)
    values = printed_families(program.graph, program.families, order=0)
    return CoefficientForm(
        program.graph, program.families, reads, CoefficientMap(values), out.of_packed(packed)
    )


def _coordinates_read(program: RowProgram, data: np.ndarray) -> np.ndarray:
    """Return the coordinates of x that rows read other than through coefficients."""
    graph = program.graph
    entries, dots = leaves_of(graph, program.row)
    places = [graph.nodes[e].args[0] for e in entries]
    found = [np.unique(p) for p in graph.evaluate(places, row=data.T)]
    for d in dots:
        _, first, columns = graph.nodes[d].value
        found.append(first + np.arange(len(columns)))
    every = np.unique(np.concatenate([np.empty(0), *found])).astype(np.int64)
    return every[every < program.n_parameters]


def parts_of(
    densities: ModelDensities | GroupedModel, form: CoefficientForm | None = None
) -> Parts | None:
    """Return the terms of the prior and the coefficients; None, with the reason logged, if they have no scalar form."""
    size = densities.layout.size
    try:
        total, inputs = densities.rest_graph
        graph, terms = prior_terms([total], inputs, FlatLayout(("x",), ((size,),), ("float64",)))
    except (NotScalar, TypeError, RecursionError) as error:
        _log.debug("The prior has no scalar form: %s", error)
        return None
    narrow, functions = with_functions(graph, taken_apart(graph, terms), size, linear=False)
    begin = size + len(functions)
    narrow, combinations = with_combinations(graph, narrow, size, begin)
    prior = Written(graph, narrow, functions)
    if form is None:
        return Parts(prior, combinations, Written(Graph(), (), ()), densities.reads)
    coefficients = Written(form.graph, *with_functions(form.graph, form.families, size, True))
    return Parts(prior, combinations, coefficients, form.reads)
