"""Log prior and log likelihood of a model at many points at once.

A point is the flat unconstrained vector x (D,) of all value variables; Jacobians of transforms belong to
the prior. The likelihood is that of all observed data and every ``pm.Potential``. All logarithms are natural.
"""

from __future__ import annotations

import logging
import math
import threading

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Self
from uuid import uuid4

import cloudpickle
import numpy as np
import pytensor.tensor as pt

from pymc.logprob.transforms import CircularTransform
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.type import TensorType

from amc_pymc.engine import Graph
from amc_pymc.engine.printer import Printed, Printer
from amc_pymc.engine.row_kernels import loops
from amc_pymc.reading.factors import Factor, effects_at
from amc_pymc.reading.graphs import (
    Batched,
    FlatLayout,
    WithoutCaches,
    interpreted_function,
    lowered,
    remembering,
    stabilised,
)
from amc_pymc.reading.group_densities import GroupTotals
from amc_pymc.reading.groups import take_groups
from amc_pymc.reading.packed_rows import NO_SCALAR_FORM, PackedRows, pack_rows
from amc_pymc.reading.particles.prior import (
    PriorDraws,
    check_evidence_defined,
    layout_of,
    model_logp,
    without_checks,
)
from amc_pymc.reading.rows import (
    NotRowFactorised,
    choose_observed,
    extract_rows,
    with_constants,
)
from amc_pymc.reading.scalars import Columns, ElementReader, NotScalar

_log = logging.getLogger("amc_pymc")

# --- counts of evaluations -------------------------------------------------------------------------


_here = threading.local()


@contextmanager
def counted() -> Iterator[np.ndarray]:
    """Count the evaluations of this thread, for any model, in an array (3,).

    They are the numbers of points evaluated without and with gradients, and of points where a density was nan.
    An enclosing count includes them.
    """
    outer = getattr(_here, "counts", None)
    _here.counts = counts = np.zeros(3, np.int64)
    try:
        yield counts
    finally:
        _here.counts = outer
        if outer is not None:
            outer += counts


# --- sizes -----------------------------------------------------------------------------------------


#: Target size of the largest array of a chunk of particles, and maximum size where the target would
#: leave too few particles for efficient matrix products.
_CHUNK_NUMBERS, _MOST_NUMBERS = 2**17, 2**23
_SMALLEST_CHUNK, _LARGEST_CHUNK = 64, 4096


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


# --- terms -----------------------------------------------------------------------------------------
# Small expressions are printed and computed for several points at once, likelihoods of many rows for several rows at
# once and one point at a time. PyTensor computes what has no scalar form.


#: Largest numbers of operations of values and gradients that are printed: half a minute of compiling.
_MOST_OPERATIONS, _MOST_IN_GRADIENTS = 12_000, 40_000
#: Largest size of an array that is written element by element.
_MOST_ENTRIES = 2_000
#: Smallest number of rows for which a loop over rows is worthwhile.
_FEWEST_ROWS = 16
_ARGUMENTS = ("block", "stride", "n", "out", "out_stride")


