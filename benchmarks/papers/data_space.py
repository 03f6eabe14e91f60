"""Control variates in data space for the rows of a model, for rows that are scalar expressions.

Row n with data vector y_n in bin b has the control variate (Chen & Ghahramani 2016, eq. 11)

    h_n(x) = l(x; y^_b) + g_b(x).d_n + (P_b d_n)' H_b(x) (P_b d_n) / 2,     d_n = y_n - y^_b,

where g_b and H_b are the gradient and Hessian of the log-likelihood in the data at the bin's
reference row y^_b, and P_b is a projection. Computing h_n takes directional derivatives at one virtual
row; its sum over the rows takes them at one virtual row per bin and direction.
"""

from __future__ import annotations

import math

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from amc_pymc.engine import Graph
from amc_pymc.engine.first_class import bound_function
from amc_pymc.engine.machine import Printed
from amc_pymc.reading.element_reader import NotScalar
from amc_pymc.reading.graphs import state_without_caches
from amc_pymc.reading.packed_rows import NO_SCALAR_FORM, consecutive, packed_columns
from amc_pymc.reading.row_program import Column, Columns, parameter_leaf, row_expression
from amc_pymc.reading.rows import RowLogp
from amc_pymc.tall.racing import REWARDS
from amc_pymc.tall.samplers.compiled import LOGP, call_total, state_values
from benchmarks.papers import data_kernels
from benchmarks.papers.data_bins import (
    bin_moments,
    outlying_rows,
    quantile_bins,
)

_SUBSAMPLE = 5_000
#: Share of the gradient's variance below which a direction is considered a rounding error.
_NEGLIGIBLE = 1e-10


