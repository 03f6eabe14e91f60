"""Log-likelihood of any subset of a model's observed rows, and of one row as an expression.

The elementwise log-likelihood graph of a ``pm.Model`` is cut along its *data frontier*: the
maximal subgraphs that depend on data only are evaluated once, and those with an axis of length N
become inputs that are indexed by row. The rest of the graph is rebuilt on top of them, so
evaluating m rows costs O(m) for any N.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import pickle

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.distributions.distribution import PartialObservedRV
from pymc.initial_point import make_initial_point_fn
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.basic import ScalarFromTensor
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from amc_pymc.engine import Families, Graph
from amc_pymc.reading.graphs import (
    FlatLayout,
    WithoutCaches,
    initial_point_of,
    interpreted_function,
    log_densities,
    lowered,
    rebuilt,
    remembering,
    stabilised,
)
from amc_pymc.reading.scalars import Columns, ElementReader, Index, NotScalar
from amc_pymc.rng import as_generator

# --- observed variables and their data -------------------------------------------------------------


class NotRowFactorised(ValueError):
    """Error for observed rows that cannot be evaluated one by one."""


def refused(name: str, reason: str) -> NotRowFactorised:
    """Return the error for rows of an observed variable, with a reason."""
    return NotRowFactorised(
        f"The rows of observed variable {name!r} cannot be evaluated on their own: {reason}. "
        "If they are conditionally independent, write the likelihood row by row; if they are not, "
        "subsampling does not apply: use NUTS."
    )


def choose_observed(model, observed_vars=None) -> tuple[list[Variable], int]:
    """Return the observed variables named by the user, or those with the most rows, and their number of rows."""
    if not model.observed_RVs:
        advice = (
            ". A pm.Potential has no rows: write weights as a parameter of an observed variable, as in "
            "pm.CustomDist('y', mu, w, logp=lambda value, mu, w: w * pm.logp(pm.Normal.dist(mu, 1), "
            "value), observed=y)"
        )
        raise NotRowFactorised(
            "The model has no observed variable: there are no rows to subsample"
            f"{advice if model.potentials else ''}"
        )
    known = {rv.name: rv for rv in model.observed_RVs}
    if isinstance(observed_vars, str | Variable):
        observed_vars = [observed_vars]
    asked = known if observed_vars is None else observed_vars
    chosen = dict.fromkeys(getattr(var, "name", var) for var in asked)
    for name in chosen:
        if name not in known:
            raise ValueError(
                f"observed_vars names {name!r}, which is not an observed variable of the model; "
                f"these are: {', '.join(known)}"
            )
    if not chosen:
        raise ValueError("observed_vars is empty; leave it None for the variables with most rows")
    lengths = {}
    for name in chosen:
        (value,) = evaluated([model.rvs_to_values[known[name]]], name)
        lengths[name] = np.shape(value)[0] if np.ndim(value) else 0
    n_rows = max(lengths.values())
    if observed_vars is None:
        lengths = {name: n for name, n in lengths.items() if n == n_rows}
    if len(set(lengths.values())) > 1:
        raise NotRowFactorised(f"observed_vars must have the same number of rows, got {lengths}")
    if n_rows < 1:
        raise refused(next(iter(lengths)), "its observation is a scalar or empty")
    return [known[name] for name in lengths], n_rows


def may_read_levels(model, observed_vars=None) -> bool:
    """Whether rows may read one value of a variable each: data are indices, or there are as many values as rows.

    The log density tells that there are no groups, before rows are extracted by several passes over the data.
    """
    with suppress(Exception):  # extracting the rows reports the error
        observed, n_rows = choose_observed(model, observed_vars)
        if all(np.shape(v)[:1] != (n_rows,) for v in initial_point_of(model).values()):
            nodes = toposort(lowered(log_densities(model, observed)))
            return any(isinstance(node.op, AdvancedSubtensor) for node in nodes)
    return True


def row_logp(model, rv, n_rows: int):
    """Return the log density of each row of an observed variable: rows are along its axis 0."""
    op = rv.owner.op if rv.owner else None
    if isinstance(op, MinibatchRandomVariable):
        raise refused(rv.name, "it has total_size=; give the full data, the step subsamples them")
    whole = rv.name.removesuffix("_observed")
    if isinstance(op, PartialObservedRV) or f"{whole}_unobserved" in model.named_vars:
        raise refused(rv.name, "its data have missing values; drop or impute these rows")
    try:
        (logp,) = log_densities(model, [rv])
    except Exception as error:
        raise refused(rv.name, f"it has no elementwise logp ({error})") from error
    (logp,) = lowered([logp])
    if logp.type.ndim == 0:
        raise refused(rv.name, "its logp is a scalar, the rows depend on each other")
    if logp.type.shape[0] not in (None, n_rows):
        raise refused(rv.name, f"its logp has {logp.type.shape[0]} entries for {n_rows} rows")
    return logp.sum(axis=tuple(range(1, logp.type.ndim))) if logp.type.ndim > 1 else logp


def data_frontier(graphs: Sequence[Variable], value_vars) -> list[Variable]:
    """Return inputs of the parameter-dependent part of graphs that depend on data only."""
    dependent: set[Variable] = set(value_vars)
    nodes = list(toposort(graphs))
    for node in nodes:
        if any(i in dependent for i in node.inputs):
            dependent.update(node.outputs)
    frontier: dict[Variable, None] = {}
    for node in nodes:
        if any(o in dependent for o in node.outputs):
            for v in (i for i in node.inputs if i not in dependent):
                # The tensor that a scalar, such as the condition of a check, is made from.
                scalar = v.owner is not None and isinstance(v.owner.op, ScalarFromTensor)
                frontier[v.owner.inputs[0] if scalar else v] = None
    # A graph that depends on no parameter is part of the frontier itself.
    frontier.update({graph: None for graph in graphs if graph not in dependent})
    return list(frontier)


def with_constants(
    graph: Variable, shapes: Mapping[Variable, tuple[int, ...]]
) -> tuple[Variable, list[Variable]]:
    """Return a graph of inputs of known shapes, whose data are constants, and these inputs."""
    (graph,) = lowered([graph])
    frontier = [
        v
        for v in data_frontier([graph], shapes)
        if not isinstance(v, Constant) and isinstance(v.type, TensorType)
    ]
    data = zip(frontier, evaluated(frontier, "prior"))
    memo = {v: pt.constant(np.asarray(a, dtype=v.type.dtype)) for v, a in data}
    inputs = {v: v.type.clone(shape=shape)(v.name) for v, shape in shapes.items()}
    (graph,) = rebuilt([graph], memo | inputs)
    return graph, list(inputs.values())


def evaluated(variables: Sequence[Variable], name: str) -> list[Any]:
    """Return the values of data of an observed variable, borrowed where they are stored already."""
    lazy = [v for v in variables if not isinstance(v, Constant | SharedVariable)]
    if any(isinstance(v.type, RandomType) for v in ancestors(lazy)):
        reason = "its data pass through a random variable (pm.Minibatch); give the full data"
        raise refused(name, reason)
    if any(isinstance(v.type, SparseTensorType) for v in variables):
        raise refused(
            name, "it reads a sparse matrix; make it dense (X.toarray()) if memory allows"
        )
    found: dict[Variable, Any] = {}
    if lazy:
        found.update(zip(lazy, interpreted_function([], lazy, plain=True)()))
    for v in variables:
        if isinstance(v, Constant):
            found[v] = v.data
        elif isinstance(v, SharedVariable):
            found[v] = v.get_value(borrow=True)
    return [found[v] for v in variables]


def data_stamps(model) -> dict[SharedVariable, bytes]:
    """Return a hash of each shared variable that the model's density reads, pm.Data or any other."""
    stamps = {}
    graphs = [*model.basic_RVs, *model.rvs_to_values.values(), *model.potentials]
    for v in ancestors(graphs):
        if not isinstance(v, SharedVariable) or isinstance(v.type, RandomType):
            continue
        value = v.get_value(borrow=True)
        dense = isinstance(value, np.ndarray)
        told = f"{value.shape}{value.dtype}" if dense else type(value).__name__
        digest = hashlib.blake2b(told.encode(), digest_size=16)
        digest.update(np.ascontiguousarray(value) if dense else pickle.dumps(value))
        stamps[v] = digest.digest()
    return stamps


