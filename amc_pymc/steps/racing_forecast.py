"""Forecast whether racing is worthwhile for a model, before sampling."""

from __future__ import annotations

import math
import os
import time

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pymc import Model

from amc_pymc.flags import Flag, warn_of
from amc_pymc.reading.densities import ModelDensities
from amc_pymc.reading.graphs import context_model, initial_point_of, remembering
from amc_pymc.rows import Rows
from amc_pymc.steps.preparation import Options, chosen_vars, prepare

#: Gradients per effective draw of NUTS where the posterior suits it; steep hierarchies take ten times as many.
_GRADIENTS = 15
#: CPU seconds of a draw that ``pm.sample`` spends on other things.
_OVERHEAD = 5e-5
#: Number of moves, and of repetitions, that are timed.
_MOVES, _REPETITIONS = 10, 3


@dataclass(frozen=True, kw_only=True)
class RacingForecast:
    """Forecast of the cost of a racing decision for a model.

    Attributes
    ----------
    n_rows : int
        Number of rows N.
    n_parameters : int
        Unconstrained coordinates that are sampled.
    pays : bool
        Whether moves are accepted and racing has more ``effective_draws`` than NUTS.
    suggestion : str
    expected_rows : float
        Expected number of rows per decision.
    exact : bool
        Whether decisions are made without error.
    acceptance : float
        Expected acceptance rate of moves on prior times surrogate.
    effective_draws, nuts_effective_draws : float
        Expected effective draws per CPU second of sampling, from timed moves and rows and from correlations on the
        surrogate, and those of NUTS, from timed gradients, of which an effective draw takes 15 or more.
    n_groups : int
        Groups that are raced instead of rows, 0 if rows are raced.
    marginalized : tuple of str
        Variables that are integrated out.
    flags : tuple of Flag
        Doubts about the forecast and about runs; each has a ``name`` and a ``message``.
    """

    n_rows: int
    n_parameters: int
    pays: bool = False
    suggestion: str
    expected_rows: float
    exact: bool = False
    acceptance: float = math.nan
    effective_draws: float = math.nan
    nuts_effective_draws: float = math.nan
    n_groups: int = 0
    marginalized: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.n_rows:,} rows, {self.n_parameters} parameters"]
        if self.n_groups:
            names = ", ".join(self.marginalized)
            lines.append(f"{self.n_groups:,} groups, over which {names} is integrated out")
        if not math.isnan(self.acceptance):
            how = "exact" if self.exact else "by a race"
            lines += [
                f"rows per decision: {self.expected_rows:,.3g}, {how}; accepted: {self.acceptance:.0%}",
                f"effective draws per CPU second: about {_rounded(self.effective_draws)}; NUTS: "
                f"{_rounded(self.nuts_effective_draws)} or less",
            ]
        return "\n".join([*lines, self.suggestion, *(f.message for f in self.flags)])


def _rounded(number: float) -> str:
    return f"{float(f'{number:.2g}'):,g}"


