"""Batched evaluation of PyTensor graphs."""

from __future__ import annotations

import threading

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.graph.replace import vectorize_graph

from amc_pymc.reading.graphs import functions_for_few, interpreted_mode
from amc_pymc.signals import raise_if_signalled

__all__ = ["Batched"]


class Batched:
    """Evaluator of graphs for many values of their inputs at once.

    Parameters
    ----------
    inputs, outputs : list of tensor variables
        Inputs and outputs of graphs without random variables.

    Attributes
    ----------
    fallback : str or None
        Why values are evaluated one at a time; None if they are batched.

    Notes
    -----
    Functions are compiled on the first call and are not pickled. A lock serialises calls from several
    threads.
    """

    def __init__(self, inputs: list, outputs: list):
        self._inputs, self._outputs = inputs, outputs
        self._checked = False
        self._lock = threading.Lock()
        self.fallback: str | None = None

    def __getstate__(self):
        left_out = ("_many", "_one", "_lock")
        return {k: v for k, v in self.__dict__.items() if k not in left_out}

    def __setstate__(self, state):
        self.__dict__.update(state, _lock=threading.Lock())

    def __call__(self, arrays: Sequence[np.ndarray], n: int) -> list[np.ndarray]:
        """Return the outputs (n, ...) for inputs (n, ...)."""
        arrays = [np.asarray(a, i.type.dtype) for a, i in zip(arrays, self._inputs, strict=True)]
        with self._lock, np.errstate(all="ignore"):
            if self.fallback is None and n > 0:
                try:
                    found = self._together(arrays, n)
                    if not self._checked:
                        self._compare(arrays, [f[:2] for f in found])
                        self._checked = n > 1
                    return found
                except Exception as error:
                    raise_if_signalled(error)
                    self.fallback = f"{type(error).__name__}: {error}"
            return self._singly(arrays, n)

    def _together(self, arrays, n: int) -> list[np.ndarray]:
        found = self._many(*arrays)
        return [
            np.broadcast_to(v, (n, *np.shape(v)[np.ndim(v) - g.type.ndim :]))
            for v, g in zip(found, self._outputs, strict=True)
        ]

    def _singly(self, arrays, n: int) -> list[np.ndarray]:
        if n == 0:
            return [np.empty((0, *(s or 0 for s in g.type.shape))) for g in self._outputs]
        return _each(self._one, arrays, n)

    def _compare(self, arrays, found) -> None:
        """Compare outputs (n, ...) with those of one element at a time, without rewriting if that suffices."""
        if not found:
            return
        quick, _ = functions_for_few(self._outputs, n_rows=1)
        alone = quick(self._inputs, self._outputs)
        wanted = _each(alone, arrays, len(found[0]))
        if not _agree(found, wanted) and not _agree(found, self._singly(arrays, len(found[0]))):
            raise ValueError("the graph gives other values for a batch")

    @cached_property
    def _many(self):
        batch = [pt.tensor(dtype=i.type.dtype, shape=(None, *i.type.shape)) for i in self._inputs]
        swap = dict(zip(self._inputs, batch, strict=True))
        outputs = vectorize_graph(self._outputs, swap) if swap else self._outputs
        return _compiled(batch, outputs)

    @cached_property
    def _one(self):
        return _compiled(self._inputs, self._outputs)


def _compiled(inputs, outputs):
    return pytensor.function(
        inputs, outputs, mode=interpreted_mode(), on_unused_input="ignore", trust_input=True
    )


def _each(function, arrays: Sequence[np.ndarray], n: int) -> list[np.ndarray]:
    """Return the outputs (n, ...) of a function of one element of each array (n, ...)."""
    rows = [function(*(a[i, ...] for a in arrays)) for i in range(n)]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _agree(found: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    """Return whether outputs are equal but for rounding."""
    for a, b in zip(found, wanted, strict=True):
        atol = 1e-8 * np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-8, atol=atol, equal_nan=True):
            return False
    return True
