"""Slice sampling that reads a few rows of tall data per decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np

from pymc.model import modelcontext

from amc_pymc.arguments import positive_int
from amc_pymc.extract.native import entry_point
from amc_pymc.proxies import DataProxy
from amc_pymc.racing import Population, RaceRule, make_population
from amc_pymc.results import SLICE_STATS
from amc_pymc.step_methods.adaptation import Moments
from amc_pymc.step_methods.auditing import Auditor, PairDecisions
from amc_pymc.step_methods.chain import Chain, first_surrogate, learns_now, recentre
from amc_pymc.step_methods.compiled import Densities
from amc_pymc.step_methods.racing_step import (
    RacingStep,
    continuous_vars,
    starting_point,
    stat_dtypes,
)
from amc_pymc.step_methods.settings import (
    Audits,
    Race,
    TaylorProxy,
    as_audits,
    as_proxy,
    as_race,
    check_row_logp,
)
from amc_pymc.step_methods.slice_kernel import Slices, run_slices

__all__ = ["RacingSlice"]

_WIDTH = 3.0
_SHRINKAGE = 10.0


@dataclass(kw_only=True)
class SliceChain(Chain):
    """A chain of slice sweeps; ``moments`` are those of the points x."""

    slices: Slices
    moments: Moments


class RacingSlice(RacingStep):
    r"""Sample continuous variables of a model with many rows by slice sampling, reading few of them.

    Each sweep moves along every direction in turn: the axes of a Gaussian approximation of the
    posterior, or of the draws while tuning. Whether a point lies above the slice's height is a
    race, as the accept step of :class:`RacingMetropolis` is; a sweep takes some five decisions per
    direction.

    There is no proposal scale to go wrong, so use it where :class:`RacingMetropolis` is accepted
    rarely: few parameters, heavy tails, several modes nearby. It needs more decisions per effective
    draw where that one works well.

    Parameters
    ----------
    vars : sequence of variables, optional
        Continuous variables to sample, default all. Others may have steps of their own.
    width : float, default 3.0
        Width of the first interval in standard deviations of the approximation.
    max_steps : int, default 10
        Widths that an interval is stepped out by, at most.
    observed_vars, delta, race, batch_size, proxy, audits, transitions_per_draw, row_logp, model, \