class PrintedTerms:
    """Scalar expressions of a point, and their gradients, at many points.

    Parameters
    ----------
    graph : Graph
        Graph whose columns are the coordinates of a point.
    terms : sequence of int
        Nodes of the expressions.
    continuous : sequence of int
        Coordinates with respect to which gradients are taken.
    """

    def __init__(self, graph: Graph, terms: Sequence[int], continuous: Sequence[int]):
        self._graph, self._terms, self._continuous = graph, tuple(terms), tuple(continuous)

    def values(self, xs: np.ndarray) -> np.ndarray:
        """Return the values (K, P) at points (P, D)."""
        return self._called(self._values, len(self._terms), xs)

    def gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values (K, P) and gradients (K, P, D)."""
        (printed, slopes), number = self._gradients, len(self._terms)
        found = self._called(printed, number + len(slopes), xs)
        out = np.zeros((number, *xs.shape))
        for row, (term, d) in zip(found[number:], slopes, strict=True):
            out[term, :, d] = row
        return found[:number], out

    @staticmethod
    def _called(printed: Printed, number: int, xs: np.ndarray) -> np.ndarray:
        out = np.empty((number, len(xs)))
        loops.at_points(printed.arrays[0], xs, out)
        return out

    @cached_property
    def _values(self) -> Printed:
        return self._printed(self._terms)

    @cached_property
    def _gradients(self) -> tuple[Printed, list[tuple[int, int]]]:
        """Printed code, and the term and coordinate of each derivative."""
        g, slopes = self._graph, {}
        for k, term in enumerate(self._terms):
            read = {g.nodes[n].value for n in g.leaves([term], "column")}
            for d in read.intersection(self._continuous):
                slopes[k, d] = g.derivative(term, g.make("column", value=d))
        outputs = [*self._terms, *slopes.values()]
        size = len(g.upstream(outputs))
        if size > _MOST_IN_GRADIENTS:
            raise NotScalar(f"gradients take {size} operations")
        return self._printed(outputs), list(slopes)

    def _printed(self, outputs: Sequence[int]) -> Printed:
        printer = Printer(self._graph)
        printer.function("terms", _ARGUMENTS, outputs)
        return printer.printed(("terms",))


def printed_terms(
    x: Variable, terms: Sequence[Variable], discrete: np.ndarray
) -> PrintedTerms | None:
    """Print scalar graphs of a flat vector; None, with the reason logged, if they are too large.

    Parameters
    ----------
    x : vector variable
        Flat vector of static shape (D,).
    terms : sequence of scalar variables
        Graphs; data that they read become constants.
    discrete : (D,) bool array
        Coordinates without a gradient.
    """
    graph = Graph()
    try:
        nodes = [_expression(graph, x, t) for t in terms]
        columns = {}  # of coordinates, with one number per point
        for entry in graph.leaves(nodes, "entry"):
            place = graph.numbers[graph.nodes[entry].args[0]]
            if place is None:
                raise NotScalar("a discrete variable chooses among coordinates")
            columns[entry] = graph.make("column", value=int(place))
        nodes = graph.replaced(nodes, columns)
        size = len(graph.upstream(nodes))
        if size > _MOST_OPERATIONS:
            raise NotScalar(f"it takes {size} operations")
    except (NotScalar, RecursionError) as error:
        _log.info("PyTensor computes log densities: they have no scalar form (%s).", error)
        return None
    return PrintedTerms(graph, nodes, np.flatnonzero(~discrete).tolist())


def _expression(graph: Graph, x: Variable, total: Variable) -> int:
    """Return the node of a scalar graph of a flat vector, whose data become constants."""
    out, (new,) = with_constants(total, {x: x.type.shape})
    for v in ancestors([out]):
        shape = v.type.shape if isinstance(v.type, TensorType) else ()
        if v is not new and math.prod(n for n in shape if n is not None) > _MOST_ENTRIES:
            raise NotScalar("it has a long array")
    columns = Columns(graph, "column")
    leaves = {new: lambda index: graph.make("entry", index[0], value="x")}
    node = ElementReader(graph, leaves, columns).element(stabilised(out))
    if columns.arrays:
        raise NotScalar("a variable chooses among constants")
    return node


class GraphTerms:
    """Graphs of a point without a scalar form, and their gradients, computed by NumPy at many points.

    Parameters
    ----------
    x : vector variable
    terms : sequence of scalar variables
    """

    def __init__(self, x: Variable, terms: Sequence[Variable]):
        self._x, self._terms = x, [t.astype("float64") for t in terms]
        self._values = Batched([x], self._terms)

    @cached_property
    def _gradients(self) -> Batched:
        return Batched([self._x], self._terms, slopes=True)

    def values(self, xs: np.ndarray) -> np.ndarray:
        """Return the values (K, P) at points (P, D)."""
        return np.stack(self._values([xs], len(xs)))

    def gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values (K, P) and gradients (K, P, D)."""
        found, number = self._gradients([xs], len(xs)), len(self._terms)
        return np.stack(found[:number]), np.stack(found[number:])