@remembering()
def racing_forecast(
    vars: Sequence[Any] | None = None,
    *,
    observed_vars: Sequence[Any] | None = None,
    delta: float | None = None,
    batch_size: int | None = None,
    marginalize: Literal["auto"] | Sequence[Any] | None = "auto",
    rows: Rows | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    model: Model | None = None,
    progressbar: bool = True,
) -> RacingForecast:
    """Predict whether :class:`RacingMetropolis` is worthwhile for a model, before sampling.

    This finds the mode and measures the residuals of the control variate on all rows, which takes
    a few dozen passes over the data.

    Parameters
    ----------
    vars, observed_vars, delta, batch_size, marginalize, rows, model
        As for :class:`RacingMetropolis`.
    progressbar : bool, default True
        Whether to show progress if it takes longer than two seconds.

    Returns
    -------
    RacingForecast

    Warns
    -----
    UserWarning
        For every flag: a mode that was not found, rows far from their expansion, or effects integrated out with an
        error.

    Examples
    --------
    >>> import numpy as np, pymc as pm, amc_pymc as amc
    >>> y = np.random.default_rng(1).poisson(3.0, size=50_000)
    >>> with pm.Model() as model:
    ...     rate = pm.Gamma("rate", 1, 1)
    ...     obs = pm.Poisson("obs", rate, observed=y)
    >>> forecast = amc.racing_forecast(model=model)
    >>> forecast.pays
    True
    """
    model = context_model(model)
    options = Options(
        observed_vars=observed_vars,
        delta=delta,
        batch_size=batch_size,
        marginalize=marginalize,
        rows=rows,
        progressbar=progressbar,
    )
    moved = [v.name for v in chosen_vars(vars, model, "RacingMetropolis")]
    names = moved if vars is not None else [v.name for v in model.value_vars]
    point = initial_point_of(model)
    prepared = prepare(model, names, options, point=point)
    flags, forecast = prepared.flags + prepared.forecast_flags, prepared.forecast
    warn_of(flags, "racing_forecast")
    densities, factor = prepared.densities, prepared.densities.factor
    n_rows = densities.n_rows
    text = (
        f"There is no control variate ({prepared.no_proxy}), and races would read nearly all rows: "
        "use NUTS."
    )
    found = RacingForecast(
        n_rows=n_rows,
        n_parameters=densities.layout.indices(moved).size,
        suggestion=text,
        expected_rows=float(n_rows),
        flags=flags,
    )
    if prepared.no_proxy:
        return found
    thinning = prepared.thinning
    read = n_rows / densities.n_units * (thinning.expected if thinning else forecast.rows)
    surface, fit, correlation = prepared.surface, prepared.fit, 0.0
    assert surface is not None and fit is not None
    gradient = of_rows = _seconds(lambda: densities.value_and_gradient(fit.mean))
    if factor is not None:  # NUTS integrates nothing out
        rows_alone = ModelDensities(model, options.observed_vars)
        start = rows_alone.layout.ravel(point)
        of_rows = _seconds(lambda: rows_alone.value_and_gradient(start))
    # Effective draws per CPU second, of races from correlations on the surrogate.
    seconds = _OVERHEAD + read / n_rows * gradient
    if surface.moving:
        rng = np.random.default_rng(0)  # draws are timed and forgotten
        seconds += _seconds(lambda: surface.chain(_MOVES, 0.0, rng)) / _MOVES
        phi = np.union1d(np.flatnonzero(surface.surface.outer >= 0), surface.binary)
        correlation = surface.correlation(phi.astype(np.int64)) ** surface.repeats
    correlation = 1.0 - forecast.acceptance * (1.0 - correlation)
    racing = (1.0 - correlation) / (1.0 + correlation) / seconds
    nuts = 1.0 / (_GRADIENTS * of_rows + _OVERHEAD)
    poor = any(f.name == "poor_expansion" for f in flags)
    return replace(
        found,
        pays=racing > nuts and not poor,
        suggestion=_suggestion(read / n_rows, n_rows, poor, racing > nuts),
        expected_rows=read,
        exact=thinning is not None,
        acceptance=forecast.acceptance,
        effective_draws=racing,
        nuts_effective_draws=nuts,
        n_groups=0 if factor is None else densities.n_units,
        marginalized=() if factor is None else factor.variables,
    )


def _seconds(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call, the least of several."""
    least = math.inf
    for _ in range(_REPETITIONS):
        begin = time.process_time()
        call()
        least = min(least, time.process_time() - begin)
    return least


def _suggestion(share: float, n_rows: int, poor: bool, faster: bool) -> str:
    if poor:
        return "The rows are far from their expansion, and chains would need many steps: use NUTS."
    if faster:
        return "Racing pays: use RacingMetropolis(). Check R-hat: mixing is estimated on the surrogate."
    if share < 0.1:
        return "Racing reads few rows, but its moves cost more than those of NUTS: use NUTS."
    if n_rows < 20_000:
        return "Too few rows for racing to pay: use NUTS."
    return (
        "The control variate leaves much to the race: the posterior is far from Gaussian, or a few "
        "rows dominate. Reparametrise, or use NUTS."
    )
