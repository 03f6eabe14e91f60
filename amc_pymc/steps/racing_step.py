"""Base class of racing step methods: a sampler's chain inside ``pm.sample``, and its report."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np

from pymc import Model
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import RandomGenerator, get_random_generator, get_value_vars_from_user_vars
from threadpoolctl import threadpool_limits

from amc_pymc.flags import Flag, flag, flag_bits, warn_of
from amc_pymc.reading.graphs import context_model
from amc_pymc.reading.group_densities import TOLERANCE
from amc_pymc.reading.rows import data_stamps
from amc_pymc.results import Table, clopper_pearson
from amc_pymc.results.tables import RACE_STATS, STEP_STATS
from amc_pymc.steps.model_densities import check_rows_finite
from amc_pymc.steps.preparation import stages
from amc_pymc.tall.samplers.chain import Auditor, Chain, Sampler, report
from amc_pymc.tall.samplers.preparation import Preparation
from amc_pymc.tall.samplers.tuning import FEWEST, Pieces

#: Change of a decision's log ratio by quadrature, in nats, above which a warning is issued.
_QUADRATURE_ERROR = 0.2
#: Maximum number of variables named in a warning.
_NAMED = 4

#: Attributes excluded from pickles: the model, its data, and PyMC's copy of the arguments.
_OF_THE_MODEL = ("_model", "_stamps", "_BlockedStep__newargs")


def stat_dtypes(own: Table) -> dict[str, Any]:
    """Return the declaration of a step's statistics for PyMC."""
    declared = RACE_STATS | STEP_STATS | own
    scalars: dict[str, Any] = {key: (np.float64, []) for key in declared}
    return {**scalars, "warning": (SamplerWarning, None)}


@dataclass_state
class RacingState(StepMethodState):
    """State of a chain, for PyMC."""

    tune: bool
    chain: Any


