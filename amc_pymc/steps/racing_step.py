"""Base class of racing step methods: a sampler's chain inside ``pm.sample``, and its report."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing

from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np

from pymc import Model
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import RandomGenerator, get_random_generator
from threadpoolctl import threadpool_limits

from amc_pymc.flags import Flag, flag, flag_bits, warn_of
from amc_pymc.reading.graphs import context_model
from amc_pymc.reading.group_densities import TOLERANCE
from amc_pymc.reading.rows import data_stamps
from amc_pymc.results import Table, clopper_pearson
from amc_pymc.results.tables import RACE_STATS, STEP_STATS
from amc_pymc.steps.preparation import check_rows_finite, stages
from amc_pymc.tall.samplers.chain import FEWEST, Chain, Pieces, Sampler, report
from amc_pymc.tall.samplers.fit import Preparation

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
    prepared: Preparation

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
        self.sampler, self.prepared, self.tune = sampler, sampler.prepared, True
        self.chain: Chain | None = None
        self._stamps = data_stamps(model)
        if sampler.prepared.flags:
            warn_of(sampler.prepared.flags, type(self).__name__)
        idle = dataclasses.replace(sampler, transitions=0)
        x, fresh = self.prepared.start, self.core.init(idle, self.rng)
        with stages("Compiling the sampler", progressbar):
            self.core.step(idle, fresh, x, self.rng)

    def replace(self, **settings: Any) -> Self:
        """Return the same step with other sampler settings, such as ``race`` or ``audits``.

        The model is not prepared again. A step that was not made with ``race="exact"`` reads all rows if changed to it.
        """
        out = copy.copy(self)
        out.sampler, out.chain = dataclasses.replace(self.sampler, **settings), None
        out.prepared = out.sampler.prepared
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
        # PyMC limits linear algebra to one thread in spawned processes only. In forked ones, every chain would start
        # as many threads as there are cores. Matrices are small, and the threads would mostly wait for each other.
        if multiprocessing.parent_process() is not None:
            threadpool_limits(1, "blas")
        self._refuse_changed_data()
        self.prepared.densities.approximation_error = 0.0
        self.tune = tune > 0
        self.chain = self.core.init(self.sampler, self.rng, tune=tune, draws=draws)

    def reset_tuning(self) -> None:
        """Do nothing, because ``setup_chain`` starts every chain afresh."""

    def stop_tuning(self) -> None:
        """End tuning, and keep the tuned settings fixed."""
        if self.tune and self.chain is not None and self.chain.draw > 0:
            self.core.learn(self.sampler, self.chain)
        if self.tune and self.chain is not None:
            self.chain.pieces = Pieces(self.chain.auditor.draws)
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
        densities.store.touch(stats["race_rows"])
        doubts = () if chain.auditor.draw != chain.auditor.draws or tune else self._doubts(chain)
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

    def _doubts(self, chain: Any) -> list[Flag]:
        """Return flags at the last draw of a chain."""
        doubts, tally = list[Flag](), chain.auditor.tally
        before, later = self.prepared.quadrature_error, self.prepared.densities.approximation_error
        names = self.var_names
        named = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
        wrong = wrong_decisions(tally.wrong, tally.audited, named, self.sampler.race.delta)
        if before >= TOLERANCE:
            doubts.append(flag("quadrature_varies", error=before))
        elif tally.audited and later > _QUADRATURE_ERROR:
            doubts.append(flag("quadrature_varies", error=later))
        elif wrong is not None:
            doubts.append(wrong)
        if chain.slow >= 0 and chain.auditor.draws >= FEWEST:
            what = self.prepared.densities.layout.labels()[chain.slow]
            doubts.append(flag("slow_chain", what=what, share=chain.between[chain.slow]))
        return doubts


def wrong_decisions(wrong: int, audited: int, what: str, delta: float) -> Flag | None:
    """Return a flag if more audited decisions about something were wrong than chance explains."""
    if not audited or clopper_pearson(wrong, audited)[0] <= delta:
        return None
    return flag("wrong_decisions", wrong=wrong, audited=audited, what=what, delta=delta)
