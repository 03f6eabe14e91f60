"""What combined estimators cost round by round, and the regret from draws of suboptimal ones."""

from __future__ import annotations

import math

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from amc_pymc.results import listed, result_group

__all__ = ["Totals", "cost_unit", "log_spaced", "regret", "totals_by_round"]

#: Maximum number of rounds that totals are given for.
MOST_ROUNDS = 300
#: Minimum number of draws for a variance that determines the best arm.
_TRUSTED = 30
_SOURCE = "amc_pymc.combine_estimators"


class Totals(NamedTuple):
    """Running totals at the ends of rounds, including an incomplete last round.

    Attributes
    ----------
    draws, good : array (R, G)
        Number of draws of each of G groups of arms, and of draws that did not fail.
    cost : array (R, G)
    numbers : array (R,)
        Numbers of the rounds.
    """

    draws: np.ndarray
    good: np.ndarray
    cost: np.ndarray
    numbers: np.ndarray


def totals_by_round(pulls: xr.Dataset, group_of: np.ndarray, most: int = MOST_ROUNDS) -> Totals:
    """Compute running totals of groups of arms at the ends of rounds.

    Parameters
    ----------
    pulls : Dataset
        Group ``pulls`` of a result of :func:`amc_pymc.combine_estimators`.
    group_of : array of int (K,)
        Group of each arm, from 0 to G - 1.
    most : int
        Approximate maximum number of rounds, evenly spaced on a log scale, including the first and the last.

    Returns
    -------
    Totals

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from amc_pymc.diagnostics import totals_by_round
    >>> columns = {"arm": [0, 1, 1], "round": [0, 0, 1], "cost": [1.0, 2.0, 2.0]}
    >>> pulls = xr.Dataset(
    ...     {k: ("pull", v) for k, v in columns.items()} | {"failed": ("pull", [False] * 3)}
    ... )
    >>> totals_by_round(pulls, np.array([0, 1])).cost.tolist()
    [[1.0, 2.0], [1.0, 4.0]]
    """
    rounds, costs = pulls["round"].values, pulls["cost"].values
    n_rounds, n_groups = int(rounds.max()) + 1, int(group_of.max()) + 1
    kept = log_spaced(n_rounds, most)
    # Rounds up to kept[i] and after kept[i - 1] fall into bin i.
    cells = np.searchsorted(kept, rounds) * n_groups + group_of[pulls["arm"].values]

    def totals(weights: np.ndarray | None) -> np.ndarray:
        sums = np.bincount(cells, weights, kept.size * n_groups)
        return sums.reshape(kept.size, n_groups).cumsum(axis=0)

    return Totals(totals(None), totals(1.0 * ~pulls["failed"].values), totals(costs), kept)


def log_spaced(n: int, most: int = MOST_ROUNDS) -> np.ndarray:
    """Return all of 0, ..., n - 1 if they are few, else about `most` of them, evenly spaced on a log scale."""
    if n <= most:
        return np.arange(n)
    return np.unique(np.geomspace(1, n, most).round().astype(int)) - 1


