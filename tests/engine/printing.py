"""Expressions compiled one by one."""

import numpy as np

from numba import njit

from amc_pymc.engine.printer import Printer, Stages, call


@njit
def _once(program, eta, local, out):
    for i in range(len(local)):
        call(program[0], eta, local[i], out[i])


@njit
def _staged(program, eta, columns, groups, local, n_shared, n_kept, out):
    """Rows one by one, each with its own group and local effects."""
    n = columns.shape[1]
    shared, kept = np.empty(max(1, n_shared)), np.empty((max(1, n_kept), n))
    call(program[0], eta, shared)
    for i in range(n):
        call(program[1], eta, shared, groups[i], columns[0, i:], n, 1, kept[0, i:], n)
        call(program[2], eta, shared, kept[0, i:], n, groups[i], 1, local[i], out[0, i:], n)


def compiled(graph, outputs):
    """``(local (m, q), eta) -> (m, K)``, all outputs of local effects and entries of eta."""
    printer = Printer(graph)
    printer.function("f", ("eta", "u", "out"), outputs)
    program, _ = printer.printed(("f",)).arrays

    def evaluate(local, eta=(0.0,)):
        local = np.asarray(local, float)
        out = np.empty((len(local), len(outputs)))
        _once(program, np.asarray(eta, float), local, out)
        return out

    return evaluate


def staged(graph, outputs):
    """``(rows, groups, local, eta) -> (m, K)`` by three stages, as loops call them."""
    stages = Stages.of(graph, outputs)
    printer = Printer(graph)
    printer.function("shared", ("eta", "out"), stages.shared)
    rows = ("eta", "shared", "group", "block", "stride", "n", "out", "out_stride")
    n_kept = printer.function("kept", rows, stages.kept, shared=stages.shared)
    last = ("eta", "shared", "kept", "stride", "group", "n", "u", "out", "out_stride")
    printer.function("f", last, outputs, shared=stages.shared, kept=stages.kept)
    program, _ = printer.printed(("shared", "kept", "f")).arrays

    def evaluate(rows, groups, local, eta):
        out = np.empty((len(outputs), len(rows)))
        sizes = len(stages.shared), n_kept
        _staged(program, eta, np.ascontiguousarray(rows.T), groups, local, *sizes, out)
        return out.T

    return evaluate
