"""Metropolis-Hastings that reads a few rows of tall data per step."""

from __future__ import annotations

import dataclasses
import logging
import os

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Literal, cast

import numpy as np

from pymc import Model
from pymc.util import RandomGenerator
from scipy import special

from amc_pymc.arguments import boolean
from amc_pymc.flags import Flag, flag
from amc_pymc.reading.graphs import context_model, initial_point_of, remembering
from amc_pymc.reading.group_densities import GroupedModel
from amc_pymc.results.tables import METROPOLIS_STATS
from amc_pymc.rows import Rows
from amc_pymc.steps.preparation import Options, chosen_vars, prepare
from amc_pymc.steps.racing_step import RacingStep, stat_dtypes
from amc_pymc.tall.racing import Race
from amc_pymc.tall.samplers import metropolis
from amc_pymc.tall.samplers.chain import Audits
from amc_pymc.tall.samplers.fit import Preparation
from amc_pymc.tall.samplers.metropolis import Metropolis

_log = logging.getLogger("amc_pymc")
#: Number of proposals for each group's local effects per draw.
_TRIES = 2
#: Measured costs, in log-likelihood evaluations of one row: drawing local effects (per row), storing
#: a draw, and a transition apart from its rows.
_DRAWING_COST, _STORING_COST, _TRANSITION_COST = 6.0, 10_000.0, 1_000.0
#: Largest number of transitions of a draw where moves are often rejected.
_MOST_TRANSITIONS = 8
#: Maximum rows read by a batch of draws, if no other step moves anything: in memory, to limit the time
#: of a batch, and in a store, to limit the pages that it maps.
_AHEAD, _STORED_AHEAD = 20_000, 4_000
#: Probability that a draw repeats the previous one, below which no transitions are added.
_SAME_DRAW = 0.01


