"""Generated functions of a model for the loops over groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amc_pymc.engine import ROW, Graph
from amc_pymc.engine.leaves import DOTS_AT, derivatives_by, described_dots, leaves_of
from amc_pymc.engine.machine import Printed
from amc_pymc.engine.printer import Printer, Stages

# --- places in a program ---------------------------------------------------------------------------
# The description of a row's leaves comes first (:mod:`amc_pymc.engine.leaves`). A stage takes four
# entries (:mod:`amc_pymc.engine.printer`).


#: Number of local effects per group, whether they are discrete, number of leaves of their log density.
N_LOCAL, DISCRETE, N_PRIOR_LEAVES = (DOTS_AT + k for k in (1, 2, 3))
#: Stages of values that do not depend on local effects: for log-likelihoods and Newton steps, for
#: directional derivatives, for derivatives by leaves.
VALUE, JET, SLOPE = (DOTS_AT + k for k in (4, 8, 12))
#: Functions that add sums over rows: log-likelihoods, their derivatives by local effects, directional ones.
ROWS_VALUE, ROWS_NEWTON, ROWS_JET = (DOTS_AT + k for k in (16, 17, 18))
#: Functions that write each row's derivatives by leaves and positions of entries of eta, and the number
#: of output rows of the first.
ROWS_SLOPES, ROWS_PLACES, N_SLOPES = (DOTS_AT + k for k in (19, 20, 21))
#: The same functions for the local effects' log density.
PRIOR_VALUE, PRIOR_NEWTON, PRIOR_JET, PRIOR_SLOPES, PRIOR_PLACES = (
    *(DOTS_AT + k for k in (22, 23, 24, 25, 26)),
)
#: End of the fixed entries.
END = DOTS_AT + 27


# --- generated functions ---------------------------------------------------------------------------


#: Number of rows that kernels may read beyond the last one.
ROWS_BEYOND = 16
_LINE = ("eta", "du", "dv")


@dataclass(frozen=True, eq=False)
class GroupProgram:
    """Expressions from which the functions of a model's groups are generated.

    Attributes
    ----------
    graph : Graph
    row : int
        Log-likelihood of a row, given local effects.
    prior : int
        Log density of a group's local effects.
    n_local : int
        Number of local effects per group.
    discrete : bool
        Whether local effects are summed over states instead of integrated out.
    n_columns : int
        Number of data columns that a row reads.
    """

    graph: Graph
    row: int
    prior: int
    n_local: int
    discrete: bool = False
    n_columns: int = 1


def printed_groups(program: GroupProgram, *, curved: bool = True) -> Printed:
    """Generate the functions of a model's groups, in the order of :mod:`amc_pymc.tall.groups.printed`.

    Unless ``curved``, the functions of derivatives by leaves omit second derivatives, and those of
    directional derivatives write nothing.
    """
    g = program.graph
    outputs = [program.row, program.prior]
    local = [g.leaf("local", j, "i" if program.discrete else "f") for j in range(program.n_local)]
    newton = [[] if program.discrete else derivatives_by(g, o, local) for o in outputs]
    jets = [_jet(g, o) if curved else [] for o in outputs]
    row_leaves, row_dots = leaves_of(g, program.row)
    prior_leaves, prior_dots = leaves_of(g, program.prior)
    assert not prior_dots, "local effects depend on their group's data only"
    slopes = [
        derivatives_by(g, program.row, row_leaves + row_dots),
        derivatives_by(g, program.prior, prior_leaves),
    ]
    if not curved:
        slopes = [slopes[0][: len(row_leaves) + len(row_dots)], slopes[1][: len(prior_leaves)]]
    row_places, prior_places = (
        [g.nodes[n].args[0] for n in leaves] for leaves in (row_leaves, prior_leaves)
    )
    value = Stages.of(g, [*outputs, *(d for part in newton for d in part)])
    jet = Stages.of(g, [d for part in jets for d in part])
    slope = Stages.of(g, [*(d for part in slopes for d in part), *row_places, *prior_places])
    p = _GroupPrinter(g)
    stages = [
        *p.kept_stage("value", ("eta",), value),
        *p.kept_stage("jet", _LINE, jet),
        *p.kept_stage("slope", ("eta",), slope),
    ]
    functions: list[int | str] = [
        p.sum("rows_value", ("eta",), value, [program.row]),
        p.sum("rows_newton", ("eta",), value, newton[0]),
        p.sum("rows_jet", _LINE, jet, jets[0]),
        "rows_slopes",
        p.row_places("rows_places", slope, row_places),
        p.slopes("rows_slopes", slope, slopes[0]),
        p.prior("prior_value", ("eta",), value, [program.prior]),
        p.prior("prior_newton", ("eta",), value, newton[1]),
        p.prior("prior_jet", _LINE, jet, jets[1]),
        p.prior("prior_slopes", ("eta",), slope, slopes[1]),
        p.prior_places("prior_places", slope, prior_places),
    ]
    n_columns = program.n_columns
    head: list[int | str] = [len(row_leaves), len(row_dots), n_columns, END]
    head += [program.n_local, int(program.discrete), len(prior_leaves)]
    described = described_dots(g, row_dots, END)
    return Printed(p.text, (*head, *stages, *functions, *described))


class _GroupPrinter(Printer):
    """Printer of functions that read the results of earlier stages."""

    def _kept(self, stages: Stages) -> list[int]:
        """Return the values stored for each row; a group's own data are read again instead."""
        return [n for n in stages.kept if self.graph.depends(n) == ROW]

    def kept_stage(self, name: str, arrays: Sequence[str], stages: Stages) -> list[int | str]:
        """Print functions that write values that do not depend on local effects."""
        self.once(f"{name}_shared", (*arrays, "out"), stages.shared)
        rows = (*arrays, "shared", "block", "stride", "n", "out", "out_stride")
        kept = self._kept(stages)
        number = self.each_row(f"{name}_kept", rows, kept, shared=stages.shared)
        return [f"{name}_shared", f"{name}_kept", len(stages.shared), number]

    def sum(self, name: str, arrays: Sequence[str], stages: Stages, outputs: Sequence[int]) -> str:
        """Print a function that adds sums over the rows of a group."""
        arguments = (*arrays, "shared", "kept", "stride", "n", "padded", "u", "out")
        known = {"shared": stages.shared, "kept": self._kept(stages)}
        self.sum_of_rows(name, arguments, outputs, **known)
        return name

    def slopes(self, name: str, stages: Stages, outputs: Sequence[int]) -> int:
        """Print a function that writes each row's derivatives by leaves; return its output rows."""
        arguments = ("eta", "shared", "kept", "stride", "n", "u", "out", "out_stride")
        known = {"shared": stages.shared, "kept": self._kept(stages)}
        return self.each_row(name, arguments, outputs, **known)

    def row_places(self, name: str, stages: Stages, places: Sequence[int]) -> str:
        """Print a function that writes the positions in eta of each row's entries."""
        arguments = ("eta", "shared", "block", "stride", "n", "at", "out_stride")
        self.each_row(name, arguments, [], shared=stages.shared, places=places)
        return name

    def prior(
        self, name: str, arrays: Sequence[str], stages: Stages, outputs: Sequence[int]
    ) -> str:
        """Print a function of a group's data and local effects."""
        self.once(name, (*arrays, "shared", "group", "u", "out"), outputs, shared=stages.shared)
        return name

    def prior_places(self, name: str, stages: Stages, places: Sequence[int]) -> str:
        """Print a function that writes the positions in eta of the prior's entries."""
        self.once(name, ("eta", "shared", "group", "at"), [], shared=stages.shared, places=places)
        return name


def _jet(g: Graph, output: int) -> list[int]:
    """Return the value, its derivatives along du and dv, and the mixed second derivative."""
    along_u = g.directional(output, "eta", "du")
    along_v = g.directional(output, "eta", "dv")
    return [output, along_u, along_v, g.directional(along_u, "eta", "dv")]
