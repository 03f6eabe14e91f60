"""Change of coordinates from non-centred to centred effects.

Rows of a model with ``effect = sd * z``, z standard normal, depend on z and sd only through their
product. Given sd, the posterior of the effect is nearly Gaussian, while z and sd are strongly dependent
given the data. A sampler therefore moves the effect e = sd z instead of z. A Jacobian of 1 / sd for each
entry keeps the posterior unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytensor.tensor as pt

from amc_pymc.engine import Graph
from amc_pymc.reading.layout import FlatLayout

__all__ = ["Centring", "find_scales"]

#: PyTensor function for each operation of an expression.
_SYMBOLIC = {
    "add": pt.add,
    "sub": pt.sub,
    "mul": pt.mul,
    "div": pt.true_div,
    "neg": pt.neg,
    "exp": pt.exp,
    "log": pt.log,
    "log1p": pt.log1p,
    "sqrt": pt.sqrt,
    "softplus": pt.softplus,
    "sigmoid": pt.sigmoid,
    "pow": pt.pow,
}


def find_scales(graph: Graph, outputs: Sequence[int], entries: Mapping[int, str]) -> dict[str, int]:
    """Return variables that enter some expressions only in a product with one scale, and their scales.

    Parameters
    ----------
    graph : Graph
    outputs : sequence of int
    entries : mapping of int to str
        Name of the variable that each entry of the parameters belongs to.

    Returns
    -------
    dict of str to int
        Scale of each variable: an expression of other parameters, the same for all its entries.
    """
    users: dict[int, list[int]] = {}
    for n in graph.upstream(outputs):
        for a in graph.nodes[n].args:
            users.setdefault(a, []).append(n)
    found: dict[str, set[int | None]] = {}
    for entry, name in entries.items():
        for user in users.get(entry, ()):
            found.setdefault(name, set()).add(_scale(graph, entry, user))
        if entry in outputs:
            found.setdefault(name, set()).add(None)
    scales = {n: s for n, (s, *more) in found.items() if not more and s is not None}
    below = set(scales)
    return {
        name: scale
        for name, scale in scales.items()
        if not below & {entries.get(e, "") for e in graph.leaves([scale], "entry")}
        and all(graph.nodes[n].op in _SYMBOLIC or not graph.nodes[n].args
                or graph.nodes[n].op == "entry" for n in graph.upstream([scale]))
    }  # fmt: skip


def _scale(graph: Graph, entry: int, user: int) -> int | None:
    """Return the other factor of a product if it depends on parameters only, else None."""
    node = graph.nodes[user]
    if node.op != "mul" or node.args[0] == node.args[1]:
        return None
    (other,) = (a for a in node.args if a != entry)
    plain = graph.depends(other) == 0 and graph.number(other) is None
    return other if plain else None


@dataclass(frozen=True, eq=False)
class Centring:
    """Map from points x of a model to points t that hold effects in place of scaled variables.

    Attributes
    ----------
    graph : Graph
    layout : FlatLayout
        Layout of x and of t (D,).
    scales : dict of str to int
        Scales from :func:`find_scales`; the entries that they read are equal in x and t.
    """

    graph: Graph
    layout: FlatLayout
    scales: dict[str, int] = field(default_factory=dict)

    def _factors(self, x: np.ndarray) -> np.ndarray:
        """Return the scale (D,) of each entry."""
        out = np.ones(x.size)
        for name, scale in self.scales.items():
            out[self.layout.slices[name]] = self.graph.evaluate([scale], eta=x)[0]
        return out

    def effects(self, x: np.ndarray) -> np.ndarray:
        """Return the point t (D,) of a point x."""
        return x * self._factors(x) if self.scales else x

    def plain(self, t: np.ndarray) -> np.ndarray:
        """Return the point x (D,) of a point t."""
        return t / self._factors(t) if self.scales else t

    def log_jacobian(self, t: np.ndarray) -> float:
        """Return the logarithm of |dx / dt| at a point t (D,)."""
        return -float(np.log(np.abs(self._factors(t))).sum())

    def scale(self, name: str, t):
        """Return the symbolic scale of a variable at the symbolic point t; 1 if it has none."""
        if name not in self.scales:
            return pt.constant(1.0)
        text: dict[int, object] = {}
        for n in self.graph.upstream([self.scales[name]]):
            node = self.graph.nodes[n]
            if node.op == "const":
                text[n] = pt.constant(self.graph.number(n))
            elif node.op == "entry":
                text[n] = t[int(self.graph.number(node.args[0]))]
            else:
                text[n] = _SYMBOLIC[node.op](*(text[a] for a in node.args))
        return text[self.scales[name]]

    def symbolic_plain(self, t):
        """Return the symbolic x at the symbolic point t, and the logarithm of |dx / dt|."""
        x, log_jacobian = t, pt.constant(0.0)
        for name in self.scales:
            where, scale = self.layout.slices[name], self.scale(name, t)
            x = pt.set_subtensor(x[where], t[where] / scale)
            log_jacobian -= (where.stop - where.start) * pt.log(pt.abs(scale))
        return x, log_jacobian