@dataclass(frozen=True, eq=False)
class DataProxy:
    """Second-order Taylor control variate of every row in its data, around reference rows.

    It requires no mode and no particular shape of the posterior, and also works for discrete
    variables. It is worthwhile if a row's data can be summarised by a few numbers.

    Parameters
    ----------
    summary : "auto" or (N, S) array
        Summaries by which rows are binned, S <= 3. ``"auto"`` uses the two directions along which the gradient in the data varies
        most at the starting point, or the data themselves if at most two numbers per row.
    bins : int
        Number of quantile bins of each axis of the summary; ``bins ** S`` cells.
    outliers : float
        Share of the rows farthest from their reference in the summary. They
        are evaluated at every decision and not raced.
    max_bins : int
        Maximum number of bins; more raise an error.

    Examples
    --------
    >>> from benchmarks.papers.data_space import DataProxy
    >>> DataProxy(bins=5).outliers
    0.2
    """

    summary: Literal["auto"] | np.ndarray = "auto"
    bins: int = 10
    outliers: float = 0.2
    max_bins: int = 2000


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

    Attributes
    ----------
    exact : (n,) int64 array
        Outlying rows, which have no control variate.
    n_bins : int
        Number of bins B.
    n_directions : int
        Number of virtual rows at which :attr:`total` takes second derivatives, at most B Dy.

    Raises
    ------
    ValueError
        If these rows have no such control variate, or it would need too many bins.

    Notes
    -----
    Rows must be scalar expressions. They are compiled to machine code over data packed row by row, on first
    use and once per process.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from amc_pymc.reading import extract_rows
    >>> from benchmarks.papers.data_space import DataControl, DataProxy
    >>> with pm.Model() as model:
    ...     nu = pm.Exponential("nu", 0.1)
    ...     y = pm.StudentT("y", nu=nu, sigma=2.0, observed=np.linspace(-4.0, 4.0, 2000))
    >>> rng = np.random.default_rng(1)
    >>> control = DataControl(extract_rows(model), DataProxy(), np.array([1.0]), rng)
    >>> control.n_bins, control.exact.size
    (10, 400)
    >>> control.residuals(np.array([[1.0], [1.2]]), np.arange(3)).shape
    (2, 3)
    """

    def __init__(
        self,
        rows: RowLogp,
        settings: DataProxy,
        x: np.ndarray,
        rng: np.random.Generator,
    ):
        if rows.row_local:
            raise ValueError(
                "A control variate in data space needs rows that differ in their data only; "
                f"{', '.join(rows.row_local)} has one value per row. Integrate it out, or use "
                "another proxy."
            )
        self.rows = rows
        self.n_rows = rows.n_rows
        self._varies = tuple(a.dtype.kind == "f" and _all_finite(a) for a in rows.arrays)
        self._check_data()
        self._written = _written(rows, self._varies)
        self.bin_of_row = self._bins(settings, x, rng)
        self.exact = np.flatnonzero(self.bin_of_row < 0)
        moments = bin_moments(self._data, self.bin_of_row)
        self.n_bins = moments.count.size
        bins, which = np.nonzero(np.any(moments.factor != 0.0, axis=2))
        self._direction_bin = np.ascontiguousarray(bins)
        self._direction = moments.factor[bins, which]
        self.n_directions = bins.size
        self._moments = moments._replace(
            factor=moments.factor[:0]
        )  # large, and not needed any more
        self._check_total(x)

    def __getstate__(self):
        return state_without_caches(self) | {"_written": self._written._replace(graph=None)}

    # --- for compiled loops ---------------------------------------------------------------------

    @cached_property
    def total(self):
        """First-class ``x (D,) -> sum of h_n(x) over the raced rows``, natural log."""
        in_bins = self._moments.count.astype(np.float64)
        program = self._written.printed.arrays[0]
        return bound_function(data_kernels.total, LOGP, [self._virtual_rows(), in_bins, program])

    @cached_property
    def state_rewards(self):
        """First-class ``(points (K, D), centre (unused), rows (m,)) -> (K, m)``: l_n - h_n.

        Values at each point, natural log; for the rows in :attr:`exact` they are l_n.
        """
        return bound_function(data_kernels.state_rewards, REWARDS, self._packed)

    @cached_property
    def rewards(self):
        """First-class :attr:`state_rewards` minus the values at points[0]; row 0 is zero."""
        return bound_function(data_kernels.rewards, REWARDS, self._packed)

    # --- from Python ----------------------------------------------------------------------------

    def residuals(self, points: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return :attr:`state_rewards` (K, m) of some rows at points (K, D)."""
        points = np.ascontiguousarray(points, dtype=np.float64)
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        return state_values(self.state_rewards, points, points[0], rows)

    def population_total(self, x: np.ndarray) -> float:
        """Return :attr:`total` at x."""
        return call_total(self.total, np.ascontiguousarray(x, dtype=np.float64))

    # --- construction ---------------------------------------------------------------------------

    def _check_data(self) -> None:
        if not any(a.size for a in self._arrays(True)):
            raise ValueError(
                "A control variate in data space needs finite data of floating type, the rows of "
                f"{', '.join(self.rows.observed_vars)} have none. Cast counts to float in the "
                "model, or use another proxy."
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
        if isinstance(summary, np.ndarray):
            return summary
        axes = _leading_axes(*self._gradient_sample(x, rng))
        return np.concatenate([self._data(c) @ axes for c in consecutive(self.n_rows)])

    def _gradient_sample(self, x, rng):
        """Return data vectors of some rows, and gradients of the log-likelihood in them at x (n, Dy)."""
        some = np.arange(self.n_rows)
        if self.n_rows > _SUBSAMPLE:
            some = np.sort(rng.choice(self.n_rows, size=_SUBSAMPLE, replace=False))
        y = self._data(some)
        g = self._written.gradients(x, y, some)
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
        return sum(_width(a) for a in self._arrays(True))

    @cached_property
    def _members(self) -> np.ndarray:
        """One row (B,) of each bin, which provides its integer data."""
        raced = np.flatnonzero(self.bin_of_row >= 0)
        return raced[np.unique(self.bin_of_row[raced], return_index=True)[1]]

    def _data(self, rows: np.ndarray) -> np.ndarray:
        """Return the data vectors (m, Dy) of some rows."""
        parts = [a[rows].reshape(rows.size, _width(a)) for a in self._arrays(True)]
        return np.concatenate(parts, axis=1).astype(np.float64, copy=False)

    def _fixed_columns(self) -> Iterator[np.ndarray]:
        for array in self._arrays(False):
            yield from array.reshape(self.n_rows, _width(array)).T

    # --- generated machine code -----------------------------------------------------------------

    @cached_property
    def _packed(self) -> list[np.ndarray]:
        """Arrays that the generated loops over rows read."""
        m, everything = self._moments, np.arange(self.n_rows)
        data = self._written.rows(self._data(everything), everything)
        reference = self._written.rows(m.reference, self._members)
        size_of_y = np.array([self._dim])
        return [data, self.bin_of_row, reference, size_of_y, self._written.printed.arrays[0]]

    def _virtual_rows(self) -> np.ndarray:
        """Return references and displacements (3 W, V) of bins and of (bin, direction) pairs."""
        m, bins = self._moments, self._direction_bin
        reference = self._written.rows(m.reference, self._members)
        virtual = np.zeros((3, self.n_bins + bins.size, reference.shape[1]))
        virtual[0] = np.concatenate([reference, reference[bins]])
        virtual[1, : self.n_bins, : self._dim] = m.first
        virtual[2, self.n_bins :, : self._dim] = self._direction
        return np.ascontiguousarray(np.concatenate(virtual, axis=1).T)


def _all_finite(array: np.ndarray) -> bool:
    """Whether all entries are finite, checked in chunks."""
    return all(bool(np.isfinite(array[c]).all()) for c in consecutive(len(array)))


def _width(array: np.ndarray) -> int:
    """Return the number of entries per row."""
    return math.prod(array.shape[1:])


def _leading_axes(y: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Return directions (Dy, S) in data space along which the gradient in the data varies.

    If it does not vary, the log-likelihood is linear in the data and needs no bins.
    """
    scale = y.std(axis=0)
    scale[scale == 0.0] = 1.0
    if y.shape[1] <= 2:
        return np.diag(1.0 / scale)
    spread = (gradients - gradients.mean(axis=0)) * scale
    values, vectors = np.linalg.eigh(spread.T @ spread)
    used = values[-2:] > _NEGLIGIBLE * np.square(gradients * scale).sum()
    axes = vectors[:, -2:][:, used][:, ::-1]
    return axes / scale[:, None] if used.any() else np.zeros((y.shape[1], 1))


class _WrittenRows(NamedTuple):
    """Rows of W numbers, of which the first are data vectors (Dy,), as expressions and code.

    Attributes
    ----------
    printed : Printed
        From :func:`~benchmarks.papers.data_kernels.printed_data_control`.
    fixed : (N, F) array
        Data that rows read besides their data vectors (N, Dy); W = Dy + F.
    graph : Graph or None
    row : int
        Log-likelihood of a row.
    """

    printed: Printed
    fixed: np.ndarray
    graph: Graph | None
    row: int

    def rows(self, y: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Return rows (m, W): data vectors y (m, Dy), then the fixed data of some units (m,)."""
        return np.hstack([y, self.fixed[units]])

    def gradients(self, x: np.ndarray, y: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Return the gradients (m, Dy) of log-likelihoods in the data at x (D,)."""
        assert self.graph is not None
        dim, rows, out = y.shape[1], self.rows(y, units).T, np.zeros(y.shape)
        slope = data_kernels.displaced(self.graph, self.row, dim, len(rows))
        with np.errstate(all="ignore"):
            for k in range(dim):
                moved = np.zeros(rows.shape)
                moved[k] = 1.0
                (out[:, k],) = self.graph.evaluate([slope], row=[*rows, *moved], eta=x)
        return out


def _written(rows: RowLogp, varies: Sequence[bool]) -> _WrittenRows:
    """Write the control variate of rows, differentiated with respect to the data arrays that vary.

    Raises
    ------
    ValueError
        If it is not a scalar expression.
    """
    graph = Graph()
    columns = Columns(graph, "column")
    try:
        leaf = parameter_leaf(graph, rows.layout, columns)
        row = row_expression(rows, graph, columns, leaf)
        starts, dim = _starts(rows, varies)
        places = _places(columns, rows, starts, _read(graph, row))
        fixed = [c for c in _read(graph, row) if c not in places]
        places |= {c: dim + k for k, c in enumerate(fixed)}
        moved = _moved(graph, row, places)
        printed = data_kernels.printed_data_control(graph, moved, dim + len(fixed), dim)
        own = [Column(None, columns.arrays[c]) for c in fixed]
        data = packed_columns(own, rows.n_rows)[:, : len(fixed)]
    except (*NO_SCALAR_FORM, NotImplementedError) as error:
        raise ValueError(
            "A control variate in data space needs rows that are one expression of numbers, those of "
            f"{', '.join(rows.observed_vars)} are not ({error}). Use another proxy."
        ) from error
    return _WrittenRows(printed, data, graph, moved)


def _starts(rows: RowLogp, varies: Sequence[bool]) -> tuple[dict[int, int], int]:
    """Return where each array that varies begins in data vectors, and the length Dy of these."""
    starts, dim = {}, 0
    for k, array in enumerate(rows.arrays):
        if varies[k]:
            starts[k] = dim
            dim += math.prod(array.shape[1:])
    return starts, dim


def _read(graph: Graph, row: int) -> list[int]:
    """Return the columns that an expression reads."""
    dots = [c for n in graph.leaves([row], "dot") for c in graph.nodes[n].value[2]]
    return list(
        dict.fromkeys([*dots, *(graph.nodes[n].value for n in graph.leaves([row], "column"))])
    )


def _places(
    columns: Columns, rows: RowLogp, starts: dict[int, int], read: Sequence[int]
) -> dict[int, int]:
    """Return the columns that are entries of data vectors, with their positions there.

    Raises
    ------
    NotScalar
        If such an entry is used as an index, or is itself indexed by data.
    """
    g, places = columns.graph, {}
    keys = {
        g.nodes[leaf].value: key
        for (_, key, *_), node in columns._known.items()
        for leaf in g.leaves([node], "column")
    }
    for c, (kind, *rest) in keys.items():
        if kind == "input" and rest[0] in starts:
            array, *at = rest
            shape = rows.arrays[array].shape[1:]
            places[c] = starts[array] + int(np.arange(math.prod(shape)).reshape(shape)[tuple(at)])
    for c in read:
        kind, *index = keys[c]
        if isinstance(kind, tuple):
            chosen = kind[0] == "input" and kind[1] in starts
            inside = {m for i in index for m in _read(columns.graph, i)}
            if chosen or inside & places.keys():
                raise NotScalar("data that vary within a bin are chosen or choose")
    return {c: places[c] for c in read if c in places}


def _moved(graph: Graph, row: int, places: dict[int, int]) -> int:
    """Return an expression with its columns renumbered."""
    change = {}
    for n in graph.leaves([row], "column"):
        node = graph.nodes[n]
        change[n] = graph.leaf("column", places[node.value], node.kind)
    for n in graph.leaves([row], "dot"):
        name, first, read = graph.nodes[n].value
        change[n] = graph.leaf("dot", (name, first, tuple(places[c] for c in read)))
    return graph.replaced([row], change)[0]