class RacingMetropolis(RacingStep):
    r"""Metropolis-Hastings step for continuous variables, reading few rows per decision.

    A Metropolis-Hastings step compares the log-likelihood of a proposal with that of the current
    point over all N rows. The second-order expansion of every row around the posterior mode, a
    control variate, explains nearly all of the difference, and the remainder is decided from few
    rows. Where the remainder of each row is bounded, this is done by thinning a Poisson process,
    which is exact and often reads no row. Elsewhere it is a race: rows are read in doubling batches
    without replacement until the decision is clear at error probability ``delta`` (Racing-Normal),
    which usually takes 100-200 rows for any N.

    In a hierarchical model, the effects of one grouping factor, by default the one with the most
    levels, are integrated out, and races read groups instead of rows.

    Use it for models with conditionally independent rows, at least some fifty for each coefficient,
    and up to a few hundred parameters besides local effects. A race is approximate: its decision
    differs from the exact one with probability at most ``delta`` if batch means are normal. The
    actual error is measured on audited decisions; see :func:`amc_pymc.decision_error`.

    Parameters
    ----------
    vars : sequence of variables or their names, optional
        Continuous variables to sample; default: all. Others may have their own steps.
    observed_vars : sequence of str or variables, optional
        Observed variables whose rows are raced; default: those with the most rows. All other terms
        of the model's logp (priors, Jacobians, Potentials, other observed variables) are evaluated
        exactly.
    delta : float, default 0.05
        Maximum error probability of a decision, in (0, 0.5).
    race : {"auto", "normal", "exact"} or a race such as NormalRace
        ``"exact"`` makes no error. It *thins* decisions where the rows' remainders can be bounded,
        which then read few rows or none, and otherwise reads all rows. ``"auto"`` thins decisions
        where that is expected to cost less than a ``"normal"`` race, and else races;
        ``sample_stats["race_exact"]`` says which draws are exact.
    batch_size : int, optional
        Number of rows or groups in the first batch; default: 50 rows or 20 groups.
    audits : int or Audits, default 200
        Maximum number of decisions per chain repeated on all rows, in at most a tenth of the time.
    transitions_per_draw : int or "auto", default "auto"
        Transitions per stored draw. ``pm.sample`` spends 5-300 microseconds per stored draw, a
        transition often less. ``"auto"`` is 1, and up to 8 if moves are often rejected. If local effects are drawn
        with every stored draw, transitions take about as long as drawing the effects, or less if fewer make
        successive draws independent.
    marginalize : "auto" or None or a variable or sequence of variables
        Local effects to integrate out: variables, or their names, of one grouping factor.
        ``"auto"`` selects the factor with the most levels if it has at least 250 levels, or if
        there are at most 20,000 rows, unless levels have 250 rows or more each. None disables it.
    recover : bool, default True
        Draw the effects that are integrated out for every stored draw. If False, their draws are
        NaN, and :func:`amc_pymc.recover_marginals` can draw them afterwards.
    rows : amc_pymc.Rows or mapping of str to array or path, optional
        Rows larger than memory: the arrays (NumPy, ``numpy.memmap``, Zarr or Dask) of each
        ``pm.Data`` whose rows are read, or a path of Parquet files. The model's own data are then
        placeholders. One pass writes a store; see :class:`amc_pymc.Rows` for its location and
        lifetime. No effects are integrated out.
    model : pm.Model, optional
        Default: the model of the current context.
    rng : numpy.random.Generator or int, optional
        ``pm.sample`` replaces it for each chain.
    blocked : bool, default True
        Move all variables jointly.
    progressbar : bool, default True
        Show the progress of the preparation if it takes longer than two seconds.

    Raises
    ------
    ValueError
        If an argument is out of range, there is no observed variable, rows are not finite at the
        start, ``vars`` are discrete, ``marginalize`` names variables that cannot be integrated
        out, or there is no control variate: rows depend on more than 500 coordinates or are
        selected by a discrete variable, or there is no mode. Decisions would then read nearly
        all rows, and errors of races would widen the posterior; ``race="exact"`` is refused, too.
        :class:`amc_pymc.NotRowFactorised` is raised if rows cannot be evaluated one by one.

    See Also
    --------
    amc_pymc.decision_error : Measured error of decisions.
    amc_pymc.recover_marginals : Draw local effects after sampling.

    Notes
    -----
    With u uniform, :math:`x'` is accepted if

    .. math:: \frac1N\sum_n [l_n(x') - l_n(x)] >
        \frac1N \log \frac{u\,p(x)\,q(x' \mid x)}{p(x')\,q(x \mid x')}.

    In a hierarchical model the sum is over groups g, and :math:`l_g` is the logarithm of

    .. math:: L_g(\psi) = \int p(u \mid \psi) \prod_{i \in g} p(y_i \mid \psi, u)\,du
        \approx |C| \sum_k w_k\, p(m + C z_k \mid \psi)
        \prod_{i \in g} p(y_i \mid \psi, m + C z_k)

    with local effects u, all other parameters :math:`\psi`, and nodes :math:`z_k` and weights
    :math:`w_k` of a Gauss-Hermite rule (product rules for two or three effects). m is the mode of
    the integrand, found by Newton's method for every group and point, and :math:`CC'` its inverse
    curvature there (Liu & Pierce 1994, Pinheiro & Bates 1995). Local effects are drawn given :math:`\psi` by independence Metropolis-Hastings steps.

    Moves are a mixture of a random walk and of moves that leave prior times the second-order expansion of rows or groups
    invariant, for which no row is read: coefficients whose prior is Gaussian given hyperparameters are drawn given
    these, and hyperparameters are moved by Hamiltonian Monte Carlo on their marginal density. The kind that moved the
    chain further during tuning makes nine tenths of the moves. See "Moves on prior times surrogate" (Liu 2001, section
    9.4.3; Christen & Fox 2005). Coefficients are recognised by the derivatives of the prior and of what rows read, not
    by the way in which a model is written.

    ``sample_stats`` contains the variables that the page "Variables of results" lists, one number
    per draw. Counts are sums over the transitions of a draw. ``race_rows`` counts rows even if
    groups are raced; divide it by ``step.sampler.transitions`` for the rows of one decision.

    References
    ----------
    Y. Chen and Z. Ghahramani (2016). Scalable Discrete Sampling as a Multi-Armed Bandit Problem.
    ICML, PMLR 48:2492-2501.
    R. Bardenet, A. Doucet and C. Holmes (2017). On Markov chain Monte Carlo methods for tall data.
    JMLR 18(47).
    Q. Liu and D. A. Pierce (1994). A note on Gauss-Hermite quadrature. Biometrika 81:624-629,
    doi:10.1093/biomet/81.3.624.
    J. C. Pinheiro and D. M. Bates (1995). Approximations to the log-likelihood function in the
    nonlinear mixed-effects model. Journal of Computational and Graphical Statistics 4:12-35,
    doi:10.1080/10618600.1995.10474663.
    J. A. Christen and C. Fox (2005). Markov chain Monte Carlo using an approximation. Journal of
    Computational and Graphical Statistics 14:795-810, doi:10.1198/106186005X76983.

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

    In a model with groups, local effects are integrated out, and drawn for every stored draw:

    >>> rng = np.random.default_rng(1)
    >>> group = np.repeat(np.arange(300), 10)
    >>> y = rng.normal(rng.normal(size=300)[group], 1.0)
    >>> with pm.Model() as model:
    ...     sd = pm.HalfNormal("sd", 2)
    ...     effect = pm.Normal("effect", 0, sd, shape=300)
    ...     obs = pm.Normal("obs", effect[group], 1.0, observed=y)
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
    >>> bool(0.9 < idata.posterior["sd"].mean() < 1.1)
    True
    >>> found = idata.posterior["effect"].mean(("chain", "draw"))
    >>> bool(np.corrcoef(found, np.bincount(group, y) / 10)[0, 1] > 0.99)
    True
    >>> bool(idata.sample_stats["race_quadrature"].max() < 0.2)
    True
    """

    name = "racing_metropolis"
    sampler: Metropolis
    core: ClassVar[ModuleType] = metropolis
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = stat_dtypes(METROPOLIS_STATS)

    @remembering()
    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        observed_vars: Sequence[Any] | None = None,
        delta: float | None = None,
        race: Literal["auto", "normal", "exact"] | Race = "auto",
        batch_size: int | None = None,
        audits: int | Audits = 200,
        transitions_per_draw: int | Literal["auto"] = "auto",
        marginalize: Literal["auto"] | Sequence[Any] | None = "auto",
        recover: bool = True,
        rows: Rows | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        model: Model | None = None,
        rng: RandomGenerator = None,
        blocked: bool = True,
        progressbar: bool = True,
    ):
        options = Options(
            observed_vars=observed_vars,
            delta=delta,
            race=race,
            batch_size=batch_size,
            audits=audits,
            transitions_per_draw=transitions_per_draw,
            rows=rows,
            marginalize=marginalize,
            progressbar=progressbar,
        )
        model = context_model(model)
        value_vars = chosen_vars(vars, model, type(self).__name__)
        if vars is None:  # indicators can be moved
            value_vars += [v for v in model.value_vars if v not in value_vars]
        names = [v.name for v in value_vars]
        self._recover = boolean("recover", recover)
        if not recover and marginalize is None:
            raise ValueError(
                "recover=False is for effects that are integrated out, and marginalize=None integrates "
                "none out; leave one of them out"
            )
        sampler = metropolis_sampler(model, names, options)
        densities = sampler.prepared.densities
        surface = sampler.prepared.surface
        assert surface is not None
        value_vars = [
            v
            for v in value_vars
            if v.dtype.startswith("float")
            or np.isin(densities.layout.indices([v.name]), surface.binary).any()
        ]
        self._alone = len(value_vars) == len(model.value_vars)
        groups = None if densities.factor is None else cast(GroupedModel, densities)
        self._groups = groups
        if groups is not None and not self._recover and not self._alone:
            raise ValueError(
                "recover=False leaves local effects undrawn, and other steps need them: let this "
                "step sample all variables, or pass recover=True"
            )
        if options.transitions_per_draw == "auto":
            number = _transitions(sampler.prepared, groups if recover else None)
            sampler = dataclasses.replace(sampler, transitions=number)
            if number > 1:
                _log.info("%d transitions for every stored draw; race_rows is their sum.", number)
        if self._alone and groups is None:
            ahead = _AHEAD if options.rows is None else _STORED_AHEAD
            sampler = dataclasses.replace(sampler, ahead=ahead)
        self._set_up(sampler, model, value_vars, rng, options.progressbar)
        self._usual = densities.ravel(initial_point_of(model))

    # --- local effects --------------------------------------------------------------------------

    def _moved(self, point: dict[str, np.ndarray], x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the new point, with integrated-out local effects drawn given the rest."""
        local = self._groups
        if local is None:
            return super()._moved(point, x)
        effects = local.effects(point)
        if not self._recover:
            effects = np.full_like(effects, np.nan)
        elif not (self.tune and self._alone):
            local.draw_effects(x, effects, _TRIES, self.rng)
        new = super()._moved(point, x) | local.as_point(effects, point)
        return {name: new[name] for name in point}  # PyMC relies on the order

    def _first_point(self, chain: Any, x: np.ndarray) -> np.ndarray:
        """Return x or, if it is far from where prior times surrogate has its mass, a draw from that.

        Far out, moves would be rejected and races would read all rows.
        """
        surface, densities, start = self.prepared.surface, self.prepared.densities, x
        if self.tune:
            assert surface is not None
            start = surface.start(x, self.rng)
            total = densities.rest_value_and_gradient(start)[0]
            total += sum(map(np.sum, densities.value_chunks(start)))
            if not np.isfinite(total):
                start = x
        given = not np.array_equal(*np.stack([x, self._usual])[:, self.sampler.active])
        chain.start_replaced = start is not x and given
        return start

    def _doubts(self, chain: Any) -> list[Flag]:
        replaced = [flag("start_replaced")] if chain.start_replaced else []
        return super()._doubts(chain) + replaced


def _transitions(prepared: Preparation, model: GroupedModel | None) -> int:
    """Return the number of transitions for each stored draw.

    Where effects of a grouped ``model`` are drawn too, transitions take half of the time, unless fewer make draws independent. Where moves
    are often rejected, more are needed: if s is the standard deviation by which a move changes the log weight of
    its point, it is accepted with probability 2 Phi(-s / 2), and draws are nearly independent after some 2 s^2 moves.
    """
    forecast = prepared.forecast
    spread = 2.0 * special.ndtri(0.5 * forecast.acceptance)
    needed = int(np.clip(np.ceil(2.0 * spread**2), 1, _MOST_TRANSITIONS))
    if model is None:
        return needed
    drawing = _STORING_COST + model.n_rows * _DRAWING_COST
    transition = _TRANSITION_COST + forecast.rows * model.race_cost
    rejected = np.clip(1.0 - forecast.acceptance, 0.3, 0.95)
    useful = np.ceil(np.log(_SAME_DRAW) / np.log(rejected))
    return int(np.clip(drawing / transition, needed, max(needed, useful)))


def metropolis_sampler(model: Model, names: Sequence[str], options: Options) -> Metropolis:
    """Return the Metropolis sampler of some variables, of which a factor may be integrated out.

    Raises
    ------
    ValueError
        If no control variate is possible.
    """
    prepared = prepare(model, names, options, point=initial_point_of(model))
    if prepared.no_proxy:
        raise ValueError(
            f"There is no control variate: {prepared.no_proxy}. Without one, decisions read nearly all "
            "rows, and errors of races widen the posterior. Use NUTS or other step methods of PyMC."
        )
    layout, number = prepared.densities.layout, options.transitions_per_draw
    active = np.intersect1d(np.flatnonzero(~layout.discrete), layout.indices(names))
    return Metropolis(
        prepared=prepared,
        active=active,
        race=options.race if prepared.densities.factor is None else options.race_of_groups,
        audits=options.audits,
        transitions=1 if number == "auto" else number,
    )
