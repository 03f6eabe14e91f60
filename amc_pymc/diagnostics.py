"""Decision error of racing step methods, measured by audits."""

from __future__ import annotations

from collections.abc import Hashable
from numbers import Integral

import numpy as np
import pandas as pd
import xarray as xr

from scipy import special

__all__ = ["clopper_pearson", "decision_error"]

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
    >>> from amc_pymc.diagnostics import clopper_pearson
    >>> low, high = clopper_pearson(wrong=3, total=100)
    >>> round(low, 4), round(high, 4)
    (0.0062, 0.0852)
    """
    for name, count in (("wrong", wrong), ("total", total)):
        if not isinstance(count, Integral):
            raise TypeError(f"{name} must be an integer, got {count!r}.")
    if not 0 <= wrong <= total:
        raise ValueError(f"wrong must be between 0 and total={total!r}, got {wrong!r}.")
    _check_confidence(confidence)
    tail = 0.5 * (1.0 - confidence)
    low = special.betaincinv(wrong, total - wrong + 1, tail) if wrong > 0 else 0.0
    high = special.betainccinv(wrong + 1, total - wrong, tail) if wrong < total else 1.0
    return float(low), float(high)


def decision_error(idata: xr.DataTree, *, confidence: float = 0.95) -> pd.DataFrame:
    """Compare the measured decision error of racing step methods with its nominal bound.

    A racing step method decides from a subset of the rows and repeats ("audits") some of its
    decisions on all rows. An interval above `delta` indicates that the normal bound did not hold:
    enlarge the first batch, improve the control variate, or use the exact bound.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of :func:`pymc.sample`. Only draws after warm-up are used. The decisions of several
        racing steps are pooled.
    confidence : float
        Coverage of the Clopper-Pearson interval, in (0, 1).

    Returns
    -------
    pandas.DataFrame
        One row per chain and one named "all", with the columns

        - ``delta``: nominal error probability of a decision, the largest if there are several,
        - ``audited``, ``wrong``: number of decisions repeated on all rows, and of those that differed,
        - ``error``: ``wrong / audited``, NaN without audits,
        - ``ci_low``, ``ci_high``: Clopper-Pearson interval of the error, (0, 1) without audits,
        - ``rows``, ``audit_rows``: mean number of rows read per draw, by races and by audits. A
          draw may consist of many transitions, so ``rows`` may exceed the number of rows in the
          data; divide it by ``step.sampler.transitions`` for one decision.

        If half of the audited decisions were selected near the threshold, where errors occur,
        ``error`` overstates the error of a typical decision.

    Raises
    ------
    TypeError
        If `idata` is not a DataTree.
    ValueError
        If `idata` has no ``sample_stats``, these contain no race statistics, or `confidence` is
        outside (0, 1).

    See Also
    --------
    clopper_pearson : Interval of the error.

    References
    ----------
    Chen & Ghahramani (2016), *Scalable Discrete Sampling as a Multi-Armed Bandit Problem*, ICML,
    PMLR 48:2492-2501.

    Examples
    --------
    >>> import arviz as az
    >>> import numpy as np
    >>> from amc_pymc.diagnostics import decision_error
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
    _check_confidence(confidence)
    stats = _race_stats(idata)
    promised = stats["race_delta"].max(_dims_beside_chain(stats["race_delta"])).values
    audited = _sum_over_steps(stats["race_audited"]).sum("draw").values.astype(int)
    wrong = _sum_over_steps(stats["race_wrong"]).sum("draw").values.astype(int)
    rows = _sum_over_steps(stats["race_rows"]).mean("draw").values
    audit_rows = _sum_over_steps(stats["race_audit_rows"]).mean("draw").values
    lines = [*zip(promised, audited, wrong, rows, audit_rows, strict=True)]
    lines.append((promised.max(), audited.sum(), wrong.sum(), rows.mean(), audit_rows.mean()))
    return pd.DataFrame(
        [_line(*line, confidence) for line in lines],
        index=pd.Index([*stats["chain"].values.tolist(), "all"], name="chain", dtype=object),
    )


def _dims_beside_chain(stat: xr.DataArray) -> list[Hashable]:
    return [dim for dim in stat.dims if dim != "chain"]


def _sum_over_steps(stat: xr.DataArray) -> xr.DataArray:
    """Sum over racing steps, if they are stacked along an extra dimension."""
    return stat.sum([dim for dim in _dims_beside_chain(stat) if dim != "draw"])


def _line(
    delta: float,
    audited: np.integer,
    wrong: np.integer,
    rows: float,
    audit_rows: float,
    confidence: float,
) -> dict[str, float | int]:
    low, high = clopper_pearson(int(wrong), int(audited), confidence)
    return {
        "delta": delta,
        "audited": int(audited),
        "wrong": int(wrong),
        "error": wrong / audited if audited else np.nan,
        "ci_low": low,
        "ci_high": high,
        "rows": rows,
        "audit_rows": audit_rows,
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


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}.")
