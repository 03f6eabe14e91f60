"""Gibbs sampling of discrete variables that reads a few rows of tall data per draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from pymc.model import modelcontext
from pymc.util import get_value_vars_from_user_vars

from amc_pymc.arguments import positive_int
from amc_pymc.extract.native import entry_point
from amc_pymc.extract.support import element_states
from amc_pymc.proxies import DataProxy
from amc_pymc.racing import DECIDED, Population, RaceRule, make_population
from amc_pymc.results import GIBBS_STATS
from amc_pymc.step_methods.adaptation import Moments
from amc_pymc.step_methods.auditing import Auditor, StateDecisions
from amc_pymc.step_methods.chain import Chain, first_surrogate, learns_now, recentre
from amc_pymc.step_methods.compiled import Densities
from amc_pymc.step_methods.gibbs_kernel import (
    NO_STATE,
    NOT_EXPANDABLE,
    REST_NOT_FINITE,
    Elements,
    run_sweeps,
)
from amc_pymc.step_methods.preparation import Preparation
from amc_pymc.step_methods.racing_step import RacingStep, starting_point, stat_dtypes
from amc_pymc.step_methods.settings import (
    Audits,
    ExactRace,
    Race,
    TaylorProxy,
    as_audits,
    as_proxy,
    as_race,
    check_row_logp,
)

__all__ = ["RacingGibbs"]


class RacingGibbs(RacingStep):
    r"""Sample discrete variables on which every row depends, reading few rows per draw.

    An element with K states gets the state with the highest
    :math:`\log p(x_k) + \varepsilon_k`, with Gumbel noise :math:`\varepsilon_k`: an exact draw from
    its full conditional. Which state that is, is found by a race: rows are read in doubling batches
    without replacement, states that cannot win any more are dropped, and the race ends when one is
    left. Elements are drawn one after the other, in random order.

    Use it for Bernoulli, Categorical and other bounded discrete variables of models with at least
    some ten thousand conditionally independent rows. The sampler is approximate: each draw differs
    from the exact one, made with the same noise, with probability at most ``delta``, so that the
    conditional distribution is off by at most ``delta`` in total variation. How often that happens
    is measured on audited draws: :func:`amc_pymc.decision_error`.

    Parameters
    ----------
    vars : sequence of variables, optional
        Discrete variables to sample, default all. Others may have steps of their own.
    observed_vars : sequence of str or variables, optional
        Observed variables whose rows are raced; default those with the most rows. Everything else
        in the model's logp enters exactly.
    delta : float, default 0.05
        Promised error probability of a draw, in (0, 0.5).
    race : {"normal", "bernstein", "lil_ucb", "exact"} or a race such as NormalRace
        ``"exact"`` reads all rows: a plain Gibbs sampler, for checking.
    variance : {"pairwise", "marginal"}
        Whether states are compared by the variance of their difference, or each by its own, which
        costs K instead of K^2 operations per row and reads more rows.
    batch_size : int, default 50
        Rows of the first batch.
    proxy : {"auto", "taylor", "data"} or TaylorProxy or DataProxy or None
        Control variate. ``"auto"`` expands every row in what it makes of the discrete variables
        (``gamma * beta``, ``mu[k]``), and does without where that is not smooth. ``"data"`` expands
        in the rows' data instead.
    audits : int or Audits, default 200
        Draws per chain re-made on all rows, within a tenth of the time.
    transitions_per_draw : int, default 1
        Sweeps over all elements between stored draws.
    states : mapping of str to sequence of int, optional
        States of variables whose support cannot be read off their distribution.
    max_states : int, default 1000
        Variables with more are refused.
    row_logp : callable, optional
        ``(point, rows) -> (m,)`` log-likelihoods (natural) of the given rows, for likelihoods that
        cannot be sliced. There is no control variate then.
    model : pm.Model, optional
        Default: the model of the context.
    rng : numpy.random.Generator or int, optional
        ``pm.sample`` replaces it for each chain.
    initial_point : dict, optional
        Where the model is checked and the search for the centre of the control variate starts.
    compile_kwargs : dict, optional
        For ``pytensor.function``.
    blocked : bool, default True
        Draw all elements of all variables in one random order.
    progressbar : bool, default True
        Show how far the preparation is where it takes longer than two seconds.

    Raises
    ------
    ValueError
        Arguments out of range, no discrete or no observed variable, continuous ``vars``, a state
        space that is unbounded, unknown or too large, one value per row, rows that are not finite
        at the start. :class:`amc_pymc.NotRowFactorised` names what cannot be taken row by row.

    Notes
    -----
    State i of K is an arm with the rewards
    :math:`l_{i,n} = \log f_n(i) + (\log f_0(i) + \varepsilon_i) / N`, of which the arm with the
    highest mean over the rows is found. A state in which the rest of the model has log density
    :math:`-\infty` does not race; if only one is left, no row is read.

    ``sample_stats`` gets ``race_rows``, ``race_rounds``, ``race_delta``, ``race_audited``,
    ``race_wrong``, ``race_audit_rows``, ``race_recentred``, ``race_moved`` and ``race_arms_left``.

    References
    ----------
    Y. Chen and Z. Ghahramani (2016). Scalable Discrete Sampling as a Multi-Armed Bandit Problem.
    ICML, PMLR 48:2492-2501.
    G. Papandreou and A. Yuille (2011). Perturb-and-MAP random fields. ICCV.
    doi:10.1109/ICCV.2011.6126242

    Examples
    --------
    >>> import numpy as np, pymc as pm, amc_pymc as amc
    >>> y = np.random.default_rng(1).normal(2.0, 10.0, size=20_000)
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", p=np.ones(5) / 5)
    ...     mean = 1.8 + 0.1 * k
    ...     obs = pm.Normal("obs", mean, 10, observed=y)
    ...     idata = pm.sample(
    ...         300,
    ...         tune=50,
    ...         step=amc.RacingGibbs([k]),
    ...         chains=2,
    ...         cores=1,
    ...         random_seed=1,
    ...         progressbar=False,
    ...         quiet=True,
    ...     )
    >>> log_p = [-0.5 * np.sum((y - 1.8 - 0.1 * j) ** 2) / 100 for j in range(5)]
    >>> exact = np.exp(log_p - np.logaddexp.reduce(log_p))
    >>> bool(abs(idata.posterior["k"].mean() - exact @ np.arange(5)) < 0.1)
    True
    """

    name = "racing_gibbs"
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = stat_dtypes(GIBBS_STATS)

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        observed_vars: Sequence[Any] | None = None,
        delta: float = 0.05,
        race: Literal["normal", "bernstein", "lil_ucb", "exact"] | Race = "normal",
        variance: Literal["pairwise", "marginal"] = "pairwise",
        batch_size: int = 50,
        proxy: Literal["auto", "taylor", "data"] | TaylorProxy | DataProxy | None = "auto",
        audits: int | Audits = 200,
        transitions_per_draw: int = 1,
        states: Mapping[str, Sequence[int]] | None = None,
        max_states: int = 1000,
        row_logp: Callable | None = None,
        model=None,
        rng=None,
        initial_point: Mapping[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
        progressbar: bool = True,
    ):
        self.race = as_race(race, delta, batch_size, variance)
        self.audits = as_audits(audits)
        self.transitions_per_draw = positive_int("transitions_per_draw", transitions_per_draw)
        all_rows = isinstance(self.race, ExactRace)  # a control variate would only cost time
        proxy_settings, insist = as_proxy(None if all_rows and proxy == "auto" else proxy)
        check_row_logp(row_logp, proxy_settings, insist)
        model, most = modelcontext(model), positive_int("max_states", max_states)
        chosen, point = _discrete_vars(vars, model), starting_point(model, initial_point)
        self._states = _states(model, chosen, dict(states or {}), most, point)
        self._take_apart(
            model,
            chosen,
            point,
            rng,
            observed_vars=observed_vars,
            proxy=proxy_settings,
            insist=insist,
            row_logp=row_logp,
            compile_kwargs=compile_kwargs,
            progressbar=progressbar,
            fit=False,
        )
        _refuse_row_local(self.var_names, self.prepared)
        self.elements = self._elements()
        self._ready()

    def _elements(self) -> Elements:
        layout = self.prepared.densities.layout
        in_rows = set(self.prepared.densities.rows.value_vars)
        coordinate: list[int] = []
        states: list[np.ndarray] = []
        raced: list[bool] = []
        for name in self.var_names:
            where = layout.slices[name]
            coordinate += range(where.start, where.stop)
            states += self._states[name]
            raced += [name in in_rows] * (where.stop - where.start)
        sizes = np.array([s.size for s in states])
        cut = self.prepared.cut
        return Elements(
            np.array(coordinate, dtype=np.int64),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.concatenate(states).astype(np.float64),
            np.searchsorted(np.unique(sizes), sizes).astype(np.int64),
            np.array(raced),
            np.empty(0, np.int64) if cut is None else cut.rough(),
        )

    # --- a chain --------------------------------------------------------------------------------

    def _begin(self, tune: int, draws: int) -> Chain:
        prepared, size = self.prepared, self.prepared.start.size
        surrogate = first_surrogate(prepared)

        def decisions(capacity):
            return StateDecisions(capacity, size, self.elements)

        return Chain(
            surrogate=surrogate,
            visited=Moments(surrogate.centre.size if prepared.surrogate is not None else 0),
            auditor=Auditor(self.audits, prepared.rows_spent, draws, decisions),
            audit_rng=self.rng.spawn(1)[0],
            tune_draws=tune,
        )

    def _tune(self, chain: Chain, stats: np.ndarray, x: np.ndarray) -> None:
        chain.raced += stats[[4, 2]]
        if self.prepared.surrogate is None:
            return
        if chain.draw > chain.tune_draws // 10:
            chain.visited.add(self.prepared.eta(x))
        if learns_now(chain):
            self._learn(chain)

    def _learn(self, chain: Chain) -> None:
        recentre(chain, self.prepared, *chain.raced)
        chain.raced[:] = 0.0

    def _compile(self) -> tuple[Densities, Population, RaceRule]:
        prepared = self.prepared
        population = make_population(prepared.densities.n_rows, prepared.exact_rows)
        numbers = np.unique(np.diff(self.elements.first))
        rules = [
            self.race.rule(
                population.n_raced, max(2, int(k)), zero_sd_decides=prepared.rounding_only
            )
            for k in numbers
        ]
        rule = rules[0]._replace(
            sd_factor=np.stack([r.sd_factor for r in rules]),
            range_factor=np.stack([r.range_factor for r in rules]),
        )
        return prepared.compiled(prepared.raced.state_rewards), population, rule

    def _transitions(self, chain: Chain, x: np.ndarray, number: int):
        """Make sweeps from x; return their statistics (8,) and the point reached."""
        densities, population, rules = self._natives()
        x, stats = x.copy(), np.zeros(8)
        log = self._log(chain)
        shared = densities, chain.surrogate, population, rules
        args = (number, x, self.elements, *shared, self.rng, log, chain.audit_rng, stats)
        if self._run is None:
            self._run = entry_point(run_sweeps, args)
        status, element, row = self._run(*args)
        if status != DECIDED:
            self._raise_bad(status, element, row, x)
        return stats, x

    def _raise_bad(self, status: int, element: int, row: int, x: np.ndarray) -> None:
        densities = self.prepared.densities
        self._raise_callback_error()
        coordinate = self.elements.coordinate[element]
        label = densities.layout.labels()[coordinate]
        if status == NO_STATE:
            raise ValueError(
                f"No state of {label} has a positive density given the other variables; look at "
                "its prior and at the rows' likelihood in each state."
            )
        states = self.elements.states[slice(*self.elements.first[element : element + 2])]
        if status == NOT_EXPANDABLE:
            raise ValueError(
                f"The control variate does not hold at {label} = {states[row]:g}, where the rows "
                "meet another condition or a quantity that is not finite; pass proxy=None."
            )
        shown = []
        for state in states:
            x[coordinate] = state
            rest = densities.rest_value_and_gradient(x)[0]
            value = rest if status == REST_NOT_FINITE else densities.values(x, np.array([row]))[0]
            if np.isnan(value) or value == np.inf:
                shown.append(f"{value} at {label} = {state:g}")
        what = (
            "The log density besides the rows"
            if status == REST_NOT_FINITE
            else (f"The log-likelihood of {', '.join(densities.rows.observed_vars)} in row {row}")
        )
        raise ValueError(f"{what} is {', '.join(shown[:5]) or 'not finite'}.")

    def _rows_of_a_draw(self) -> float:
        return super()._rows_of_a_draw() * max(1, int(self.elements.raced.sum()))

    def _summary(self, chain: Chain, stats: np.ndarray) -> dict[str, float]:
        races = max(1.0, stats[2])
        return {
            "race_rows": float(stats[4] + stats[5]),
            "race_rounds": float(stats[3]),
            "race_moved": float(stats[1] / max(1.0, stats[0])),
            "race_arms_left": float(stats[6] / races) if stats[2] else 1.0,
        }


def _discrete_vars(vars, model) -> list:
    """Value variables of the user's discrete ``vars``, default all of the model."""
    if vars is None or (isinstance(vars, list) and vars == [None]):
        chosen = [v for v in model.value_vars if not v.dtype.startswith("float")]
        if not chosen:
            raise ValueError("The model has no discrete free variable for RacingGibbs")
        return chosen
    if not isinstance(vars, list | tuple):
        vars = [vars]
    chosen = list(dict.fromkeys(get_value_vars_from_user_vars(vars, model)))
    continuous = [v.name for v in chosen if v.dtype.startswith("float")]
    if continuous:
        raise ValueError(
            f"vars holds continuous variables ({', '.join(continuous)}); RacingGibbs draws discrete "
            "ones. Give them to RacingMetropolis, or leave them to pm.sample."
        )
    return chosen


def _states(model, value_vars, given, max_states, point) -> dict[str, list[np.ndarray]]:
    """States of each element of each variable; the start must be one of them."""
    names = {v.name for v in value_vars}
    unknown = set(given) - names
    if unknown:
        raise ValueError(f"states names {sorted(unknown)}; RacingGibbs draws {sorted(names)}")
    out = {}
    for v in value_vars:
        states = element_states(model, v, given.get(v.name), max_states=max_states)
        for value, possible in zip(np.ravel(point[v.name]), states):
            if value not in possible:
                raise ValueError(
                    f"{v.name!r} starts at {value}, which is not one of its states "
                    f"({possible[0]} to {possible[-1]}); give initval= or initial_point="
                )
        out[v.name] = states
    return out


def _refuse_row_local(names, prepared: Preparation) -> None:
    local = [n for n in names if n in prepared.densities.rows.row_local]
    if local:
        raise ValueError(
            f"{', '.join(local)} has one value per row, which one row decides: there is nothing to "
            "race. Sum it out (pm.Mixture), or leave it to pm.CategoricalGibbsMetropolis."
        )