class RowTerm(WithoutCaches):
    """Log-likelihood of all rows of a model, and its gradient, at many points.

    Parameters
    ----------
    rows : PackedRows
    discrete : (D,) bool array
        Coordinates without a gradient.
    """

    def __init__(self, rows: PackedRows, discrete: np.ndarray):
        self._rows, self._discrete = rows, discrete

    @cached_property
    def _columns(self) -> np.ndarray:
        return np.ascontiguousarray(self._rows.store.data.T)

    def _zs(self, xs: np.ndarray) -> np.ndarray:
        found = self._rows.coefficients
        return xs if found is None else found.of_points(xs)

    def _totals(self, zs: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        return loops.totals(zs, self._columns, slopes, self._rows.printed.arrays[0])

    def values(self, xs: np.ndarray) -> np.ndarray:
        """Return the values (1, P) at points (P, D)."""
        return self._totals(self._zs(xs), np.empty((0, 0)))[None]

    def gradients(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values (1, P) and gradients (1, P, D)."""
        zs = self._zs(xs)
        slopes = np.zeros(zs.shape)
        values = self._totals(zs, slopes)
        if self._rows.coefficients is not None:
            slopes = self._rows.coefficients.gradients(xs, slopes)
        slopes[:, self._discrete] = 0.0
        return values[None], slopes[None]


def row_term(model, layout: FlatLayout) -> RowTerm | None:
    """Return the log-likelihood as a sum over rows; None if it is not one over enough rows."""
    if model.potentials:
        return None
    try:
        observed, n_rows = choose_observed(model)
        if len(observed) < len(model.observed_RVs) or n_rows < _FEWEST_ROWS:
            return None
        rows = extract_rows(model)
        if rows.layout.names != layout.names:
            return None
        return RowTerm(pack_rows(rows, second_order=False), layout.discrete)
    except (NotRowFactorised, ParameterValueError, *NO_SCALAR_FORM) as error:
        _log.debug("The likelihood is not taken row by row: %s", error)
        return None


# --- densities -------------------------------------------------------------------------------------


#: Number of prior draws that are inspected, how many of them may be nan, and number of draws at which
#: printed code is compared with the model's graphs.
_DRAWN, _LOST, _CHECKED = 64, 4, 3
_SEED = 7


class ParticleDensities(WithoutCaches):
    """Log prior and log likelihood of P points at once, with gradients.

    It is a path from prior to posterior in the sense of :class:`amc_pymc.evidence.mcmc.Path`: base is the log
    prior with Jacobians, slope the log likelihood.

    Attributes
    ----------
    layout : FlatLayout
        Names and positions of the coordinates.
    discrete : array of bool (D,)
        Which coordinates are discrete; the gradient is zero there.
    n_dim : int
        Number of coordinates, D.
    variables : tuple of str
        Names of the free variables that x holds.
    n_observed : int
        Number of observed values.
    widest : int
        Number of elements of the largest array that is computed for one point.
    chunk : int
        Number of points evaluated at once; memory is proportional to it and to ``widest``. Results do not
        depend on it.
    groups : GroupTotals or None
        Parts of the likelihood whose local effects are integrated out.

    Notes
    -----
    A density of nan is taken as zero (and counted), as is the density at invalid parameters. Functions are
    compiled on first use. A pickled object arrives in another process uncompiled, and is loaded once per
    process however often it is sent. Calls from several threads are serialised.
    """

    def __init__(
        self,
        layout: FlatLayout,
        terms: Sequence[Variable],
        x: Variable,
        prior: PriorDraws,
        outputs: tuple[list[str], Batched],
        n_observed: int,
        rows: RowTerm | None = None,
    ):
        self.layout, self.discrete, self.n_observed = layout, layout.discrete, n_observed
        self.n_dim, self.variables = layout.size, tuple(prior.names)
        self.widest = widest(terms, x, n_observed)
        self.chunk = chunk_size(self.widest)
        self.groups: GroupTotals | None = None
        self._prints = True
        self._x, self._terms, self._rows = x, terms, rows
        self._prior, self._outputs = prior, outputs
        self._lock = threading.Lock()
        self._token = uuid4().hex

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return the log prior and log likelihood (2, P) at points (P, D)."""
        return self._evaluated(x, None)

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log prior and log likelihood (2, P), and their gradients (2, P, D).

        With groups, the gradient of a term is zero where the term is -inf, so that a trajectory that leaves the
        support moves on in a straight line and is rejected unless it comes back.
        """
        grad = np.empty((2, *np.shape(x)))
        return self._evaluated(x, grad), grad

    def _evaluated(self, x: np.ndarray, grad: np.ndarray | None) -> np.ndarray:
        """Return the values; write gradients, if they are wanted."""
        x = as_points(x, self.n_dim)
        out = np.empty((2, len(x)))
        with self._lock:
            for s in self._chunks(len(x)):
                if grad is None:
                    out[:, s] = np.concatenate([part.values(x[s]) for part in self._parts])
                    continue
                found = [part.gradients(x[s]) for part in self._differentiable]
                out[:, s], grad[:, s] = map(np.concatenate, zip(*found, strict=True))
            self._count(0 if grad is None else 1, len(x))
            self._clean(out)
            if self.groups is not None:
                self._add_groups(self.groups, x, out, grad)
        return out

    def _add_groups(
        self, groups: GroupTotals, x: np.ndarray, out: np.ndarray, grad: np.ndarray | None
    ) -> None:
        """Add the log likelihoods of groups at points where the other terms are finite."""
        possible = np.isfinite(out).all(axis=0)
        found = np.full((1, len(x)), -np.inf)
        if grad is None:
            found[0, possible] = groups.values(x[possible])
        else:
            found[0, possible], slopes = groups.gradients(x[possible])
            grad[1, possible] += slopes
        self._clean(found)
        out[1] += found[0]
        if grad is not None:
            grad[out == -np.inf] = 0.0

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n points (n, D) from the prior."""
        with self._lock:
            return self._prior.draw(n, rng)

    def constrain(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return free variables and deterministics on the model's own scale at points (P, D)."""
        x = as_points(x, self.n_dim)
        if not len(x):
            return {k: v[:0] for k, v in self.constrain(np.zeros((1, self.n_dim))).items()}
        names, outputs = self._outputs
        parts = [outputs([x[s]], len(x[s])) for s in self._chunks(len(x))]
        arrays = [np.concatenate(p) for p in zip(*parts, strict=True)]
        return dict(zip(names, arrays, strict=True))

    # --- integrals over local effects ---------------------------------------------------------------

    def refined(self, x: np.ndarray, tolerance: float) -> Self:
        """Return densities with as many nodes as a tolerance in nats needs at posterior points (P, D)."""
        assert self.groups is not None, "no effects are integrated out"
        return self._with(groups=self.groups.refined(x, tolerance))

    # --- copies -------------------------------------------------------------------------------------

    def _with(self, **changes: Any) -> Self:
        """Return a copy with other attributes, which shares functions and counts."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__, _token=uuid4().hex, **changes)
        return found

    def __copy__(self) -> Self:
        return self._with()

    def __reduce__(self):
        state = {k: v for k, v in self.__getstate__().items() if k != "_lock"}
        return _load, ((self._token, self.chunk), cloudpickle.dumps(state))

    # --- compiled -----------------------------------------------------------------------------------

    def _chunks(self, n: int) -> list[slice]:
        return [slice(i, min(i + self.chunk, n)) for i in range(0, n, self.chunk)]

    def _count(self, kind: int, n: int) -> None:
        if (here := getattr(_here, "counts", None)) is not None:
            here[kind] += n

    def _clean(self, terms: np.ndarray) -> None:
        """Replace nan and +inf by -inf, and count the points."""
        bad = ~(terms < np.inf)
        if bad.any():
            self._count(2, int(bad.any(axis=0).sum()))
            terms[bad] = -np.inf

    @cached_property
    def _parts(self) -> list[PrintedTerms | RowTerm | GraphTerms]:
        """Log prior and log likelihood as printed code or, if either cannot be printed, as graphs."""
        terms = self._terms if self._rows is None else self._terms[:1]
        printed = printed_terms(self._x, terms, self.discrete) if self._prints else None
        if printed is None:
            return [self._graphs]
        return [printed] if self._rows is None else [printed, self._rows]

    @cached_property
    def _graphs(self) -> GraphTerms:
        return GraphTerms(self._x, self._terms)

    @cached_property
    def _differentiable(self) -> list[PrintedTerms | RowTerm | GraphTerms]:
        """The same parts, or graphs if the gradients are too long to be printed."""
        try:
            for part in self._parts:
                if isinstance(part, PrintedTerms):
                    part.gradients(np.empty((0, self.n_dim)))
        except NotScalar as error:
            _log.info("PyTensor computes gradients: they are too long (%s).", error)
            return [self._graphs]
        return self._parts

    def do_not_print(self) -> None:
        """Let PyTensor compute the model's graphs from now on."""
        self._prints = False
        for name in ("_parts", "_differentiable"):
            self.__dict__.pop(name, None)


_LOADED: OrderedDict[tuple, ParticleDensities] = OrderedDict()
_MOST_LOADED = 4
_LOADING = threading.RLock()


def _load(token: tuple, state: bytes) -> ParticleDensities:
    """Return the densities that this process already has, or restore them; the last four are kept."""
    with _LOADING:
        if token not in _LOADED:
            found = object.__new__(ParticleDensities)
            values: dict[str, Any] = cloudpickle.loads(state)
            found.__dict__.update(values, _lock=threading.Lock())
            _LOADED[token] = found
            while len(_LOADED) > _MOST_LOADED:
                _LOADED.popitem(last=False)
        _LOADED.move_to_end(token)
        return _LOADED[token]


@remembering()
def extract_particles(model, *, check: bool = True) -> ParticleDensities:
    """Extract the prior, likelihood and prior draws of a model, for many particles at once.

    Parameters
    ----------
    model : pm.Model
    check : bool, default True
        Whether to compare the densities of a few prior draws with the model's own, and to use slower code if
        they differ. If not, nothing is drawn or compiled before the first call.

    Returns
    -------
    ParticleDensities

    Raises
    ------
    ValueError
        If the model has no free variable, neither observed data nor a Potential, an improper or random
        prior, a ``pm.Minibatch`` or ``total_size``, or a ``pm.Simulator``; the message names the
        variable.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> from amc_pymc.reading.particles.densities import extract_particles
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0.0, 1.0)
    ...     y = pm.Normal("y", mu, 1.0, observed=[3.0])
    >>> densities = extract_particles(model)
    >>> densities.values(np.array([[0.0], [3.0]])).round(3)
    array([[-0.919, -5.419],
           [-5.419, -0.919]])
    """
    if not model.free_RVs:
        raise ValueError("model has no free variable: its evidence is its likelihood.")
    check_evidence_defined(model)
    likelihood = [*model.observed_RVs, *model.potentials]
    return particles_of(model, model.free_RVs, likelihood, check=check)


def particles_of(model, free_RVs, likelihood, *, check: bool = True) -> ParticleDensities:
    """Extract the densities of some free variables, and parts of the likelihood that depend on no others.

    Parameters
    ----------
    model : pm.Model
    free_RVs : sequence of variables
        Free variables in the order of the model; their priors must not depend on other ones.
    likelihood : sequence of variables
        Observed variables and Potentials.
    check : bool, default True
        As for :func:`extract_particles`.
    """
    whole = layout_of(model)
    values = [model.rvs_to_values[rv] for rv in free_RVs]
    layout = whole.part([v.name for v in values])
    draws = PriorDraws(model, layout, free_RVs)
    x = pt.tensor("x", shape=(layout.size,), dtype="float64")
    prior, log_likelihood = model_logp(model, free_RVs), model_logp(model, likelihood)
    for rv, value in zip(free_RVs, values, strict=True):
        if isinstance(model.rvs_to_transforms[rv], CircularTransform):
            prior += pt.switch(pt.all(pt.abs(value) <= np.pi), 0.0, -np.inf)
    others = {v for v in model.value_vars if v.name not in layout.names}
    shown = list(free_RVs)
    for v, graph in zip(model.deterministics, model.replace_rvs_by_values(model.deterministics)):
        if not others & set(ancestors([graph])):
            shown.append(v)
    graphs = [prior + draws.log_constant, log_likelihood, *model.replace_rvs_by_values(shown)]
    graphs = without_checks(lowered(layout.substitute(graphs, values, x)))
    outputs = [v.name for v in shown], Batched([x], graphs[2:])
    observed = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    sizes = [int(np.size(v)) for v in interpreted_function([], observed, plain=True)()]
    rows = None if others else row_term(model, layout)
    found = ParticleDensities(layout, graphs[:2], x, draws, outputs, sum(sizes), rows)
    if check:
        _verify(found)
    return found


def _verify(densities: ParticleDensities) -> None:
    """Compare printed code with the model's own graphs, which are used if they differ."""
    xs = densities.draw_prior(_DRAWN, np.random.Generator(np.random.PCG64(_SEED)))
    for name, s in densities.layout.slices.items():
        if np.isnan(xs[:, s]).any(axis=1).sum() > _LOST:
            raise ValueError(
                f"many prior draws of {name!r} are nan on the unconstrained scale. If it has a transform of your "
                "own, this cannot reach all values of the prior and leaves it unnormalised: use the transform that "
                "PyMC chooses, or pm.Truncated. Otherwise draws underflow to the boundary, as those of a Dirichlet "
                "distribution with concentrations far below one: use larger concentrations."
            )
    if densities._parts == [densities._graphs]:
        return
    xs, terms = xs[:_CHECKED], densities._terms
    found = np.concatenate([part.values(xs) for part in densities._parts])
    fn = interpreted_function([densities._x], terms)
    wanted = np.array([fn(p) for p in xs], float).T
    # PyMC's constants may be in single precision.
    if np.allclose(found, wanted, rtol=1e-6, atol=1e-6, equal_nan=True):
        return
    _log.info("PyTensor computes log densities: printed code has other values.")
    densities.do_not_print()


# --- local effects integrated out ---
# For groups g with rows y_g and local effects u_g, the likelihood at the population parameters x is
#
#     log L(x) = sum_g log integral p(u_g | x) p(y_g | x, u_g) du_g,
#
# plus the parts that do not depend on local effects.


#: Number of prior draws among which points are searched for at which groups are compared with the model.
_GROUPS_DRAWN = 32


@remembering()
def extract_marginals(model, factor: Factor, observed_vars) -> ParticleDensities:
    """Extract prior, marginal likelihood and prior draws of a model, for many particles at once.

    Parameters
    ----------
    model : pm.Model
    factor : Factor
        Factor from :func:`~amc_pymc.reading.factors.find_factors` with an empty ``reason``.
    observed_vars : sequence of str
        All observed variables that depend on the factor's effects.

    Returns
    -------
    ParticleDensities

    Raises
    ------
    ValueError
        As for :func:`extract_particles`, and if the density of groups
        differs from that of the model.
    NotScalar, NotRowFactorised
        If a row or the prior of an effect cannot be written as one expression.
    """
    check_evidence_defined(model)
    groups = take_groups(model, factor, observed_vars, centring=False)
    inside = [v for v in model.value_vars if v.name in factor.names]
    local = [model.values_to_rvs[v] for v in inside]
    raced = [rv for rv in model.observed_RVs if rv.name in groups.observed_vars]
    population = [rv for rv in model.free_RVs if rv not in local]
    others = [v for v in [*model.observed_RVs, *model.potentials] if v not in raced]
    rest = particles_of(model, population, others)
    totals = GroupTotals(groups, rest.layout)
    logp = model.logp(vars=[*local, *raced], sum=True)
    rng = np.random.Generator(np.random.PCG64(_SEED))
    xs = _verify_groups(model, logp, totals, rest.layout, rng)
    return rest._with(groups=totals.simplified(xs))


def _verify_groups(model, logp, totals: GroupTotals, layout: FlatLayout, rng) -> np.ndarray:
    """Compare groups with the model at prior draws; return the population parameters (P, D) of these."""
    whole = layout_of(model)
    draws = PriorDraws(model, whole).draw(_GROUPS_DRAWN, rng)
    (graph,) = without_checks(lowered([logp]))
    fn = interpreted_function(model.value_vars, graph)
    kept = []
    for x in draws[np.isfinite(draws).all(axis=1)]:
        point = whole.unravel(x)
        wanted = float(fn(*(point[v.name] for v in model.value_vars)))
        if not np.isfinite(wanted):
            continue
        eta = layout.ravel(point)
        found = totals.complete(eta, effects_at(totals.factor, point))
        if not np.isclose(found, wanted, rtol=1e-6, atol=1e-6):
            raise ValueError(
                f"the groups of {totals.factor.label} have a log density of {found} where the model "
                f"has {wanted}: pass marginalize=None, and report this model as a bug of amc_pymc."
            )
        kept.append(eta)
        if len(kept) == _CHECKED:
            break
    return np.array(kept).reshape(-1, layout.size)
