"""Graphs compiled by PyTensor."""

from __future__ import annotations

import pytensor

from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import tri_gamma

__all__ = ["compile_graph"]


def trigamma(x):
    r"""Return the second derivative of log Gamma in elementary operations, for x > 0.

    :math:`\psi_1(x) = \sum_{k<8} (x+k)^{-2} + \psi_1(x+8)` with the asymptotic series for the last
    term (Abramowitz & Stegun 6.4.6 and 6.4.12); relative error below 1e-13. PyTensor's own operator
    calls SciPy from Numba, once per element.
    """
    steps = sum((x + k) ** -2 for k in range(8))
    z = (x + 8.0) ** -2
    series = z * (1 / 6 + z * (-1 / 30 + z * (1 / 42 + z * (-1 / 30 + z * (5 / 66)))))
    return steps + (1.0 + series) / (x + 8.0) + 0.5 * z


def compile_graph(inputs, outputs: list):
    """Compile a PyTensor function in Numba mode that trusts its inputs."""
    replace = {
        v: trigamma(v.owner.inputs[0])
        for v in ancestors(outputs)
        if v.owner and getattr(v.owner.op, "scalar_op", None) == tri_gamma
    }
    outputs = graph_replace(outputs, replace, strict=False) if replace else outputs
    return pytensor.function(
        inputs, outputs, mode="NUMBA", trust_input=True, on_unused_input="ignore"
    )
