"""Control variates in data space for the rows of a model, by automatic differentiation.

Row n with data vector y_n in bin b has the control variate (Chen & Ghahramani 2016, eq. 11)

    h_n(x) = l(x; y^_b) + g_b(x).d_n + (P_b d_n)' H_b(x) (P_b d_n) / 2,     d_n = y_n - y^_b,

where g_b and H_b are the gradient and Hessian of the log-likelihood in the data at the bin's
reference row y^_b, and P_b is a projection. Computing h_n takes directional derivatives at one virtual
row; its sum over the rows takes them at one virtual row per bin and direction.
"""

from __future__ import annotations

import itertools

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from numba import types
from pytensor.graph.replace import clone_replace
from pytensor.tensor.type import TensorType

from amc_pymc.engine.first_class import bound_function, first_class
from amc_pymc.engine.row_kernels import data_control
from amc_pymc.reading.data_bins import BIN_CHUNK, all_finite, check_rows, leading_axes, row_chunks
from amc_pymc.reading.data_graphs import call, evaluate, push, width_of
from amc_pymc.reading.interpreted import interpreted_mode
from amc_pymc.reading.native import compile_graph, native_function
from amc_pymc.reading.printed_control import PrintedControl, printed_control
from amc_pymc.reading.rows import RowLogp
from amc_pymc.tall.proxies import DataProxy, bin_moments, outlying_rows, quantile_bins

__all__ = ["DataControl"]

_REWARDS = types.float64[:, ::1](types.float64[:, ::1], types.float64[::1], types.int64[::1])
_TOTAL = types.float64(types.float64[::1])
_GATHER = types.float64[::1](types.int64[::1])
_ROWS = types.float64[::1](types.float64[::1], types.float64[::1])
_SUBSAMPLE = 5_000
#: Largest integer up to which all integers are exact in a float64.
_LARGEST_INTEGER = 2**53


