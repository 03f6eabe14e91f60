"""Log prior and log likelihood of a model at many points at once.

A point is the flat unconstrained vector x (D,) of all value variables; Jacobians of transforms belong to
the prior. The likelihood is that of all observed data and every ``pm.Potential``. All logarithms are natural.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import threading

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self
from uuid import uuid4

import cloudpickle
import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc.logprob.transforms import CircularTransform
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.math import tri_gamma
from pytensor.tensor.random.type import RandomType

from amc_pymc.reading.element_reader import NotScalar
from amc_pymc.reading.graphs import (
    MakeFunction,
    functions_for_few,
    interpreted_mode,
    lowered,
    remembering,
)
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.particles.model_terms import (
    check_evidence_defined,
    layout_of,
    model_log_likelihood,
    model_logp,
    observed_values,
    without_checks,
)
from amc_pymc.reading.particles.printed_terms import PrintedTerms, RowTerm, printed_terms, row_term
from amc_pymc.reading.particles.prior import PriorDraws
from amc_pymc.signals import raise_if_signalled


def trigamma(x):
    r"""Return the second derivative of log Gamma in elementary operations, for x > 0.

    :math:`\psi_1(x) = \sum_{k<8} (x+k)^{-2} + \psi_1(x+8)` with the asymptotic series for the last
    term (Abramowitz & Stegun 6.4.6 and 6.4.12); relative error below 1e-13. PyTensor's own operator
    calls SciPy from Numba, once per element.
    """
    steps = sum((x + k) ** -2 for k in range(8))
    z = (x + 8.0) ** -2
    series = z * (1 / 6 + z * (-1 / 30 + z * (1 / 42 + z * (-1 / 30 + z * (5 / 66)))))
    return steps + (1.0 + series) / (x + 8.0) + 0.5 * z


def compile_graph(inputs, outputs: list):
    """Compile a PyTensor function in Numba mode that trusts its inputs."""
    replace = {
        v: trigamma(v.owner.inputs[0])
        for v in ancestors(outputs)
        if v.owner and getattr(v.owner.op, "scalar_op", None) == tri_gamma
    }
    outputs = graph_replace(outputs, replace, strict=False) if replace else outputs
    return pytensor.function(
        inputs, outputs, mode="NUMBA", trust_input=True, on_unused_input="ignore"
    )


_LOADED: OrderedDict[tuple, Any] = OrderedDict()
_MOST_LOADED = 4
_LOADING = threading.RLock()


def once_per_process(token: tuple, make: Callable[[], Any]) -> Any:
    """Return the densities that this process already has, or make them; the last four are kept."""
    with _LOADING:
        if token not in _LOADED:
            _LOADED[token] = make()
            while len(_LOADED) > _MOST_LOADED:
                _LOADED.popitem(last=False)
        _LOADED.move_to_end(token)
        return _LOADED[token]


# --- counts of evaluations -------------------------------------------------------------------------


class Counts(NamedTuple):
    """Numbers of points evaluated without and with gradients, and of points where a density was nan."""

    values: int
    gradients: int
    nan: int


_here = threading.local()


@contextmanager
def counted(*, apart: bool = False) -> Iterator[np.ndarray]:
    """Count the evaluations of this thread, for any model, in an array (3,) ordered as :class:`Counts`.

    If jobs share compiled functions or run in other processes, only this gives the count of one job.

    Parameters
    ----------
    apart : bool
        Whether to leave an enclosing count unchanged: jobs return their counts with their results, and
        may run in any thread.
    """
    outer = getattr(_here, "counts", None)
    _here.counts = counts = np.zeros(3, np.int64)
    try:
        yield counts
    finally:
        _here.counts = outer
        if outer is not None and not apart:
            outer += counts


def count(kind: int, n: int) -> None:
    """Add n points to those that :func:`counted` counts; ``kind`` is a position in :class:`Counts`."""
    if (here := getattr(_here, "counts", None)) is not None:
        here[kind] += n


# --- outputs ---------------------------------------------------------------------------------------


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


# --- densities -------------------------------------------------------------------------------------


_log = logging.getLogger("amc_pymc")

#: Number of prior draws that are inspected, how many of them may be nan, and number of draws at which
#: batched graphs are compared with the model's own.
_DRAWN, _LOST, _CHECKED = 64, 4, 3
#: Largest number of array operations of a graph that is compiled by PyTensor; larger ones are interpreted.
_MOST_COMPILED = 1_000
#: Cached properties that hold compiled functions.
_MADE = ("_printed", "_values", "_gradients")


class ParticleDensities:
    """Log prior and log likelihood of P points at once, with gradients.

    It is a path from prior to posterior in the sense of :class:`amc_pymc.kernels.Path`: base is the log
    prior with Jacobians, slope the log likelihood.

    Attributes
    ----------
    layout : FlatLayout
        Names and positions of the coordinates.
    discrete : array of bool (D,)
        Which coordinates are discrete; the gradient is zero there.
    n_observed : int
        Number of observed values.
    widest : int
        Number of elements of the largest array that is computed for one point.
    chunk : int
        Number of points evaluated at once; memory is proportional to it and to ``widest``. Results do not
        depend on it.
    fallback : str or None
        Reason why points are evaluated one at a time, if they are.

    Notes
    -----
    A density of nan is taken as zero (and counted), as is the density at invalid parameters. Functions are
    compiled on first use. A pickled object arrives in another process uncompiled, and is loaded once per
    process however often it is sent. A copy by ``copy.copy`` is independent, with nothing compiled or
    counted. Calls from several threads are serialised.
    """

    def __init__(
        self,
        layout: FlatLayout,
        terms,
        x,
        prior: PriorDraws,
        outputs,
        n_observed: int,
        rows: RowTerm | None = None,
    ):
        self.layout = layout
        self.discrete = layout.discrete
        self.n_observed = n_observed
        self.widest = widest(terms, x, n_observed)
        self.chunk = chunk_size(self.widest)
        self.fallback: str | None = None
        self._prints = True
        self._x, self._terms, self._rows = x, terms, rows
        self._data = self._data_now()
        self._prior, self._outputs = prior, outputs
        self._counts = np.zeros(3, np.int64)
        self._lock = threading.Lock()
        self._token = uuid4().hex

    @property
    def n_dim(self) -> int:
        """Number of coordinates, D."""
        return self.layout.size

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the free variables that x holds."""
        return tuple(self._prior.names)

    @property
    def counts(self) -> Counts:
        """Evaluations so far, by this object in this process."""
        return Counts(*self._counts.tolist())

    @property
    def evaluation(self) -> Literal["printed", "printed rows", "graphs", "one by one"]:
        """How points are evaluated.

        By printed code, with a loop over rows or without one, by the model's graphs at many points at once, or
        by those of one point.
        """
        with self._lock:
            self._follow_data()
            if self._printed is not None:
                return "printed" if self._rows is None else "printed rows"
            return "graphs" if self.fallback is None else "one by one"

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return the log prior and log likelihood (2, P) at points (P, D)."""
        x = as_points(x, self.n_dim)
        out = np.empty((2, len(x)))
        with self._lock:
            self._follow_data()
            for s in self._chunks(len(x)):
                out[0, s], out[1, s] = self._values(x[s])
            self._count(0, len(x))
            self._clean(out)
        return out

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log prior and log likelihood (2, P), and their gradients (2, P, D)."""
        x = as_points(x, self.n_dim)
        out, grad = np.empty((2, len(x))), np.empty((2, *x.shape))
        with self._lock:
            self._follow_data()
            for s in self._chunks(len(x)):
                out[0, s], out[1, s], grad[0, s], grad[1, s] = self._gradients(x[s])
            self._count(1, len(x))
            self._clean(out)
        return out, grad

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n points (n, D) from the prior."""
        with self._lock:
            return self._prior.draw(n, rng)

    def constrain(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return free variables and deterministics on the model's own scale at points (P, D)."""
        x = as_points(x, self.n_dim)
        if not len(x):
            return {k: v[:0] for k, v in self.constrain(np.zeros((1, self.n_dim))).items()}
        with self._lock:
            parts = [self._outputs.call(x[s]) for s in self._chunks(len(x))]
        arrays = [np.concatenate(p) for p in zip(*parts, strict=True)]
        return dict(zip(self._outputs.names, arrays, strict=True))

    def fingerprint(self) -> str:
        """Return a hash of the current values of ``pm.Data`` and other shared variables."""
        found = hashlib.blake2b(digest_size=16)
        for _, value in self._data_now():
            found.update(cloudpickle.dumps(value))
        return found.hexdigest()

    def _data_now(self) -> list[tuple[SharedVariable, Any]]:
        """Return the shared variables of the terms, with their current values."""
        return [
            (v, v.get_value(borrow=True))
            for v in ancestors(self._terms)
            if isinstance(v, SharedVariable) and not isinstance(v.type, RandomType)
        ]

    def _follow_data(self) -> None:
        """Discard compiled functions if data have been replaced, because printed code contains them."""
        if all(v.get_value(borrow=True) is value for v, value in self._data):
            return
        self._data, self._rows = self._data_now(), None
        self._forget()

    def _give_up(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        _log.warning("The model cannot be evaluated for many points at once (%s); slower.", reason)
        self.one_by_one(reason)

    def one_by_one(self, reason: str) -> None:
        """Evaluate points one at a time from now on."""
        self.fallback = reason
        self.do_not_print()

    def do_not_print(self) -> None:
        """Let PyTensor compile the model's graphs from now on."""
        self._prints = False
        self._forget()

    def _forget(self) -> None:
        for name in _MADE:
            self.__dict__.pop(name, None)

    def _state(self) -> dict[str, Any]:
        """Return attributes of the same densities, with nothing compiled or counted."""
        self._follow_data()
        left = (*_MADE, "_lock", "_data")
        state = {k: v for k, v in self.__dict__.items() if k not in left}
        return {**state, "_counts": np.zeros(3, np.int64)}

    def __copy__(self) -> Self:
        own = {name: copy.copy(getattr(self, name)) for name in ("_prior", "_outputs")}
        return self._of({**self._state(), **own, "_token": uuid4().hex})

    def __reduce__(self):
        state = cloudpickle.dumps(self._state())
        return _load, ((self._token, self.chunk, self.fallback, self.fingerprint()), state)

    @classmethod
    def _of(cls, state: dict[str, Any]) -> Self:
        found = cls.__new__(cls)
        found.__dict__.update(state, _lock=threading.Lock())
        found._data = found._data_now()
        return found

    # --- compiled -----------------------------------------------------------------------------------

    def _chunks(self, n: int):
        return [slice(i, min(i + self.chunk, n)) for i in range(0, n, self.chunk)]

    def note_nan(self, n: int) -> None:
        """Count points where a part of the density that is computed elsewhere was nan."""
        with self._lock:
            self._count(2, n)

    def _count(self, kind: int, n: int) -> None:
        self._counts[kind] += n
        count(kind, n)

    def _clean(self, terms: np.ndarray) -> None:
        """Replace nan and +inf by -inf, and count the points."""
        bad = ~(terms < np.inf)
        if bad.any():
            self._count(2, int(bad.any(axis=0).sum()))
            terms[bad] = -np.inf

    def graphs(self, *, gradients: bool = False) -> tuple[Variable, list[Variable]]:
        """Return points (P, D) as a variable, and the graphs that are compiled if code cannot be printed.

        Parameters
        ----------
        gradients : bool
            Whether graphs of the two gradients (P, D) follow those of log prior and log likelihood (P,).
        """
        xs = pt.matrix("xs", shape=(None, self.n_dim), dtype="float64")
        found = [t.astype("float64") for t in vectorize_graph(self._terms, {self._x: xs})]
        terms = [t + pt.zeros(xs.shape[0]) if t.ndim == 0 else t for t in found]
        return xs, [*terms, *(_gradient(t.sum(), xs) for t in terms if gradients)]

    @cached_property
    def _printed(self) -> list[PrintedTerms | RowTerm] | None:
        """Log prior and log likelihood as printed code; None if either cannot be printed."""
        if not self._prints:
            return None
        if self._rows is None:
            both = printed_terms(self._x, self._terms, self.discrete)
            return None if both is None else [both]
        prior = printed_terms(self._x, self._terms[:1], self.discrete)
        return None if prior is None else [prior, self._rows]

    @cached_property
    def _values(self):
        if self._printed is not None:
            return lambda xs: np.concatenate([part.values(xs) for part in self._printed])
        if self.fallback is not None:
            fn = _function([self._x], [t.astype("float64") for t in self._terms])
            return lambda xs: np.array([fn(x) for x in xs], float).reshape(-1, 2).T
        xs, graphs = self.graphs()
        return _function([xs], graphs)

    @cached_property
    def _gradients(self):
        if self._printed is not None and self._prints_gradients():
            return self._printed_gradients
        if self.fallback is not None:
            return self._gradients_one_by_one()
        try:
            xs, graphs = self.graphs(gradients=True)
            return _function([xs], graphs)
        except Exception as error:
            raise_if_signalled(error)
            found = self._gradients_one_by_one()  # raises if there are no gradients
            self._give_up(error)
            return found

    def _prints_gradients(self) -> bool:
        try:
            self._printed_gradients(np.empty((0, self.n_dim)))
        except NotScalar as error:
            _log.debug("Gradients are compiled by PyTensor: %s", error)
            return False
        return True

    def _printed_gradients(self, xs: np.ndarray) -> list[np.ndarray]:
        values, slopes = zip(*(part.gradients(xs) for part in self._printed or ()), strict=True)
        return [*np.concatenate(values), *np.concatenate(slopes)]

    def _gradients_one_by_one(self):
        terms = [t.astype("float64") for t in self._terms]
        fn = _function([self._x], [*terms, *(_gradient(t, self._x) for t in terms)])

        def many(xs):
            found = [fn(x) for x in xs]
            return [np.array([f[i] for f in found]) for i in range(4)]

        return many


def _function(inputs: list, outputs: list):
    """Return a function of some graphs, compiled unless this would take minutes."""
    size = len({v.owner for v in ancestors(outputs)})
    if size <= _MOST_COMPILED:
        return compile_graph(inputs, outputs)
    _log.info("A graph of %d operations is interpreted: to compile it would take minutes.", size)
    mode = interpreted_mode().excluding("canonicalize")  # takes minutes, too
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", trust_input=True)


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
    draws = PriorDraws.from_model(model, layout, free_RVs)
    x = pt.tensor("x", shape=(layout.size,), dtype="float64")
    prior, log_likelihood = model_logp(model, free_RVs), model_log_likelihood(model, likelihood)
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
    outputs = ParticleOutputs([v.name for v in shown], graphs[2:], x)
    sizes = [int(np.size(v)) for v in observed_values(model)]
    rows = None if others else row_term(model, layout)
    found = ParticleDensities(layout, graphs[:2], x, draws, outputs, sum(sizes), rows)
    if check:
        _verify(found)
    return found


def _gradient(scalar, x):
    gradient = pt.grad(scalar, x, disconnected_inputs="ignore")
    return (pt.zeros_like(x) + gradient).astype("float64")


def _verify(densities: ParticleDensities) -> None:
    """Compare batched graphs with the model's own; evaluate points one at a time if they differ."""
    xs = densities.draw_prior(_DRAWN, np.random.Generator(np.random.PCG64(7)))
    for name, s in densities.layout.slices.items():
        if np.isnan(xs[:, s]).any(axis=1).sum() > _LOST:
            raise ValueError(
                f"many prior draws of {name!r} are nan on the unconstrained scale. If it has a transform of your "
                "own, this cannot reach all values of the prior and leaves it unnormalised: use the transform that "
                "PyMC chooses, or pm.Truncated. Otherwise draws underflow to the boundary, as those of a Dirichlet "
                "distribution with concentrations far below one: use larger concentrations."
            )
    xs = xs[:_CHECKED]
    quick, rewritten = functions_for_few(densities._terms, densities.n_observed)
    if densities._printed is not None:
        found = densities._values(xs)
        for make in (quick, rewritten):
            # PyMC's constants may be in single precision.
            if _agree(found, _values_of_model(densities, xs, make), 1e-6):
                return
        _log.debug("Printed log densities have other values than the model.")
        densities.do_not_print()
    wanted = _values_of_model(densities, xs, rewritten)
    try:
        if not _agree(np.array(densities._values(xs)), wanted, 1e-8):
            raise ValueError("the batched graph gives other values than the model")
    except Exception as error:
        raise_if_signalled(error)
        densities._give_up(error)


def _agree(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    return np.allclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def _values_of_model(
    densities: ParticleDensities, xs: np.ndarray, make: MakeFunction
) -> np.ndarray:
    """Return the log prior and log likelihood (2, P), one point at a time, interpreted if possible."""
    x, terms = densities._x, densities._terms
    try:
        fn = make([x], terms)
        return np.array([fn(p) for p in xs], float).T
    except NotImplementedError:
        fn = compile_graph([x], terms)
        return np.array([fn(p) for p in xs], float).T


def _load(token: tuple, state: bytes) -> Any:
    return once_per_process(token, lambda: ParticleDensities._of(cloudpickle.loads(state)))
