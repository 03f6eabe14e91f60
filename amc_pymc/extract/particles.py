"""Log prior and log likelihood of a model at many points at once.

A point is the flat unconstrained vector x (D,) of all value variables; Jacobians of transforms belong to
the prior. The likelihood is everything observed and every ``pm.Potential``. All logarithms are natural.
"""

from __future__ import annotations

import logging
import threading

from collections import OrderedDict
from functools import cached_property
from typing import Any, NamedTuple
from uuid import uuid4

import cloudpickle
import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.random.type import RandomType

from amc_pymc.extract.layout import FlatLayout
from amc_pymc.extract.native import compile_graph
from amc_pymc.extract.prior import PriorDraws
from amc_pymc.extract.rows import interpreted_mode

__all__ = ["Counts", "ParticleDensities", "extract_particles"]

_log = logging.getLogger("amc_pymc")

#: Numbers a chunk of particles may hold at once in one array with a column per observed value.
_CHUNK_NUMBERS = 2**17
_SMALLEST_CHUNK, _LARGEST_CHUNK = 64, 4096
#: Points at which batched graphs are compared with the model's own.
_CHECKED = 3


class Counts(NamedTuple):
    """What has been evaluated: points without and with gradients, and points where a density was nan."""

    values: int
    gradients: int
    nan: int


class ParticleDensities:
    """Log prior and log likelihood of P points at once, with gradients.

    It is a path from prior to posterior in the sense of :class:`amc_pymc.kernels.Path`: base is the log
    prior with Jacobians, slope the log likelihood.

    Attributes
    ----------
    layout : FlatLayout
        Names and places of the coordinates.
    discrete : array of bool (D,)
        Which of them are discrete; the gradient is zero there.
    n_observed : int
        Observed values.
    chunk : int
        Points evaluated at once; memory is proportional to it and to the number of observed values.
    fallback : str or None
        Why points are evaluated one after the other, if they are.

    Notes
    -----
    A density of nan counts as zero (and is counted), as does a point whose parameters are impossible.
    Compiled functions are made when first asked for; one pickled arrives in another process uncompiled,
    once per process however often it is sent. Calls from several threads wait for each other.
    """

    def __init__(self, layout: FlatLayout, terms, x, prior: PriorDraws, outputs, n_observed: int):
        self.layout = layout
        self.discrete = np.repeat([not layout.is_continuous(n) for n in layout.names], layout.sizes)
        self.n_observed = n_observed
        share = _CHUNK_NUMBERS // max(n_observed, 1)
        self.chunk = int(np.clip(share, _SMALLEST_CHUNK, _LARGEST_CHUNK))
        self.fallback: str | None = None
        self._x, self._terms = x, terms
        self._prior, self._outputs = prior, outputs
        self._counts = np.zeros(3, np.int64)
        self._lock = threading.Lock()
        self._token = uuid4().hex

    @property
    def n_dim(self) -> int:
        """D."""
        return self.layout.size

    @property
    def counts(self) -> Counts:
        """Evaluations so far, by this object in this process."""
        return Counts(*self._counts.tolist())

    def values(self, x: np.ndarray) -> np.ndarray:
        """Log prior and log likelihood (2, P) at points (P, D)."""
        x = _points(x, self.n_dim)
        out = np.empty((2, len(x)))
        with self._lock:
            for s in self._chunks(len(x)):
                out[0, s], out[1, s] = self._values(x[s])
            self._counts[0] += len(x)
            self._clean(out)
        return out

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log prior and log likelihood (2, P), and their gradients (2, P, D)."""
        x = _points(x, self.n_dim)
        out, grad = np.empty((2, len(x))), np.empty((2, *x.shape))
        with self._lock:
            for s in self._chunks(len(x)):
                out[0, s], out[1, s], grad[0, s], grad[1, s] = self._gradients(x[s])
            self._counts[1] += len(x)
            self._clean(out)
        return out, grad

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws from the prior (n, D)."""
        with self._lock:
            return self._prior.draw(n, rng)

    def constrain(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Free variables and deterministics, in the model's own terms, at points (P, D)."""
        x = _points(x, self.n_dim)
        with self._lock:
            return dict(zip(self._outputs.names, self._outputs.call(x), strict=True))

    def one_by_one(self, reason: str) -> None:
        """Evaluate points one after the other from now on."""
        self.fallback = reason
        for name in ("_values", "_gradients"):
            self.__dict__.pop(name, None)

    def __reduce__(self):
        state = {
            k: v for k, v in self.__dict__.items() if k not in ("_values", "_gradients", "_lock")
        }
        return _load, (self._token, cloudpickle.dumps({**state, "_counts": np.zeros(3, np.int64)}))

    # --- compiled -----------------------------------------------------------------------------------

    def _chunks(self, n: int):
        return (slice(i, min(i + self.chunk, n)) for i in range(0, n, self.chunk))

    def _clean(self, terms: np.ndarray) -> None:
        """Let nan and +inf count as impossible."""
        bad = ~(terms < np.inf)
        if bad.any():
            self._counts[2] += int(bad.any(axis=0).sum())
            terms[bad] = -np.inf

    def _batched(self):
        xs = pt.matrix("xs", shape=(None, self.n_dim), dtype="float64")
        terms = [t.astype("float64") for t in vectorize_graph(self._terms, {self._x: xs})]
        return xs, [t + pt.zeros(xs.shape[0]) if t.ndim == 0 else t for t in terms]

    @cached_property
    def _values(self):
        if self.fallback is not None:
            fn = compile_graph([self._x], [t.astype("float64") for t in self._terms])
            return lambda xs: np.array([fn(x) for x in xs], float).reshape(-1, 2).T
        xs, terms = self._batched()
        return compile_graph([xs], terms)

    @cached_property
    def _gradients(self):
        if self.fallback is not None:
            return self._gradients_one_by_one()
        xs, terms = self._batched()
        return compile_graph([xs], [*terms, *(_gradient(t.sum(), xs) for t in terms)])

    def _gradients_one_by_one(self):
        terms = [t.astype("float64") for t in self._terms]
        fn = compile_graph([self._x], [*terms, *(_gradient(t, self._x) for t in terms)])

        def many(xs):
            found = [fn(x) for x in xs]
            return [np.array([f[i] for f in found]) for i in range(4)]

        return many


class _Outputs:
    """Graphs of a model's variables at x, evaluated for many points."""

    def __init__(self, names: list[str], graphs, x):
        self.names, self._graphs, self._x = names, graphs, x

    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k != "_call"}

    def call(self, xs: np.ndarray) -> list[np.ndarray]:
        """Values (P, ...) of all variables."""
        return self._call(xs)

    @cached_property
    def _call(self):
        batch = pt.matrix("xs", shape=(None, *self._x.type.shape), dtype="float64")
        try:
            graphs = vectorize_graph(self._graphs, {self._x: batch})
            fn = pytensor.function(
                [batch], graphs, mode=interpreted_mode(), on_unused_input="ignore"
            )
            return lambda xs: [
                np.broadcast_to(v, (len(xs), *np.shape(v))) if g.ndim == o.ndim else v
                for v, g, o in zip(fn(xs), graphs, self._graphs, strict=True)
            ]
        except (NotImplementedError, TypeError, ValueError):
            fn = pytensor.function(
                [self._x], self._graphs, mode=interpreted_mode(), on_unused_input="ignore"
            )
            return lambda xs: [np.stack(v) for v in zip(*(fn(x) for x in xs), strict=True)]