rng, initial_point, compile_kwargs, blocked, progressbar
        As for :class:`RacingMetropolis`; a transition is a sweep over all directions.

    Raises
    ------
    ValueError
        Arguments out of range, no observed variable, rows that are not finite at the start, discrete
        ``vars``. :class:`amc_pymc.NotRowFactorised` names what cannot be taken row by row.

    Notes
    -----
    With u uniform, a point :math:`x'` is above the slice's height if

    .. math:: \frac1N\sum_n [l_n(x') - l_n(x)] > \frac1N \log \frac{u\,p(x)}{p(x')}.

    Each comparison errs with probability at most ``delta`` if batch means are normal.

    References
    ----------
    R. M. Neal (2003). Slice sampling. Annals of Statistics 31(3). doi:10.1214/aos/1056562461
    C. DuBois, A. Korattikara, M. Welling and P. Smyth (2014). Approximate Slice Sampling for
    Bayesian Posterior Inference. AISTATS, PMLR 33:185-193.

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
    ...         step=amc.RacingSlice(),
    ...         chains=2,
    ...         cores=1,
    ...         random_seed=1,
    ...         progressbar=False,
    ...         quiet=True,
    ...     )
    >>> bool(abs(idata.posterior["mu"].mean() - y.mean()) < 0.002)
    True
    """

    name = "racing_slice"
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = stat_dtypes(SLICE_STATS)

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        width: float = _WIDTH,
        max_steps: int = 10,
        observed_vars: Sequence[Any] | None = None,
        delta: float = 0.05,
        race: Literal["normal", "bernstein", "lil_ucb", "exact"] | Race = "normal",
        batch_size: int = 50,
        proxy: Literal["auto", "taylor", "data"] | TaylorProxy | DataProxy | None = "auto",
        audits: int | Audits = 200,
        transitions_per_draw: int = 1,
        row_logp: Callable | None = None,
        model=None,
        rng=None,
        initial_point: Mapping[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
        progressbar: bool = True,
    ):
        self.race = as_race(race, delta, batch_size)
        self.audits = as_audits(audits)
        self.transitions_per_draw = positive_int("transitions_per_draw", transitions_per_draw)
        self.max_steps = positive_int("max_steps", max_steps)
        real = isinstance(width, Real) and not isinstance(width, bool)
        if not (real and np.isfinite(width) and width > 0.0):
            raise ValueError(f"width must be positive and finite, got {width!r}")
        self.width = float(width)
        proxy_settings, insist = as_proxy(proxy)
        check_row_logp(row_logp, proxy_settings, insist)
        model = modelcontext(model)
        self._take_apart(
            model,
            continuous_vars(vars, model, type(self).__name__),
            starting_point(model, initial_point),
            rng,
            observed_vars=observed_vars,
            proxy=proxy_settings,
            insist=insist,
            row_logp=row_logp,
            compile_kwargs=compile_kwargs,
            progressbar=progressbar,
        )
        self._ready()

    # --- a chain --------------------------------------------------------------------------------

    def _begin(self, tune: int, draws: int) -> SliceChain:
        prepared, size = self.prepared, self.prepared.start.size
        active = prepared.densities.layout.indices(self.var_names)
        if prepared.fit is not None:
            factor, _ = prepared.fit.moves(active)
        else:
            factor = np.eye(active.size)
        directions = np.ascontiguousarray(factor.T)
        surrogate, moments = first_surrogate(prepared), Moments(size)
        return SliceChain(
            slices=Slices(active, directions, self.width, self.max_steps),
            surrogate=surrogate,
            moments=moments,
            visited=moments if prepared.cut is None else Moments(surrogate.centre.size),
            auditor=Auditor(
                self.audits, prepared.rows_spent, draws, lambda c: PairDecisions(c, size)
            ),
            audit_rng=self.rng.spawn(1)[0],
            tune_draws=tune,
        )

    def _tune(self, chain: SliceChain, stats: np.ndarray, x: np.ndarray) -> None:
        chain.raced += stats[[2, 0]]
        if chain.draw > chain.tune_draws // 5:
            chain.moments.add(x)
            if self.prepared.cut is not None:
                chain.visited.add(self.prepared.eta(x))
        if learns_now(chain):
            self._learn(chain)

    def _learn(self, chain: SliceChain) -> None:
        active, moments = chain.slices.active, chain.moments
        if self.prepared.fit is None and moments.count > 2 * active.size + 10:
            prior = np.ascontiguousarray(chain.slices.directions.T)
            factor = moments.factor(active, prior, _SHRINKAGE)
            chain.slices = chain.slices._replace(directions=np.ascontiguousarray(factor.T))
        recentre(chain, self.prepared, *chain.raced)
        chain.raced[:] = 0.0

    def _compile(self) -> tuple[Densities, Population, RaceRule]:
        prepared = self.prepared
        population = make_population(prepared.densities.n_rows, prepared.exact_rows)
        rule = self.race.rule(population.n_raced, 2, zero_sd_decides=prepared.rounding_only)
        return prepared.compiled(prepared.raced.rewards), population, rule

    def _transitions(self, chain: SliceChain, x: np.ndarray, number: int):
        """Make sweeps from x; return their statistics (4,) and the point reached."""
        densities, population, rule = self._natives()
        points, stats = np.stack([x, x]), np.zeros(4)
        log = self._log(chain)
        shared = densities, chain.surrogate, population, rule
        tail = self.rng, log, chain.audit_rng, stats
        args = (number, points, chain.slices, *shared, *tail)
        if self._run is None:
            self._run = entry_point(run_slices, args)
        self._run(*args)
        if stats[3]:
            self._raise_if_here(points[0], int(stats[3]) - 1)
        return stats, points[0]

    def _summary(self, chain: SliceChain, stats: np.ndarray) -> dict[str, float]:
        return {
            "race_rows": float(stats[2]),
            "race_rounds": float(stats[1]),
            "race_decisions": float(stats[0]),
        }
