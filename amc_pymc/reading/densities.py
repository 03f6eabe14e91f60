"""Parts of a model's log posterior that racing steps need, compiled on demand.

log posterior(x) = sum over rows l_n(x) + rest(x), in natural logarithms, where x (D,) is the flat
unconstrained vector of all value variables. ``rest`` is everything that is not a raced row: priors,
Jacobians of transforms, Potentials and other observed variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Self

import numpy as np
import pytensor.tensor as pt

from numba import types
from pytensor.gradient import pushforward
from pytensor.graph.replace import clone_replace

from amc_pymc.engine.first_class import bound_function
from amc_pymc.reading.native import (
    callback_error,
    callback_function,
    compile_graph,
    native_function,
    native_states,
)
from amc_pymc.reading.native_rows import NativeRows, StoredRows, native_rows
from amc_pymc.reading.partitioned_rows import PartitionedRows
from amc_pymc.reading.rest import RestDensities, gradient_by
from amc_pymc.reading.row_sums import CHUNK, gradient_sum, hessian_sum
from amc_pymc.reading.rows import (
    CallbackRows,
    RowLogp,
)
from amc_pymc.tall.proxies import ResidualSummary

__all__ = ["ModelDensities", "RowDensities"]

_REWARDS = types.float64[:, ::1](types.float64[:, ::1], types.float64[::1], types.int64[::1])
#: Number of rows read at random at once; each may map several pages of a store into memory.
_FEW = 4_096


def _of_class(instance, name: str):
    return getattr(type(instance), name, None)


class RowDensities:
    """Log-likelihoods of rows, compiled on demand: the units of ``samplers.raced.Raced``.

    Parameters
    ----------
    rows : RowLogp or CallbackRows
        Rows as functions of a flat vector (D,) with their own layout.
    expand : (E,) int array
        Coordinates in which the control variate is expanded; empty for none.
    compile_kwargs : dict, optional
        Passed to ``pytensor.function``.

    Notes
    -----
    Functions are compiled on first use and are not pickled.
    """

    #: Name of a unit in messages; factor whose effects are integrated out of units; variables that are data to them.
    unit, factor, held = "row", None, None

    def __init__(
        self,
        rows: RowLogp | CallbackRows,
        *,
        expand: np.ndarray,
        compile_kwargs: dict[str, Any] | None = None,
    ):
        self.rows = rows
        self.layout = rows.layout
        self.n_units = rows.n_rows
        self.expand = np.asarray(expand, dtype=np.int64)
        self.compile_kwargs = dict(compile_kwargs or {})
        self._x = pt.vector("x")
        #: Cost of full passes so far, in evaluations of one row.
        self.rows_evaluated = 0
        self._given: NativeRows | StoredRows | None = None

    def of_packed(self, packed: NativeRows | StoredRows) -> Self:
        """Return the same densities for packed rows, for which ``rows`` are placeholders."""
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__)
        for name in [n for n in out.__dict__ if isinstance(_of_class(out, n), cached_property)]:
            del out.__dict__[name]
        out._given, out.n_units, out.rows_evaluated = packed, len(packed.data), 0
        return out

    def touch(self, n_rows: float) -> None:
        """Count rows read at random; the memory that a store maps for them is released now and then."""
        if self._given is not None:
            self._given.touch(n_rows)

    def release(self) -> None:
        """Release the memory mapped for rows in a store, if any."""
        if self._given is not None:
            self._given.release()

    def __getstate__(self):
        state = {
            k: v
            for k, v in self.__dict__.items()
            if not isinstance(_of_class(self, k), cached_property)
        }
        packed = self.__dict__.get("native")
        if packed is not None:  # holds all data that are read
            state |= {"_given": packed, "rows": self.rows.without_data()}
        return state

    @property
    def observed_vars(self) -> tuple[str, ...]:
        """Names of the observed variables whose rows these are."""
        return self.rows.observed_vars

    def forget_errors(self) -> None:
        """Do nothing: rows have no approximation error."""

    def raise_errors(self) -> None:
        """Raise the error that ``row_logp`` raised inside a compiled loop, if any."""
        for name in ("rewards", "state_rewards"):
            error = callback_error(self.__dict__.get(name))
            if error is not None:
                raise error

    @cached_property
    def native(self) -> NativeRows | StoredRows | None:
        """Generated kernels of the rows; None if PyTensor compiles their graph instead."""
        if self._given is not None:
            return self._given
        return native_rows(self.rows) if isinstance(self.rows, RowLogp) else None

    def _bound(self, native: NativeRows | StoredRows, name: str):
        kernels = native.kernels
        arrays = [self._mask(), native.data, *kernels.arrays]
        return bound_function(getattr(kernels, name), _REWARDS, arrays)

    def _compile(self, inputs, output):
        return compile_graph(inputs, output, **self.compile_kwargs)

    #: Costs per unit, here one row with an exact log-likelihood. Reading a row at random takes four
    #: times as long as reading it in order, and an audit reads all rows at two points.
    race_cost, audit_cost = 4.0, 2.0
    rows_read, approximation_error = None, 0.0

    @property
    def n_rows(self) -> int:
        """Number of rows in all units."""
        return self.n_units

    @property
    def reads(self) -> np.ndarray:
        """Coordinates of x that rows depend on."""
        return self.layout.indices(self.rows.value_vars)

    # --- for compiled loops ---------------------------------------------------------------------

    @cached_property
    def rewards(self):
        """First-class ``(points (2, D), centre, rows (m,)) -> (2, m)``; row 0 is zero.

        Row 1 holds the change of each row's log-likelihood from points[0] to points[1] minus
        that of its control variate.
        """
        if isinstance(self.rows, CallbackRows):
            return callback_function(self._python_rewards, _REWARDS)
        if self.native is not None:
            return self._bound(self.native, "rewards")
        points, centre, idx = pt.matrix("points"), pt.vector("centre"), pt.lvector("idx")
        arrays = self.row_log_density.array_inputs()
        residual = self._residual_change(points, centre, idx, arrays)
        out = pt.stack([pt.zeros_like(residual), residual])
        fn = self._compile([points, centre, idx, *arrays], out)
        return native_function(fn, _REWARDS, self.row_log_density.arrays)

    @cached_property
    def state_rewards(self):
        """First-class ``(points (K, D), centre, rows (m,)) -> (K, m)``.

        Row k holds the log-likelihoods at points[k] minus their control variates, the second-order
        Taylor polynomials around ``centre``.
        """
        if isinstance(self.rows, CallbackRows):
            return callback_function(self._python_state_rewards, _REWARDS)
        if self.native is not None:
            return self._bound(self.native, "state_rewards")
        point, centre, idx = pt.vector("point"), pt.vector("centre"), pt.lvector("idx")
        arrays = self.row_log_density.array_inputs()
        residual = self._residual(point, centre, idx, arrays)
        fn = self._compile([point, centre, idx, *arrays], residual)
        return native_states(fn, _REWARDS, self.row_log_density.arrays)

    # --- full passes ----------------------------------------------------------------------------

    def values(self, x: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods (m,) of some rows at x."""
        if isinstance(self.rows, CallbackRows):
            return self.rows.flat_call(x, idx)
        if self.native is not None:
            out = self.native.kernels.values(x, np.asarray(idx, np.int64), self.native.data)
            self.touch(len(idx))
            return out
        if self._sliceable:
            return self._slice_values(x, *(a[idx] for a in self.rows.arrays))
        return self._row_values(x, idx, *self.rows.arrays)

    def all_values(self, x: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods (N,) of all rows at x, computed in chunks."""
        self.rows_evaluated += self.n_units
        return np.concatenate(list(self._all_chunks(x)))

    def value_chunks(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the log-likelihoods of all rows at x, chunk by chunk."""
        self.rows_evaluated += self.n_units
        yield from self._all_chunks(x)

    def all_finite(self, x: np.ndarray) -> bool:
        """Whether all rows have a finite log-likelihood at x."""
        if self._elsewhere is not None:
            self.rows_evaluated += self.n_units
            return self._elsewhere.impossible(x) == 0
        return all(bool(np.isfinite(values).all()) for values in self.value_chunks(x))

    def residual_summary(
        self, probes: list[np.ndarray], centre: np.ndarray, number: int
    ) -> ResidualSummary | None:
        """Return a summary of the residuals of all rows if other processes compute it, else None."""
        if self._elsewhere is None:
            return None
        return self._elsewhere.residuals(probes, centre, self._mask(), number)

    @property
    def _elsewhere(self) -> PartitionedRows | None:
        """Rows whose full sums are computed by other processes, else None."""
        return self._given if isinstance(self._given, PartitionedRows) else None

    def _all_chunks(self, x):
        if self._sliceable and self.native is None:
            for data, _ in self._row_chunks(None):
                yield self._slice_values(x, *data)
        else:
            for s in self._chunks():
                yield self.values(x, np.arange(s.start, s.stop))

    def change(self, x: np.ndarray, x_new: np.ndarray, surrogate: Any = None) -> float:
        """Return the sum over all rows of l_n(x_new) - l_n(x), without a control variate."""
        if self._elsewhere is not None:
            return self._elsewhere.change(x, x_new)
        pairs = zip(self._all_chunks(x), self._all_chunks(x_new))
        return float(sum(np.sum(there - here) for here, there in pairs))

    def value_and_gradient(self, x: np.ndarray, rows: np.ndarray | None = None):
        """Return the summed log-likelihood of ``rows`` (default all) and its gradient (D,)."""
        if self.native is not None:
            self.rows_evaluated += 3 * (self.n_units if rows is None else len(rows))
            if rows is None and self._elsewhere is not None:
                return self._elsewhere.gradient(x)
            chunks = self._idx_chunks(rows)
            return gradient_sum(self.native.kernels, self.native.data, chunks, x)
        total, gradient = 0.0, np.zeros(self.layout.size)
        for data, m in self._row_chunks(rows):
            value, grad = self._rows_gradient(x, *data)
            total += float(value)
            gradient += grad
            self.rows_evaluated += 3 * m
        return total, gradient

    def hessian(self, x: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the Hessian (D, D) of the summed log-likelihood in the coordinates ``expand``.

        Other rows and columns are zero.
        """
        if self.native is not None:
            number = self.n_units if rows is None else len(rows)
            self.rows_evaluated += 5 * number * len(self.expand)
            if rows is None and self._elsewhere is not None:
                out = self._elsewhere.hessian(x)
            else:
                chunks = self._idx_chunks(rows)
                out = hessian_sum(self.native.kernels, self.native.data, chunks, x)
            return self._expanded(out)
        d = self.layout.size
        out = np.zeros((d, d))
        directions = np.eye(d)[self.expand]
        for data, m in self._row_chunks(rows):
            for k, direction in zip(self.expand, directions):
                out[k] += self._rows_hvp(x, direction, *data)
            self.rows_evaluated += 5 * m * len(self.expand)
        out = self._expanded(out)
        return 0.5 * (out + out.T)

    def _expanded(self, hessian: np.ndarray) -> np.ndarray:
        """Return a Hessian (D, D) with zeros outside the coordinates ``expand``."""
        mask = self._mask()
        return hessian * np.outer(mask, mask)

    def expansion(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient (D,) and Hessian (D, D) of the sum over all rows."""
        return self.value_and_gradient(x)[1], self.hessian(x)

    def forget_expansion(self) -> None:
        """Remove the control variate."""
        self.expand = np.empty(0, np.int64)

    def forget_centre(self) -> None:
        """Do nothing: expansions of rows depend only on their centre."""

    # --- graphs ---------------------------------------------------------------------------------

    @property
    def row_log_density(self) -> RowLogp:
        """The rows as a graph that can be sliced and differentiated."""
        if self._given is not None:
            raise TypeError("the rows are packed already and have no graph")
        if isinstance(self.rows, CallbackRows):
            raise TypeError("row_logp gives values of rows only, no graph to differentiate")
        return self.rows

    def _residual_change(self, points, centre, idx, arrays):
        rows = self.row_log_density
        x, x_new = points[0], points[1]
        change = rows.graph(x_new, idx, arrays) - rows.graph(x, idx, arrays)
        if not self.expand.size:
            return change
        mask = self._mask()
        at, u, v = pt.vector("at"), pt.vector("u"), pt.vector("v")
        slope: Any = pushforward(rows.graph(at, idx, arrays), at, u)
        curvature: Any = pushforward(slope, at, v)
        replace = {
            at: pt.switch(mask > 0, centre, x),
            u: mask * (x_new - x),
            v: mask * (x_new + x - 2.0 * centre),
        }
        return change - clone_replace([slope + 0.5 * curvature], replace)[0]

    def _residual(self, point, centre, idx, gathered):
        """Return log-likelihoods (m,) of gathered rows minus their Taylor polynomials around a centre."""
        rows, length = self.row_log_density, idx.shape[0]
        value = rows.graph_of_rows(point, gathered, length, idx)
        if not self.expand.size:
            return value
        mask = self._mask()
        at, u = pt.vector("at"), pt.vector("u")
        there = rows.graph_of_rows(at, gathered, length, idx)
        slope: Any = pushforward(there, at, u)
        curvature: Any = pushforward(slope, at, u)
        replace = {at: pt.switch(mask > 0, centre, point), u: mask * (point - centre)}
        return value - clone_replace([there + slope + 0.5 * curvature], replace)[0]

    def _mask(self) -> np.ndarray:
        mask = np.zeros(self.layout.size)
        mask[self.expand] = 1.0
        return mask

    def _python_state_rewards(self, points, rows):
        return np.stack([self.values(x, rows) for x in points])

    def _python_rewards(self, points, rows):
        here, there = self.values(points[0], rows), self.values(points[1], rows)
        return np.stack([np.zeros(rows.size), there - here])

    @cached_property
    def _row_values(self):
        rows = self.row_log_density
        idx, arrays = pt.lvector("idx"), rows.array_inputs()
        return self._compile([self._x, idx, *arrays], rows.graph(self._x, idx, arrays))

    @property
    def _sliceable(self) -> bool:
        """Whether consecutive rows can be evaluated without indexing."""
        return isinstance(self.rows, RowLogp) and not self.rows.row_local

    def _slice_graph(self, x):
        arrays = self.row_log_density.array_inputs()
        return arrays, self.row_log_density.graph_of_rows(x, arrays, arrays[0].shape[0])

    @cached_property
    def _slice_values(self):
        arrays, values = self._slice_graph(self._x)
        return self._compile([self._x, *arrays], values)

    @cached_property
    def _rows_gradient(self):
        arrays, values = self._slice_graph(self._x)
        total = values.sum()
        return self._compile([self._x, *arrays], [total, gradient_by(self._x, total)])

    @cached_property
    def _rows_hvp(self):
        arrays, values = self._slice_graph(self._x)
        total = values.sum()
        v = pt.vector("v")
        hvp = gradient_by(self._x, (gradient_by(self._x, total) * v).sum())
        return self._compile([self._x, v, *arrays], hvp)

    # --- chunks ---------------------------------------------------------------------------------

    def _chunks(self):
        for start in range(0, self.n_units, CHUNK):
            yield slice(start, min(start + CHUNK, self.n_units))

    def _idx_chunks(self, rows):
        """Yield row numbers, chunk by chunk."""
        if rows is None:
            for s in self._chunks():
                yield np.arange(s.start, s.stop)
                self.release()
        else:
            for start in range(0, len(rows), _FEW):
                yield np.asarray(rows[start : start + _FEW], np.int64)
                self.touch(_FEW)

    def _row_chunks(self, rows):
        arrays = self.row_log_density.arrays
        if rows is None:
            for s in self._chunks():
                yield [a[s] for a in arrays], s.stop - s.start
        else:
            for start in range(0, len(rows), CHUNK):
                chunk = rows[start : start + CHUNK]
                yield [a[chunk] for a in arrays], len(chunk)


class ModelDensities(RowDensities, RestDensities):
    """Densities of the rows and of the rest of a model as functions of its flat vector x.

    Parameters
    ----------
    rows, expand, compile_kwargs
        As for :class:`RowDensities`.
    rest, value_vars
        As for :class:`RestDensities`.
    """

    def __init__(
        self,
        rows: RowLogp | CallbackRows,
        rest,
        value_vars,
        *,
        expand: np.ndarray,
        compile_kwargs: dict[str, Any] | None = None,
    ):
        RowDensities.__init__(self, rows, expand=expand, compile_kwargs=compile_kwargs)
        RestDensities.__init__(self, rest, value_vars, self.layout, compile_kwargs)
