"""Generated functions of a model for the loops over rows, and their places in ``program``.

The description of leaves comes first (:mod:`amc_pymc.engine.leaves`). A stage takes four places
(:mod:`amc_pymc.engine.stages`). The loops work on z = (eta, w), parameters and coefficients that are functions of them.
Stages map eta to z and directions of eta to those of z, and compute the derivatives that map back; a row of these
stages is a row of a family's table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amc_pymc.engine import Families, Family, Graph, beside_parameters
from amc_pymc.engine.leaves import (
    DOTS_AT,
    N_COLUMNS,
    N_DOTS,
    N_ENTRIES,
    derivatives_by,
    described_dots,
    leaves_of,
)
from amc_pymc.engine.machine import Printed
from amc_pymc.engine.stages import StagePrinter

__all__ = ["RowProgram", "TooLarge", "printed_rows", "row_program"]

#: Numbers of parameters, of coefficients that are functions of them, and of families of coefficients.
N_PARAMETERS, N_COEFFICIENTS, N_FAMILIES = (DOTS_AT + k for k in (1, 2, 3))
#: Largest number of leaves of a coefficient, output rows of the coefficients' derivatives, and position
#: of the description of families.
COEFFICIENT_LEAVES, DERIVATIVE_ROWS, FAMILIES_AT = (DOTS_AT + k for k in (4, 5, 6))
#: Stages: log-likelihoods, their Taylor polynomials, first and second derivatives by leaves.
VALUE, TAYLOR, SLOPES, CURVES, END = (FAMILIES_AT + 1 + 4 * k for k in range(5))
#: Positions in a family's description: first coefficient, number of coefficients, stages of values, of
#: directional derivatives and of derivatives by leaves.
FAMILY_FIRST, FAMILY_SIZE, FAMILY_VALUE, FAMILY_JET, FAMILY_DERIVATIVES = 0, 1, 2, 6, 10
FAMILY_WIDTH = 14

#: Maximum number of operations of a row and its derivatives; more would take too long to compile.
_MOST_OPERATIONS = 6_000
_LINE = ("eta", "du", "dv", "dw")


class TooLarge(ValueError):
    """The expression of a row is too large for code generation."""


@dataclass(frozen=True, eq=False)
class RowProgram:
    """Expressions from which the functions of a model's rows are generated.

    Attributes
    ----------
    graph : Graph
    row : int
        Log-likelihood of a row.
    n_columns : int
        Number of data columns that a row reads.
    families : tuple of Family
        Coefficients that are functions of parameters; they follow the parameters in ``eta``.
    n_parameters : int
        Size of ``eta`` without coefficients.
    """

    graph: Graph
    row: int
    n_columns: int
    families: tuple[Family, ...] = ()
    n_parameters: int = 0


def row_program(
    graph: Graph, row: int, n_columns: int, families: Families, n_parameters: int
) -> RowProgram:
    """Return the program of a row whose expression may read coefficients of some families."""
    (row,) = beside_parameters(graph, [row], n_parameters)
    return RowProgram(graph, row, n_columns, tuple(families.all), n_parameters)


def printed_rows(program: RowProgram) -> Printed:
    """Generate the functions of a model's rows, in the order of the places above.

    Raises
    ------
    TooLarge
    """
    g, row = program.graph, program.row
    along_u = g.directional(row, "eta", "du")
    curved = g.directional(along_u, "eta", "dv")
    along = g.directional(row, "eta", "dw") if program.families else along_u
    taylor = g.make("add", along, g.make("mul", g.const(0.5), curved))
    entries, dots = leaves_of(g, row)
    leaves = [*entries, *dots]
    check_size(len(g.upstream([taylor])) + len(leaves) ** 2)
    slopes = derivatives_by(g, row, leaves)
    places = [g.nodes[n].args[0] for n in entries]
    check_size(len(g.upstream([taylor, *slopes])))
    p = StagePrinter(g)
    stages = [
        *p.stage("value", ("eta",), [row]),
        *p.stage("taylor", _LINE, [taylor]),
        *p.stage("slopes", ("eta",), [row, *slopes[: len(leaves)]], places),
        *p.stage("curves", ("eta",), [row, *slopes], places),
    ]
    described = described_dots(g, dots, END)
    families, widest, n_rows = _coefficient_stages(program.families, p)
    head: list[int | str] = [0] * VALUE
    head[N_PARAMETERS] = program.n_parameters
    head[N_COLUMNS] = program.n_columns
    head[N_ENTRIES], head[N_DOTS] = len(entries), len(dots)
    head[N_COEFFICIENTS] = sum(len(f.table) for f in program.families)
    head[N_FAMILIES] = len(program.families)
    head[COEFFICIENT_LEAVES], head[DERIVATIVE_ROWS] = widest, n_rows
    head[DOTS_AT] = END
    head[FAMILIES_AT] = END + len(described)
    table = _coefficient_table(program.families)
    return Printed(p.text, (*head, *stages, *described, *families), table)


def _coefficient_stages(
    families: Sequence[Family], printer: StagePrinter
) -> tuple[list[int | str], int, int]:
    """Return descriptions of families, the largest number of leaves, and output rows of derivatives."""
    g = printer.graph
    leaves = [leaves_of(g, f.expression)[0] for f in families]
    widest = max([1, *map(len, leaves)])
    described: list[int | str] = []
    n_rows = 1
    for k, (family, own) in enumerate(zip(families, leaves)):
        value = family.expression
        along_u, along_v = (g.directional(value, "eta", d) for d in ("du", "dv"))
        half = g.make("mul", g.const(0.5), g.directional(along_u, "eta", "dv"))
        jet = [value, along_u, along_v, g.make("add", along_u, half)]
        zero, nowhere = g.const(0.0), g.const(0)
        padded = [*own, *[None] * (widest - len(own))]
        first = [zero if n is None else g.partial(value, n) for n in padded]
        second = [
            zero if n is None else g.partial(first[a], n)
            for a in range(widest)
            for n in padded[: a + 1]
        ]
        places = [nowhere if n is None else g.nodes[n].args[0] for n in padded]
        stage = printer.stage(f"derivatives{k}", ("eta",), [*first, *second], places)
        described += [
            *(family.first, len(family.table)),
            *printer.stage(f"coefficient{k}", ("eta",), [value]),
            *printer.stage(f"jet{k}", ("eta", "du", "dv", "dw"), jet),
            *stage,
        ]
        n_rows = max(n_rows, int(stage[-1]))
    return described, widest, n_rows


def _coefficient_table(families: Sequence[Family]) -> tuple[tuple[float, ...], ...]:
    """Return the concatenated tables of all families, column by column."""
    if not families:
        return ((0.0,),)
    out = np.zeros((max(f.table.shape[1] for f in families), sum(len(f.table) for f in families)))
    for f in families:
        out[: f.table.shape[1], f.first : f.first + len(f.table)] = f.table.T
    return tuple(map(tuple, out.tolist()))


def check_size(size: int) -> None:
    if size > _MOST_OPERATIONS:
        raise TooLarge(f"a row and its derivatives take {size} operations")
