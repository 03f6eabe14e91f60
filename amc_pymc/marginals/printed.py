"""A model's own functions in the place of the template's, compiled and kept on disk."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from amc_pymc.expressions import ROW, Graph
from amc_pymc.expressions.source import Stages, print_function, print_loops

__all__ = ["ROWS_BEYOND", "GroupProgram", "kernel_folder", "load_kernels", "printed_source"]

_BEGIN, _END = "# --- printed functions begin", "# --- printed functions end"
#: Rows that kernels may read beyond the last one.
ROWS_BEYOND = 16
_PACKAGE = Path(__file__).resolve().parents[1]


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
    template = (Path(__file__).parent / "template.py").read_text()
    head, rest = template.split(_BEGIN, 1)
    tail = rest.split(_END, 1)[1].split("\n", 1)[1]
    return "\n".join([head, *_functions(program), tail])


def _functions(program: GroupProgram) -> list[str]:
    g = program.graph
    outputs = [program.row, program.prior]
    local = [g.leaf("local", j, "i" if program.discrete else "f") for j in range(program.n_local)]
    newton = [] if program.discrete else [_triangle(g, o, local) for o in outputs]
    jets = [_jet(g, o) for o in outputs]
    row_leaves, row_dots = _leaves(g, program.row)
    prior_leaves, prior_dots = _leaves(g, program.prior)
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
        *_dots(g, row_dots),
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


def _leaves(g: Graph, output: int) -> tuple[list[int], list[int]]:
    """Entries of eta and products with consecutive entries."""
    entries = [n for n in g.leaves([output], "entry") if g.nodes[n].value == "eta"]
    return entries, g.leaves([output], "dot")


def _dots(g: Graph, dots: Sequence[int]) -> list[str]:
    """Tables of products with consecutive entries: first entry, number, columns."""
    found = [g.nodes[n].value for n in dots] or [("eta", 0, ())]
    widest = max(1, *(len(v[2]) for v in found)) if len(found) > 1 else max(1, len(found[0][2]))
    columns = np.zeros((len(found), widest), int)
    for k, (_, _, c) in enumerate(found):
        columns[k, : len(c)] = c
    return [
        f"DOT_FIRST = np.array({[v[1] for v in found]}, np.int64)",
        f"DOT_SIZE = np.array({[len(v[2]) for v in found]}, np.int64)",
        f"DOT_COLUMNS = np.array({columns.tolist()}, np.int64)",
    ]


# --- compiled modules on disk -------------------------------------------------------------------


def kernel_folder() -> Path:
    """Where compiled kernels are kept: ``AMC_PYMC_CACHE`` or the user's cache folder."""
    root = os.environ.get("AMC_PYMC_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "amc_pymc"


def load_kernels(source: str) -> ModuleType:
    """The module of some source, from memory, from disk, or compiled anew.

    Its name has a hash of the source and of everything in the package that it calls, so a changed
    package never meets old machine code.
    """
    digest = hashlib.blake2b(source.encode(), digest_size=12)
    digest.update((_PACKAGE / "expressions" / "functions.py").read_bytes())
    name = f"amc_pymc_kernels_{digest.hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    path = _written(kernel_folder(), name, source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _written(folder: Path, name: str, source: str) -> Path:
    """The file of a module; in a folder for this process alone where the cache cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.py"
        if not path.exists() or path.read_text() != source:
            handle, temporary = tempfile.mkstemp(dir=folder, suffix=".py")
            with os.fdopen(handle, "w") as file:
                file.write(source)
            Path(temporary).replace(path)  # whole or not at all, whoever else writes it
        return path
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="amc_pymc_")) / f"{name}.py"
        path.write_text(source)
        return path