class RacingStep(BlockedStep):
    """A step method that draws with a sampler.

    A subclass sets ``core`` to the module of its sampler's functions, creates the sampler in its
    ``__init__`` and passes it to :meth:`_set_up`.
    """

    default_blocked = True
    _state_class = RacingState
    core: ClassVar[ModuleType]
    sampler: Sampler

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Check the model before PyMC looks at it."""
        kwargs["model"] = context_model(kwargs.get("model"))
        return super().__new__(cls, *args, **kwargs)

    def _set_up(
        self,
        sampler: Sampler,
        model: Model,
        value_vars: list[Any],
        rng: RandomGenerator,
        progressbar: bool,
    ) -> None:
        """Set attributes, and compile before workers are forked."""
        self._model, self.vars, self.rng = model, value_vars, get_random_generator(rng)
        self.var_names = [v.name for v in value_vars]
        self.sampler, self.tune = sampler, True
        self.chain: Chain | None = None
        self._stamps = data_stamps(model)
        warn_of(self.prepared.flags, type(self).__name__)
        idle = dataclasses.replace(sampler, transitions=0)
        x, fresh = self.prepared.start, self.core.init(idle, self.rng)
        with stages("Compiling the sampler", progressbar):
            self.core.step(idle, fresh, x, self.rng)

    @property
    def prepared(self) -> Preparation:
        """Preparation of the model for the sampler."""
        return self.sampler.prepared

    def replace(self, **settings: Any) -> Self:
        """Return the same step with other sampler settings, such as ``race`` or ``audits``.

        The model is not prepared again. A step that was not made with ``race="exact"`` reads all rows if changed to it.
        """
        out = copy.copy(self)
        out.sampler, out.chain = dataclasses.replace(self.sampler, **settings), None
        return out

    def __copy__(self) -> Self:
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__)
        return out

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle without the model, because the step has its own copy of the data."""
        self._refuse_changed_data()
        state = {k: v for k, v in self.__dict__.items() if k not in _OF_THE_MODEL}
        return object.__new__, (type(self),), state

    def _refuse_changed_data(self) -> None:
        """Raise an error if the model's data have changed; a pickled step was checked before."""
        model = getattr(self, "_model", None)
        now = {} if model is None else data_stamps(model)
        changed = [v.name or "a shared variable" for v in now if now[v] != self._stamps.get(v)]
        if changed:
            raise ValueError(
                f"The data of the model ({', '.join(changed)}) have changed since this "
                f"{type(self).__name__} was made. Make a new one."
            )

    # --- what PyMC calls ------------------------------------------------------------------------

    def setup_chain(self, rng: RandomGenerator, tune: int, draws: int) -> None:
        """Start a new chain; raise an error if the data have changed."""
        super().setup_chain(rng, tune, draws)
        _keep_to_one_thread()
        self._refuse_changed_data()
        self.prepared.densities.forget_errors()
        self.tune = tune > 0
        self.chain = self.core.init(self.sampler, self.rng, tune=tune, draws=draws)

    def reset_tuning(self) -> None:
        """Do nothing, because ``setup_chain`` starts every chain afresh."""

    def stop_tuning(self) -> None:
        """End tuning, and keep the tuned settings fixed."""
        if self.tune and self.chain is not None and self.chain.draw > 0:
            self.core.learn(self.sampler, self.chain)
        if self.tune and self.chain is not None:
            self.chain.pieces = Pieces(self.chain.auditor.draws, self.prepared.start.size)
        self.tune = False

    def step(
        self, point: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """Make ``transitions_per_draw`` transitions."""
        if self.chain is None:
            self.chain = self.core.init(self.sampler, self.rng)
        chain, tune = self.chain, self.tune
        x = self.prepared.densities.ravel(point)
        if chain.draw == 0:
            check_rows_finite(self.prepared.densities, x, "the start of the chain")
            x = self._first_point(chain, x)
        densities = self.prepared.densities
        before = densities.rows_read or 0
        x, counts = self.core.step(self.sampler, chain, x, self.rng, tuning=tune)
        chain.watch(x, self.sampler.active)
        read = None if densities.rows_read is None else densities.rows_read - before
        stats: dict[str, Any] = report(self.sampler, chain, counts, tuning=tune)
        stats["race_quadrature"] = densities.approximation_error
        if read is not None:  # units are groups of rows
            stats["race_rows"] = float(read)
            stats["race_audit_rows"] *= densities.n_rows / densities.n_units
        densities.touch(stats["race_rows"])
        doubts = () if chain.auditor.draw != chain.auditor.draws or tune else self._doubts(chain, x)
        stats["race_flags"] = float(flag_bits({*self.prepared.flags, *doubts}))
        said = ". ".join(f.message for f in doubts)
        stats["warning"] = SamplerWarning(WarningType.BAD_PARAMS, said, "warn") if said else None
        return self._moved(point, x), [{key: stats[key] for key in self.stats_dtypes_shapes}]

    @staticmethod
    def competence(var: Any, has_grad: bool = False) -> Competence:
        """Never assign an approximate sampler by default."""
        return Competence.INCOMPATIBLE

    # --- parts of a step ------------------------------------------------------------------------

    def _first_point(self, chain: Any, x: np.ndarray) -> np.ndarray:
        """Return the first point of a chain that was given x."""
        return x

    def _moved(self, point: dict[str, np.ndarray], x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the point with this step's variables taken from x."""
        new = self.prepared.densities.unravel(x)
        return {n: new[n] if n in self.var_names and n in new else v for n, v in point.items()}

    def _doubts(self, chain: Any, x: np.ndarray) -> list[Flag]:
        """Return flags at the last draw x (D,) of a chain."""
        doubts = [f for f in [self._wrong(chain.auditor)] if f]
        if chain.slow >= 0 and chain.auditor.draws >= FEWEST:
            what = self.prepared.densities.layout.labels()[chain.slow]
            doubts.append(flag("slow_chain", what=what, share=chain.between[chain.slow]))
        return doubts

    def _wrong(self, auditor: Auditor) -> Flag | None:
        """Return a flag if errors of quadrature or decisions are too large."""
        delta, tally = self.sampler.race.delta, auditor.tally
        error = self.prepared.quadrature_error
        if error >= TOLERANCE:
            return flag("quadrature_varies", error=error)
        if not tally.audited:
            return None
        error = self.prepared.densities.approximation_error
        if error > _QUADRATURE_ERROR:
            return flag("quadrature_varies", error=error)
        return wrong_decisions(tally.wrong, tally.audited, first_of(self.var_names), delta)


def wrong_decisions(wrong: int, audited: int, what: str, delta: float) -> Flag | None:
    """Return a flag if more audited decisions about something were wrong than chance explains."""
    if not audited or clopper_pearson(wrong, audited)[0] <= delta:
        return None
    return flag("wrong_decisions", wrong=wrong, audited=audited, what=what, delta=delta)


def first_of(names: list[str]) -> str:
    """Return the first names of a list for a message."""
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _keep_to_one_thread() -> None:
    """Limit linear algebra to one thread in the process of a chain, until the process ends.

    PyMC does so in spawned processes only. In forked ones, every chain would start as many threads as there are
    cores. Matrices are small, and the threads would mostly wait for each other.
    """
    if multiprocessing.parent_process() is not None:
        threadpool_limits(1, "blas")


# --- arguments ------------------------------------------------------------------------------------


#: Kind of the variables of a step, what it does with them, and where other variables belong.
_KINDS = {
    False: ("continuous", "moves", "Leave them out: pm.sample gives them a step of their own."),
    True: ("discrete", "draws", "Give them to RacingMetropolis, or leave them to pm.sample."),
}


def chosen_vars(vars: Any, model: Model, step: str, *, discrete: bool = False) -> list[Any]:
    """Return the value variables of continuous or discrete ``vars``; default: all of the model."""
    (kind, does, advice), (other, *_) = _KINDS[discrete], _KINDS[not discrete]
    own = [v for v in model.value_vars if v.dtype.startswith("float") is not discrete]
    if vars is None or (isinstance(vars, list) and vars == [None]):
        if not own:
            raise ValueError(f"The model has no {kind} free variable for {step}")
        return own
    vars = named_vars("vars", vars if isinstance(vars, list | tuple) else [vars], model)
    chosen = list(dict.fromkeys(get_value_vars_from_user_vars(vars, model)))
    wrong = ", ".join(v.name for v in chosen if v not in own)
    if wrong:
        raise ValueError(
            f"vars holds {other} variables ({wrong}); {step} {does} {kind} ones. {advice}"
        )
    return chosen


def named_vars(argument: str, vars: Sequence[Any], model: Model) -> list[Any]:
    """Return variables with free variables of the model in the place of their names."""
    free = {rv.name: rv for rv in model.free_RVs}
    unknown = [v for v in vars if isinstance(v, str) and v not in free]
    if unknown:
        raise ValueError(
            f"{argument} names {', '.join(unknown)}; free variables of this model: "
            f"{', '.join(free)}"
        )
    return [free[v] if isinstance(v, str) else v for v in vars]
