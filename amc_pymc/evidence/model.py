"""Densities, kernels, seeds and evaluation counts for estimators of the evidence."""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr

from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.logprob.transforms import (
    CircularTransform,
    IntervalTransform,
    LogOddsTransform,
    LogTransform,
    SimplexTransform,
)
from pytensor.graph.traversal import toposort
from scipy.stats import t as student
from threadpoolctl import ThreadpoolController

from amc_pymc.evidence.arms import GRADIENT_COST
from amc_pymc.evidence.bridge import bridge
from amc_pymc.evidence.mcmc import DiscreteMetropolis, Kernel, Mixed, make_kernel
from amc_pymc.evidence.modes import PilotSettings
from amc_pymc.evidence.pilot import Pilot, explore
from amc_pymc.evidence.symmetry import Block, Variables
from amc_pymc.flags import Flag, flag
from amc_pymc.reading.factors import element_states
from amc_pymc.reading.graphs import INTERPRETED, log_densities, lowered
from amc_pymc.reading.particles.densities import (
    ParticleDensities,
    counted,
    extract_marginals,
    extract_particles,
)
from amc_pymc.reading.particles.prior import (
    PriorDraws,
    check_evidence_defined,
    layout_of,
    without_checks,
)
from amc_pymc.reading.rows import data_stamps
from amc_pymc.results import declared_dataset
from amc_pymc.results.tables import EVALUATIONS
from amc_pymc.rng import spawn_generators
from amc_pymc.steps.marginal_effects import CANNOT, LocalEffects

if TYPE_CHECKING:
    from pymc import Model


_log = logging.getLogger("amc_pymc")
#: Transforms that act on each element, and those of which a change of sign makes sense.
_BY_ELEMENT = (LogTransform, LogOddsTransform, IntervalTransform, CircularTransform)
_SIGNED = (LogOddsTransform, IntervalTransform, CircularTransform)
#: Size below which (above one over which) numbers are near the limits of doubles, share of such draws
#: that is flagged, and number of prior draws for comparison.
_TINY, _EDGE, _CHECKED = 1e-250, 0.05, 1000
#: Settings of a pilot run with integrals over local effects, which are expensive.
_SPARING = PilotSettings(
    particles=128, moves=1, starts=8, scanned=2048, checked=1024, second=1024, weighed_least=500,
)  # fmt: skip


def compiled_particles(
    model: Model, effects: LocalEffects | None = None
) -> tuple[ParticleDensities, float]:
    """Return compiled densities of a model and the CPU seconds used; the last few models are cached.

    Given local effects are integrated out. If that fails for effects that the user did not name, they are kept.
    """
    begin = time.process_time()
    variables = (model.value_vars, model.basic_RVs, model.potentials, model.deterministics)
    local = () if effects is None else (effects.asked, *effects.factor.variables)
    key = (id(model), tuple(map(id, itertools.chain.from_iterable(variables))), local)
    with _COMPILING:
        kept, data = _COMPILED.pop(key, None), data_stamps(model)
        if kept is None or kept[2] != data:
            densities = _extracted(model, effects)
            x = densities.draw_prior(1, spawn_generators(0, 1)[0])
            densities.values(x)
            densities.gradients(x)
            kept = model, densities, data
        _COMPILED[key] = kept
        while len(_COMPILED) > _MOST_COMPILED:
            _COMPILED.popitem(last=False)
    return kept[1], time.process_time() - begin


def _extracted(model: Model, effects: LocalEffects | None) -> ParticleDensities:
    if effects is not None:
        check_evidence_defined(model)
        try:
            return extract_marginals(model, effects.factor, effects.observed_vars)
        except CANNOT as error:
            label = effects.factor.label
            if effects.asked:
                raise ValueError(
                    f"marginalize names {label}, which cannot be integrated out: {error}"
                ) from error
            _log.info("Not integrating %s out after all: %s", label, error)
    return extract_particles(model)


#: Densities and the data they were compiled with. The model keeps the ids of its variables from being reused.
_COMPILED = OrderedDict[tuple[Any, ...], tuple["Model", ParticleDensities, dict[Any, bytes]]]()
_MOST_COMPILED = 4
_COMPILING = threading.Lock()


