"""Prior of a model as a transform of the unit cube.

Free random variables are taken in the order of the graph. The conditional quantile function of each, given
those before it, maps its coordinates of the cube to its value (Rosenblatt transformation); uniform points
therefore give prior draws. A variable without known quantiles gets a reference density instead, and points
get a log density: prior over reference.
"""

from __future__ import annotations

import math

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc.distributions.transforms import Ordered
from pymc.logprob.basic import transformed_conditional_logp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.xtensor.type import XTensorType

from amc_pymc.likelihood_free.fail_safe import clipped
from amc_pymc.likelihood_free.problem import flat, labels, shaped
from amc_pymc.likelihood_free.proposal import EDGE, NONCENTRED, Parametrisation
from amc_pymc.likelihood_free.quantiles import quantile, quantile_shape
from amc_pymc.likelihood_free.references import References
from amc_pymc.reading.graphs import Batched, is_random, lowered, rebuilt
from amc_pymc.reading.particles.prior import IMPROPER, transform_steps, without_checks

#: Number of draws with which transforms are tested.
_TRIED = 64
#: Bounds to which the absolute values of floats and integers are clipped.
_LARGEST, _LARGEST_INTEGER = np.finfo(float).max, 2.0**53


class _Variable:
    """A free variable as a graph of its quantile levels, given the variables before it.

    Parameters
    ----------
    rv : variable
    shape : tuple of int
    level, graph : tensor variables
        Levels, and the graph of the variable in terms of them.
    inputs : dict of variable to variable
        Inputs that represent the free variables, with their names.
    reference : Reference, optional
        Density that maps points of the cube to levels on the unconstrained scale.
    """

    def __init__(self, rv, shape, level, graph, inputs, reference=None):
        (graph,) = _possible([graph], inputs)
        self.name, self.shape, self.dtype = inputs[rv].name, shape, rv.type.dtype
        _refuse_random(self.name, graph)
        used = set(ancestors([graph]))
        parents = [i for i in inputs.values() if i in used]
        self.levels_shape = level.type.shape
        self.size = math.prod(self.levels_shape)
        self.reference = reference
        self._parents, self.depends = [i.name for i in parents], bool(parents)
        self._graph = Batched([level, *parents], [graph])

    def values(self, level: np.ndarray, values: dict[str, np.ndarray]):
        """Return the values (n, *shape), and which of the points (n,) have one."""
        n = len(level)
        (found,) = self._graph([level, *(values[p] for p in self._parents)], n)
        possible = ~np.isnan(found).any(axis=tuple(range(1, found.ndim)))
        if self.dtype.startswith("float"):
            found = np.clip(found, -_LARGEST, _LARGEST)
        else:
            found = np.clip(np.nan_to_num(found), -_LARGEST_INTEGER, _LARGEST_INTEGER)
        found = np.broadcast_to(found, (n, *self.shape)).astype(self.dtype)
        return np.ascontiguousarray(found), possible


