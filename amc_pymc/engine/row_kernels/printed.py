"""Generated functions of a model for the loops over rows."""

from __future__ import annotations

from dataclasses import dataclass

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

#: Places of stages in a program: log-likelihoods, their Taylor polynomials, first and second derivatives by leaves.
VALUE, TAYLOR, SLOPES, CURVES, END = (DOTS_AT + 1 + 4 * k for k in range(5))
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


def printed_rows(
    program: RowProgram, along_curves: bool = False, *, second_order: bool = True
) -> Printed:
    """Generate the functions of a model's rows, in the order of the places above.

    Parameters
    ----------
    program : RowProgram
        It must not have families.
    along_curves : bool
        Whether first derivatives of Taylor polynomials are taken along "dw", which may differ from "du".
    second_order : bool
        Whether there are Taylor polynomials and second derivatives, of which a row may have thousands.

    Raises
    ------
    TooLarge
    """
    g, row = program.graph, program.row
    entries, dots = leaves_of(g, row)
    leaves = [*entries, *dots]
    places = [g.nodes[n].args[0] for n in entries]
    p = StagePrinter(g)
    value = p.stage("value", ("eta",), [row])
    taylor: list[int | str] = [0] * len(value)
    curves = taylor
    if second_order:
        polynomial = _taylor_polynomial(g, row, along_curves)
        check_size(len(g.upstream([polynomial])) + len(leaves) ** 2)
        derivatives = derivatives_by(g, row, leaves)
        check_size(len(g.upstream([polynomial, *derivatives])))
        taylor = p.stage("taylor", _LINE, [polynomial])
        curves = p.stage("curves", ("eta",), [row, *derivatives], places)
        slopes = derivatives[: len(leaves)]
    else:
        slopes = [g.partial(row, n) for n in leaves]
        check_size(len(g.upstream(slopes)))
    first = p.stage("slopes", ("eta",), [row, *slopes], places)
    described = described_dots(g, dots, END)
    head: list[int | str] = [0] * VALUE
    head[N_COLUMNS] = program.n_columns
    head[N_ENTRIES], head[N_DOTS], head[DOTS_AT] = len(entries), len(dots), END
    return Printed(p.text, (*head, *value, *taylor, *first, *curves, *described))


def _taylor_polynomial(g: Graph, row: int, along_curves: bool) -> int:
    along_u = g.directional(row, "eta", "du")
    curved = g.directional(along_u, "eta", "dv")
    along = g.directional(row, "eta", "dw") if along_curves else along_u
    return g.make("add", along, g.make("mul", g.const(0.5), curved))


def check_size(size: int) -> None:
    if size > _MOST_OPERATIONS:
        raise TooLarge(f"a row and its derivatives take {size} operations")
