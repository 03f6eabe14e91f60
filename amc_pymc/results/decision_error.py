"""Decision error of racing step methods, measured by audits."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from scipy import special

from amc_pymc.results.common import CompactTable

_STATS = ("race_delta", "race_audited", "race_wrong", "race_rows", "race_audit_rows")


def clopper_pearson(wrong: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    r"""Compute the Clopper-Pearson interval of an error probability.

    The limits are the quantiles :math:`\alpha / 2` of Beta(w, n - w + 1) and
    :math:`1 - \alpha / 2` of Beta(w + 1, n - w). The interval covers the true probability with
    probability at least `confidence`.

    Parameters
    ----------
    wrong, total : int
        Number of errors w and of trials n.
    confidence : float
        Coverage :math:`1 - \alpha`, in (0, 1).

    Returns
    -------
    low, high : float
        Limits of the interval, (0, 1) without trials.

    Raises
    ------
    TypeError
        If a count is not an integer.
    ValueError
        If not 0 <= `wrong` <= `total`, or `confidence` is outside (0, 1).

    References
    ----------
    Clopper & Pearson (1934), Biometrika 26:404-413, doi:10.1093/biomet/26.4.404.

    Examples
    --------
    >>> from amc_pymc.results import clopper_pearson
    >>> low, high = clopper_pearson(wrong=3, total=100)
    >>> round(low, 4), round(high, 4)
    (0.0062, 0.0852)
    """
    for name, count in (("wrong", wrong), ("total", total)):
        if not isinstance(count, Integral):
            raise TypeError(f"{name} must be an integer, got {count!r}.")
    if not 0 <= wrong <= total:
        raise ValueError(f"wrong must be between 0 and total={total!r}, got {wrong!r}.")
    check_confidence(confidence)
    tail = 0.5 * (1.0 - confidence)
    low = special.betaincinv(wrong, total - wrong + 1, tail) if wrong > 0 else 0.0
    high = special.betainccinv(wrong + 1, total - wrong, tail) if wrong < total else 1.0
    return float(low), float(high)


def decision_error(
    idata: xr.DataTree, *, by: Literal["chain", "step"] = "chain", confidence: float = 0.95
) -> pd.DataFrame:
    """Compare the measured decision error of racing step methods with its nominal bound.

    A racing step method decides from a subset of the rows and repeats ("audits") some of its
    decisions on all rows. An interval above `delta` indicates that the normal bound did not hold:
    enlarge the first batch, improve the control variate, or use the exact bound.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of :func:`pymc.sample`. Only draws after warm-up are used.
    by : {"chain", "step"}, default "chain"
        "chain": a row for each chain, in which several racing steps are pooled; "step": a row for each racing
        step, in which chains are pooled.
    confidence : float
        Coverage of the Clopper-Pearson interval, in (0, 1).

    Returns
    -------
    pandas.DataFrame
        One row per chain or step and one named "all", with the columns

        - ``delta``: nominal error probability of a decision, the largest if there are several,
        - ``audited``, ``wrong``: number of decisions repeated on all rows, and of those that differed,
        - ``error``: ``wrong / audited``, NaN without audits, 0 if ``exact``,
        - ``ci_low``, ``ci_high``: Clopper-Pearson interval of the error, (0, 1) without audits, 0 if ``exact``,
        - ``exact``: whether no decision can be wrong,
        - ``rows``, ``audit_rows``: mean number of rows read per draw, by races and by audits. A
          draw may consist of many transitions, so ``rows`` may exceed the number of rows in the
          data; divide it by ``step.sampler.transitions`` for one decision,
        - ``rows_low``, ``rows_high``: number of rows that 5 and 95 % of the draws do not exceed.

    Raises
    ------
    TypeError
        If `idata` is not a DataTree.
    ValueError
        If `idata` has no ``sample_stats``, these contain no race statistics, `by` is unknown, or
        `confidence` is outside (0, 1).

    See Also
    --------
    clopper_pearson : Interval of the error.
    amc_pymc.plot_race : plot of this table.

    References
    ----------
    Chen & Ghahramani (2016), *Scalable Discrete Sampling as a Multi-Armed Bandit Problem*, ICML,
    PMLR 48:2492-2501.

    Examples
    --------
    >>> import arviz as az
    >>> import numpy as np
    >>> from amc_pymc.results import decision_error
    >>> stats = {
    ...     "race_delta": np.full((2, 100), 0.05),
    ...     "race_audited": np.ones((2, 100), dtype=int),
    ...     "race_wrong": np.repeat([[0], [1]], 100, axis=1) * (np.arange(100) < 3),
    ...     "race_rows": np.full((2, 100), 200),
    ...     "race_audit_rows": np.full((2, 100), 10_000),
    ... }
    >>> table = decision_error(az.from_dict({"sample_stats": stats}))
    >>> table[["delta", "audited", "wrong", "error", "ci_high"]].round(4)
           delta  audited  wrong  error  ci_high
    chain
    0       0.05      100      0  0.000   0.0362
    1       0.05      100      3  0.030   0.0852
    all     0.05      200      3  0.015   0.0432
    """
    if by not in ("chain", "step"):
        raise ValueError(f"by must be 'chain' or 'step', got {by!r}.")
    check_confidence(confidence)
    found = _race_stats(idata)
    stats = xr.Dataset({name: _along_steps(stat) for name, stat in found.items()})
    each = [stats.isel({by: [i]}) for i in range(stats.sizes[by])]
    table = pd.DataFrame(
        [_line(part, confidence) for part in [*each, stats]],
        index=pd.Index([*stats[by].values.tolist(), "all"], name=by, dtype=object),
    )
    return CompactTable.of(table, _summary)


def _summary(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[Any, str]]:
    """Return the measured error with its interval, and the rows read."""
    shown = table[["delta", "audited", "wrong"]].copy()
    shown["error"] = [f"{x:.4f}" for x in table["error"]]
    ends = zip(table["ci_low"], table["ci_high"], strict=True)
    shown["interval"] = [f"{low:.4f} to {high:.4f}" for low, high in ends]
    for name in ("rows", "audit_rows"):
        shown[name] = [f"{x:,.0f}" for x in table[name]]
    return shown, {}


def _along_steps(stat: xr.DataArray) -> xr.DataArray:
    """Return a statistic (chain, draw, step); with several racing steps, PyMC adds a dimension."""
    extra = [dim for dim in stat.dims if dim not in ("chain", "draw")]
    if len(extra) > 1:
        stat, extra = stat.stack(step=extra).reset_index("step"), ["step"]
    stat = stat.rename({extra[0]: "step"}) if extra else stat.expand_dims("step")
    if "step" not in stat.coords:
        stat = stat.assign_coords(step=range(stat.sizes["step"]))
    return stat.transpose("chain", "draw", "step")


def _line(stats: xr.Dataset, confidence: float) -> dict[str, float | int]:
    """Return the row of the table for some chains and steps."""
    delta = stats["race_delta"].max().item()
    audited, wrong = int(stats["race_audited"].sum()), int(stats["race_wrong"].sum())
    low, high = clopper_pearson(wrong, audited, confidence)
    error = wrong / audited if audited else np.nan
    if delta == 0.0:
        error, low, high = 0.0, 0.0, 0.0
    rows, audit_rows = (stats[k].sum("step").values for k in ("race_rows", "race_audit_rows"))
    return {
        "delta": delta,
        "audited": audited,
        "wrong": wrong,
        "error": error,
        "ci_low": low,
        "ci_high": high,
        "exact": delta == 0.0,
        "rows": rows.mean(),
        "audit_rows": audit_rows.mean(),
        "rows_low": np.quantile(rows, 0.05),
        "rows_high": np.quantile(rows, 0.95),
    }


def _race_stats(idata: xr.DataTree) -> xr.Dataset:
    """Return the race statistics after warm-up, with at least the dimensions chain and draw."""
    if not isinstance(idata, xr.DataTree):
        raise TypeError(
            f"idata must be the xarray.DataTree that pm.sample returns, got {type(idata).__name__}."
        )
    if "sample_stats" not in idata.children:
        raise ValueError(
            f"idata has no group sample_stats, only {sorted(map(str, idata.children))}; "
            "sample with pm.sample and keep its statistics."
        )
    stats = idata["sample_stats"].to_dataset()
    missing = [name for name in _STATS if name not in stats]
    if missing:
        raise ValueError(
            f"sample_stats has no {', '.join(missing)}, which racing step methods such as "
            "amc_pymc.RacingMetropolis write; was one of them used in pm.sample(step=...)?"
        )
    stats = stats[list(_STATS)]
    for dim in ("chain", "draw"):
        if dim not in stats.dims:  # one chain or draw was selected
            stats = stats.expand_dims(dim)
    return stats


def check_confidence(confidence: float) -> None:
    """Raise a ValueError unless the coverage of an interval is in (0, 1)."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}.")
