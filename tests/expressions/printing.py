"""Expressions compiled one by one, with the loader of kernels and its cache on disk."""

import numpy as np

from amc_pymc.expressions.kernels import HEADER, load_kernels
from amc_pymc.expressions.source import Stages, print_function


def compiled(graph, outputs):
    """``(local (m, q), eta) -> (m, K)``, all outputs of local effects and entries of eta."""
    lines = print_function(graph, "f", ("eta", "u"), outputs, {})
    loop = f"""
@njit(cache=True, error_model="numpy")
def loop(local, eta):
    out = np.empty((len(local), {len(outputs)}))
    for i in range(len(local)):
        {"".join(f"out[i, {k}], " for k in range(len(outputs)))}= f(eta, local[i])
    return out
"""
    module = load_kernels("\n".join([HEADER, *lines, loop]))
    return lambda local, eta=(0.0,): module.loop(np.asarray(local, float), np.asarray(eta, float))


def staged(graph, outputs):
    """``(rows, groups, local, eta) -> (m, K)`` by three stages, as kernels are printed."""
    stages = Stages.of(graph, outputs)
    form = {"f": "{}", "i": "{}", "b": "({} != 0.0)"}

    def read(nodes, place):
        return {n: form[graph.nodes[n].kind].format(place.format(k)) for k, n in enumerate(nodes)}

    shared = read(stages.shared, "shared[{}]")
    kept = read(stages.kept, "kept[{}, j]")
    unit = ("eta", "shared", "rows", "i", "groups", "g", "kept", "j")
    lines = [
        *print_function(graph, "head", ("eta", "shared"), stages.shared, {}, "shared[{}]"),
        *print_function(graph, "unit", unit, stages.kept, shared, "kept[{}, j]"),
        *print_function(graph, "f", (*unit, "u"), outputs, shared | kept),
    ]
    loop = f"""
@njit(cache=True, error_model="numpy")
def loop(rows, groups, local, eta):
    columns = rows.T.copy()
    out = np.empty((len(rows), {len(outputs)}))
    shared = np.empty({max(1, len(stages.shared))})
    head(eta, shared)
    kept = np.empty(({max(1, len(stages.kept))}, len(rows)))
    for i in range(len(rows)):
        unit(eta, shared, columns, i, groups, i, kept, i)
    for i in range(len(rows)):
        {"".join(f"out[i, {k}], " for k in range(len(outputs)))}= f(
            eta, shared, columns, i, groups, i, kept, i, local[i])
    return out
"""
    return load_kernels("\n".join([HEADER, *lines, loop])).loop
