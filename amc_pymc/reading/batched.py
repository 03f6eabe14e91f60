"""Evaluation of PyTensor graphs for many values of their inputs at once."""

from __future__ import annotations

import logging
import threading

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors

from amc_pymc.reading.graphs import WithoutCaches, gradient_by, interpreted_mode

_log = logging.getLogger("amc_pymc")
#: Largest number of operations of a graph that is put into canonical form, which takes minutes for larger ones.
_MOST_REWRITTEN = 1_000
#: Functions of PyTensor are not safe to call from several threads.
_LOCK = threading.RLock()


class Batched(WithoutCaches):
    """Evaluator of graphs for many values of their inputs at once.

    Parameters
    ----------
    inputs, outputs : list of tensor variables
        Inputs and outputs of graphs without random variables.
    slopes : bool
        Whether the outputs, which are scalars then, are followed by their gradients by the only input.

    Attributes
    ----------
    fallback : str or None
        Why values are evaluated one at a time; None if they are batched.

    Notes
    -----
    Functions are made on the first call and are not pickled. The first results are compared with those of
    single elements. A lock serialises calls from several threads, as of an executor.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from amc_pymc.reading.batched import Batched
    >>> x = pt.vector("x", shape=(2,))
    >>> (sums,) = Batched([x], [x.sum()])([np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])], 3)
    >>> sums
    array([ 3.,  7., 11.])
    """

    def __init__(self, inputs: list, outputs: list, *, slopes: bool = False):
        self._inputs, self._own, self._slopes = inputs, outputs, slopes
        self._outputs = _with_slopes(inputs[0], outputs) if slopes else outputs
        self._checked = False
        self.fallback: str | None = None

    def __call__(self, arrays: Sequence[np.ndarray], n: int) -> list[np.ndarray]:
        """Return the outputs (n, ...) for inputs (n, ...)."""
        arrays = [np.asarray(a, i.type.dtype) for a, i in zip(arrays, self._inputs, strict=True)]
        with _LOCK, np.errstate(all="ignore"):
            if self.fallback is None and n > 0:
                try:
                    found = self._together(arrays, n)
                    if not self._checked:
                        self._compare(arrays, found, min(n, 2))
                        self._checked = n > 1
                    return found
                except Exception as error:
                    self.fallback = (
                        f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                    )
                    _log.info("Points are evaluated one at a time (%s).", self.fallback)
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
        rows = [self._one(*(a[i, ...] for a in arrays)) for i in range(n)]
        return [np.stack(column) for column in zip(*rows, strict=True)]

    def _compare(self, arrays, found, n: int) -> None:
        """Raise an error if the first n outputs are not those of one element at a time, but for rounding."""
        for many, b in zip(found, self._singly(arrays, n), strict=True):
            a, atol = many[:n], 1e-8 * np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-8, atol=atol, equal_nan=True):
                raise ValueError("the graph gives other values for a batch")

    @cached_property
    def _many(self):
        batch = [pt.tensor(dtype=i.type.dtype, shape=(None, *i.type.shape)) for i in self._inputs]
        swap = dict(zip(self._inputs, batch, strict=True))
        outputs = vectorize_graph(self._own, swap) if swap else self._own
        return _function(batch, _with_slopes(batch[0], outputs) if self._slopes else outputs)

    @cached_property
    def _one(self):
        return _function(self._inputs, self._outputs)


def _with_slopes(x, outputs: list) -> list:
    """Return outputs and the gradients of their sums, zero where they do not depend on x."""
    return [*outputs, *(gradient_by(x, t.sum()).astype("float64") for t in outputs)]


def _function(inputs: list, outputs: list):
    mode = interpreted_mode()
    if len({v.owner for v in ancestors(outputs)}) > _MOST_REWRITTEN:
        mode = mode.excluding("canonicalize")
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", trust_input=True)