# --- rows ------------------------------------------------------------------------------------------


#: Largest number of entries of a vector that may be a shape.
_SHORT_SHAPE_VECTOR = 8
_MAX_PLANS = 32
#: Maximum number of rows for which an evaluation without rewriting costs less than rewriting.
_FEW_ROWS = 100_000
#: Number of rows from which arrays of as many entries may not be constants.
_MANY = 1_000
#: Seed of the rows and points on which rows are verified, independent of the user's seed.
_SEED = 20161


@dataclass(frozen=True, eq=False)
class RowLogp(WithoutCaches):
    """Log-likelihood of any subset of N observed rows, as a function of the value variables.

    Call it with a point (dict of value-variable name -> array, as ``model.initial_point()``) and a
    1-d integer array of m row numbers; it returns the natural-log likelihood of these rows, shape
    (m,), trailing dimensions of the observation and several observed variables summed.

    Build it with :func:`extract_rows`. It is immutable and can be pickled.
    """

    n_rows: int
    observed_vars: tuple[str, ...]
    value_vars: tuple[str, ...]
    layout: FlatLayout
    row_local: tuple[str, ...] = ()
    #: Data, rows first.
    arrays: list[np.ndarray] = field(repr=False, default_factory=list)
    _output: Variable = field(repr=False, default=None)
    _values: dict[str, Variable] = field(repr=False, default_factory=dict)
    #: The input of each array, and its axis of rows there.
    _inputs: tuple[tuple[Variable, int], ...] = field(repr=False, default=())
    _length: Variable = field(repr=False, default=None)
    #: Data at which the graph is cut: those of each row, and others.
    _cut: tuple[list[Variable], list[Variable]] | None = field(repr=False, default=None)

    def graph(self) -> tuple[list[TensorVariable], Variable]:
        """Return the symbolic log-likelihood (m,) of rows, after its inputs.

        These are the flat point x (D,), int64 row numbers (m,) and all :attr:`arrays`.
        """
        x, idx, arrays = pt.vector("x"), pt.lvector("idx"), []
        replace: dict[Variable, Variable] = {self._length: idx.shape[0]}
        values = self.layout.unravel(x)
        for name, placeholder in self._values.items():
            value = values[name][idx] if name in self.row_local else values[name]
            replace[placeholder] = placeholder.type.filter_variable(value, allow_convert=True)
        for k, ((placeholder, axis), array) in enumerate(zip(self._inputs, self.arrays)):
            arrays.append(TensorType(array.dtype, (None, *array.shape[1:]))(f"rows_{k}"))
            rows = pt.take(arrays[k], idx, axis=0)
            replace[placeholder] = pt.moveaxis(rows, 0, axis) if axis else rows
        return [x, idx, *arrays], clone_replace(self._output, replace, rebuild_strict=False)

    def expression(
        self,
        graph: Graph,
        columns: Columns,
        leaf: Callable[[str, Index], int],
        arrays: Sequence[np.ndarray] | None = None,
        families: Families | None = None,
    ) -> int:
        """Return the log-likelihood of one row as an expression.

        Parameters
        ----------
        graph : Graph
            Graph to which the expression is added.
        columns : Columns
            Columns of rows, to which new ones are added.
        leaf : callable
            ``(name, index) -> node`` of an element of a value variable. For variables in
            :attr:`row_local`, with one entry per row, the first index is the column of row numbers.
        arrays : sequence of arrays, optional
            Data in place of :attr:`arrays`; columns read them when they are computed.
        families : Families, optional
            As for :class:`~amc_pymc.reading.scalars.ElementReader`.

        Returns
        -------
        int
            A node of ``graph``.

        Raises
        ------
        NotScalar
            If an operation has no scalar form.
        """
        memo: dict[Variable, Variable] = {self._length: pt.constant(1, dtype="int64")}
        leaves: dict[Variable, Callable[[Index], int]] = {}
        shapes = dict(zip(self.layout.names, self.layout.shapes))
        for name, placeholder in self._values.items():
            local = name in self.row_local
            shape = (1, *shapes[name][1:]) if local else shapes[name]
            memo[placeholder] = new = placeholder.type.clone(shape=shape)(name)
            leaves[new] = partial(leaf, name)
            if local:
                leaves[new] = partial(_own_entry, leaves[new], columns, self.n_rows)
        for k, ((placeholder, axis), array) in enumerate(zip(self._inputs, self.arrays)):
            own = (*array.shape[1 : axis + 1], 1, *array.shape[axis + 1 :])
            memo[placeholder] = new = placeholder.type.clone(shape=own)()
            data = self.arrays if arrays is None else arrays
            values = partial(operator.getitem, data, k)
            leaves[new] = partial(columns.node, ("input", k), values, axis=axis)
        try:
            (output,) = rebuilt([self._output], memo)
        except (TypeError, ValueError) as error:  # as many rows as columns: their axes are confused
            raise NotScalar(f"its shapes are not those of one row ({error})") from error
        reader = ElementReader(graph, leaves, columns, families)
        return reader.element(stabilised(output), (graph.const(0),))

    @cached_property
    def _interpreted(self):
        return interpreted_function(*self.graph())

    def __getstate__(self):
        # The graphs of the cut hold the model's data a second time.
        return super().__getstate__() | {"_cut": None}

    def __call__(self, point: Mapping[str, np.ndarray], idx: Sequence[int]) -> np.ndarray:
        """Return the log-likelihood (m,) of the rows ``idx`` at ``point``."""
        x = self.layout.ravel(point)
        return self._interpreted(x, np.asarray(idx, np.int64), *self.arrays)

    def without_data(self) -> RowLogp:
        """Return a copy without data and graph, for use with the data in another form."""
        return replace(self, arrays=[a[:0].copy() for a in self.arrays], _output=None, _cut=None)


