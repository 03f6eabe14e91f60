"""PyTensor graphs of a model: evaluation by NumPy, transformations, log densities, the flat vector of its variables."""

from __future__ import annotations

import logging
import threading

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc.initial_point import make_initial_point_expression
from pymc.model.core import Model, modelcontext
from pymc.pytensorf import find_rng_nodes, replace_rng_nodes, reseed_rngs
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode, optdb
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, io_toposort, toposort
from pytensor.link.c.op import COp
from pytensor.scalar.basic import Add, Mul
from pytensor.scalar.math import Log1mexp, Softplus
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorConstant, TensorVariable
from pytensor.xtensor.type import XTensorType

_log = logging.getLogger("amc_pymc")
#: Number of arrays from which a NumPy function computes another.
_MOST_INPUTS = 31
#: Excluded rewrites of sums and products; they take minutes for a recursion of a hundred terms and gain little.
_SLOW = ("local_add_canonizer", "local_mul_canonizer", "local_greedy_distributor")


@node_rewriter([Elemwise])
def _by_arrays(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Write operations by functions of NumPy that take arrays, few of them.

    PyTensor evaluates two functions one number at a time, and has sums and products of any number of arrays.
    """
    op, x, dtype = node.op.scalar_op, node.inputs[0], node.outputs[0].type.dtype
    if isinstance(op, Add | Mul) and len(node.inputs) > _MOST_INPUTS:
        return [reduce(Elemwise(op), node.inputs)]
    if not isinstance(op, Softplus | Log1mexp):
        return None
    x = x.astype(dtype)
    if isinstance(op, Softplus):
        return [(pt.maximum(x, 0.0) + pt.log1p(pt.exp(-abs(x)))).astype(dtype)]
    near = x > -np.log(2.0)
    return [pt.switch(near, pt.log(-pt.expm1(x)), pt.log1p(-pt.exp(x))).astype(dtype)]


class _RewritersOnce(Mode):
    """Mode that creates its rewriters once.

    PyTensor creates new ones for every function, which must again find the rewrites for each operation.
    """

    optimizer = cached_property(Mode.optimizer.fget)


#: Mode for graphs that run a few times, such as log densities. They are made numerically stable, as in PyTensor's own
#: modes: otherwise the logarithm of a logistic function underflows. Nothing is compiled.
INTERPRETED = (
    _RewritersOnce(linker="py", optimizer="fast_compile")
    .register((in2out(_by_arrays, name="by_arrays"), 100.0))
    .including("stabilize")
    .excluding("BlasOpt", "blas", "cxx_only", *_SLOW)
)
#: Mode for graphs that are evaluated once or twice.
_AS_THEY_ARE = Mode(linker="py", optimizer=None)


def interpreted_function(
    inputs: Sequence[Variable],
    outputs: Variable | Sequence[Variable],
    *,
    plain: bool = False,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Return a function that PyTensor interprets.

    Parameters
    ----------
    inputs : sequence of variables
    outputs : variable or sequence of variables
    plain : bool
        Whether graphs are evaluated as they are, one operation after the other, if all operations permit it. The
        function is made in a fifth of the time that rewriting takes, but values may underflow.
    **kwargs
        Those of ``pytensor.function``. Random generators are not updated without.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from amc_pymc.reading.graphs import interpreted_function
    >>> x = pt.vector("x")
    >>> float(interpreted_function([x], (x**2).sum(), plain=True)([1.0, 2.0]))
    5.0
    """
    wanted = [outputs] if isinstance(outputs, Variable) else outputs
    for node in io_toposort(inputs, wanted) if plain else ():
        op, few = node.op, len(node.inputs) <= _MOST_INPUTS
        named = type(op).__module__.startswith("pytensor.xtensor")  # must be lowered to tensors
        performed = type(op).make_thunk in (Op.make_thunk, COp.make_thunk)
        if named or not (few and performed) or isinstance(op, HasInnerGraph):
            plain = False
    mode = _AS_THEY_ARE if plain else INTERPRETED
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", **kwargs)


# --- what is computed once -------------------------------------------------------------------------


_known: ContextVar[dict[Hashable, Any] | None] = ContextVar("known", default=None)


@contextmanager
def remembering() -> Iterator[dict[Hashable, Any]]:
    """Keep what functions find out about models until the end of the block, in a dictionary.

    The models, and what is found out, must not change inside it. A nested block shares the dictionary of
    the outer one. Inside the block PyTensor does not compile C code, which takes seconds for constants that
    are folded once, and does not record the source line of each variable.

    Examples
    --------
    >>> from amc_pymc.reading.graphs import remembering
    >>> def square(x):
    ...     with remembering() as known:
    ...         if ("square", x) not in known:
    ...             print("computed")
    ...             known["square", x] = x * x
    ...         return known["square", x]
    >>> with remembering():
    ...     square(3), square(3)
    computed
    (9, 9)
    """
    known = _known.get()
    if known is not None:
        yield known
        return
    known = {}
    token = _known.set(known)
    try:
        with pytensor.config.change_flags(cxx="", traceback__limit=0):
            yield known
    finally:
        _known.reset(token)


class WithoutCaches:
    """Objects that are pickled without their cached properties, such as compiled functions."""

    def __getstate__(self) -> dict[str, Any]:
        kind = type(self)
        return {
            name: value
            for name, value in vars(self).items()
            if not isinstance(getattr(kind, name, None), cached_property)
        }


# --- transformations -------------------------------------------------------------------------------


#: Seed of random initial values, independent of the user's seed.
_SEED = 20161


def initial_point_of(model) -> dict[str, np.ndarray]:
    """Return ``model.initial_point()``, interpreted: rewriting its graph takes longer than running it once.

    Random initial values, such as ``initval="prior"``, come from a fixed seed. The arrays are read-only.
    """
    with remembering() as known:
        if (initial_point_of, model) not in known:
            values = replace_rng_nodes(
                make_initial_point_expression(
                    free_rvs=model.free_RVs,
                    rvs_to_transforms=model.rvs_to_transforms,
                    initval_strategies=model.rvs_to_initial_values,
                    return_transformed=True,
                )
            )
            reseed_rngs(find_rng_nodes(values), _SEED)
            found = map(np.copy, interpreted_function([], values, plain=True)())
            names = [model.rvs_to_values[rv].name for rv in model.free_RVs]
            known[initial_point_of, model] = dict(zip(names, found, strict=True))
            for value in known[initial_point_of, model].values():
                value.flags.writeable = False
        return dict(known[initial_point_of, model])


def is_random(graphs: Iterable, given: Iterable = ()) -> bool:
    """Whether graphs depend on a random generator, other than through the variables `given`.

    Generators are found even if their draws are hidden in an inner graph, as in pm.Minibatch.
    """
    return any(isinstance(v.type, RandomType) for v in ancestors(graphs, blockers=given))


def rebuilt(
    outputs: Sequence,
    replace: Mapping[Variable, Variable] | None = None,
    change: Callable | None = None,
    *,
    inline: bool = False,
) -> list:
    """Rebuild graphs with other inputs; their static shapes are inferred anew.

    Parameters
    ----------
    outputs : sequence of variables
    replace : mapping of variables to variables, optional
        Replacements; the graph upstream of a replaced variable is not visited.
    change : callable, optional
        ``change(node, inputs)`` returns new outputs for a node whose inputs have been replaced, or None
        to keep its operation.
    inline : bool
        Whether the inner graphs of other nodes, and those inside, take their place.

    Returns
    -------
    list of variables

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from amc_pymc.reading.graphs import rebuilt
    >>> x, y = pt.vector("x"), pt.vector("y", shape=(3,))
    >>> (graph,) = rebuilt([pt.exp(x)], {x: y})
    >>> graph.type.shape, float(graph.eval({y: [0.0, 0.0, 0.0]}).sum())
    ((3,), 3.0)
    """
    memo = dict(replace or {})
    for node in toposort(outputs, blockers=list(memo)):
        inputs = [memo.get(i, i) for i in node.inputs]
        new = None if change is None else change(node, inputs)
        if new is None and inline and isinstance(node.op, OpFromGraph):
            inner = dict(zip(node.inputs, inputs, strict=True))
            new = rebuilt(inline_ofg_node(node), inner, change, inline=True)
        if new is None:
            if all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
                continue
            new = node.op.make_node(*inputs).outputs
        for old, out in zip(node.outputs, new, strict=True):
            memo.setdefault(old, out)
    return [memo.get(o, o) for o in outputs]


#: Rewriter that makes graphs numerically stable.
_STABILISING = optdb.query(RewriteDatabaseQuery(include=("canonicalize", "stabilize")))


def stabilised(output: Variable) -> Variable:
    """Return the graph as PyTensor would compute it: inner graphs inlined, numerically stable."""
    graph = FunctionGraph(outputs=rebuilt([output], inline=True), clone=True, copy_inputs=False)
    _STABILISING.rewrite(graph)
    return graph.outputs[0]


def lowered(graphs: list) -> list:
    """Return graphs without named dimensions, which cannot be vectorised over particles."""
    if not any(isinstance(v.type, XTensorType) for v in ancestors(graphs)):
        return graphs
    graphs = clone_replace([getattr(g, "values", g) for g in graphs])
    return list(rewrite_graph(graphs, include=("lower_xtensor",), clone=False))


# --- log densities --------------------------------------------------------------------------------


def log_densities(model, parts: Sequence[Variable]) -> list[Variable]:
    """Return ``model.logp(vars=parts, sum=False)``: one graph per random variable or potential.

    Rows without parameters are of double precision: PyTensor would compute those of ``pm.Bernoulli(p=0.5)`` in single
    precision, an error of 0.002 nat for 100,000 rows. PyMC derives the densities of all variables at every call. Inside
    :func:`~amc_pymc.reading.graphs.remembering` they are cached, and must not be changed in place.

    Raises
    ------
    Exception
        The error of PyMC if one of ``parts`` has no density.

    Examples
    --------
    >>> import pymc as pm
    >>> from amc_pymc.reading.graphs import log_densities
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x")
    ...     y = pm.Normal("y", x, shape=3)
    >>> [term.type.ndim for term in log_densities(model, [y, x])]
    [1, 0]
    """
    # A Potential may be a random variable itself.
    parts, every = list(parts), list(dict.fromkeys([*model.basic_RVs, *model.potentials]))
    with remembering() as known:
        key = log_densities, model, *parts
        if key in known:
            return known[key]
        if parts != every and len(set(parts)) == len(parts):
            with suppress(Exception):  # another part may have no density
                terms = dict(zip(every, log_densities(model, every), strict=True))
                return [terms[part] for part in parts]
        read = set(model.value_vars)
        known[key] = [
            _in_double(g) if g is not None and read.isdisjoint(ancestors([g])) else g
            for g in model.logp(vars=parts, sum=False)
        ]
        return known[key]


def _in_double(graph: Variable) -> Variable:
    """Return a graph with numbers of double precision."""
    numbers = [v for v in ancestors([graph]) if isinstance(v, TensorConstant) and v.data.size == 1]
    double = {v: pt.constant(v.data.astype(float)) for v in numbers if v.dtype == "float32"}
    return rebuilt([graph], double)[0]


def gradient_by(x: Variable, scalar: Variable) -> Variable:
    """Return the gradient of a scalar; zero where it does not depend on x."""
    return pt.zeros_like(x) + grad(scalar, x, disconnected_inputs="ignore")


# --- evaluation at many points ----------------------------------------------------------------------


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
    single elements. A lock serialises calls from several threads.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from amc_pymc.reading.graphs import Batched
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
        return _batched_function(
            batch, _with_slopes(batch[0], outputs) if self._slopes else outputs
        )

    @cached_property
    def _one(self):
        return _batched_function(self._inputs, self._outputs)


def _with_slopes(x, outputs: list) -> list:
    """Return outputs and the gradients of their sums, zero where they do not depend on x."""
    return [*outputs, *(gradient_by(x, t.sum()).astype("float64") for t in outputs)]


def _batched_function(inputs: list, outputs: list):
    mode = INTERPRETED
    if len({v.owner for v in ancestors(outputs)}) > _MOST_REWRITTEN:
        mode = mode.excluding("canonicalize")
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", trust_input=True)


# --- the flat vector -------------------------------------------------------------------------------


class FlatLayout:
    """Position of each value variable in the flat vector x of length D.

    Discrete variables are stored as floats and cast back inside graphs. The order is that of
    ``model.value_vars``.

    Parameters
    ----------
    names, shapes, dtypes : tuple
        Those of the variables.

    Attributes
    ----------
    sizes : tuple of int
        Number of entries of each variable.
    size : int
        D.
    slices : dict
        Slice of each variable in the flat vector.
    continuous : tuple of str
        Variables with a floating dtype.
    discrete : (D,) bool array
        Whether each coordinate is discrete.
    """

    def __init__(
        self, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
    ):
        self.names, self.shapes, self.dtypes = names, shapes, dtypes
        self.sizes = tuple(int(np.prod(s)) for s in shapes)
        self.size, ends = sum(self.sizes), np.cumsum(self.sizes).tolist()
        self.slices = {n: slice(e - s, e) for n, s, e in zip(names, self.sizes, ends)}
        self.continuous = tuple(n for n, t in zip(names, dtypes) if t.startswith("float"))
        self.discrete = np.repeat([n not in self.continuous for n in names], self.sizes)

    def part(self, names: Sequence[str]) -> FlatLayout:
        """Return the layout of some of the variables, in the order given."""
        kept = [self.names.index(name) for name in names]
        parts = self.names, self.shapes, self.dtypes
        return FlatLayout(*(tuple(part[k] for k in kept) for part in parts))

    def indices(self, names: Sequence[str]) -> np.ndarray:
        """Return the sorted positions (int64) of the entries of ``names``."""
        chosen = set(names)
        parts = [np.arange(s.start, s.stop) for n, s in self.slices.items() if n in chosen]
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)

    def labels(self) -> list[str]:
        """Return a readable name of each entry, such as ``beta[2]``."""
        out: list[str] = []
        for name, shape in zip(self.names, self.shapes):
            for where in np.ndindex(*shape):
                out.append(f"{name}[{', '.join(map(str, where))}]" if shape else name)
        return out

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Convert a point to a flat float64 vector (D,)."""
        x = np.empty(self.size)
        for name, place in self.slices.items():
            x[place] = np.asarray(point[name]).reshape(-1)
        return x

    def unravel(self, x: Any) -> dict[str, Any]:
        """Convert a flat vector, of numbers or symbolic, to variables with the shapes and dtypes of the model."""
        out = {}
        for (name, s), shape, dtype in zip(self.slices.items(), self.shapes, self.dtypes):
            value = x[s.start, ...] if shape == () else x[s].reshape(shape)
            out[name] = value.astype(dtype)
        return out

    def substitute(self, outputs: Sequence[Variable], value_vars, x: TensorVariable) -> list:
        """Return graphs in which entries of the symbolic flat vector x replace the ``value_vars`` of this layout."""
        values = self.unravel(x)
        replace = {
            v: v.type.filter_variable(values[v.name], allow_convert=True)
            for v in value_vars
            if v.name in values
        }
        return clone_replace(list(outputs), replace, rebuild_strict=False)


# --- the model -------------------------------------------------------------------------------------


def context_model(model: Any, *, single: bool = False) -> Model:
    """Return the given model, or that in the context; ``single`` permits numbers of 32 bits.

    Raises
    ------
    TypeError
        If there is none, or it is not a ``pm.Model``.
    ValueError
        If the model, or PyTensor, uses numbers of 32 bits.
    """
    try:
        found = modelcontext(model)
    except TypeError:
        raise TypeError("model is missing: pass model=, or call within 'with model:'.") from None
    if not isinstance(found, Model):
        raise TypeError(f"model must be a pm.Model, got {type(found).__name__}.")
    few = [v.name for v in found.value_vars if v.dtype in ("float16", "float32")]
    if not single and (few or pytensor.config.floatX != "float64"):
        floats = pytensor.config.floatX
        what = f"{few[0]!r} is no float64" if few else f"PyTensor's floatX is {floats!r}"
        raise ValueError(
            f"model: {what}, and amc_pymc computes in float64. Set pytensor.config.floatX = "
            "'float64' (in the script, .pytensorrc or PYTENSOR_FLAGS) and make the model anew."
        )
    return found
