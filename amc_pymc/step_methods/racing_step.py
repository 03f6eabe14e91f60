"""What all racing step methods share: the life of a chain inside ``pm.sample``, and its report."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator, get_value_vars_from_user_vars
from rich.progress import TextColumn
from rich.table import Column

from amc_pymc.diagnostics import clopper_pearson
from amc_pymc.extract.native import callback_error
from amc_pymc.results import RACE_STATS
from amc_pymc.rng import as_generator
from amc_pymc.step_methods.auditing import Auditor
from amc_pymc.step_methods.chain import Chain
from amc_pymc.step_methods.preparation import (
    PREPARATION_SEED,
    Preparation,
    check_rows_finite,
    prepare,
)
from amc_pymc.step_methods.settings import Proxy

__all__ = ["RacingStep", "continuous_vars", "starting_point", "stat_dtypes"]


def stat_dtypes(own: dict[str, tuple[type, str]]) -> dict[str, Any]:
    """Declaration of a step's statistics for PyMC."""
    scalars: dict[str, Any] = {
        key: (dtype, []) for key, (dtype, _) in {**RACE_STATS, **own}.items()
    }
    return {**scalars, "warning": (SamplerWarning, None)}


@dataclass_state
class RacingState(StepMethodState):
    """State of a chain, for PyMC."""

    tune: bool
    chain: Any


class RacingStep(BlockedStep):
    """A step method whose decisions are races over rows.

    A subclass sets ``race``, ``audits`` and ``transitions_per_draw``, calls :meth:`_take_apart` and,
    at the end of its ``__init__``, :meth:`_ready`, and defines ``_begin``, ``_compile``,
    ``_transitions``, ``_tune``, ``_learn`` and ``_summary``.
    """

    default_blocked = True
    _state_class = RacingState

    prepared: Preparation
    transitions_per_draw: int
    var_names: list[str]

    def _take_apart(
        self,
        model,
        value_vars: list,
        point: dict[str, np.ndarray],
        rng,
        *,
        observed_vars,
        proxy: Proxy | None,
        insist: bool,
        row_logp,
        compile_kwargs: dict[str, Any] | None,
        progressbar: bool,
        fit: bool = True,
    ) -> None:
        """Prepare the model for races over these variables."""
        self._model, self.vars, self.rng = model, value_vars, get_random_generator(rng)
        self.var_names = [v.name for v in value_vars]
        self.prepared = prepare(
            model,
            self.var_names,
            observed_vars=observed_vars,
            race=self.race,
            proxy=proxy,
            insist=insist,
            point=point,
            rng=as_generator(PREPARATION_SEED),
            row_logp=row_logp,
            compile_kwargs=compile_kwargs,
            fit=fit,
            progressbar=progressbar,
        )

    def _ready(self) -> None:
        """Compile now, so that forked workers need not."""
        self.tune = True
        self.chain: Chain | None = None
        self._native: tuple | None = None
        self._run: Any = None
        self._rest_data = self.prepared.densities.rest_data(self._model)
        self._transitions(self._begin(0, 0), self.prepared.start.copy(), 0)

    # --- what PyMC calls ------------------------------------------------------------------------

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Forget the chain before and refuse data that have changed."""
        super().setup_chain(rng, tune, draws)
        densities, (names, _) = self.prepared.densities, self._rest_data
        changed = [] if densities.rows.is_current(self._model) else densities.rows.shared_names
        changed = changed or (names if densities.rest_data(self._model) != self._rest_data else [])
        if changed:
            raise ValueError(
                f"The data of the model ({', '.join(changed)}) have changed since this "
                f"{type(self).__name__} was made. Make a new one."
            )
        self.tune = tune > 0
        self.chain = self._begin(tune, draws)

    def reset_tuning(self) -> None:
        """Nothing is carried from chain to chain: ``setup_chain`` begins anew."""

    def stop_tuning(self) -> None:
        """Freeze what has been learnt."""
        if self.tune and self.chain is not None and self.chain.draw > 0:
            self._learn(self.chain)
        self.tune = False

    def step(self, point):
        """Make ``transitions_per_draw`` transitions."""
        if self.chain is None:
            self.chain = self._begin(0, 0)
        chain = self.chain
        x = self.prepared.densities.layout.ravel(point)
        if chain.draw == 0:
            check_rows_finite(self.prepared.densities, x, "the start of the chain")
            x = self._first_point(chain, x)
        stats, x = self._transitions(chain, x, self.transitions_per_draw)
        chain.draw += 1
        if self.tune:
            self._tune(chain, stats, x)
        return self._moved(point, x), [self._report(chain, stats)]

    @staticmethod
    def competence(var, has_grad=False):
        """An approximate sampler is never assigned unasked."""
        return Competence.INCOMPATIBLE

    def _progressbar_config(self, n_chains=1):
        columns = [
            TextColumn("{task.fields[share]:0.2%}", table_column=Column("Rows read", ratio=1))
        ]
        fields = {"share": [0.0] * n_chains}
        if "accept" in self.stats_dtypes_shapes:
            accept = Column("Accept", ratio=1)
            columns.insert(0, TextColumn("{task.fields[accept_rate]:0.2f}", table_column=accept))
            fields["accept_rate"] = [0.0] * n_chains
        return columns, fields

    def _make_progressbar_update_functions(self):
        whole = self._rows_of_a_draw()

        def update(stats):
            shown = {"share": stats["race_rows"] / whole}
            return shown | ({"accept_rate": stats["accept"]} if "accept" in stats else {})

        return (update,)

    def __getstate__(self):
        state = self.__dict__.copy()
        state["_native"] = state["_run"] = None
        return state

    # --- for subclasses -------------------------------------------------------------------------

    def _first_point(self, chain, x: np.ndarray) -> np.ndarray:
        """Where a chain that was given x begins."""
        return x

    def _rows_of_a_draw(self) -> float:
        """Rows that a draw with exact decisions reads."""
        return float(self.prepared.densities.n_rows * self.transitions_per_draw)

    def _natives(self) -> tuple:
        if self._native is None:
            self._native = self._compile()
        return self._native

    def _log(self, chain: Chain):
        """Where decisions are written; nowhere while tuning."""
        log = chain.auditor.log
        return log._replace(x=log.x[:0]) if self.tune else log

    def _moved(self, point, x: np.ndarray) -> dict[str, np.ndarray]:
        """The point with this step's variables taken from x."""
        out, slices = dict(point), self.prepared.densities.layout.slices
        for name in self.var_names:
            old = np.asarray(point[name])
            out[name] = x[slices[name]].reshape(old.shape).astype(old.dtype, copy=False)
        return out

    def _raise_if_here(self, x: np.ndarray, row: int) -> None:
        """A row that is not finite at the proposal is a rejection, at the current x an error."""
        densities = self.prepared.densities
        self._raise_callback_error()
        value = float(densities.values(x, np.array([row]))[0])
        if not np.isfinite(value):
            raise ValueError(
                f"The log-likelihood of {', '.join(densities.rows.observed_vars)} is {value} in "
                f"row {row} at the current point of the chain: a row that had not been read when "
                "the chain moved there. Use race='exact', or a likelihood that is positive "
                "everywhere."
            )

    def _raise_callback_error(self) -> None:
        densities = self.prepared.densities
        for name in ("rewards", "state_rewards"):
            error = callback_error(densities.__dict__.get(name))
            if error is not None:
                raise error

    def _report(self, chain: Chain, stats: np.ndarray) -> dict[str, Any]:
        summary = self._summary(chain, stats)
        audited = wrong = audit_rows = 0
        warning = None
        chain.auditor.spend(summary["race_rows"])
        if not self.tune and chain.auditor.draws and chain.auditor.due():
            audited, wrong, audit_rows = chain.auditor.run(
                self.prepared, chain.surrogate, chain.audit_rng
            )
            warning = self._error_warning(chain.auditor)
        report = {
            **summary,
            "race_delta": float(self.race.delta),
            "race_audited": float(audited),
            "race_wrong": float(wrong),
            "race_audit_rows": float(audit_rows),
            "race_recentred": float(chain.recentred),
            "warning": warning,
        }
        return {key: report[key] for key in self.stats_dtypes_shapes}

    def _error_warning(self, auditor: Auditor) -> SamplerWarning | None:
        if auditor.draw < auditor.draws or not auditor.tally.audited:
            return None
        low, _ = clopper_pearson(auditor.tally.wrong, auditor.tally.audited)
        if low <= self.race.delta:
            return None
        message = (
            f"{auditor.tally.wrong} of {auditor.tally.audited} audited decisions were wrong, more "
            f"than delta={self.race.delta} allows: batch means are not normal. Raise batch_size, "
            "or TaylorProxy(exact_rows=)."
        )
        return SamplerWarning(WarningType.BAD_PARAMS, message, "warn")