def extract_particles(model) -> ParticleDensities:
    """Prior, likelihood and prior draws of a model, for many particles at once.

    Parameters
    ----------
    model : pm.Model

    Returns
    -------
    ParticleDensities

    Raises
    ------
    ValueError
        If the model has no free variable, nothing observed and no Potential, an improper or random
        prior, a ``pm.Minibatch`` or ``total_size``, or a ``pm.Simulator``; the message names the
        variable.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> from amc_pymc.extract.particles import extract_particles
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0.0, 1.0)
    ...     y = pm.Normal("y", mu, 1.0, observed=[3.0])
    >>> densities = extract_particles(model)
    >>> densities.values(np.array([[0.0], [3.0]])).round(3)
    array([[-0.919, -5.419],
           [-5.419, -0.919]])
    """
    _refuse(model)
    layout = _layout(model)
    x = pt.tensor("x", shape=(layout.size,), dtype="float64")
    values = model.value_vars
    prior, likelihood = (_without_checks(model_logp(model, v)) for v in _split(model))
    terms = layout.substitute([prior, likelihood], values, x)
    shown = model.free_RVs + model.deterministics
    graphs = layout.substitute(model.replace_rvs_by_values(shown), values, x)
    outputs = _Outputs([v.name for v in shown], graphs, x)
    sizes = [int(np.size(v)) for v in _observed_values(model)]
    found = ParticleDensities(
        layout, terms, x, PriorDraws.from_model(model, layout), outputs, sum(sizes)
    )
    _verify(found)
    return found


def model_logp(model, variables):
    """Summed log density of some variables, Jacobians included, and of no others."""
    parts = model.logp(vars=variables, sum=False, jacobian=True)
    return sum((p.sum() for p in parts), start=pt.zeros((), "float64"))


def _split(model) -> tuple[list, list]:
    return list(model.free_RVs), [*model.observed_RVs, *model.potentials]


