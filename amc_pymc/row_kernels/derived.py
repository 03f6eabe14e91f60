"""Source of coefficients that are functions of parameters, and of what depends on them.

The kernels of rows work on z = (eta, w), parameters and coefficients. The functions printed here lead
from eta to z, from directions of eta to those of z, and from derivatives by z back to those by eta.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from amc_pymc.expressions import Family, Graph

__all__ = ["NO_FAMILIES", "derived_functions"]

_HEAD = "@njit(cache=True, error_model='numpy')"

#: What is printed where there are no such coefficients.
NO_FAMILIES = [
    _HEAD,
    "def extended(eta):",
    "    return eta",
    "",
    _HEAD,
    "def extended_line(at, du, dv):",
    "    return at, du, dv, du",
    "",
    _HEAD,
    "def gradient_by_parameters(eta, slopes):",
    "    return slopes",
    "",
    _HEAD,
    "def hessian_by_parameters(eta, slopes, hessian):",
    "    return hessian",
    "",
    _HEAD,
    "def line_by_parameters(eta, slopes, expanded, direction):",
    "    return expanded",
    "",
]


class _Printer(Protocol):
    """Prints functions of rows."""

    graph: Graph

    def loops(self, name: str, outputs: Sequence[int], arrays: Sequence[str]) -> list[str]:
        """A function that computes expressions for consecutive rows."""

    def row(self, name: str, outputs: Sequence[int], places: Sequence[int]) -> list[str]:
        """A function that computes expressions for one row, and one for places in eta."""


def derived_functions(families: Sequence[Family], size: int, printer: _Printer) -> list[str]:
    """Lines of the same functions where there are coefficients.

    Parameters
    ----------
    families : sequence of Family
    size : int
        Number of parameters.
    printer : object
        Prints functions of rows; here of the rows of a family's table.
    """
    g = printer.graph
    number = sum(len(f.table) for f in families)
    leaves = [_entries(g, f) for f in families]
    widest = max(1, *map(len, leaves))
    lines = [
        f"N_PARAMETERS, N_COEFFICIENTS, N_COEFFICIENT_LEAVES = {size}, {number}, {widest}",
        f"COEFFICIENTS = np.array({_table(families).T.tolist()})",
    ]
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
        lines += printer.loops(f"coefficient{k}", [value], ("eta",))
        lines += printer.loops(f"jet{k}", jet, ("eta", "du", "dv"))
        lines += printer.row(f"derivatives{k}", [*first, *second], places)
    return [*lines, *_drivers(families)]


def _entries(g: Graph, family: Family) -> list[int]:
    return [
        n for n in g.leaves([family.expression], "entry") if g.nodes[n].value == "eta"
    ]  # fmt: skip


def _table(families: Sequence[Family]) -> np.ndarray:
    """Tables of all families below each other, (W, C)."""
    out = np.zeros((sum(len(f.table) for f in families), max(f.table.shape[1] for f in families)))
    for f in families:
        out[f.first : f.first + len(f.table), : f.table.shape[1]] = f.table
    return out


def _drivers(families: Sequence[Family]) -> list[str]:
    """Functions that call those of each family."""
    z = ["z", "zu", "zv", "zw"]
    copies = [["eta"], ["at", "du", "dv", "du"]]
    values, jets, curves = [], [], []
    for k, f in enumerate(families):
        n, end = len(f.table), f.first + len(f.table)
        place = f"N_PARAMETERS + {f.first} + j"
        values += [
            f"shared{k} = np.empty(N_COEFFICIENT{k}_SHARED)",
            f"coefficient{k}_shared(eta, shared{k})",
            f"kept{k} = np.empty((N_COEFFICIENT{k}_KEPT, {n}))",
            f"coefficient{k}_rows(eta, shared{k}, COEFFICIENTS, {f.first}, {n}, kept{k})",
            f"for j in range({n}):",
            f"    z[{place}] = kept{k}[0, j]",
        ]
        jets += [
            f"shared{k} = np.empty(N_JET{k}_SHARED)",
            f"jet{k}_shared(at, du, dv, shared{k})",
            f"kept{k} = np.empty((N_JET{k}_KEPT, {n}))",
            f"jet{k}_rows(at, du, dv, shared{k}, COEFFICIENTS, {f.first}, {n}, kept{k})",
            f"for j in range({n}):",
            *(f"    {name}[{place}] = kept{k}[{m}, j]" for m, name in enumerate(z)),
        ]
        curves += [
            f"shared{k} = np.empty(N_DERIVATIVES{k}_SHARED)",
            f"derivatives{k}_shared(eta, shared{k})",
            f"for i in range({f.first}, {end}):",
            f"    row_derivatives{k}(eta, shared{k}, COEFFICIENTS, i, curves)",
            f"    derivatives{k}_places(eta, shared{k}, COEFFICIENTS, i, at)",
        ]
    size = "N_COEFFICIENT_LEAVES"
    return [
        *_function("extended(eta)", [*_extend(z[:1], copies[0]), *values, "return z"]),
        *_function(
            "extended_line(at, du, dv)", [*_extend(z, copies[1]), *jets, "return z, zu, zv, zw"]
        ),
        *_function(
            "_derivatives(eta)",
            [
                f"at = np.empty(({size}, N_COEFFICIENTS), np.int64)",
                f"curves = np.empty(({size} + {size} * ({size} + 1) // 2, N_COEFFICIENTS))",
                *curves,
                "return at, curves",
            ],
        ),
        *_function("gradient_by_parameters(eta, slopes)", _pulled("pull_gradient(slopes")),
        *_function(
            "hessian_by_parameters(eta, slopes, hessian)", _pulled("pull_hessian(slopes, hessian")
        ),
        *_function(
            "line_by_parameters(eta, slopes, expanded, direction)",
            _pulled("pull_along(slopes, expanded, direction"),
        ),
    ]


def _function(head: str, body: Sequence[str]) -> list[str]:
    return [_HEAD, f"def {head}:", *(f"    {line}" for line in body), ""]


def _extend(names: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Longer arrays that begin like others."""
    return [
        *(f"{name} = np.empty(N_PARAMETERS + N_COEFFICIENTS)" for name in names),
        "for a in range(N_PARAMETERS):",
        *(f"    {name}[a] = {source}[a]" for name, source in zip(names, sources)),
    ]


def _pulled(call: str) -> list[str]:
    return ["at, curves = _derivatives(eta)", f"return {call}, at, curves, N_PARAMETERS)"]
