"""Control variates in data space as printed machine code, for rows that are scalar expressions."""

from __future__ import annotations

import logging
import math

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amc_pymc.engine import Graph
from amc_pymc.engine.machine import Printed
from amc_pymc.engine.row_kernels import TooLarge, printed_data_control
from amc_pymc.reading.native_rows import packed_columns
from amc_pymc.reading.row_program import Column, Columns, parameter_leaf, row_expression
from amc_pymc.reading.rows import RowLogp
from amc_pymc.reading.scalars import NotScalar

__all__ = ["PrintedControl", "printed_control"]

_log = logging.getLogger("amc_pymc")


@dataclass(frozen=True, eq=False)
class PrintedControl:
    """Printed functions of rows of W numbers and of their control variates.

    Attributes
    ----------
    printed : Printed
        From :func:`~amc_pymc.engine.row_kernels.printed_data_control`.
    fixed : (N, F) array
        Data that rows read besides their data vectors (N, Dy); W = Dy + F.
    """

    printed: Printed
    fixed: np.ndarray

    @property
    def program(self) -> np.ndarray:
        """Addresses of the functions in this process."""
        return self.printed.arrays[0]

    def rows(self, y: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Return rows (m, W): data vectors y (m, Dy), then the fixed data of some units (m,)."""
        return np.hstack([y, self.fixed[units]])


def printed_control(rows: RowLogp, varies: Sequence[bool]) -> PrintedControl | None:
    """Print the control variate of rows, differentiated with respect to the data arrays that vary.

    Return None, with the reason logged, if it is not a scalar expression.
    """
    graph = Graph()
    columns = Columns(graph, "column")
    try:
        leaf = parameter_leaf(graph, rows.layout, columns=[columns])
        row = row_expression(rows, graph, columns, leaf)
        starts, dim = _starts(rows, varies)
        places = _places(columns, rows, starts, _read(graph, row))
        fixed = [c for c in _read(graph, row) if c not in places]
        places |= {c: dim + k for k, c in enumerate(fixed)}
        printed = printed_data_control(graph, _moved(graph, row, places), dim + len(fixed), dim)
        own = [Column(None, columns.arrays[c]) for c in fixed]
        data = packed_columns(own, rows.n_rows)[:, : len(fixed)]
    except (NotScalar, TooLarge, NotImplementedError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        _log.debug("Control variates in data space are compiled by PyTensor: %s", reason)
        return None
    return PrintedControl(printed, data)


def _starts(rows: RowLogp, varies: Sequence[bool]) -> tuple[dict[int, int], int]:
    """Return where each array that varies begins in data vectors, and the length Dy of these."""
    starts, dim = {}, 0
    for k, array in enumerate(rows.arrays):
        if varies[k]:
            starts[k] = dim
            dim += math.prod(array.shape[1:])
    return starts, dim


def _read(graph: Graph, row: int) -> list[int]:
    """Return the columns that an expression reads."""
    dots = [c for n in graph.leaves([row], "dot") for c in graph.nodes[n].value[2]]
    return list(
        dict.fromkeys([*dots, *(graph.nodes[n].value for n in graph.leaves([row], "column"))])
    )


def _places(
    columns: Columns, rows: RowLogp, starts: dict[int, int], read: Sequence[int]
) -> dict[int, int]:
    """Return the columns that are entries of data vectors, with their positions there.

    Raises
    ------
    NotScalar
        If such an entry is used as an index, or is itself indexed by data.
    """
    keys, places = columns.keys, {}
    for c, (kind, *rest) in keys.items():
        if kind == "input" and rest[0] in starts:
            array, *at = rest
            shape = rows.arrays[array].shape[1:]
            places[c] = starts[array] + int(np.arange(math.prod(shape)).reshape(shape)[tuple(at)])
    for c in read:
        kind, *index = keys[c]
        if isinstance(kind, tuple):
            chosen = kind[0] == "input" and kind[1] in starts
            inside = {m for i in index for m in _read(columns.graph, i)}
            if chosen or inside & places.keys():
                raise NotScalar("data that vary within a bin are chosen or choose")
    return {c: places[c] for c in read if c in places}


def _moved(graph: Graph, row: int, places: dict[int, int]) -> int:
    """Return an expression with its columns renumbered."""
    change = {}
    for n in graph.leaves([row], "column"):
        node = graph.nodes[n]
        change[n] = graph.leaf("column", places[node.value], node.kind)
    for n in graph.leaves([row], "dot"):
        name, first, read = graph.nodes[n].value
        change[n] = graph.leaf("dot", (name, first, tuple(places[c] for c in read)))
    return graph.replaced([row], change)[0]
