"""A model's own functions in the place of the template's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from amc_pymc.expressions import Families, Family, Graph, beside_parameters
from amc_pymc.expressions.kernels import dot_tables, filled_template, places_of
from amc_pymc.expressions.source import Stages, print_function, print_loops
from amc_pymc.row_kernels.derived import NO_FAMILIES, derived_functions

__all__ = ["SHARED_LOOPS", "RowProgram", "TooLarge", "printed_source", "row_program"]

#: File of the package that the kernels call.
SHARED_LOOPS = Path(__file__).parent / "pull_back.py"

#: Operations of a row with its derivatives beyond which compiling would take too long.
_MOST_OPERATIONS = 6_000


class TooLarge(ValueError):
    """The expression of a row is too large to be printed."""


@dataclass(frozen=True, eq=False)
class RowProgram:
    """What the kernels of a model's rows are printed from.

    Attributes
    ----------
    graph : Graph
    row : int
        Log-likelihood of a row.
    n_columns : int
        Columns of data that it reads.
    families : tuple of Family
        Coefficients that are functions of parameters; they follow the parameters in ``eta``.
    n_parameters : int
        Size of ``eta`` without them.
    """

    graph: Graph
    row: int
    n_columns: int
    families: tuple[Family, ...] = ()
    n_parameters: int = 0


def row_program(
    graph: Graph, row: int, n_columns: int, families: Families, n_parameters: int
) -> RowProgram:
    """The program of a row whose expression may read coefficients of some families."""
    (row,) = beside_parameters(graph, [row], n_parameters)
    return RowProgram(graph, row, n_columns, tuple(families.all), n_parameters)


def printed_source(program: RowProgram) -> str:
    """Source of the kernels of a model's rows.

    Raises
    ------
    TooLarge
    """
    return filled_template(Path(__file__).parent / "template.py", _functions(program))


def _functions(program: RowProgram) -> list[str]:
    g, row = program.graph, program.row
    along_u = g.directional(row, "eta", "du")
    curved = g.directional(along_u, "eta", "dv")
    along = g.directional(row, "eta", "dw") if program.families else along_u
    taylor = g.make("add", along, g.make("mul", g.const(0.5), curved))
    entries, dots = places_of(g, row)
    leaves = [*entries, *dots]
    _check_size(len(g.upstream([taylor])) + len(leaves) ** 2)
    first = [g.partial(row, n) for n in leaves]
    second = [g.partial(first[a], leaves[b]) for a in range(len(leaves)) for b in range(a + 1)]
    places = [g.nodes[n].args[0] for n in entries]
    _check_size(len(g.upstream([taylor, *second])))
    p = _Printer(g)
    return [
        f"N_COLUMNS, N_ENTRIES, N_DOTS = {program.n_columns}, {len(entries)}, {len(dots)}",
        *dot_tables(g, dots),
        *p.loops("value", [row], ("eta",)),
        *p.loops("taylor", [taylor], ("eta", "du", "dv", "dw")),
        *p.row("slopes", [row, *first], places),
        *p.row("curves", [row, *first, *second], places),
        *_coefficients(program, p),
    ]


def _coefficients(program: RowProgram, printer: _Printer) -> list[str]:
    if program.families:
        return derived_functions(program.families, program.n_parameters, printer)
    return NO_FAMILIES


def _check_size(size: int) -> None:
    if size > _MOST_OPERATIONS:
        raise TooLarge(f"a row and its derivatives take {size} operations")


class _Printer:
    """Prints functions of rows, and what they share with all rows."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def _shared(self, name: str, outputs: Sequence[int], arrays: Sequence[str]):
        """A function that writes what depends on parameters only, and the source of each."""
        nodes = Stages.of(self.graph, outputs).shared
        lines = print_function(
            self.graph, f"{name}_shared", (*arrays, "shared"), nodes, {}, "shared[{}]"
        )
        size = f"N_{name.upper()}_SHARED = {max(1, len(nodes))}"
        text = {"f": "shared[{}]", "i": "shared[{}]", "b": "(shared[{}] != 0.0)"}
        known = {n: text[self.graph.nodes[n].kind].format(k) for k, n in enumerate(nodes)}
        return [size, "", "", *lines], known

    def loops(self, name: str, outputs: Sequence[int], arrays: Sequence[str]) -> list[str]:
        """A function that computes expressions for consecutive rows."""
        shared, known = self._shared(name, outputs, arrays)
        arguments = (*arrays, "shared", "rows", "begin", "n", "kept")
        lines, number = print_loops(self.graph, f"{name}_rows", arguments, outputs, known)
        return [*shared, "", *lines, f"N_{name.upper()}_KEPT = {number}", "", ""]

    def row(self, name: str, outputs: Sequence[int], places: Sequence[int]) -> list[str]:
        """A function that computes expressions for one row, and one for places in eta."""
        shared, known = self._shared(name, [*outputs, *places], ("eta",))
        one = ("eta", "shared", "rows", "i")
        lines = print_function(
            self.graph, f"row_{name}", (*one, "out"), outputs, known, "out[{}, i]"
        )
        where = print_function(
            self.graph, f"{name}_places", (*one, "at"), places, known, "at[{}, i]"
        )
        return [*shared, "", *lines, "", *where, ""]
