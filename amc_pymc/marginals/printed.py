"""A model's own functions in the place of the template's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from amc_pymc.expressions import ROW, Graph
from amc_pymc.expressions.kernels import dot_tables, filled_template, places_of
from amc_pymc.expressions.source import Stages, print_function, print_loops

__all__ = ["ROWS_BEYOND", "GroupProgram", "printed_source"]

#: Rows that kernels may read beyond the last one.
ROWS_BEYOND = 16


@dataclass(frozen=True, eq=False)
class GroupProgram:
    """What the kernels of a model are printed from.

    Attributes
    ----------
    graph : Graph
    row : int
        Log-likelihood of a row, given local effects.
    prior : int
        Log density of a group's local effects.
    n_local : int
        Local effects of a group.
    discrete : bool
        Whether they are summed over states instead of integrated out.
    """

    graph: Graph
    row: int
    prior: int
    n_local: int
    discrete: bool = False


def printed_source(program: GroupProgram) -> str:
    """Source of the kernels of a model."""
    return filled_template(Path(__file__).parent / "template.py", _functions(program))


def _functions(program: GroupProgram) -> list[str]:
    g = program.graph
    outputs = [program.row, program.prior]
    local = [g.leaf("local", j, "i" if program.discrete else "f") for j in range(program.n_local)]
    newton = [] if program.discrete else [_triangle(g, o, local) for o in outputs]
    jets = [_jet(g, o) for o in outputs]
    row_leaves, row_dots = places_of(g, program.row)
    prior_leaves, prior_dots = places_of(g, program.prior)
    assert not prior_dots, "local effects depend on their group's data only"
    slopes = [
        _triangle(g, program.row, row_leaves + row_dots),
        _triangle(g, program.prior, prior_leaves),
    ]
    value = Stages.of(g, [*outputs, *(d for part in newton for d in part)])
    jet = Stages.of(g, [d for part in jets for d in part])
    places = [g.nodes[n].args[0] for n in row_leaves + prior_leaves]
    slope = Stages.of(g, [*(d for part in slopes for d in part), *places])
    p = _Printer(g)
    lines = [
        f"N_LOCAL, DISCRETE = {program.n_local}, {program.discrete}",
        f"N_ROW_LEAVES, N_ROW_DOTS = {len(row_leaves)}, {len(row_dots)}",
        f"N_PRIOR_LEAVES = {len(prior_leaves)}",
        *dot_tables(g, row_dots),
        "",
        "",
    ]
    directions = ("eta", "du", "dv")
    for name, stages, arrays in (
        ("value", value, ("eta",)),
        ("jet", jet, directions),
        ("slope", slope, ("eta",)),
    ):
        lines += p.stage(name, stages, arrays)
    zero = [g.const(0.0)]
    lines += p.row("row_value", value, ("eta",), [program.row])
    lines += p.prior("prior_value", value, ("eta",), [program.prior])
    lines += p.row("row_newton", value, ("eta",), newton[0] if newton else zero)
    lines += _row_sums(len(newton[0]) if newton else 1)
    lines += p.prior("prior_newton", value, ("eta",), newton[1] if newton else zero, "out[{}]")
    lines += p.row("row_jet", jet, directions, jets[0])
    lines += p.prior("prior_jet", jet, directions, jets[1])
    lines += p.row("row_slopes", slope, ("eta",), slopes[0], "out[{}]")
    lines += p.prior("prior_slopes", slope, ("eta",), slopes[1], "out[{}]")
    lines += p.places("row_places", slope, row_leaves, ("rows", "i"))
    lines += p.places("prior_places", slope, prior_leaves, ("groups", "g"))
    return lines


class _Printer:
    """Prints functions that begin with what earlier stages have left."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def kept(self, stages: Stages) -> list[int]:
        """What is handed on for each row; a group's own data are read anew."""
        return [n for n in stages.kept if self.graph.depends(n) == ROW]

    def _read(self, nodes: Sequence[int], place: str) -> dict[int, str]:
        text = {"f": "{}", "i": "{}", "b": "({} != 0.0)"}
        return {
            n: text[self.graph.nodes[n].kind].format(place.format(k)) for k, n in enumerate(nodes)
        }

    def stage(self, name: str, stages: Stages, arrays: Sequence[str]) -> list[str]:
        """Functions that write what does not depend on local effects, and their sizes."""
        shared = self._read(stages.shared, "shared[{}]")
        first = print_function(
            self.graph, f"{name}_shared", (*arrays, "shared"), stages.shared, {}, "shared[{}]"
        )
        row = (*arrays, "shared", "rows", "begin", "n", "kept")
        loops, number = print_loops(self.graph, f"{name}_kept", row, self.kept(stages), shared)
        sizes = f"N_{name.upper()}_SHARED, N_{name.upper()}_KEPT = "
        return [f"{sizes}{max(1, len(stages.shared))}, {max(1, number)}", "", "", *first, *loops]

    def row(self, name, stages: Stages, arrays, outputs, into: str = "") -> list[str]:
        """A function of a row and its local effects."""
        known = self._read(stages.shared, "shared[{}]")
        known |= self._read(self.kept(stages), "kept[{}, j]")
        arguments = (*arrays, "shared", "kept", "j", "u", *(["out"] if into else []))
        return print_function(self.graph, name, arguments, outputs, known, into)

    def prior(self, name, stages: Stages, arrays, outputs, into: str = "") -> list[str]:
        """A function of a group's data and local effects."""
        known = self._read(stages.shared, "shared[{}]")
        arguments = (*arrays, "shared", "groups", "g", "u", *(["out"] if into else []))
        return print_function(self.graph, name, arguments, outputs, known, into)

    def places(self, name, stages: Stages, leaves, unit) -> list[str]:
        """A function that writes positions of entries in eta."""
        known = self._read(stages.shared, "shared[{}]")
        positions = [self.graph.nodes[n].args[0] for n in leaves]
        arguments = ("eta", "shared", *unit, "at")
        return print_function(self.graph, name, arguments, positions, known, "at[{}]")


def _row_sums(number: int) -> list[str]:
    """A function that adds ``row_newton`` of all rows of a group."""
    each = range(number)
    comma = "," if number == 1 else ""
    return [
        "@njit(cache=True, error_model='numpy', fastmath=FAST)",
        "def add_newton(eta, shared, kept, size, u, out):",
        *(f"    s{k} = 0.0" for k in each),
        "    for j in range(padded(size)):",
        f"        {', '.join(f'a{k}' for k in each)}{comma} = row_newton(eta, shared, kept, j, u)",
        *(f"        s{k} += select(j < size, a{k}, 0.0)" for k in each),
        *(f"    out[{k}] += s{k}" for k in each),
        "",
    ]


def _triangle(g: Graph, output: int, leaves: Sequence[int]) -> list[int]:
    """First and lower triangle of second derivatives by some leaves."""
    first = [g.partial(output, n) for n in leaves]
    second = [g.partial(first[a], leaves[b]) for a in range(len(leaves)) for b in range(a + 1)]
    return first + second


def _jet(g: Graph, output: int) -> list[int]:
    """Value, derivatives along du and dv, and the second one along both."""
    along_u = g.directional(output, "eta", "du")
    along_v = g.directional(output, "eta", "dv")
    return [output, along_u, along_v, g.directional(along_u, "eta", "dv")]