class DataControl:
    """Second-order Taylor control variate in the rows' data.

    A row's data vector y_n (Dy,) holds the entries of the data arrays of floating type. Arrays of
    integers, and those with infinite entries (which a model may derive from integers), are constant
    within each bin and are not differentiated.

    Parameters
    ----------
    rows : RowLogp
        Rows of a model without variables that have one value per row.
    settings : DataProxy
    x : (D,) array
        Flat point at which ``summary="auto"`` evaluates gradients; the expansion must be finite
        there.
    rng : numpy.random.Generator
        Random generator for the sample of rows whose gradients are evaluated.
    compile_kwargs : dict, optional
        Passed to ``pytensor.function``.

    Attributes
    ----------
    exact : (n,) int64 array
        Outlying rows, which have no control variate.
    n_bins : int
        Number of bins B.
    n_directions : int
        Number of virtual rows at which :attr:`total` takes second derivatives, at most B times the
        rank.

    Raises
    ------
    ValueError
        If these rows have no such control variate, or it would need too many bins.

    Notes
    -----
    Rows that are scalar expressions are compiled to machine code over data packed row by row. Graphs of
    other rows are compiled by PyTensor and store one int32 per row. Functions are compiled on first use
    and are not pickled.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from amc_pymc.reading import extract_rows
    >>> from amc_pymc.reading.data_control import DataControl
    >>> from amc_pymc.tall.proxies import DataProxy
    >>> with pm.Model() as model:
    ...     nu = pm.Exponential("nu", 0.1)
    ...     y = pm.StudentT("y", nu=nu, sigma=2.0, observed=np.linspace(-4.0, 4.0, 2000))
    >>> rng = np.random.default_rng(1)
    >>> control = DataControl(extract_rows(model), DataProxy(), np.array([1.0]), rng)
    >>> control.n_bins, control.exact.size
    (10, 400)
    >>> control.variance_reduction(np.array([1.0]), np.array([1.2]), rng) > 1000
    True
    """

    def __init__(
        self,
        rows: RowLogp,
        settings: DataProxy,
        x: np.ndarray,
        rng: np.random.Generator,
        *,
        compile_kwargs: dict[str, Any] | None = None,
    ):
        check_rows(rows)
        self.rows = rows
        self.n_rows = rows.n_rows
        self.compile_kwargs = dict(compile_kwargs or {})
        x = self._checked_point("x", x)
        self._varies = tuple(a.dtype.kind == "f" and all_finite(a) for a in rows.arrays)
        self._check_data()
        self.bin_of_row = self._bins(settings, x, rng)
        self.exact = np.flatnonzero(self.bin_of_row < 0)
        moments = bin_moments(self._data, self.bin_of_row, rank=settings.rank)
        self.n_bins = moments.count.size
        bins, which = np.nonzero(np.any(moments.factor != 0.0, axis=2))
        self._direction_bin = np.ascontiguousarray(bins)
        self._direction = moments.factor[bins, which]
        self.n_directions = bins.size
        self._projected = moments.factor.shape[1] < self._dim
        if not self._projected:
            none = np.empty((0, 0, self._dim))
            moments = moments._replace(factor=none, dual=none)
        self._moments = moments
        self._check_total(x)

    def __getstate__(self):
        compiled = {n for n, v in vars(type(self)).items() if isinstance(v, cached_property)}
        return {k: v for k, v in self.__dict__.items() if k not in compiled}

    # --- for compiled loops ---------------------------------------------------------------------

    @cached_property
    def total(self):
        """First-class ``x (D,) -> sum of h_n(x) over the raced rows``, natural log."""
        if self.printed is not None:
            in_bins = self._moments.count.astype(np.float64)
            arrays = [self._virtual_rows(), in_bins, self.printed.program]
            return bound_function(data_control.total, _TOTAL, arrays)
        x = pt.vector("x")
        count, bins = pt.vector("count"), pt.lvector("bins")
        reference, first, direction = (self._row_variables(True) for _ in range(3))
        fixed = self._row_variables(False)
        n_bins, n_pairs = count.shape[0], bins.shape[0]
        value, slope, _ = self._expansion(x, reference, fixed, first, first, n_bins)
        at, codes = ([pt.take(v, bins, axis=0) for v in vs] for vs in (reference, fixed))
        _, _, curvature = self._expansion(x, at, codes, direction, direction, n_pairs)
        total = (count * value).sum() + slope.sum() + 0.5 * curvature.sum()
        fn = compile_graph(
            [x, count, bins, *reference, *first, *direction, *fixed],
            total,
            **self.compile_kwargs,
        )
        m = self._moments
        data = [
            m.count.astype(np.float64),
            self._direction_bin,
            *self._split(m.reference),
            *self._split(m.first),
            *self._split(self._direction),
            *(np.ascontiguousarray(a[self._members]) for a in self._arrays(False)),
        ]
        return native_function(fn, _TOTAL, data)

    @cached_property
    def state_rewards(self):
        """First-class ``(points (K, D), centre (unused), rows (m,)) -> (K, m)``: l_n - h_n.

        Values at each point, natural log; for the rows in :attr:`exact` they are l_n.
        """
        if self.printed is not None:
            return bound_function(data_control.state_rewards, _REWARDS, self._packed)
        gather, residuals, values = self._gather, self._residuals, self._values

        def native(points, centre, rows):
            packed = gather(rows)
            out = np.empty((points.shape[0], rows.size))
            any_raced = packed[packed.size - rows.size :].sum() > 0.0
            for k in range(points.shape[0]):
                if any_raced:
                    out[k] = residuals(points[k], packed)
                else:
                    out[k] = values(points[k], packed)
            return out

        return first_class(_REWARDS, kept=(gather, residuals, values))(native)

    @cached_property
    def rewards(self):
        """First-class :attr:`state_rewards` minus the values at points[0]; row 0 is zero."""
        if self.printed is not None:
            return bound_function(data_control.rewards, _REWARDS, self._packed)
        state_rewards = self.state_rewards

        def native(points, centre, rows):
            out = state_rewards(points, centre, rows)
            for k in range(out.shape[0] - 1, -1, -1):
                out[k] -= out[0]
            return out

        return first_class(_REWARDS, kept=state_rewards)(native)

    # --- from Python ----------------------------------------------------------------------------

    def residuals(self, points: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return :attr:`state_rewards` (K, m) of some rows at points (K, D)."""
        points = np.ascontiguousarray(points, dtype=np.float64)
        return call(self.state_rewards, points, np.ascontiguousarray(rows, dtype=np.int64))

    def population_total(self, x: np.ndarray) -> float:
        """Return :attr:`total` at x."""
        return evaluate(self.total, np.ascontiguousarray(x, dtype=np.float64))

    def variance_reduction(
        self, x: np.ndarray, x_new: np.ndarray, rng: np.random.Generator, n_rows: int = 20_000
    ) -> float:
        """Return the variance over raced rows of l_n(x_new) - l_n(x), divided by that of its residuals.

        At most ``n_rows`` random rows are used; infinite if the control variate is exact.
        """
        points = np.stack([self._checked_point("x", x), self._checked_point("x_new", x_new)])
        raced = np.flatnonzero(self.bin_of_row >= 0)
        if raced.size > n_rows:
            raced = np.sort(rng.choice(raced, size=n_rows, replace=False))
        residual = np.concatenate([self.residuals(points, c) for c in row_chunks(raced)], axis=1)
        here, there = (self.rows(self.rows.layout.unravel(p), raced) for p in points)
        left = np.var(residual[1] - residual[0])
        return float(np.var(there - here) / left) if left > 0.0 else np.inf

    # --- construction ---------------------------------------------------------------------------

    def _checked_point(self, name: str, x) -> np.ndarray:
        x = np.asarray(x, dtype=np.float64)
        size = self.rows.layout.size
        if x.shape != (size,):
            raise ValueError(f"{name} must have shape ({size},), got {x.shape}")
        if not np.all(np.isfinite(x)):
            raise ValueError(f"{name} must be finite, got {x}")
        return x

    def _check_data(self) -> None:
        if not any(a.size for a in self._arrays(True)):
            raise ValueError(
                "A control variate in data space needs finite data of floating type, the rows of "
                f"{', '.join(self.rows.observed_vars)} have none. Cast counts to float in the "
                "model, or use another proxy."
            )
        for array in self._arrays(False):
            if array.dtype.kind not in "iu" or not array.size:
                continue
            if max(int(array.max()), -int(array.min())) > _LARGEST_INTEGER:
                raise ValueError(
                    f"A control variate in data space needs integer data within {_LARGEST_INTEGER}"
                    f", got {array.min()}..{array.max()}. Use another proxy."
                )

    def _bins(self, settings, x, rng) -> np.ndarray:
        """Return the bin of each row (N,), -1 for outliers."""
        summary = self._summary(settings.summary, x, rng)
        labels = quantile_bins(
            summary, settings.bins, keys=self._fixed_columns(), max_bins=settings.max_bins
        )
        outliers = outlying_rows(summary, labels, settings.outliers)
        labels[outliers] = -1
        raced = labels >= 0
        labels[raced] = np.unique(labels[raced], return_inverse=True)[1]
        return labels

    def _summary(self, summary, x, rng) -> np.ndarray:
        everything = np.arange(self.n_rows)
        if isinstance(summary, np.ndarray):
            out = summary
        elif callable(summary):
            parts = [np.asarray(summary(c), dtype=np.float64) for c in row_chunks(everything)]
            if any(p.ndim != 2 for p in parts):
                raise ValueError(
                    f"summary(rows) must return shape (m, S), got {parts[0].shape} for "
                    f"{min(BIN_CHUNK, self.n_rows)} rows"
                )
            out = np.concatenate(parts)
        else:
            axes = leading_axes(*self._gradient_sample(x, rng))
            out = np.concatenate([self._data(c) @ axes for c in row_chunks(everything)])
        if out.shape[0] != self.n_rows:
            raise ValueError(f"summary has {out.shape[0]} rows, the model {self.n_rows}")
        return out

    def _gradient_sample(self, x, rng):
        """Return data vectors of some rows, and gradients of the log-likelihood in them at x (n, Dy)."""
        some = np.arange(self.n_rows)
        if self.n_rows > _SUBSAMPLE:
            some = np.sort(rng.choice(self.n_rows, size=_SUBSAMPLE, replace=False))
        at, fixed = self._row_variables(True), self._row_variables(False)
        point = pt.vector("x")
        value = self.rows.graph_of_rows(point, self._merge(at, fixed), at[0].shape[0])
        gradients = pt.grad(value.sum(), at, disconnected_inputs="ignore")
        fn = pytensor.function(
            [point, *at, *fixed], gradients, mode=interpreted_mode(), on_unused_input="ignore"
        )
        y = self._data(some)
        parts = fn(x, *self._split(y), *(a[some] for a in self._arrays(False)))
        g = np.concatenate([np.reshape(p, (some.size, -1)) for p in parts], axis=1)
        good = np.isfinite(g).all(axis=1)
        if not good.any():
            raise ValueError(
                "The log-likelihood has no finite gradient in the data at x; use another proxy"
            )
        return y[good], g[good]

    def _check_total(self, x) -> None:
        total = self.population_total(x)
        if not np.isfinite(total):
            raise ValueError(
                f"The sum of the control variate is {total} at x: some bin's mean is a row that "
                "the model finds impossible or where it has no second derivative. Take more bins, "
                "another summary or another proxy."
            )

    # --- data -----------------------------------------------------------------------------------

    def _arrays(self, varies: bool) -> list[np.ndarray]:
        """Return the data arrays that make up y, or those that are constant within a bin."""
        return [a for a, v in zip(self.rows.arrays, self._varies) if v == varies]

    @cached_property
    def _dim(self) -> int:
        return sum(width_of(a) for a in self._arrays(True))

    @cached_property
    def _members(self) -> np.ndarray:
        """One row (B,) of each bin, which provides its integer data."""
        raced = np.flatnonzero(self.bin_of_row >= 0)
        return raced[np.unique(self.bin_of_row[raced], return_index=True)[1]]

    def _data(self, rows: np.ndarray) -> np.ndarray:
        """Return the data vectors (m, Dy) of some rows."""
        parts = [a[rows].reshape(rows.size, width_of(a)) for a in self._arrays(True)]
        return np.concatenate(parts, axis=1).astype(np.float64, copy=False)

    def _fixed_columns(self) -> Iterator[np.ndarray]:
        for array in self._arrays(False):
            yield from array.reshape(self.n_rows, width_of(array)).T

    def _split(self, flat: np.ndarray) -> list[np.ndarray]:
        """Split data vectors (m, Dy) into one array per data array of floating type."""
        arrays = self._arrays(True)
        ends = np.cumsum([width_of(a) for a in arrays])[:-1]
        return [
            np.ascontiguousarray(part).reshape(flat.shape[0], *a.shape[1:])
            for part, a in zip(np.split(flat, ends, axis=1), arrays)
        ]

    # --- generated machine code -----------------------------------------------------------------

    @cached_property
    def printed(self) -> PrintedControl | None:
        """Generated code that replaces the graphs below; None if a row is not a scalar expression."""
        return printed_control(self.rows, self._varies)

    @cached_property
    def _packed(self) -> list[np.ndarray]:
        """Arrays that the generated loops over rows read."""
        assert self.printed is not None
        m, everything = self._moments, np.arange(self.n_rows)
        data = self.printed.rows(self._data(everything), everything)
        reference = self.printed.rows(m.reference, self._members)
        return [data, self.bin_of_row, reference, m.factor, m.dual, self.printed.program]

    def _virtual_rows(self) -> np.ndarray:
        """Return references and displacements (3 W, V) of bins and of (bin, direction) pairs."""
        assert self.printed is not None
        m, bins = self._moments, self._direction_bin
        reference = self.printed.rows(m.reference, self._members)
        virtual = np.zeros((3, self.n_bins + bins.size, reference.shape[1]))
        virtual[0] = np.concatenate([reference, reference[bins]])
        virtual[1, : self.n_bins, : self._dim] = m.first
        virtual[2, self.n_bins :, : self._dim] = self._direction
        return np.ascontiguousarray(np.concatenate(virtual, axis=1).T)

    # --- graphs ---------------------------------------------------------------------------------

    def _row_variables(self, varies: bool) -> list:
        """Create variables for rows of the data arrays; float64 for those that make up y."""
        return [
            TensorType("float64" if varies else a.dtype, (None, *a.shape[1:]))()
            for a in self._arrays(varies)
        ]

    def _merge(self, floats, fixed) -> list:
        """Return rows of the data arrays in their original order."""
        parts = {True: iter(floats), False: iter(fixed)}
        return [next(parts[v]) for v in self._varies]

    def _expansion(self, x, reference, fixed, first, second, length):
        """Return l, g.first and second'H second (m,) at rows ``reference`` and ``fixed``."""
        at, u, v = (self._row_variables(True) for _ in range(3))
        # pushforward loses terms if the cotangent of one input is used in that of another, as in
        # X @ b + offset; a factor of one gives each input a cotangent of its own.
        own = [a * 1.0 for a in at]
        value = self.rows.graph_of_rows(x, self._merge(own, fixed), length)
        slope = push(value, at, u)
        curvature = push(push(value, at, v), at, v)
        replace = dict(zip([*at, *u, *v], [*reference, *first, *second]))
        return clone_replace([value, slope, curvature], replace, rebuild_strict=False)

    @cached_property
    def _gather(self):
        """First-class ``rows (m,) -> packed``: all inputs of the rows' rewards except the point.

        The blocks are the data arrays, references, quadratic displacements if they are projected,
        and 1 for raced rows, else 0.
        """
        idx, label = pt.lvector("idx"), TensorType("int32", (None,))("label")
        arrays, reference = self.rows.array_inputs(), pt.matrix("reference")
        factor, dual = pt.dtensor3("factor"), pt.dtensor3("dual")
        of_row = label[idx]
        bins = pt.maximum(of_row, 0)
        rows = [pt.take(a, idx, axis=0).astype("float64") for a in arrays]
        at = pt.take(reference, bins, axis=0)
        blocks = [*rows, *self._columns(at)]
        if self._projected:
            floats = self._part(rows, True)
            parts = [r.reshape((idx.size, width_of(a))) for r, a in zip(floats, self._arrays(True))]
            d = pt.concatenate(parts, axis=1) - at
            features = (pt.take(dual, bins, axis=0) * d[:, None, :]).sum(axis=2)
            projected = (pt.take(factor, bins, axis=0) * features[:, :, None]).sum(axis=1)
            blocks += self._columns(projected)
        blocks.append((of_row >= 0).astype("float64"))
        packed = pt.concatenate([b.reshape((-1,)) for b in blocks])
        inputs = [idx, label, reference, factor, dual, *arrays]
        fn = compile_graph(inputs, packed, **self.compile_kwargs)
        m = self._moments
        data = [self.bin_of_row, m.reference, m.factor, m.dual, *self.rows.arrays]
        return native_function(fn, _GATHER, data)

    def _columns(self, flat) -> list:
        """Split symbolic data vectors (m, Dy) into blocks of columns, one per array."""
        ends = np.cumsum([0, *(width_of(a) for a in self._arrays(True))])
        return [flat[:, start:stop] for start, stop in itertools.pairwise(ends)]

    def _part(self, rows, varies: bool) -> list:
        return [r for r, v in zip(rows, self._varies) if v == varies]

    def _unpack(self, packed):
        """Return data, references, quadratic displacements, which rows are raced, and their number."""
        arrays, floats = self.rows.arrays, self._arrays(True)
        blocks = [*arrays, *floats, *(floats if self._projected else ())]
        m = packed.shape[0] // (sum(width_of(a) for a in blocks) + 1)
        start: Any = 0
        out = []
        for a in blocks:
            stop = start + m * width_of(a)
            out.append(packed[start:stop].reshape((m, *a.shape[1:])))
            start = stop
        rows = [
            r if v else r.astype(a.dtype.name)
            for r, a, v in zip(out[: len(arrays)], arrays, self._varies)
        ]
        reference = out[len(arrays) : len(arrays) + len(floats)]
        return rows, reference, out[len(arrays) + len(floats) :], packed[start:] > 0.0, m

    @cached_property
    def _values(self):
        """First-class ``(x, packed) -> (m,)`` log-likelihoods."""
        x, packed = pt.vector("x"), pt.vector("packed")
        rows, _, _, _, m = self._unpack(packed)
        value = self.rows.graph_of_rows(x, rows, m)
        return native_function(compile_graph([x, packed], value, **self.compile_kwargs), _ROWS)

    @cached_property
    def _residuals(self):
        """First-class ``(x, packed) -> (m,)`` log-likelihoods minus the control variate."""
        x, packed = pt.vector("x"), pt.vector("packed")
        rows, reference, moved, raced, m = self._unpack(packed)
        floats, fixed = self._part(rows, True), self._part(rows, False)
        d = [r - at for r, at in zip(floats, reference)]
        value, slope, curvature = self._expansion(x, reference, fixed, d, moved or d, m)
        control = value + slope + 0.5 * curvature
        residual = self.rows.graph_of_rows(x, rows, m) - pt.switch(raced, control, 0.0)
        return native_function(compile_graph([x, packed], residual, **self.compile_kwargs), _ROWS)
