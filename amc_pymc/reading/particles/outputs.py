"""Variables of a model at many points, and how many points are evaluated at once."""

from __future__ import annotations

import math

from functools import cached_property

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import toposort

from amc_pymc.reading.interpreted import interpreted_mode
from amc_pymc.signals import raise_if_signalled

__all__ = ["ParticleOutputs", "as_points", "chunk_size", "widest"]

#: Target size of the largest array of a chunk of particles, and maximum size where the target would
#: leave too few particles for efficient matrix products.
_CHUNK_NUMBERS, _MOST_NUMBERS = 2**17, 2**23
_SMALLEST_CHUNK, _LARGEST_CHUNK = 64, 4096


class ParticleOutputs:
    """Graphs of a model's variables at x, evaluated for many points."""

    def __init__(self, names: list[str], graphs, x):
        self.names, self._graphs, self._x = names, graphs, x
        self._singly = False

    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k not in ("_many", "_one")}

    def call(self, xs: np.ndarray) -> list[np.ndarray]:
        """Return the values (P, ...) of all variables."""
        if not self._singly:
            try:
                return [
                    np.broadcast_to(v, (len(xs), *v.shape[v.ndim - g.ndim :]))
                    for v, g in zip(self._many(xs), self._graphs, strict=True)
                ]
            except Exception as error:
                raise_if_signalled(error)
                self._singly = True
        return [np.stack(v) for v in zip(*(self._one(x) for x in xs), strict=True)]

    @cached_property
    def _many(self):
        xs = pt.matrix("xs", shape=(None, *self._x.type.shape), dtype="float64")
        return self._compiled(xs, vectorize_graph(self._graphs, {self._x: xs}))

    @cached_property
    def _one(self):
        return self._compiled(self._x, self._graphs)

    @staticmethod
    def _compiled(x, graphs):
        return pytensor.function([x], graphs, mode=interpreted_mode(), on_unused_input="ignore")


def widest(terms, x, n_observed: int) -> int:
    """Return the size of the largest array per particle; unknown lengths are taken as ``n_observed``."""
    reached, widest = {x}, max(x.type.shape[0], n_observed, 1)
    for node in toposort(terms):
        if reached.isdisjoint(node.inputs):
            continue
        reached.update(node.outputs)
        for out in node.outputs:
            shape = getattr(out.type, "shape", ())
            widest = max(widest, math.prod(n_observed if n is None else n for n in shape))
    return widest


def chunk_size(widest: int) -> int:
    """Return how many points are evaluated at once, given the size of the largest array of one."""
    chunk = int(np.clip(_CHUNK_NUMBERS // widest, _SMALLEST_CHUNK, _LARGEST_CHUNK))
    return max(1, min(chunk, _MOST_NUMBERS // widest))


def as_points(x: np.ndarray, n_dim: int) -> np.ndarray:
    """Return points as an array (P, D), with their shape checked."""
    x = np.ascontiguousarray(x, float)
    if x.ndim != 2 or x.shape[1] != n_dim:
        raise ValueError(f"x must have shape (P, {n_dim}), got {x.shape}.")
    return x
