"""Generated functions of a model for the loops over groups."""

from __future__ import annotations

from dataclasses import dataclass

from amc_pymc.engine import ROW, Graph
from amc_pymc.engine.leaves import DOTS_AT, derivatives_by, described_dots, leaves_of
from amc_pymc.engine.machine import Printed
from amc_pymc.engine.printer import Printer, Stages

# --- places in a program ---------------------------------------------------------------------------
# The description of a row's leaves comes first (:mod:`amc_pymc.engine.leaves`). A stage takes four
# entries (:mod:`amc_pymc.engine.printer`).


#: Number of local effects per group, number of leaves of their log density.
N_LOCAL, N_PRIOR_LEAVES = (DOTS_AT + k for k in (1, 2))
#: Stages of values that do not depend on local effects: for log-likelihoods and Newton steps, for
#: directional derivatives, for derivatives by leaves.
VALUE, JET, SLOPE = (DOTS_AT + k for k in (3, 7, 11))
#: Functions that add sums over rows: log-likelihoods, their derivatives by local effects, directional ones.
ROWS_VALUE, ROWS_NEWTON, ROWS_JET = (DOTS_AT + k for k in (15, 16, 17))
#: Functions that write each row's derivatives by leaves and positions of entries of eta, and the number
#: of output rows of the first.
ROWS_SLOPES, ROWS_PLACES, N_SLOPES = (DOTS_AT + k for k in (18, 19, 20))
#: The same functions for the local effects' log density.
PRIOR_VALUE, PRIOR_NEWTON, PRIOR_JET, PRIOR_SLOPES, PRIOR_PLACES = (
    *(DOTS_AT + k for k in (21, 22, 23, 24, 25)),
)
#: End of the fixed entries.
END = DOTS_AT + 26


# --- generated functions ---------------------------------------------------------------------------


#: Number of rows that kernels may read beyond the last one.
ROWS_BEYOND = 16
#: Arrays of parameters that stages read.
_ARRAYS = {"value": ("eta",), "jet": ("eta", "du", "dv"), "slope": ("eta",)}


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
    n_columns : int
        Number of data columns that a row reads.
    """

    graph: Graph
    row: int
    prior: int
    n_local: int
    n_columns: int = 1


def printed_groups(program: GroupProgram, *, curved: bool = True) -> Printed:
    """Generate the functions of a model's groups, in the order of :mod:`amc_pymc.tall.groups.printed`.

    Unless ``curved``, the functions of derivatives by leaves omit second derivatives, and those of
    directional derivatives write nothing.
    """
    g = program.graph
    outputs = [program.row, program.prior]
    local = [g.leaf("local", j, "f") for j in range(program.n_local)]
    newton = [derivatives_by(g, o, local) for o in outputs]
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
    stages = {
        "value": Stages.of(g, [*outputs, *(d for part in newton for d in part)]),
        "jet": Stages.of(g, [d for part in jets for d in part]),
        "slope": Stages.of(g, [*(d for part in slopes for d in part), *row_places, *prior_places]),
    }
    # Values stored for each row; a group's own data are read again instead.
    kept = {k: [n for n in s.kept if g.depends(n) == ROW] for k, s in stages.items()}
    p, layout = Printer(g), list[int | str]()
    for name, stage in stages.items():  # values that do not depend on local effects
        arrays, shared = _ARRAYS[name], stage.shared
        p.once(f"{name}_shared", (*arrays, "out"), shared)
        rows = (*arrays, "shared", "block", "stride", "n", "out", "out_stride")
        number = p.each_row(f"{name}_kept", rows, kept[name], shared=shared)
        layout += [f"{name}_shared", f"{name}_kept", len(shared), number]
    sums = (
        ("value", "value", [[n] for n in outputs]),
        ("newton", "value", newton),
        ("jet", "jet", jets),
    )
    for name, stage_name, (of_rows, of_prior) in sums:
        arrays, shared = _ARRAYS[stage_name], stages[stage_name].shared
        rows = (*arrays, "shared", "kept", "stride", "n", "padded", "u", "out")
        p.sum_of_rows(f"rows_{name}", rows, of_rows, shared=shared, kept=kept[stage_name])
        p.once(f"prior_{name}", (*arrays, "shared", "group", "u", "out"), of_prior, shared=shared)
    shared = stages["slope"].shared
    rows = ("eta", "shared", "kept", "stride", "n", "u", "out", "out_stride")
    n_slopes = p.each_row("rows_slopes", rows, slopes[0], shared=shared, kept=kept["slope"])
    rows = ("eta", "shared", "block", "stride", "n", "at", "out_stride")
    p.each_row("rows_places", rows, [], shared=shared, places=row_places)
    p.once("prior_slopes", ("eta", "shared", "group", "u", "out"), slopes[1], shared=shared)
    places = ("eta", "shared", "group", "at")
    p.once("prior_places", places, [], shared=shared, places=prior_places)
    layout += [f"rows_{name}" for name in ("value", "newton", "jet", "slopes", "places")]
    layout += [n_slopes]
    layout += [f"prior_{name}" for name in ("value", "newton", "jet", "slopes", "places")]
    head = [len(row_leaves), len(row_dots), program.n_columns, END]
    head += [program.n_local, len(prior_leaves)]
    return Printed(p.text, (*head, *layout, *described_dots(g, row_dots, END)))


def _jet(g: Graph, output: int) -> list[int]:
    """Return the value, its derivatives along du and dv, and the mixed second derivative."""
    along_u = g.directional(output, "du")
    along_v = g.directional(output, "dv")
    return [output, along_u, along_v, g.directional(along_u, "dv")]