def _own_entry(leaf: Callable[[Index], int], columns: Columns, n_rows: int, index: Index) -> int:
    """Return an element of a variable with one entry per row, that of the row."""
    return leaf((columns.node("row", partial(np.arange, n_rows)), *index[1:]))


def extract_rows(model, observed_vars: Sequence[Any] | None = None) -> RowLogp:
    """Extract the per-row log-likelihood of a model.

    Parameters
    ----------
    model : pm.Model
        Its observed rows must be conditionally independent given the value variables.
    observed_vars : sequence of str or variables, optional
        Observed variables whose rows (axis 0) are used, all of the same length. Default: those
        with the most rows.

    Returns
    -------
    RowLogp
        Log-likelihood of rows, verified against the model's own elementwise log-likelihood.

    Raises
    ------
    NotRowFactorised
        If a variable cannot be evaluated row by row; the message states which one, and why.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from amc_pymc.reading import extract_rows
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(100.0))
    >>> rows = extract_rows(model)
    >>> rows(model.initial_point(), np.array([0, 2])).round(3)
    array([-0.919, -2.919])
    """
    observed, n_rows = choose_observed(model, observed_vars)
    names, rng = tuple(rv.name for rv in observed), as_generator(_SEED)
    with remembering() as known:
        key = extract_rows, model, names
        if key in known:
            return known[key]
        logp = reduce(operator.add, [row_logp(model, rv, n_rows) for rv in observed])
        frontier = data_frontier([logp], model.value_vars)
        data = evaluated(frontier, names[0])
        above = set(ancestors([logp]))
        values = [v for v in model.value_vars if v in above]
        point = initial_point_of(model)
        shapes = tuple(v.shape for v in point.values())
        dtypes = tuple(v.dtype.name for v in point.values())
        layout, x = FlatLayout(tuple(point), shapes, dtypes), pt.vector("x")
        xs = possible_points(model, layout, point, rng, 3)
        (own,) = layout.substitute([logp], model.value_vars, x)
        # Rewriting a graph takes longer than evaluating it for few rows. Values may underflow without, and PyTensor
        # would compile inner graphs that are not inlined.
        inner = any(v.owner is not None and isinstance(v.owner.op, HasInnerGraph) for v in above)
        for plain in (n_rows <= _FEW_ROWS and not inner, False):
            fn = interpreted_function([x], own, plain=plain)
            checks = _checks(fn, xs, n_rows, names[0], rng)
            if all(np.isfinite(expected).all() for _, _, expected in checks):
                break
        failure: Exception | None = None
        for plan in _row_plans(data, values, layout, n_rows):
            try:
                rows = _build(logp, plan, frontier, data, values, n_rows, names, layout)
                _compare(rows, checks, plain)
            except Exception as error:
                failure = failure or error
            else:
                known[key] = rows
                return rows
        if len(observed) > 1:
            for rv in observed:
                extract_rows(model, [rv])
        raise refused(names[0], f"{type(failure).__name__}: {failure}") from failure


