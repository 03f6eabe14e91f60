"""Models whose data come from ``pm.Simulator``, for likelihood-free samplers."""

from __future__ import annotations

import numpy as np
import pymc as pm

from pymc.distributions.simulator import SimulatorRV, gaussian
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type_other import NoneTypeT

from amc_pymc.likelihood_free.by_group import Groups
from amc_pymc.likelihood_free.distances import distance_function, statistic_function
from amc_pymc.likelihood_free.fail_safe import (
    Measure,
    NegativeDistance,
    check_simulation,
    checked_data,
    run_batch,
    run_each,
)
from amc_pymc.likelihood_free.model_prior import PriorTransform
from amc_pymc.likelihood_free.problem import Simulated, are_whole, flat, labels, shaped
from amc_pymc.reading.graphs import interpreted_function

#: Minimum number of groups that share a regression.
_FEWEST = 3


class ModelProblem(PriorTransform):
    """Prior on the unit cube, simulator and distance of a PyMC model; later ``pm.set_data`` has no effect.

    The distance is in units of the ``epsilon`` of ``pm.Simulator``. With summary statistics o of observed
    and s of simulated data, it is the root of the sum of ((o - s) / epsilon)^2 for
    ``distance="gaussian"``, the sum of abs(o - s) / epsilon for ``"laplace"``, and the negative sum of the
    values of any other distance, which must not be positive. The distances of several Simulators, each in
    units of its own epsilon, are combined by the root of the sum of squares if all are Gaussian, otherwise
    by the sum. Other observed variables have a likelihood, which weights draws as a Potential does.

    Parameters
    ----------
    model : pm.Model
        Model with data of a ``pm.Simulator``; other data may have a likelihood.

    Attributes
    ----------
    shapes : dict of str to tuple of int
        Shapes of the free variables.
    n_dim : int
        Number of coordinates, D.
    tolerance : float
        1, the user's epsilon.
    coordinates : list of str
        Names of the coordinates of the cube.
    observed : dict of str to array
        Data of each Simulator.
    observed_summaries : array (S,)
        Summary statistics of the data.
    deterministic_names : list of str
    fallback : dict of str to str
        Variables without quantile functions, Potentials and data with a likelihood, for which
        :meth:`log_density` corrects, and the reasons.

    Raises
    ------
    TypeError
        If `model` is not a ``pm.Model``.
    ValueError
        If the model has no Simulator, no free variable, an improper prior, missing data, a likelihood
        that cannot be evaluated, an epsilon that is not positive and finite, or data that are not finite;
        the message names the variable.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> from amc_pymc.likelihood_free.model_problem import ModelProblem
    >>> def simulator(rng, mu, size):
    ...     return rng.normal(mu, 1.0, size=size)
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0.0, 2.0)
    ...     y = pm.Simulator("y", simulator, mu, epsilon=0.5, observed=[1.0, 2.0, 1.5])
    >>> problem = ModelProblem(model)
    >>> problem.parameters(np.array([[0.5]]))["mu"]
    array([0.])
    >>> u = np.full((4, 1), 0.5)
    >>> problem.simulate(u, np.random.default_rng(1), batched=True).distance.shape
    (4,)
    """

    tolerance: float | None = 1.0

    def __init__(self, model: pm.Model):
        found = _simulators_of(model)
        outputs = {_key(rv.name): list(rv.owner.op.dist_params(rv.owner)) for rv in found}
        outputs["deterministics"] = model.deterministics
        super().__init__(model, outputs, _likelihoods_of(model))
        self.simulators = [_Simulator(model, rv) for rv in found]
        self.deterministic_names = [d.name for d in model.deterministics]
        self.observed = {s.name: s.observed for s in self.simulators}
        data = self._statistics([s.observed[None] for s in self.simulators])
        self.observed_summaries = flat(data)[0]

    def parameters(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """Return the free variables (n, *shape) on their own scale at points (n, D) of the unit cube.

        They are nan, or zero if they are integers, where the prior has no value.
        """
        return self.values(u)[0]

    def deterministics(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the deterministics (n, ...) of free variables (n, *shape)."""
        found = self.evaluate("deterministics", values)
        return dict(zip(self.deterministic_names, found, strict=True))

    def groups(self) -> Groups | None:
        """Return which real variables and summary statistics have a first axis of the same length; None if none do."""
        place, real = {c: i for i, c in enumerate(self.coordinates)}, ~are_whole(self)
        index = np.arange(self.observed_summaries.size)[None]
        statistics = shaped(index, {s.name: s.shape for s in self.simulators}).values()
        for n in (part.shape[1] for part in statistics if part.ndim > 1):
            named = (
                labels(name, shape) for name, shape in self.shapes.items() if shape[:1] == (n,)
            )
            each = [[place[c] for c in own] for own in named if place.keys() >= {*own}]
            effects = [np.reshape(own, (n, -1)) for own in each if real[own].all()]
            if n >= _FEWEST and 0 < sum(own.size for own in effects) < self.n_dim:
                own = [part.reshape(n, -1) for part in statistics if part.shape[1:2] == (n,)]
                return Groups(np.hstack(effects), np.hstack(own))
        return None

    def simulate(
        self,
        u: np.ndarray,
        rng: np.random.Generator,
        *,
        batched: bool = False,
        summaries: bool = False,
    ) -> Simulated:
        """Simulate at points (n, D), one by one, or all in one call.

        The simulator is called as by PyMC: ``fn(rng, *parameters, size)``, where parameters have the
        number of axes required by its signature and the data. In a batch of n, size is (n, ...) and
        parameters have a first axis of length n, and therefore broadcast against it. One by one, simulations that
        a Python function summarises may have other lengths than the data.

        Raises
        ------
        ValueError
            If a distance is negative; the message names the variable.
        """
        values, possible = self.values(u)
        rows, n, place = np.flatnonzero(possible), len(u), np.cumsum(possible) - 1
        values = {k: v[rows] for k, v in values.items()} if len(rows) < n else values
        together = self._with_parameters(values)
        size = self.observed_summaries.size
        if batched:

            def call(part: np.ndarray, rng: np.random.Generator):
                given = together
                if len(part) < len(rows):  # recomputed, to avoid copies of constants for each row
                    given = self._with_parameters({k: v[place[part]] for k, v in values.items()})
                return [s.many(rng, p, len(part)) for s, p in given]

            shapes = [s.observed.shape for s in self.simulators]
            kept = (lambda found: flat(self._statistics(found))) if summaries else None
            return run_batch(call, Measure(self.distances, shapes, kept, size), rows, n, rng)

        def one(i: int):
            at = place[i]
            return [s.one(rng, [p[at, ...] for p in ps]) for s, ps in together]

        shapes = [s.shape for s in self.simulators]
        measure = Measure(self._distances, shapes, flat if summaries else None, size)
        return run_each(one, measure, rows, n)

    def _with_parameters(self, values: dict[str, np.ndarray]) -> list[tuple[_Simulator, list]]:
        """Return Simulators and their parameters (n, ...) for values (n, *shape) of free variables."""
        return [(s, self.evaluate(_key(s.name), values)) for s in self.simulators]

    def _statistics(self, simulations: list[np.ndarray]) -> list[np.ndarray]:
        return [s.statistics(x) for s, x in zip(self.simulators, simulations, strict=True)]

    def distances(self, simulations: list[np.ndarray]) -> np.ndarray:
        """Return distances (n,) from the data; `simulations` has an array (n, *shape) of each Simulator."""
        return self._distances(self._statistics(simulations))

    def _distances(self, statistics: list[np.ndarray]) -> np.ndarray:
        each = [s.distance(x) for s, x in zip(self.simulators, statistics, strict=True)]
        if len(each) > 1 and all(s.is_gaussian for s in self.simulators):
            return np.sqrt(np.square(each).sum(axis=0))
        return np.sum(each, axis=0)


def _key(name: str) -> str:
    return f"parameters of {name}"


class _Simulator:
    """A ``pm.Simulator``, its calls and its distance from the data."""

    def __init__(self, model, rv):
        op = rv.owner.op
        self.name, self.dtype = rv.name, rv.type.dtype
        data = _value(model.rvs_to_values[rv])
        self.observed = checked_data(f"the data of {rv.name!r}", data)
        self._function = type(op).fn
        self._size = _size(model, rv)
        distance, statistic = type(op)._distance, type(op)._sum_stat
        self.is_gaussian = distance is gaussian
        self._statistic, self._one_by_one = statistic_function(statistic, self.observed)
        of_data = self._statistic(self.observed[None])[0]
        self.shape = of_data.shape
        self._from_data = distance_function(distance, _epsilon(model, rv), of_data)

    def one(self, rng, parameters) -> np.ndarray:
        """Return the summary statistics of one simulation, which may be longer or shorter than the data."""
        found = np.asarray(self._function(rng, *parameters, self._size))
        check_simulation(found, self.observed.shape, any_length=self._one_by_one)
        if np.isnan(found).any():
            return np.full(self.shape, np.nan)
        return self.statistics(found[None])[0]

    def many(self, rng, parameters, n: int) -> np.ndarray:
        """Run simulations of n rows in one call."""
        return self._function(rng, *parameters, (n, *(self._size or ())))

    def distance(self, statistics: np.ndarray) -> np.ndarray:
        """Return the distances (n,) of statistics (n, ...) from those of the data."""
        with np.errstate(over="ignore"):
            found = self._from_data(statistics)
        if np.any(found < 0.0):
            raise NegativeDistance(
                f"the distance of {self.name!r} from its data must not be negative, got {found.min()}: a "
                "custom distance of pm.Simulator returns logarithms of a kernel, which are at most 0."
            )
        return found

    def statistics(self, simulated: np.ndarray) -> np.ndarray:
        """Return summary statistics (n, ...) of the same shape as those of the data; refuse broadcasting."""
        found = self._statistic(simulated.astype(self.dtype, copy=False))
        if found.shape[1:] != self.shape:
            raise ValueError(
                f"sum_stat of {self.name!r} gives shape {found.shape[1:]} for a simulation, for the data {self.shape}"
            )
        return found


def _simulators_of(model) -> list:
    """Return the ``pm.Simulator`` variables of a model; raise an error if it cannot be simulated."""
    if not isinstance(model, pm.Model):
        raise TypeError(f"model must be a pm.Model, got {model!r}.")
    found = [rv for rv in model.observed_RVs if isinstance(rv.owner.op, SimulatorRV)]
    for rv in model.basic_RVs:
        if isinstance(rv.owner.op, SimulatorRV) and rv not in found:
            whole = rv.name.removesuffix("_unobserved")
            if f"{whole}_observed" in model.named_vars:
                raise ValueError(f"the data of {whole!r} have missing values; leave them out.")
            raise ValueError(f"{rv.name!r} is a pm.Simulator without data; give it observed=.")
    if not found:
        raise ValueError(
            "model has no pm.Simulator. Add one for the data, for example "
            "pm.Simulator('y', function, *parameters, observed=data)."
        )
    if not model.free_RVs:
        raise ValueError("model has no free variable: there is nothing to infer.")
    return found


def _likelihoods_of(model) -> list:
    """Return the observed variables other than ``pm.Simulator``."""
    found = [rv for rv in model.observed_RVs if not isinstance(rv.owner.op, SimulatorRV)]
    for rv in found:
        whole = rv.name.removesuffix("_observed")
        if f"{whole}_unobserved" in model.named_vars:
            raise ValueError(
                f"the data of {whole!r} have missing values; leave them out, or give them a variable of their own."
            )
        if not np.isfinite(_value(model.rvs_to_values[rv])).all():
            raise ValueError(
                f"the data of {rv.name!r} are not all finite; leave out those that are not."
            )
    return found


def _value(graph) -> np.ndarray:
    return np.asarray(interpreted_function([], graph, plain=True)())


def _epsilon(model, rv) -> np.ndarray:
    epsilon = rv.owner.op.epsilon
    if set(model.basic_RVs) & set(ancestors([epsilon])):
        raise ValueError(f"epsilon of {rv.name!r} depends on random variables; give it numbers.")
    epsilon = _value(epsilon)
    if not np.all((epsilon > 0.0) & (epsilon < np.inf)):
        raise ValueError(f"epsilon of {rv.name!r} must be positive and finite, got {epsilon}.")
    return epsilon


def _size(model, rv) -> tuple[int, ...] | None:
    size = rv.owner.op.size_param(rv.owner)
    if isinstance(size.type, NoneTypeT):
        return None
    data = {other: model.rvs_to_values[other] for other in model.observed_RVs}
    return tuple(interpreted_function([], size, givens=data)().tolist())
