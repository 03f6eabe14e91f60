"""Metropolis-Hastings that reads a few rows of tall data per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from pymc.model import modelcontext
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator, get_value_vars_from_user_vars
from rich.progress import TextColumn
from rich.table import Column

from amc_pymc.diagnostics import clopper_pearson
from amc_pymc.extract.native import callback_error, entry_point
from amc_pymc.racing import NOT_FINITE, Population, RaceRule, make_population
from amc_pymc.results import RACE_STATS
from amc_pymc.rng import as_generator
from amc_pymc.step_methods.auditing import Auditor
from amc_pymc.step_methods.chain import (
    Chain,
    begin_chain,
    kinds_of,
    learn,
    near_mode,
    tune_chain,
)
from amc_pymc.step_methods.metropolis_kernel import (
    KINDS,
    Densities,
    no_gradient,
    no_row_gradient,
    run_transitions,
)
from amc_pymc.step_methods.preparation import (
    PREPARATION_SEED,
    Preparation,
    check_rows_finite,
    prepare,
)
from amc_pymc.step_methods.settings import (
    Audits,
    LangevinProposal,
    Proposal,
    Race,
    TaylorProxy,
    as_audits,
    as_proposals,
    as_proxy,
    as_race,
    check_combination,
)

__all__ = ["RacingMetropolis", "continuous_vars"]


@dataclass_state
class RacingMetropolisState(StepMethodState):
    """State of a chain, for PyMC."""

    tune: bool
    chain: Any


class RacingMetropolis(BlockedStep):
    r"""Sample continuous variables of a model with many rows, reading few of them per step.

    A Metropolis-Hastings step compares the log-likelihood of a proposal with that of the current
    point over all N rows. Here the comparison is a race: rows are read in doubling batches without
    replacement until the verdict is clear at error probability ``delta`` (Racing-Normal). A
    second-order Taylor control variate of every row around the posterior mode takes up nearly all
    of the difference, so that 100-200 rows usually decide, whatever N is.

    Use it for models with at least some ten thousand conditionally independent rows and up to a
    few hundred parameters. The sampler is approximate: each decision differs from the exact one
    with probability at most ``delta`` if batch means are normal. How often it really does is
    measured on audited decisions: :func:`amc_pymc.decision_error`.

    Parameters
    ----------
    vars : sequence of variables, optional
        Continuous variables to sample, default all. Others may have steps of their own.
    observed_vars : sequence of str or variables, optional
        Observed variables whose rows are raced; default those with the most rows. Everything else
        in the model's logp (priors, Jacobians, Potentials, other observed variables) enters
        exactly.
    delta : float, default 0.05
        Promised error probability of a decision, in (0, 0.5).
    race : {"normal", "exact"} or NormalRace or ExactRace
        ``"exact"`` reads all rows: a plain Metropolis-Hastings chain, for checking.
    batch_size : int, default 50
        Rows of the first batch.
    proposal : {"auto", "random_walk", "gaussian", "langevin"} or a proposal object
        ``"auto"`` mixes Gaussian moves with a random walk, and gives nine tenths to the one that
        moved the chain further while tuning.
    proxy : {"auto", "taylor"} or TaylorProxy or None
        Control variate. ``"auto"`` does without, and says so, where there can be none. Many decisions
        are close then: use ``delta=0.01, batch_size=200``, or the posterior is visibly too wide.
    audits : int or Audits, default 200
        Decisions per chain re-made on all rows, within a tenth of the time.
    transitions_per_draw : int, default 1
        Transitions between stored draws. ``pm.sample`` spends 5-300 microseconds per stored draw, a
        transition often less.
    row_logp : callable, optional
        ``(point, rows) -> (m,)`` log-likelihoods (natural) of the given rows at a point (a dict of
        value variables), for likelihoods that cannot be sliced. There is no control variate then.
    model : pm.Model, optional
        Default: the model of the context.
    rng : numpy.random.Generator or int, optional
        ``pm.sample`` replaces it for each chain.
    initial_point : dict, optional
        Where the model is checked and the mode search starts.
    compile_kwargs : dict, optional
        For ``pytensor.function``.
    blocked : bool, default True
        Move all variables jointly.

    Raises
    ------
    ValueError
        Arguments out of range, no observed variable, rows that are not finite at the start, discrete
        ``vars``. :class:`amc_pymc.NotRowFactorised` names what cannot be taken row by row.

    Notes
    -----
    With u uniform, :math:`x'` is accepted if

    .. math:: \frac1N\sum_n [l_n(x') - l_n(x)] >
        \frac1N \log \frac{u\,p(x)\,q(x' \mid x)}{p(x')\,q(x \mid x')}.

    ``sample_stats`` gets ``accept``, ``accepted``, ``scaling``, ``race_rows``, ``race_rounds``,
    ``race_delta``, ``race_audited``, ``race_wrong``, ``race_audit_rows`` and ``race_recentred``, one
    number per draw, sums over its transitions where they count.

    References
    ----------
    Y. Chen and Z. Ghahramani (2016). Scalable Discrete Sampling as a Multi-Armed Bandit Problem.
    ICML, PMLR 48:2492-2501.
    R. Bardenet, A. Doucet and C. Holmes (2017). On Markov chain Monte Carlo methods for tall data.
    JMLR 18(47).

    Examples
    --------
    >>> import numpy as np, pymc as pm, amc_pymc as amc
    >>> y = np.random.default_rng(1).normal(2.0, 1.0, size=20_000)
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     obs = pm.Normal("obs", mu, 1, observed=y)
    ...     idata = pm.sample(
    ...         200,
    ...         tune=100,
    ...         step=amc.RacingMetropolis(),
    ...         chains=2,
    ...         cores=1,
    ...         random_seed=1,
    ...         progressbar=False,
    ...         quiet=True,
    ...     )
    >>> bool(abs(idata.posterior["mu"].mean() - y.mean()) < 0.002)
    True
    """

    name = "racing_metropolis"
    default_blocked = True
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = {
        **{key: (dtype, []) for key, (dtype, _) in RACE_STATS.items()},
        "warning": (SamplerWarning, None),
    }
    _state_class = RacingMetropolisState

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        observed_vars: Sequence[Any] | None = None,
        delta: float = 0.05,
        race: Literal["normal", "exact"] | Race = "normal",
        batch_size: int = 50,
        proposal: Literal["auto", "random_walk", "gaussian", "langevin"] | Proposal = "auto",
        proxy: Literal["auto", "taylor"] | TaylorProxy | None = "auto",
        audits: int | Audits = 200,
        transitions_per_draw: int = 1,
        row_logp: Callable | None = None,
        model=None,
        rng=None,
        initial_point: Mapping[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ):
        self.race = as_race(race, delta, batch_size)
        self.audits = as_audits(audits)
        self.transitions_per_draw = _positive_int("transitions_per_draw", transitions_per_draw)
        proxy_settings, insist = as_proxy(proxy)
        check_combination(as_proposals(proposal, proxy_settings), proxy_settings, insist, row_logp)
        self._model = model = modelcontext(model)
        self.vars = continuous_vars(vars, model)
        self.rng = get_random_generator(rng)
        point = model.initial_point() if initial_point is None else dict(initial_point)
        _check_point(point, model)
        self.var_names = [v.name for v in self.vars]
        self.prepared: Preparation = prepare(
            model,
            self.var_names,
            observed_vars=observed_vars,
            race=self.race,
            proxy=proxy_settings,
            insist=insist,
            row_logp=row_logp,
            point=point,
            compile_kwargs=compile_kwargs,
            rng=as_generator(PREPARATION_SEED),
        )
        has_proxy = self.prepared.surrogate is not None
        self.proposals = as_proposals(proposal, proxy_settings if has_proxy else None)
        if self.prepared.fit is None and kinds_of(self.proposals) == (KINDS.index("gaussian"),):
            raise ValueError(
                "proposal='gaussian' needs the mode that the control variate is built on, and "
                f"there is none: {'; '.join(self.prepared.notes)}. Use 'auto' or 'random_walk'."
            )
        self.tune = True
        self.chain: Chain | None = None
        self._native: tuple[Densities, Population, RaceRule] | None = None
        self._run: Callable | None = None
        self._transitions(self._begin(0, 0), self.prepared.start, number=0)
        self.chain = None

    # --- what PyMC calls ------------------------------------------------------------------------

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Forget the chain before and refuse data that have changed."""
        super().setup_chain(rng, tune, draws)
        rows = self.prepared.densities.rows
        if not rows.is_current(self._model):
            raise ValueError(
                f"The data of the model ({', '.join(rows.shared_names)}) have changed since this "
                "RacingMetropolis was made. Make a new one."
            )
        self.tune = tune > 0
        self._begin(tune, draws)

    def reset_tuning(self) -> None:
        """Nothing is carried from chain to chain: ``setup_chain`` begins anew."""

    def stop_tuning(self) -> None:
        """Freeze scales, covariance and weights."""
        if self.tune and self.chain is not None and self.chain.draw > 0:
            learn(self.chain, self.prepared, self.proposals)
        self.tune = False

    def step(self, point):
        """Make ``transitions_per_draw`` transitions."""
        chain = self.chain if self.chain is not None else self._begin(0, 0)
        layout = self.prepared.densities.layout
        x = layout.ravel(point)
        if chain.draw == 0:
            check_rows_finite(self.prepared.densities, x, "the start of the chain")
            x = near_mode(chain, self.prepared, x, self.rng) if self.tune else x
        stats, x = self._transitions(chain, x, self.transitions_per_draw)
        chain.draw += 1
        if self.tune:
            tune_chain(chain, self.prepared, self.proposals, stats, x)
        out = dict(point)
        slices = layout.slices
        for name in self.var_names:
            old = np.asarray(point[name])
            out[name] = x[slices[name]].reshape(old.shape).astype(old.dtype, copy=False)
        return out, [self._report(chain, stats)]

    @staticmethod
    def competence(var, has_grad=False):
        """An approximate sampler is never assigned unasked."""
        return Competence.INCOMPATIBLE

    def _progressbar_config(self, n_chains=1):
        columns = [
            TextColumn("{task.fields[accept_rate]:0.2f}", table_column=Column("Accept", ratio=1)),
            TextColumn("{task.fields[share]:0.2%}", table_column=Column("Rows read", ratio=1)),
        ]
        return columns, {"accept_rate": [0.0] * n_chains, "share": [0.0] * n_chains}

    def _make_progressbar_update_functions(self):
        whole = self.prepared.densities.n_rows * self.transitions_per_draw

        def update(step_stats):
            return {
                "accept_rate": step_stats["accept"],
                "share": step_stats["race_rows"] / whole,
            }

        return (update,)

    def __getstate__(self):
        state = self.__dict__.copy()
        state["_native"] = state["_run"] = None
        return state

    # --- a chain --------------------------------------------------------------------------------

    def _begin(self, tune: int, draws: int) -> Chain:
        self.chain = begin_chain(
            self.prepared, self.var_names, self.proposals, self.audits, tune, draws, self.rng
        )
        return self.chain

    def _natives(self) -> tuple[Densities, Population, RaceRule]:
        if self._native is None:
            densities = self.prepared.densities
            langevin = any(isinstance(p, LangevinProposal) for p in self.proposals)
            population = make_population(densities.n_rows, self.prepared.exact_rows)
            n_raced = population.n_raced
            first = self.race.first_batch(n_raced)
            rule = RaceRule(self.race.bound(n_raced), first, self.prepared.rounding_only)
            compiled = Densities(
                densities.rewards,
                densities.rest,
                densities.rest_gradient if langevin else no_gradient,
                densities.row_gradient if langevin else no_row_gradient,
            )
            self._native = compiled, population, rule
        return self._native

    def _transitions(
        self, chain: Chain, x: np.ndarray, number: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Make transitions from x; return their statistics (4, 4) and the point reached.

        None at all compiles what is needed, so that forked workers need not.
        """
        densities, population, rule = self._natives()
        points = np.stack([x, x])
        stats = np.zeros((4, 4))
        log = chain.auditor.log
        if self.tune:
            log = log._replace(x=log.x[:0])
        shared = densities, chain.surrogate, population, rule, chain.moves
        left = number
        if self._run is None:
            args = (left, points, *shared, self.rng, log, chain.audit_rng, stats)
            self._run = entry_point(run_transitions, args)
        while left > 0:
            args = (left, points, *shared, self.rng, log, chain.audit_rng, stats)
            done, status, row = self._run(*args)
            left -= done
            if status == NOT_FINITE:
                self._reject_or_raise(points, row)
                left -= 1
        return stats, points[0]

    def _reject_or_raise(self, points: np.ndarray, row: int) -> None:
        """A bad row at the proposal is a rejection, at the current point an error."""
        densities = self.prepared.densities
        error = callback_error(densities.rewards)
        if error is not None:
            raise error
        value = float(densities.values(points[0], np.array([row]))[0])
        if not np.isfinite(value):
            raise ValueError(
                f"The log-likelihood of {', '.join(densities.rows.observed_vars)} is {value} in row {row} at the current "
                "point of the chain: a row that had not been read when the chain moved there. Use "
                "race='exact', or a likelihood that is positive everywhere."
            )

    def _report(self, chain: Chain, stats: np.ndarray) -> dict[str, Any]:
        tries = stats[:3, 0].sum()
        rows = stats[3, 0] + stats[3, 2]
        audited = wrong = audit_rows = 0
        warning = None
        chain.auditor.spend(rows)
        if not self.tune and chain.auditor.draws and chain.auditor.due():
            audited, wrong, audit_rows = chain.auditor.run(
                self.prepared, chain.surrogate, chain.audit_rng
            )
            warning = self._error_warning(chain.auditor)
        return {
            "accept": stats[:3, 2].sum() / tries,
            "accepted": stats[:3, 1].sum() / tries,
            "scaling": float(chain.moves.scales[int(np.argmax(chain.moves.weights))]),
            "race_rows": float(rows),
            "race_rounds": float(stats[3, 1]),
            "race_delta": float(self.race.delta),
            "race_audited": float(audited),
            "race_wrong": float(wrong),
            "race_audit_rows": float(audit_rows),
            "race_recentred": float(chain.recentred),
            "warning": warning,
        }

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


def _positive_int(name: str, value) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def _check_point(point, model) -> None:
    for v in model.value_vars:
        if v.name not in point:
            raise ValueError(
                f"initial_point has no value for {v.name!r}; it needs one for each of "
                f"{', '.join(w.name for w in model.value_vars)}, as model.initial_point() has"
            )
        shape, known = np.shape(point[v.name]), v.type.shape
        if len(shape) != len(known) or any(n not in (None, m) for n, m in zip(known, shape)):
            raise ValueError(f"initial_point has shape {shape} for {v.name!r}, the model {known}")


def continuous_vars(vars, model) -> list:
    """Value variables of the user's continuous ``vars``, default all of the model."""
    if vars is None or (isinstance(vars, list) and vars == [None]):
        chosen = [v for v in model.value_vars if v.dtype.startswith("float")]
        if not chosen:
            raise ValueError("The model has no continuous free variable for RacingMetropolis")
        return chosen
    if not isinstance(vars, list | tuple):
        vars = [vars]
    chosen = get_value_vars_from_user_vars(vars, model)
    discrete = [v.name for v in chosen if not v.dtype.startswith("float")]
    if discrete:
        raise ValueError(
            f"vars holds discrete variables ({', '.join(discrete)}); RacingMetropolis moves "
            "continuous ones. Leave them out: pm.sample gives them a step of their own."
        )
    return chosen