def _refuse(model) -> None:
    """Models whose evidence is not defined, or not the one they would have as written."""
    from pymc.distributions.simulator import SimulatorRV
    from pymc.variational.minibatch_rv import MinibatchRandomVariable

    if not model.free_RVs:
        raise ValueError("model has no free variable: its evidence is its likelihood.")
    if not model.observed_RVs and not model.potentials:
        raise ValueError(
            "model has no likelihood: give a variable observed=, or add a pm.Potential, which counts as "
            "likelihood."
        )
    for rv in model.observed_RVs:
        if isinstance(rv.owner.op, SimulatorRV):
            raise ValueError(
                f"{rv.name!r} is a pm.Simulator, which has no likelihood; pm.sample_smc approximates its "
                "evidence."
            )
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise ValueError(
                f"{rv.name!r} has total_size or pm.Minibatch data: its likelihood is scaled from a few "
                "rows. Give it all rows and no total_size."
            )
        observed = model.rvs_to_values[rv]
        if any(isinstance(v.type, RandomType) for v in ancestors([observed])):
            raise ValueError(f"the data of {rv.name!r} are drawn at random; pass all rows.")


def _layout(model) -> FlatLayout:
    """Names, shapes and dtypes of the value variables, without looking at any initial value."""
    shapes = model.eval_rv_shapes()
    names = tuple(v.name for v in model.value_vars)
    return FlatLayout(
        names,
        tuple(tuple(int(n) for n in shapes[name]) for name in names),
        tuple(v.dtype for v in model.value_vars),
    )


def _observed_values(model) -> list:
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    if not values:
        return []
    return pytensor.function([], values, mode=interpreted_mode())()


def _without_checks(graph):
    """Impossible parameters give -inf at their point, instead of an error for all points."""
    return _rewritten([graph], {})[0]


def _rewritten(outputs, memo: dict) -> list:
    """Rebuild a graph without ``CheckParameterValue``, opening inner graphs that hold one."""
    for node in toposort(outputs, blockers=list(memo)):
        if all(o in memo for o in node.outputs):
            continue
        inputs = [memo.get(i, i) for i in node.inputs]
        if isinstance(node.op, CheckParameterValue):
            value, *conditions = inputs
            new = [pt.switch(pt.all([pt.all(c) for c in conditions]), value, -np.inf)]
        elif isinstance(node.op, OpFromGraph) and _has_checks(node.op):
            new = _rewritten(inline_ofg_node(node), dict(zip(node.inputs, inputs)))
        elif all(a is b for a, b in zip(inputs, node.inputs)):
            continue
        else:
            new = node.op.make_node(*inputs).outputs
        memo.update(zip(node.outputs, new))
    return [memo.get(o, o) for o in outputs]


def _has_checks(op: OpFromGraph) -> bool:
    return any(
        isinstance(n.op, CheckParameterValue)
        or (isinstance(n.op, OpFromGraph) and _has_checks(n.op))
        for n in toposort(op.inner_outputs)
    )


def _gradient(scalar, x):
    gradient = pt.grad(scalar, x, disconnected_inputs="ignore")
    return (pt.zeros_like(x) + gradient).astype("float64")


def _points(x: np.ndarray, n_dim: int) -> np.ndarray:
    x = np.ascontiguousarray(x, float)
    if x.ndim != 2 or x.shape[1] != n_dim:
        raise ValueError(f"x must have shape (P, {n_dim}), got {x.shape}.")
    return x


def _verify(densities: ParticleDensities) -> None:
    """Compare batched graphs with the model's own, and go one by one where they differ."""
    rng = np.random.Generator(np.random.PCG64(7))
    xs = densities.draw_prior(_CHECKED, rng)
    # All rewrites: without them a logistic likelihood underflows where the compiled one does not.
    mode = Mode(linker="py", optimizer="fast_run").excluding("fusion", "BlasOpt", "cxx_only")
    one = pytensor.function([densities._x], densities._terms, mode=mode, on_unused_input="ignore")
    wanted = np.array([one(x) for x in xs], float).T
    try:
        found = np.array(densities._values(xs))
        if not np.allclose(found, wanted, rtol=1e-8, atol=1e-8, equal_nan=True):
            raise ValueError("the batched graph gives other values than the model")
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        _log.warning("The model cannot be evaluated for many points at once (%s); slower.", reason)
        densities.one_by_one(reason)


_LOADED: OrderedDict[str, ParticleDensities] = OrderedDict()
_MOST_LOADED = 4


def _load(token: str, state: bytes) -> Any:
    """The densities that a worker already has, or new ones."""
    if token not in _LOADED:
        found = ParticleDensities.__new__(ParticleDensities)
        found.__dict__.update(cloudpickle.loads(state), _lock=threading.Lock())
        _LOADED[token] = found
        while len(_LOADED) > _MOST_LOADED:
            _LOADED.popitem(last=False)
    _LOADED.move_to_end(token)
    return _LOADED[token]