def regret(
    dt: xr.DataTree | Mapping[str, xr.DataTree],
    *,
    best: str | None = None,
    variances: Mapping[str, float] | None = None,
) -> xr.Dataset:
    r"""Compute the cumulative regret of one or several runs of :func:`amc_pymc.combine_estimators`.

    Regret is the loss from draws of arms other than the best one. If arm k has been drawn :math:`T_k`
    times at a mean cost :math:`\delta_k`, and its draws have the variance :math:`V_k`, the regret is

    .. math:: R = \sum_k T_k \frac{\delta_k V_k - \delta_* V_*}{\delta_* V_*},

    in draws of the best arm. At equal costs, the plain average of n draws has a mean squared error of
    :math:`1 + R / n` times that of n draws of the best arm (Neufeld et al. 2014, theorem 1).

    Parameters
    ----------
    dt : DataTree or mapping of names to DataTree
        Results with the same arms, which share costs and variances.
    best : str, optional
        Arm to compare with. By default, the arm with the smallest cost times variance among those drawn at
        least 30 times or with a given variance, because an arm with few draws can look best by chance; arms
        that look even better count as equally good.
    variances : mapping of {str : float}, optional
        Known variances of arms, on the log scale divided by the squared mean. Others are estimated from
        the group ``arms`` of all runs.

    Returns
    -------
    Dataset
        ``cost`` and ``regret`` (run, round) at the ends of at most 300 rounds; runs with fewer rounds end
        with nan. Attributes ``best`` (the arm) and ``unit`` (of the cost: "draws", "cost" or
        "CPU time (s)").

    Raises
    ------
    TypeError, ValueError
        If `dt` is not such a result or lacks a group, runs have different arms, or a variance is neither
        known nor estimable.

    See Also
    --------
    amc_pymc.plot_regret : plot of these curves.

    References
    ----------
    Neufeld, György, Schuurmans & Szepesvári (2014), Adaptive Monte Carlo via bandit allocation, ICML,
    PMLR 32(2):1944-1952.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> from amc_pymc.diagnostics import regret
    >>> found = amc.combine_estimators(
    ...     {"sharp": lambda rng: rng.normal(1.0, 0.1), "vague": lambda rng: rng.normal(1.0, 0.2)},
    ...     draws=1000,
    ...     random_seed=1,
    ...     progressbar=False,
    ... )
    >>> lost = regret(found, variances={"sharp": 0.01, "vague": 0.04})["regret"].values[0, -1]
    >>> bool(round(lost) == 3 * found["arms"]["draws"].sel(arm="vague"))
    True
    """
    runs = dict(dt) if isinstance(dt, Mapping) and not isinstance(dt, xr.DataTree) else {"": dt}
    if not runs:
        raise ValueError("dt must hold at least one run, got an empty mapping.")
    names = _common_arms(runs)
    pulls = {r: _group(d, "pulls", ("arm", "round", "cost", "failed"), r) for r, d in runs.items()}
    costs, known, n_known = _moments(runs, pulls, names, variances)
    price = costs * known
    k = _best(price, n_known, names, best)
    excess = np.where(np.isnan(price), np.nan, price / price[k] - 1.0)
    if best is None:
        excess = np.maximum(excess, 0.0)
    curves = [_curve(p, excess, names) for p in pulls.values()]
    padded = np.full((2, len(runs), max(c.shape[1] for c in curves)), np.nan)
    for i, c in enumerate(curves):
        padded[:, i, : c.shape[1]] = c
    return xr.Dataset(
        {"cost": (("run", "round"), padded[0]), "regret": (("run", "round"), padded[1])},
        {"run": list(map(str, runs))},
        {"best": names[k], "unit": _unit(runs, pulls)},
    )


def _best(price: np.ndarray, n_known: np.ndarray, names: list[str], best: str | None) -> int:
    """Return the arm to compare with, after checking that its cost times variance is positive."""
    if best is None:
        k = _most_likely_best(price, n_known)
    elif best in names:
        k = names.index(best)
    else:
        raise ValueError(f"best must be an arm, one of {listed(names)}, got {best!r}.")
    if not math.isfinite(price[k]):
        raise ValueError(
            f"The variance of {names[k]!r} is not known; pass variances={{{names[k]!r}: ...}}."
        )
    if price[k] <= 0.0:
        raise ValueError(
            f"The variance of {names[k]!r} is zero, and regret is in units of it; pass another best "
            f"or variances={{{names[k]!r}: ...}}."
        )
    return k