# --- the cut -----------------------------------------------------------------------------------


def _row_plans(data, values, layout, n_rows) -> Iterator[dict]:
    """Yield candidate choices of the row axis of each frontier variable, most likely first.

    A plan maps a frontier position to its row axis, or to ``"length"`` for integers that represent
    N, and a value-variable name to 0 if it has one entry (or row of entries) per row.
    """
    options: list[list[tuple[Any, Any]]] = []
    for k, value in enumerate(map(np.asarray, data)):
        choices: list[Any] = [a for a, n in enumerate(value.shape) if n == n_rows]
        whole = value.dtype.kind in "iu" and value.ndim <= 1 and value.size <= _SHORT_SHAPE_VECTOR
        if whole and not choices and np.any(value == n_rows):
            choices = ["length"]
        if choices:
            options.append([(k, c) for c in [*choices, None]])
    shapes = dict(zip(layout.names, layout.shapes))
    for v in values:  # not v.type.shape: with dims= it is (None,)
        if shapes[v.name][:1] == (n_rows,):
            options.append([(v.name, 0), (v.name, None)])
    for choice in itertools.islice(itertools.product(*options), _MAX_PLANS):
        yield {key: axis for key, axis in choice if axis is not None}


def _build(logp, plan, frontier, data, values, n_rows, names, layout) -> RowLogp:
    length = pt.lscalar("n_rows")
    memo: dict[Variable, Variable] = {}
    inputs, arrays, per_row, others = [], [], [], []
    for k, (var, value) in enumerate(zip(frontier, data)):
        if k not in plan:
            others.append(var)
            memo[var] = var
            if isinstance(var.type, TensorType) and not isinstance(var, Constant):
                constant = pt.as_tensor(value).astype(var.type.dtype)
                memo[var] = var.type.filter_variable(constant, allow_convert=True)
        elif plan[k] == "length":
            entries = np.ravel(value).tolist()
            parts = [length if v == n_rows else pt.constant(v, dtype="int64") for v in entries]
            memo[var] = (pt.stack(parts) if np.ndim(value) else length).astype(var.type.dtype)
        else:
            per_row.append(var)
            axis, array = plan[k], np.asarray(value)
            shape = (None if a == axis else n for a, n in enumerate(array.shape))
            memo[var] = TensorType(var.type.dtype, tuple(shape))()
            if axis:  # a view of the model's data would be pickled as a second copy
                array = np.moveaxis(array, axis, 0)
            arrays.append(np.ascontiguousarray(array, dtype=var.type.dtype))
            inputs.append((memo[var], axis))
    placeholders = {}
    row_local = []
    for v in values:
        placeholders[v.name] = memo[v] = v.type(f"{v.name}_")
        if v.name in plan:
            memo[v] = placeholders[v.name] = v.type.clone(shape=(None, *v.type.shape[1:]))(v.name)
            row_local.append(v.name)
    return RowLogp(
        n_rows=n_rows,
        observed_vars=names,
        value_vars=tuple(v.name for v in values),
        layout=layout,
        row_local=tuple(row_local),
        arrays=arrays,
        _output=rebuilt([logp], memo, inline=True)[0],
        _values=placeholders,
        _inputs=tuple(inputs),
        _length=length,
        _cut=(per_row, others),
    )