class TimeLimit(NamedTuple):
    """Argument `max_time` in seconds, None without a limit, and the time of the monotonic clock from which it counts."""

    max_time: float | None
    begin: float

    def over(self, needed: float = 0.0) -> bool:
        """Whether the limit is passed in `needed` seconds from now."""
        return self.max_time is not None and time.monotonic() - self.begin + needed > self.max_time


def explored(
    model: Model,
    densities: ParticleDensities,
    kernel: Kernel,
    rng: np.random.Generator,
    *,
    limit: TimeLimit,
    chains: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> Pilot:
    """Make a pilot run, a short one in many dimensions if chains may give the estimate.

    Integrals over local effects are expensive and leave posteriors close to normal, so the climb and the searches
    are then shorter.

    Raises
    ------
    ValueError
        If the likelihood is zero at all points evaluated, or unbounded.
    """
    pilot = explore(
        densities, kernel, rng, settings=pilot_settings(densities),
        fitted=not densities.discrete.any(), chains=chains,
        variables=exchangeable(model, densities), report=report, over=limit.over,
    )  # fmt: skip
    if wrong := running_off(model, densities, densities.constrain(pilot.ladder.particles.x)):
        raise ValueError(f"{wrong[0].message}.")
    return pilot


def exchangeable(model: Model, densities: ParticleDensities) -> Variables:
    """Return the variables whose elements or signs may be exchanged: continuous ones with a transform by elements."""
    blocks, sums, size = list[Block](), list[np.ndarray](), densities.layout.size
    shapes = dict(zip(densities.layout.names, densities.layout.shapes))
    for variable in model.value_vars:
        if variable.name not in densities.layout.names:
            continue
        transform = model.rvs_to_transforms[model.values_to_rvs[variable]]
        s = densities.layout.slices[variable.name]
        places = np.arange(s.start, s.stop).reshape(shapes[variable.name])
        kind = "none" if transform is None else type(transform).__name__
        if isinstance(transform, SimplexTransform):
            rows = places.reshape(-1, places.shape[-1])
            sums += [*rows]
            last = size + np.arange(len(rows)).reshape(*places.shape[:-1], 1)
            places, size = np.concatenate([places, last], axis=-1), size + len(rows)
        elif not (transform is None or isinstance(transform, _BY_ELEMENT)):
            continue
        blocks.append(Block(places, transform is None or isinstance(transform, _SIGNED), kind))
    return Variables(tuple(blocks), tuple(sums))


def pilot_settings(densities: ParticleDensities) -> PilotSettings:
    """Return settings of pilot runs and searches, which are short with integrals over local effects."""
    return _SPARING if densities.groups is not None else PilotSettings()


def particle_kernel(model: Model, densities: ParticleDensities, kernel: str | Kernel) -> Kernel:
    """Return a kernel that moves all coordinates, the discrete ones by Metropolis."""
    continuous = make_kernel(kernel)
    if not densities.discrete.any():
        return continuous
    coordinates, states, layout = list[int](), list[Any](), densities.layout
    for variable in model.value_vars:
        if variable.name not in layout.names or variable.name in layout.continuous:
            continue
        place = layout.slices[variable.name]
        coordinates += range(place.start, place.stop)
        try:
            states += element_states(model, variable)
        except ValueError:  # infinitely many, or too many to be drawn uniformly
            states += [None] * (place.stop - place.start)
    discrete = DiscreteMetropolis(tuple(coordinates), tuple(states))
    rest = tuple(np.flatnonzero(~densities.discrete).tolist())
    if not rest:
        return discrete
    if getattr(continuous, "coordinates", None) is not None:
        raise ValueError(
            f"kernel must leave its coordinates open where variables are discrete, got {kernel!r}."
        )
    return Mixed(type(continuous)(**{**continuous.__dict__, "coordinates": rest}), discrete)  # type: ignore[arg-type]


def running_off(
    model: Model, densities: ParticleDensities, values: Mapping[str, np.ndarray]
) -> list[Flag]:
    """Flag continuous variables with draws (P, ...) near the limits of floating-point numbers.

    There an unbounded likelihood, such as that of a scale that may be zero, stops growing, and an infinite evidence
    looks finite. The share of prior draws near the limits is subtracted.
    """
    prior = densities.constrain(densities.draw_prior(_CHECKED, spawn_generators(0, 1)[0]))
    return [
        flag("unbounded", share=share, variable=rv.name)
        for rv in model.free_RVs
        if rv.dtype.startswith("float")
        and rv.name in values
        and (share := _at_the_end(values[rv.name])) > _EDGE + _at_the_end(prior[rv.name])
    ]


def _at_the_end(values: np.ndarray) -> float:
    """Return the share of draws (P, ...) with an element near the limits of floating-point numbers."""
    size = np.abs(values).reshape(len(values), -1)
    return float(((size < _TINY) | (size > 1.0 / _TINY)).any(axis=1).mean())


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread: matrices are small, and more threads would wait for each other."""
    limits: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limits


class JobMeter:
    """What jobs evaluated, in this or in other threads and processes.

    Attributes
    ----------
    counts : array (3,)
        Evaluations of jobs whose results were received, in the order of
        :func:`amc_pymc.reading.particles.densities.counted`.
    seconds : float
        CPU time of jobs in other processes.
    """

    def __init__(self) -> None:
        self.counts, self.seconds = np.zeros(3, np.int64), 0.0

    def measured(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that also returns what it evaluated, and its CPU time."""
        return partial(_measure, function, os.getpid())

    def receive(self, found: Measurement) -> Any:
        """Count what a job of a measured function evaluated; return its result."""
        result, counts, seconds = found
        self.counts += counts
        self.seconds += seconds
        return result


#: Result of a job, its evaluations (3,), and its CPU time in another process.
type Measurement = tuple[Any, np.ndarray, float]


def _measure(function: Callable[[Any], Any], home: int, job: Any) -> Measurement:
    """Call a function; also return what it evaluated, and its CPU time if this is not the process `home`."""
    with one_blas_thread(), counted() as counts:
        begin = time.thread_time()
        found = function(job)
        seconds = time.thread_time() - begin if os.getpid() != home else 0.0
        return found, counts, seconds


def cost_of(counts: np.ndarray) -> float:
    """Return the number of evaluations in counts (3,), where a gradient counts as two."""
    return float(counts[0] + GRADIENT_COST * counts[1])


class Tally:
    """Number of model evaluations by stage of a run; the only place where a run counts them.

    Examples
    --------
    >>> tally = Tally()
    >>> with tally.stage("pilot"):
    ...     pass
    >>> tally.total().tolist()
    [0, 0, 0]
    """

    def __init__(self) -> None:
        self._stages: dict[str, np.ndarray] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[np.ndarray]:
        """Count the evaluations of this thread as those of a stage; the block receives the counts."""
        with counted() as counts:
            try:
                yield counts
            finally:
                self.add(name, counts)

    def add(self, name: str, counts: np.ndarray) -> None:
        """Add counts to a stage."""
        self._stages[name] = self._stages.get(name, np.zeros(3, np.int64)) + counts

    def total(self) -> np.ndarray:
        """Return the numbers of points without and with gradients and of nan densities, (3,)."""
        return sum(self._stages.values(), np.zeros(3, np.int64))

    @property
    def cost(self) -> float:
        """Number of evaluations, where a gradient counts as two."""
        return cost_of(self.total())

    def numbers(self) -> dict[str, int]:
        """Return the totals as reported: ``n_likelihood`` includes points with gradients."""
        return {name: int(count) for name, count in _reported(self.total()).items()}

    def dataset(self) -> xr.Dataset:
        """Return the group ``evaluations``, the same counts by stage."""
        table = np.array([*self._stages.values()]).reshape(-1, 3)
        return declared_dataset(EVALUATIONS, _reported(table), {"stage": [*self._stages]})


def _reported(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return counts (..., 3) by their names in results."""
    values, gradients, nan = np.moveaxis(counts, -1, 0)
    return {"n_likelihood": values + gradients, "n_gradient": gradients, "n_nan": nan}


#: Draws from each end, degrees of freedom of the reference, minimum effective draws and overlap for a reliable error.
_PRIOR_CHECK_DRAWS, _DOF, _FEWEST, _OVERLAP = 1000, 3.0, 25.0, 0.02
#: Standard errors, and nats, by which an integral may differ from one.
_PRIOR_CHECK_ERRORS, _PRIOR_CHECK_NATS = 5.0, 0.02


def prior_flags(model: Model) -> list[Flag]:
    """Return flags for free variables whose own log density does not integrate to one under their own draws.

    For each pm.CustomDist the integral is estimated by a bridge between prior draws and draws in which an element of
    the variable is replaced by one from a Student t distribution.
    """
    custom = [rv for rv in model.free_RVs if _is_custom(rv, model)]
    if not custom:
        return []
    (rng,), layout = spawn_generators(0, 1), layout_of(model)
    x = PriorDraws(model, layout).draw(2 * _PRIOR_CHECK_DRAWS, rng)
    x = x[np.isfinite(x).all(axis=1)]
    flags, point = [], pt.vector("x", dtype="float64")
    for rv in custom:
        graphs = layout.substitute(log_densities(model, [rv]), model.value_vars, point)
        (graph,) = without_checks(lowered(graphs))
        fn = pytensor.function([point], graph, mode=INTERPRETED, on_unused_input="ignore")
        value = model.rvs_to_values[rv]
        found = _integral(fn, x, layout.slices[value.name], value.name in layout.continuous, rng)
        if found is not None:
            flags.append(flag("prior_mismatch", variable=rv.name, integral=found))
    return flags


def _is_custom(rv: Any, model: Model) -> bool:
    others = [other for other in model.basic_RVs if other is not rv]
    nodes = toposort([rv], blockers=others)
    return any(isinstance(node.op, CustomDistRV | CustomSymbolicDistRV) for node in nodes)


def _integral(
    log_p: Any, x: np.ndarray, place: slice, continuous: bool, rng: np.random.Generator
) -> float | None:
    """Return the integral of a density over a part of the prior draws x (P, D) if it clearly is not one."""
    fitted, draws = x[: len(x) // 2, place], x[len(x) // 2 :]
    middle = np.median(fitted, axis=0)
    scale = 1.5 * np.median(np.abs(fitted - middle), axis=0) + 1e-3 * fitted.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0) if continuous else np.maximum(scale, 1.0)
    other = draws.copy()
    other[:, place] = middle + scale * rng.standard_t(_DOF, (len(draws), len(middle)))
    if not continuous:
        other[:, place] = np.rint(other[:, place])
    element = rng.integers(len(middle), size=len(draws))

    def works(points: np.ndarray) -> np.ndarray:
        z = points[:, place] - middle
        if continuous:
            log_q = student.logpdf(z / scale, _DOF) - np.log(scale)
        else:
            ends = student.cdf((np.abs(z) + np.array([[[-0.5]], [[0.5]]])) / scale, _DOF)
            log_q = np.log(np.maximum(ends[1] - ends[0], 1e-300))
        found = np.array([log_p(p) for p in points], float).reshape(len(points), -1)
        if found.shape != log_q.shape:  # not one number for each element
            return np.asarray(found.sum(axis=1) - log_q.sum(axis=1))
        return np.asarray((found - log_q)[np.arange(len(points)), element])

    ahead, behind = works(other), works(draws)
    possible = np.isfinite(behind)
    if possible.sum() < _FEWEST:
        return 0.0
    found = bridge(np.where(ahead < math.inf, ahead, -math.inf), behind[None, possible])
    if not (found.effective >= _FEWEST and found.overlap >= _OVERLAP):
        return None
    log_z = found.log_z + math.log(possible.mean())
    off = abs(log_z) > _PRIOR_CHECK_ERRORS * math.sqrt(found.variance) + _PRIOR_CHECK_NATS
    off |= abs(found.tension) > _PRIOR_CHECK_ERRORS * found.tension_error + _PRIOR_CHECK_NATS
    return math.exp(log_z) if off else None