def _curve(pulls: xr.Dataset, excess: np.ndarray, names: list[str]) -> np.ndarray:
    """Compute cost and regret (2, R) of a run at the ends of rounds."""
    arms, good = pulls["arm"].values, ~pulls["failed"].values
    unknown = np.isnan(excess) & (np.bincount(arms[good], minlength=excess.size) > 0)
    if unknown.any():
        which = [name for name, bad in zip(names, unknown, strict=True) if bad]
        raise ValueError(
            f"Nothing is known of the variance of {listed(which)}, drawn less than twice; pass "
            f"variances={{{which[0]!r}: ...}}."
        )
    lost = pulls.assign(cost=("pull", np.where(good, excess[arms], 0.0)))
    together = np.zeros(excess.size, np.int64)
    return np.stack([totals_by_round(p, together).cost[:, 0] for p in (pulls, lost)])


def _moments(
    runs: Mapping[str, xr.DataTree],
    pulls: Mapping[str, xr.Dataset],
    names: list[str],
    variances: Mapping[str, float] | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each arm (K,), the mean cost of a good draw, the variance and its degrees of freedom."""
    n_arms = len(names)
    spent, good, squares, df = (np.zeros(n_arms) for _ in range(4))
    for run, dt in runs.items():
        p = pulls[run]
        arms = p["arm"].values
        n = np.bincount(arms, 1.0 * ~p["failed"].values, n_arms)
        spent += np.bincount(arms, p["cost"].values, n_arms)
        good += n
        error = "log_mean_mcse" if dt.attrs.get("scale") == "log" else "mcse"
        table = _group(dt, "arms", (error,), run)
        variance = n * table[error].values ** 2
        usable = np.isfinite(variance) & (n > 1.0)
        squares[usable] += (n[usable] - 1.0) * variance[usable]
        df[usable] += n[usable] - 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        costs, known = spent / good, squares / df
    for name, value in ({} if variances is None else variances).items():
        if name not in names:
            raise ValueError(f"variances names {name!r}, the arms are {listed(names)}.")
        if not 0.0 <= value < math.inf:
            raise ValueError(f"variances must be finite and not negative, got {name!r}: {value!r}.")
        known[names.index(name)] = value
        df[names.index(name)] = math.inf
    return costs, known, df


def _most_likely_best(price: np.ndarray, df: np.ndarray) -> int:
    """Return the arm with the smallest cost times variance, among those with a reliable variance if possible."""
    usable = np.isfinite(price) & (df > 0.0)
    if not usable.any():
        raise ValueError("No arm was drawn twice; pass variances={name: ...} of all arms.")
    trusted = usable & (df >= _TRUSTED - 1)
    return int(np.argmin(np.where(trusted if trusted.any() else usable, price, np.inf)))


def _common_arms(runs: Mapping[str, xr.DataTree]) -> list[str]:
    """Return the names of the arms after checking that all runs share them."""
    found = {
        run: [str(name) for name in _group(dt, "arms", ("draws",), run)["arm"].values]
        for run, dt in runs.items()
    }
    first, *others = found
    for run in others:
        if found[run] != found[first]:
            raise ValueError(
                f"Runs must be of the same arms: {first!r} has {listed(found[first])}, "
                f"{run!r} has {listed(found[run])}."
            )
    for what in ("scale", "cost"):
        values = {run: dt.attrs.get(what) for run, dt in runs.items()}
        if len(set(values.values())) > 1:
            raise ValueError(f"Runs must have the same {what}, got {values}.")
    return found[first]


def _unit(runs: Mapping[str, xr.DataTree], pulls: Mapping[str, xr.Dataset]) -> str:
    """Return the unit of the cost."""
    if all((p["cost"] == 1.0).all() for p in pulls.values()):
        return "draws"
    return cost_unit(next(iter(runs.values())))


def cost_unit(dt: xr.DataTree) -> str:
    """Return the unit of costs that are not numbers of draws."""
    return "CPU time (s)" if dt.attrs.get("cost") == "cpu" else "cost"


def _group(dt: xr.DataTree, group: str, variables: tuple[str, ...], run: str) -> xr.Dataset:
    return result_group(dt, group, variables, _SOURCE, name=f"dt[{run!r}]" if run else "dt")