# --- verification ------------------------------------------------------------------------------


def possible_points(model, layout, point, rng, n_points: int) -> list[np.ndarray]:
    """Return the initial point and jittered copies, with discrete variables drawn from the prior."""
    x0 = layout.ravel(point)
    moves = layout.indices(layout.continuous)
    discrete = [rv for rv in model.free_RVs if not rv.type.dtype.startswith("float")]
    draw = None
    if discrete:
        draw = make_initial_point_fn(model=model, overrides=dict.fromkeys(discrete, "prior"))
    xs = [x0]
    for _ in range(n_points - 1):
        x = layout.ravel(draw(int(rng.integers(2**31)))) if draw else x0.copy()
        x[moves] += rng.normal(scale=0.3, size=moves.size)
        xs.append(x)
    return xs


#: A point, some rows, and their log-likelihoods by the model's own graph.
type _Check = tuple[np.ndarray, np.ndarray, np.ndarray]


def _checks(oracle, xs, n_rows: int, name: str, rng) -> list[_Check]:
    """Evaluate all rows at each point, one point at a time, and keep some."""
    out, possible = [], False
    for x in xs:
        full = oracle(x)
        if full.shape != (n_rows,):
            raise refused(name, f"its logp has shape {full.shape} for {n_rows} rows")
        possible |= bool(np.isfinite(full).any())
        for m in (1, 2, 50, 200):
            idx = rng.integers(0, n_rows, size=m)
            out.append((x, idx, full[idx]))
    if not possible:
        raise NotRowFactorised(
            f"The log-likelihood of {name} is not finite in any row near the initial point. Clean or "
            "rescale the data, or start where they are possible (initval=)."
        )
    return out


def _compare(rows: RowLogp, checks: list[_Check], plain: bool) -> None:
    """Raise an error if rows differ from the model's own elementwise log-likelihood."""
    if rows.n_rows >= _MANY:
        for v in ancestors([rows._output]):  # the cost of a row would be O(N)
            if isinstance(v, Constant) and np.size(v.data) >= rows.n_rows:
                raise ValueError("data of N entries are used other than row by row")
    for name in rows.row_local:
        entries = [x[rows.layout.slices[name]] for x, _, _ in checks]
        if rows.n_rows > 1 and all(np.ptp(e) == 0 for e in entries):
            raise ValueError(f"the entries of {name!r} are all alike, so their order is not seen")
    fn = interpreted_function(*rows.graph(), plain=plain)
    for x, idx, values in checks:
        got = fn(x, idx, *rows.arrays)
        if got.shape != idx.shape:
            raise ValueError(f"{idx.size} rows gave a result of shape {got.shape}")
        if not np.allclose(got, values, rtol=1e-9, atol=1e-9, equal_nan=True):
            raise ValueError("the value of a row depends on the other rows")
