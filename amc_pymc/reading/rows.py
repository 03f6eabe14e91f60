"""Log-likelihood of any subset of a model's observed rows.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.basic import ScalarFromTensor
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from amc_pymc.reading.graphs import (
    MakeFunction,
    WithoutCaches,
    functions_for_few,
    initial_point_of,
    inlined,
    interpreted_function,
    is_random,
    log_densities,
    lowered,
    plain_function,
    rebuilt,
    remembered,
    remembering,
)
from amc_pymc.reading.layout import FlatLayout
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


def choose_observed(model, observed_vars=None) -> list[Variable]:
    """Return the observed variables named by the user, or those with the most rows."""
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
    if observed_vars is None:
        lengths = [_length(model, rv) for rv in model.observed_RVs]
        return [rv for rv, n in zip(model.observed_RVs, lengths) if n == max(lengths)]
    if isinstance(observed_vars, str | Variable):
        observed_vars = [observed_vars]
    known = {rv.name: rv for rv in model.observed_RVs}
    chosen = dict.fromkeys(getattr(var, "name", var) for var in observed_vars)
    for name in chosen:
        if name not in known:
            raise ValueError(
                f"observed_vars names {name!r}, which is not an observed variable of the model; "
                f"these are: {', '.join(known)}"
            )
    if not chosen:
        raise ValueError("observed_vars is empty; leave it None for the variables with most rows")
    return [known[name] for name in chosen]


def _length(model, rv) -> int:
    shape = np.shape(_constant_value(model.rvs_to_values[rv]))
    return shape[0] if shape else 0


def _constant_value(value: Variable):
    if isinstance(value, Constant):
        return value.data
    if isinstance(value, SharedVariable):
        return value.get_value(borrow=True)
    return plain_function([], value)()


def row_count(model, observed) -> int:
    """Return the common number of rows of some observed variables."""
    lengths = {rv.name: _length(model, rv) for rv in observed}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"observed_vars must have the same number of rows, got {lengths}")
    n_rows = next(iter(lengths.values()))
    if n_rows < 1:
        raise refused(observed[0].name, "its observation is a scalar or empty")
    return n_rows


def refuse_unsliceable(model, rv) -> None:
    """Raise an error for an observed variable whose rows are not data."""
    from pymc.distributions.distribution import PartialObservedRV
    from pymc.variational.minibatch_rv import MinibatchRandomVariable

    op = rv.owner.op if rv.owner else None
    if isinstance(op, MinibatchRandomVariable):
        raise refused(rv.name, "it has total_size=; give the full data, the step subsamples them")
    whole = rv.name.removesuffix("_observed")
    if isinstance(op, PartialObservedRV) or f"{whole}_unobserved" in model.named_vars:
        raise refused(rv.name, "its data have missing values; drop or impute these rows")
    if is_random([model.rvs_to_values[rv]]):
        raise refused(rv.name, "its data are random (pm.Minibatch); give the full data")


def elementwise_logp(model, rv, n_rows: int):
    """Return the elementwise log density of an observed variable, with rows along axis 0."""
    try:
        (logp,) = log_densities(model, [rv])
    except Exception as error:
        raise refused(rv.name, f"it has no elementwise logp ({error})") from error
    (logp,) = lowered([logp])
    if logp.type.ndim == 0:
        raise refused(rv.name, "its logp is a scalar, the rows depend on each other")
    if logp.type.shape[0] not in (None, n_rows):
        raise refused(rv.name, f"its logp has {logp.type.shape[0]} entries for {n_rows} rows")
    return logp


def data_frontier(logps, value_vars):
    """Return inputs of the parameter-dependent part of the graph that depend on data only."""
    dependent: set[Variable] = set(value_vars)
    nodes = list(toposort(logps))
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
    # A logp that depends on no parameter is part of the frontier itself.
    frontier.update({logp: None for logp in logps if logp not in dependent})
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


def evaluated(frontier, name: str) -> list[np.ndarray]:
    """Return the values of the frontier, borrowed where they are stored already."""
    lazy = [v for v in frontier if not isinstance(v, Constant | SharedVariable)]
    if is_random(lazy):
        raise refused(name, "its data pass through a random variable (pm.Minibatch)")
    if any(isinstance(v.type, SparseTensorType) for v in frontier):
        raise refused(
            name, "it reads a sparse matrix; make it dense (X.toarray()) if memory allows"
        )
    computed = dict(zip(lazy, plain_function([], lazy)())) if lazy else {}
    return [computed[v] if v in computed else _constant_value(v) for v in frontier]


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


_SHORT_SHAPE_VECTOR = 8
_MAX_PLANS = 32
#: Number of rows from which arrays of as many entries may not be constants.
_MANY = 1_000
#: Seed of the rows and points on which rows are verified, independent of the user's seed.
_SEED = 20161


@dataclass(frozen=True)
class _RowInput:
    """A data array with rows along ``axis`` of the original variable, stored rows first."""

    placeholder: Variable
    array: np.ndarray
    axis: int


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
    _output: Variable = field(repr=False, default=None)
    _values: dict[str, Variable] = field(repr=False, default_factory=dict)
    _inputs: tuple[_RowInput, ...] = field(repr=False, default=())
    _length: Variable = field(repr=False, default=None)
    #: Data at which the graph is cut: those of each row, and others.
    _cut: tuple[list[Variable], list[Variable]] | None = field(repr=False, default=None)

    @property
    def arrays(self) -> list[np.ndarray]:
        """Data arrays, rows first, in the order of :meth:`array_inputs`."""
        return [i.array for i in self._inputs]

    def array_inputs(self) -> list[TensorVariable]:
        """Return new symbolic inputs for the full arrays."""
        return [
            TensorType(i.array.dtype, (None, *i.array.shape[1:]))(f"rows_{k}")
            for k, i in enumerate(self._inputs)
        ]

    def graph(self, x: TensorVariable, idx: TensorVariable, arrays: Sequence[TensorVariable]):
        """Return the symbolic log-likelihood (m,) of the rows ``idx`` at the flat point ``x``."""
        replace: dict[Variable, Variable] = {self._length: idx.shape[0]}
        values = self.layout.split(x)
        for name, placeholder in self._values.items():
            value = values[name][idx] if name in self.row_local else values[name]
            replace[placeholder] = placeholder.type.filter_variable(value, allow_convert=True)
        for row_input, array in zip(self._inputs, arrays):
            rows = pt.take(array, idx, axis=0)
            axis = row_input.axis
            replace[row_input.placeholder] = pt.moveaxis(rows, 0, axis) if axis else rows
        return clone_replace(self._output, replace, rebuild_strict=False)

    def compile(self, make: MakeFunction = interpreted_function):
        """Return ``f(x, idx, *arrays) -> (m,)`` of the flat vector x (D,), int64 row numbers and :attr:`arrays`."""
        x, idx, arrays = pt.vector("x"), pt.lvector("idx"), self.array_inputs()
        return make([x, idx, *arrays], self.graph(x, idx, arrays))

    @cached_property
    def _interpreted(self):
        return self.compile()

    def __getstate__(self):
        # The graphs of the cut hold the model's data a second time.
        return super().__getstate__() | {"_cut": None}

    def __call__(self, point: Mapping[str, np.ndarray], idx: Sequence[int]) -> np.ndarray:
        """Return the log-likelihood (m,) of the rows ``idx`` at ``point``."""
        x = self.layout.ravel(point)
        return self._interpreted(x, np.asarray(idx, np.int64), *self.arrays)

    def without_data(self) -> RowLogp:
        """Return a copy without data and graph, for use with the data in another form."""
        inputs = tuple(replace(i, array=i.array[:0].copy()) for i in self._inputs)
        return replace(self, _inputs=inputs, _output=None, _cut=None)


@remembering()
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
    return _extracted(model, tuple(choose_observed(model, observed_vars)))


@remembered
def _extracted(model, observed: tuple) -> RowLogp:
    rng = as_generator(_SEED)
    for rv in observed:
        refuse_unsliceable(model, rv)
    n_rows = row_count(model, observed)
    point = initial_point_of(model)
    layout = FlatLayout.from_model(model, point)
    logps = [elementwise_logp(model, rv, n_rows) for rv in observed]
    names = tuple(rv.name for rv in observed)
    frontier = data_frontier(logps, model.value_vars)
    data = evaluated(frontier, names[0])
    values = [v for v in model.value_vars if v in set(ancestors(logps))]
    xs, x = possible_points(model, layout, point, rng, 3), pt.vector("x")
    own = _summed(layout.substitute(logps, model.value_vars, x))
    for make in functions_for_few(logps, n_rows):
        checks = _checks(make([x], own), xs, n_rows, names[0], rng)
        if all(np.isfinite(values).all() for _, _, values in checks):
            break
    failure: Exception | None = None
    for plan in _row_plans(frontier, data, values, layout, n_rows):
        try:
            rows = _build(logps, plan, frontier, data, values, n_rows, names, layout)
            _compare(rows, checks, make)
        except Exception as error:
            failure = failure or error
        else:
            return rows
    if len(observed) > 1:
        for rv in observed:
            extract_rows(model, [rv])
    raise refused(names[0], f"{type(failure).__name__}: {failure}") from failure


# --- the cut -----------------------------------------------------------------------------------


def _row_plans(frontier, data, values, layout, n_rows):
    """Yield candidate choices of the row axis of each frontier variable, most likely first.

    A plan maps a frontier position to its row axis, or to ``"length"`` for integers that represent
    N, and a value-variable name to 0 if it has one entry (or row of entries) per row.
    """
    options: list[list[tuple[Any, Any]]] = []
    for k, value in enumerate(data):
        axes = [a for a, n in enumerate(np.shape(value)) if n == n_rows]
        choices: list[Any] = [*axes, None] if axes else []
        if _stands_for_length(value, n_rows):
            choices = ["length", None]
        if choices:
            options.append([(k, c) for c in choices])
    shapes = dict(zip(layout.names, layout.shapes))
    for v in values:  # not v.type.shape: with dims= it is (None,)
        if shapes[v.name][:1] == (n_rows,):
            options.append([(v.name, 0), (v.name, None)])
    for choice in itertools.islice(itertools.product(*options), _MAX_PLANS):
        yield {key: axis for key, axis in choice if axis is not None}


def _stands_for_length(value, n_rows: int) -> bool:
    value = np.asarray(value)
    if value.dtype.kind not in "iu" or value.ndim > 1 or value.size > _SHORT_SHAPE_VECTOR:
        return False
    return bool(np.any(value == n_rows)) and not (value.ndim == 1 and value.size == n_rows)


def _build(logps, plan, frontier, data, values, n_rows, names, layout) -> RowLogp:
    length = pt.lscalar("n_rows")
    memo: dict[Variable, Variable] = {}
    inputs, per_row, others = [], [], []
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
            array = np.ascontiguousarray(array, dtype=var.type.dtype)
            inputs.append(_RowInput(memo[var], array, axis))
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
        _output=_summed(rebuilt(logps, memo, inlined)),
        _values=placeholders,
        _inputs=tuple(inputs),
        _length=length,
        _cut=(per_row, others),
    )


def _summed(logps):
    """Return the sum of elementwise log densities, and over all axes but the first."""
    rows = (p.sum(axis=tuple(range(1, p.type.ndim))) if p.type.ndim > 1 else p for p in logps)
    return reduce(operator.add, rows)


# --- verification ------------------------------------------------------------------------------


def possible_points(model, layout, point, rng, n_points: int) -> list[np.ndarray]:
    """Return the initial point and jittered copies, with discrete variables drawn from the prior."""
    from pymc.initial_point import make_initial_point_fn

    x0 = layout.ravel(point)
    moves = layout.indices([n for n in layout.names if layout.is_continuous(n)])
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


def _compare(rows: RowLogp, checks: list[_Check], make: MakeFunction) -> None:
    """Raise an error if rows differ from the model's own elementwise log-likelihood."""
    if rows.n_rows >= _MANY:
        for v in ancestors([rows._output]):  # the cost of a row would be O(N)
            if isinstance(v, Constant) and np.size(v.data) >= rows.n_rows:
                raise ValueError("data of N entries are used other than row by row")
    for name in rows.row_local:
        entries = [x[rows.layout.slices[name]] for x, _, _ in checks]
        if rows.n_rows > 1 and all(np.ptp(e) == 0 for e in entries):
            raise ValueError(f"the entries of {name!r} are all alike, so their order is not seen")
    compiled = rows.compile(make)
    for x, idx, values in checks:
        got = compiled(x, idx, *rows.arrays)
        if got.shape != idx.shape:
            raise ValueError(f"{idx.size} rows gave a result of shape {got.shape}")
        if not np.allclose(got, values, rtol=1e-9, atol=1e-9, equal_nan=True):
            raise ValueError("the value of a row depends on the other rows")