def starting_point(model, initial_point) -> dict[str, np.ndarray]:
    """The user's initial point, which must have the variables and shapes of the model, or its own."""
    point = model.initial_point() if initial_point is None else dict(initial_point)
    for v in model.value_vars:
        if v.name not in point:
            raise ValueError(
                f"initial_point has no value for {v.name!r}; it needs one for each of "
                f"{', '.join(w.name for w in model.value_vars)}, as model.initial_point() has"
            )
        shape, known = np.shape(point[v.name]), v.type.shape
        if len(shape) != len(known) or any(n not in (None, m) for n, m in zip(known, shape)):
            raise ValueError(f"initial_point has shape {shape} for {v.name!r}, the model {known}")
    return point


def continuous_vars(vars, model, step: str) -> list:
    """Value variables of the user's continuous ``vars``, default all of the model."""
    if vars is None or (isinstance(vars, list) and vars == [None]):
        chosen = [v for v in model.value_vars if v.dtype.startswith("float")]
        if not chosen:
            raise ValueError(f"The model has no continuous free variable for {step}")
        return chosen
    if not isinstance(vars, list | tuple):
        vars = [vars]
    chosen = list(dict.fromkeys(get_value_vars_from_user_vars(vars, model)))
    discrete = [v.name for v in chosen if not v.dtype.startswith("float")]
    if discrete:
        raise ValueError(
            f"vars holds discrete variables ({', '.join(discrete)}); {step} moves "
            "continuous ones. Leave them out: pm.sample gives them a step of their own."
        )
    return chosen