class PriorTransform:
    """Prior of all free variables of a model on the unit cube.

    Parameters
    ----------
    model : pm.Model
    outputs : dict of str to list of variables
        Graphs for :meth:`evaluate`, in which observed variables are replaced by their data.
    likelihoods : sequence of variables
        Observed variables whose density at their data is treated as a Potential.

    Attributes
    ----------
    shapes : dict of str to tuple of int
        Shapes of the free variables, in the model's order.
    n_dim : int
        Number D of coordinates, which are in the order in which variables depend on each other.
    coordinates : list of str
        Names of coordinates: of elements of variables, or of the levels that these are computed from.
    fallback : dict of str to str
        Variables without quantiles, Potentials and likelihoods, for which :meth:`log_density` corrects, and
        the reasons.

    Raises
    ------
    ValueError
        If a prior is improper or can neither be inverted nor drawn, or if a graph draws random
        numbers; the message names the variable.
    """

    def __init__(self, model: pm.Model, outputs: dict[str, list], likelihoods: Sequence = ()):
        transforms = {rv.name: model.rvs_to_transforms[rv] for rv in model.free_RVs}
        transformed = {
            rv.name: transforms[rv.name].forward(rv, *rv.owner.inputs)
            for rv in model.free_RVs
            if transforms[rv.name] is not None
        }
        factors = [*model.potentials, *(_log_likelihood(model, rv) for rv in likelihoods)]
        more = {"potential": factors, "transformed": list(transformed.values())}
        more["levels"] = _levels(model)
        free, graphs = _frozen(model, outputs | more)
        sizes = model.eval_rv_shapes()
        self.shapes: dict[str, tuple[int, ...]] = {n: tuple(map(int, sizes[n])) for n in transforms}
        inputs = {rv: rv.type(name=n) for rv, n in zip(free, transforms, strict=True)}
        references, variables, fallback = References(model), [], {}
        for rv in _in_order(free):
            name = inputs[rv].name
            shape, transform = self.shapes[name], transforms[name]
            _refuse_improper(rv, name)
            try:
                variables.append(_by_quantiles(rv, shape, transform, inputs))
            except NotImplementedError as error:
                _refuse_reference(model, rv, name, error)
                fallback[name] = str(error)
                reference, level = references.fit(name, rv.type.dtype), references.input(name)
                graph = level if transform is None else transform.backward(level, *rv.owner.inputs)
                variables.append(_Variable(rv, shape, level, graph, inputs, reference))
        graphs["potential"] = [sum((p.sum() for p in graphs["potential"]), pt.zeros(()))]
        graphs["log_prior"] = [_log_density(inputs, {}, free)]
        levels = _possible(graphs.pop("levels"), {})
        made = {k: Batched(list(inputs.values()), _possible(g, inputs)) for k, g in graphs.items()}
        if levels and not fallback:
            unconstrained = [model.rvs_to_values[rv] for rv in _in_order(model.free_RVs)]
            made["levels"] = Batched(unconstrained, levels)
        if fallback:
            referred = {rv: transforms[i.name] for rv, i in inputs.items() if i.name in fallback}
            given = inputs | {rv: references.input(inputs[rv].name) for rv in referred}
            log = _log_density(given, referred, list(referred))
            made["reference"] = Batched(list(given.values()), _possible([log], {}))
        fallback |= {p.name: "a pm.Potential" for p in model.potentials}
        self.fallback = fallback | {rv.name: "data with a likelihood" for rv in likelihoods}
        self.n_dim = sum(v.size for v in variables)
        self.coordinates = [c for v in variables for c in labels(v.name, v.levels_shape)]
        self._variables, self._transformed, self._graphs = variables, list(transformed), made
        self._constant = references.log_constant
        self._owner = np.repeat(np.arange(len(variables)), [v.size for v in variables])
        self._depends = np.array([v.depends for v in variables])[self._owner]
        self._level_shapes = {v.name: v.levels_shape for v in variables}
        self._refuse_cuts()

    def _refuse_cuts(self) -> None:
        """Refuse transforms that cannot represent all values of a prior and therefore truncate it."""
        if not self._transformed:
            return
        u = np.random.Generator(np.random.PCG64(7)).uniform(size=(_TRIED, self.n_dim))
        values, possible = self.values(u)
        found = self.evaluate("transformed", values)
        for name, z in zip(self._transformed, found, strict=True):
            if name not in self.fallback and np.isnan(z[possible]).any():
                raise ValueError(
                    f"the transform of {name!r} cannot reach all values that its prior has. Use the transform "
                    "that PyMC chooses, or pm.Truncated."
                )

    def values(self, u: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return values (n, *shape) of the free variables, and which of the points (n,) have them.

        Others are nan, or zero if they are integers.
        """
        return self._walk(clipped(u, self.n_dim))[:2]

    def evaluate(self, what: str, values: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Evaluate the graphs of this name at values (n, ...) of the free variables."""
        n = len(next(iter(values.values())))
        return self._graphs[what]([values[name] for name in self.shapes], n)

    def centred(self, u: np.ndarray) -> Parametrisation | None:
        """Return coordinates by the unconstrained values of variables that depend on others, and normal quantiles else.

        Unconstrained values are in units of the spread of their variable at points u (n, D). None if variables are independent, or if values are infinite.
        """
        u = clipped(u, self.n_dim)
        y = self._to_centred(u) if "levels" in self._graphs else np.full((1, 1), np.nan)
        if not np.isfinite(y).all():
            return None
        same = self._owner[:, None] == self._owner
        centre = np.where(self._depends, [y[:, own].mean() for own in same], 0.0)
        spread = np.where(self._depends, [max(y[:, own].std(), 1e-300) for own in same], 1.0)
        constant = np.log(spread).sum() + 0.5 * self._depends.sum() * np.log(2.0 * np.pi)
        return Parametrisation(
            "centred",
            lambda u: (self._to_centred(u) - centre) / spread,
            lambda x: self._from_centred(centre + spread * x)[0],
            lambda x: self._from_centred(centre + spread * x)[1] + constant,
        )

    def _unconstrained(self, u: np.ndarray) -> np.ndarray:
        """Return unconstrained values (n, D), in the order of the coordinates."""
        values, *_ = self._walk(u)
        values |= dict(zip(self._transformed, self.evaluate("transformed", values), strict=True))
        return flat(values[v.name] for v in self._variables)

    def _to_centred(self, u: np.ndarray) -> np.ndarray:
        return np.where(self._depends, self._unconstrained(u), NONCENTRED.to(u))

    def _from_centred(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return points (n, D) of the cube, and natural log prior densities (n,) of the coordinates.

        The constants of normal densities of variables without parents are left out.
        """
        depends = self._depends
        u = np.where(depends, 0.5, NONCENTRED.back(y))
        values = shaped(np.where(depends, y, self._unconstrained(u)), self._level_shapes)
        *levels, log_prior = self._graphs["levels"](list(values.values()), len(y))
        # Levels are nan where values overflow, far beyond all that a prior can reach.
        found = np.nan_to_num(flat(levels), nan=0.5)
        u[:, depends] = np.clip(found, EDGE, 1.0 - EDGE)[:, depends]
        return u, log_prior + NONCENTRED.log_prior(y[:, ~depends])

    def log_prior(self, u: np.ndarray) -> np.ndarray:
        """Return the natural log density (n,) of the free variables, with Potentials and likelihoods, without Jacobians."""
        values, possible = self.values(u)
        (own,), (extra,) = (self.evaluate(k, values) for k in ("log_prior", "potential"))
        with np.errstate(invalid="ignore"):
            log = own + extra + self._constant
        return np.where(possible & ~np.isnan(log), log, -np.inf)

    def log_density(self, u: np.ndarray) -> np.ndarray | None:
        """Return the natural log (n,) of the prior density on the cube, prior over reference; None if it is uniform.

        It is normalised, except for Potentials and likelihoods.
        """
        u = clipped(u, self.n_dim)
        if not self.fallback:
            return None
        values, possible, unconstrained, log_reference = self._walk(u)
        own = self.evaluate("reference", values | unconstrained)[0] if unconstrained else 0.0
        (extra,) = self.evaluate("potential", values)
        with np.errstate(invalid="ignore"):
            log = own + extra + self._constant - log_reference
        # In the far tails, where a transform overflows, the density may be nan or +inf.
        return np.where(possible & (log < np.inf), log, -np.inf)

    def _walk(self, u: np.ndarray):
        """Return values, valid points, unconstrained values with a reference, and its log density."""
        values: dict[str, np.ndarray] = {}
        unconstrained, log_reference = {}, np.zeros(len(u))
        possible, levels = np.ones(len(u), bool), shaped(u, self._level_shapes)
        for v in self._variables:
            if v.reference is not None:
                levels[v.name], log = v.reference.quantiles(levels[v.name])
                log_reference += log
                unconstrained[v.name] = levels[v.name]
            values[v.name], good = v.values(levels[v.name], values)
            possible &= good
        return {n: values[n] for n in self.shapes}, possible, unconstrained, log_reference


# --- graphs -------------------------------------------------------------------------------------


def _levels(model) -> list:
    """Return coordinates of the cube, by variable in order, and a log prior as graphs of unconstrained values.

    The prior is that of variables that depend on others.

    The list is empty if variables do not depend on each other, are whole numbers, have named dimensions, or have no known
    distribution function.
    """
    free = _in_order(model.free_RVs)
    depend = [rv for rv in free if set(ancestors([rv])) & set(free) != {rv}]
    plain = all(rv.type.dtype.startswith("float") for rv in free)
    if not (depend and plain) or any(isinstance(rv.type, XTensorType) for rv in free):
        return []
    try:
        levels = [pt.exp(pm.logcdf(rv, rv, warn_rvs=False)) for rv in free]
    except (NotImplementedError, TypeError, ValueError):
        return []
    graphs = [*model.replace_rvs_by_values(levels), model.logp(depend)]
    return [] if is_random(graphs, ()) else graphs


def _frozen(model, outputs: dict[str, list]):
    """Return the free variables and graphs with observed and shared data inserted."""
    graphs = [*model.free_RVs, *(g for gs in outputs.values() for g in gs)]
    observed = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    shared = {
        v: pt.constant(v.get_value(), name=v.name)
        for v in ancestors([*graphs, *observed])
        if isinstance(v, SharedVariable) and not isinstance(v.type, RandomType)
    }
    data = dict(zip(model.observed_RVs, rebuilt(observed, shared), strict=True))
    graphs = lowered(rebuilt(graphs, shared | data))
    n = len(model.free_RVs)
    free, rest = graphs[:n], iter(graphs[n:])
    named = {key: [next(rest) for _ in gs] for key, gs in outputs.items()}
    for key, gs in named.items():
        for old, new in zip(outputs[key], gs, strict=True):
            _refuse_random(old.name or key, new, free)
    return free, named


def _log_likelihood(model, rv):
    """Return the log density of an observed variable at its data, as a graph of the free variables."""
    try:
        return pm.logp(rv, model.rvs_to_values[rv], warn_rvs=False).sum()
    except NotImplementedError as error:
        raise ValueError(
            f"the likelihood of {rv.name!r} cannot be evaluated ({error}). Give it a distribution that PyMC knows the "
            "density of, or simulate it by pm.Simulator."
        ) from None


def _in_order(free: list) -> list:
    """Sort variables after those they depend on, otherwise in the given order."""
    parents = {rv: (set(ancestors([rv])) & set(free)) - {rv} for rv in free}
    found: list = []
    while len(found) < len(free):
        found.append(next(rv for rv in free if rv not in found and parents[rv] <= set(found)))
    return found


def _possible(graphs: list, inputs: dict) -> list:
    """Return graphs of the inputs in which invalid parameters give nan."""
    return without_checks(graphs, inputs, impossible=np.nan)


def _refuse_random(name: str, graph, given: Sequence = ()) -> None:
    if is_random([graph], given):
        raise ValueError(
            f"{name!r} draws random numbers that belong to no variable of the model. Name all random "
            "variables."
        )


def _refuse_improper(rv, name: str) -> None:
    if isinstance(rv.owner.op, IMPROPER):
        kind = type(rv.owner.op).__name__.removesuffix("RV")
        raise ValueError(
            f"{name!r} has an improper prior ({kind}), from which nothing can be drawn. Give it a proper "
            "distribution."
        )


def _refuse_reference(model, rv, name: str, error: Exception) -> None:
    """Refuse variables that have neither quantiles nor a reference density."""
    if isinstance(model[name].type, XTensorType):
        raise ValueError(
            f"{name!r} has named dimensions and no quantile function that is known ({error}). Take its "
            "namesake without pymc.dims."
        ) from None
    if getattr(rv.owner.op, "ndim_supp", 0) and not rv.type.dtype.startswith("float"):
        raise ValueError(
            f"{name!r} has a prior whose quantiles are not known ({error}). Build it from conditional "
            "univariate variables."
        ) from None


def _by_quantiles(rv, shape, transform, inputs) -> _Variable:
    if any(isinstance(t, Ordered) for t in transform_steps(transform)):
        raise NotImplementedError("ordered by its transform")
    level = pt.tensor(dtype="float64", shape=quantile_shape(rv, shape))
    return _Variable(rv, shape, level, quantile(rv, level), inputs)


def _log_density(values: dict, transforms: dict, variables: list):
    """Return the summed log density of some variables, Jacobians of transforms included."""
    parts = transformed_conditional_logp(
        variables, rvs_to_values=values, rvs_to_transforms={rv: transforms.get(rv) for rv in values}
    )
    return sum((p.sum() for p in parts), pt.zeros(()))
