"""Slice sampling that reads a few rows of tall data per decision."""

from __future__ import annotations

import os

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np

from pymc import Model
from pymc.util import RandomGenerator

from amc_pymc.arguments import positive_int
from amc_pymc.extract.context import context_model
from amc_pymc.extract.memo import remembering
from amc_pymc.proxies import DataProxy
from amc_pymc.racing import Race
from amc_pymc.results.tables import SLICE_STATS
from amc_pymc.row_store import Rows
from amc_pymc.samplers import Audits
from amc_pymc.samplers import slice as core
from amc_pymc.step_methods.preparation import prepare
from amc_pymc.step_methods.racing_step import (
    RacingStep,
    chosen_vars,
    starting_point,
    stat_dtypes,
)
from amc_pymc.step_methods.settings import Options, TaylorProxy, positive_width

__all__ = ["RacingSlice"]


class RacingSlice(RacingStep):
    r"""Slice sampling step for continuous variables, reading few rows per decision.

    Each sweep moves along every direction in turn: the axes of a Gaussian approximation of the
    posterior or of the tuning draws. A race decides whether a point lies in the slice, as in the
    accept step of :class:`RacingMetropolis`; a sweep takes about five decisions per direction.

    There is no proposal scale to tune. Use it if :class:`RacingMetropolis` has a low acceptance
    rate: few parameters, heavy tails, several nearby modes. If :class:`RacingMetropolis` works
    well, slice sampling needs more decisions per effective draw.

    Parameters
    ----------
    vars : sequence of variables or their names, optional
        Continuous variables to sample; default: all. Others may have their own steps.
    width : float, default 3.0
        Width of the initial interval, in standard deviations of the approximation.
    max_steps : int, default 10
        Maximum number of widths by which an interval is stepped out.
    observed_vars, delta, race, batch_size, proxy, audits, transitions_per_draw, row_logp, rows
        As for :class:`RacingMetropolis`; a transition is a sweep over all directions.
    model, rng, initial_point, compile_kwargs, blocked, progressbar
        As for :class:`RacingMetropolis`.

    Raises
    ------
    ValueError
        If an argument is out of range, there is no observed variable, rows are not finite at the
        start, or ``vars`` are discrete. :class:`amc_pymc.NotRowFactorised` is raised if rows cannot
        be evaluated one by one.

    Notes
    -----
    With u uniform, a point :math:`x'` lies in the slice if

    .. math:: \frac1N\sum_n [l_n(x') - l_n(x)] > \frac1N \log \frac{u\,p(x)}{p(x')}.

    Each comparison is wrong with probability at most ``delta`` if batch means are normal.

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
    core: ClassVar[ModuleType] = core
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = stat_dtypes(SLICE_STATS)

    @remembering()
    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        width: float = 3.0,
        max_steps: int = 10,
        observed_vars: Sequence[Any] | None = None,
        delta: float | None = None,
        race: Literal["normal", "bernstein", "lil_ucb", "exact"] | Race = "normal",
        batch_size: int | None = None,
        proxy: Literal["auto", "taylor", "data"] | TaylorProxy | DataProxy | None = "auto",
        audits: int | Audits = 200,
        transitions_per_draw: int = 1,
        row_logp: Callable[..., Any] | None = None,
        rows: Rows | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        model: Model | None = None,
        rng: RandomGenerator = None,
        initial_point: Mapping[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
        progressbar: bool = True,
    ):
        options, model = Options.among(locals()), context_model(model)
        own = {"width": positive_width(width), "max_steps": positive_int("max_steps", max_steps)}
        value_vars = chosen_vars(vars, model, type(self).__name__)
        names, point = [v.name for v in value_vars], starting_point(model, initial_point)
        prepared = prepare(model, names, options, point=point)
        active = prepared.densities.layout.indices(names)
        settings = options.sampler_settings() | own
        sampler = core.Slice(prepared=prepared, active=active, **settings)
        self._set_up(sampler, model, value_vars, rng)
