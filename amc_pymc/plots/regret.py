"""Plot of the regret from draws of suboptimal arms."""

from __future__ import annotations

import math

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from amc_pymc.plots.combinations import (
    MOST_DOTS,
    MOST_POINTS,
    colour_by,
    cost_unit,
    dataset_of,
    log_axis,
    plot_backend,
    round_ends,
    side_by_side,
    visual_options,
)

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_regret"]

_VISUALS = ("regret", "rounds", "title", "xlabel", "ylabel", "legend")
#: Minimum number of draws for a variance that determines the best arm.
_TRUSTED = 30


def plot_regret(
    dt: xr.DataTree | Mapping[str, xr.DataTree],
    *,
    best: str | None = None,
    variances: Mapping[str, float] | None = None,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    r"""Plot the cumulative regret of one or several runs against their cost.

    Regret is the loss from draws of arms other than the best one. If arm k has been drawn :math:`T_k`
    times at a mean cost :math:`\delta_k`, and its draws have the variance :math:`V_k`, the regret is

    .. math:: R = \sum_k T_k \frac{\delta_k V_k - \delta_* V_*}{\delta_* V_*},

    in draws of the best arm. At equal costs, the plain average of n draws has a mean squared error of
    :math:`1 + R / n` times that of n draws of the best arm (Neufeld et al. 2014, theorem 1). The curve
    of a policy that learns flattens.

    Parameters
    ----------
    dt : DataTree or mapping of names to DataTree
        Result of :func:`amc_pymc.combine_estimators`. Several runs of the same arms, for example with
        different policies, are drawn together and share costs and variances.
    best : str, optional
        Arm to compare with. By default, the arm with the smallest cost times variance among those drawn at
        least 30 times or with a given variance, because an arm with few draws can look best by chance; arms
        that look even better count as equally good.
    variances : mapping of {str : float}, optional
        Known variances of arms, on the log scale divided by the squared mean. Others are estimated from
        the group ``arms`` of all runs.
    plot_collection : PlotCollection, optional
        Collection to draw in, with a plot for the variable "regret".
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        By default ``rcParams["plot.backend"]`` of ArviZ.
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * regret -> passed to :func:`~arviz_plots.visuals.line_xy`
        * rounds, dots at the ends of rounds if there are few
          -> passed to :func:`~arviz_plots.visuals.scatter_xy`
        * title -> passed to :func:`~arviz_plots.visuals.labelled_title`
        * xlabel, ylabel -> passed to :func:`~arviz_plots.visuals.labelled_x` and
          :func:`~arviz_plots.visuals.labelled_y`
        * legend -> passed to :meth:`arviz_plots.PlotCollection.add_legend`

    **pc_kwargs
        Passed to :meth:`arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        If `dt` is not such a result or lacks a group, runs have different arms, a variance is neither
        known nor estimable, or an option is unknown.

    See Also
    --------
    plot_allocation : draws of each arm.

    References
    ----------
    Neufeld, György, Schuurmans & Szepesvári (2014), Adaptive Monte Carlo via bandit allocation, ICML,
    PMLR 32(2):1944-1952.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> arms = {
    ...     "sharp": lambda rng: rng.normal(1.0, 0.1),
    ...     "vague": lambda rng: rng.normal(1.0, 5.0),
    ... }
    >>> runs = {
    ...     policy: amc.combine_estimators(
    ...         arms, policy=policy, draws=1000, random_seed=1, progressbar=False
    ...     )
    ...     for policy in ("lcb", "random")
    ... }
    >>> pc = amc.plot_regret(runs, variances={"sharp": 0.01, "vague": 25.0}, backend="none")
    >>> pc.data["run"].values.tolist()
    ['lcb', 'random']
    """
    from arviz_plots import PlotCollection
    from arviz_plots import visuals as draw

    options = visual_options(visuals, _VISUALS)
    runs = dict(dt) if isinstance(dt, Mapping) and not isinstance(dt, xr.DataTree) else {"": dt}
    if not runs:
        raise ValueError("dt must hold at least one run, got an empty mapping.")
    data, found = _curves(runs, best, variances)
    backend = plot_backend(backend, plot_collection)
    several = len(runs) > 1
    if plot_collection is None:
        with_legend = several and options["legend"] is not False
        pc_kwargs = side_by_side(pc_kwargs, backend, 1, legend=with_legend)
        plot_collection = PlotCollection.wrap(data, backend=backend, **pc_kwargs)
    if "color" not in plot_collection.aes_set:
        colour_by(plot_collection, "run", list(map(str, runs)))

    y = data["regret"].sel(plot_axis="y").values
    positive = bool((y[np.isfinite(y)] >= 0.0).all() and (y > 0.0).any())
    if positive:
        data = data.where(data["regret"].sel(plot_axis="y", drop=True) > 0.0)
    for axis in ("x", "y") if positive else ("x",):
        plot_collection.map(log_axis, data=data, ignore_aes="all", store_artist=False, axis=axis)
    dots = data.sizes["step"] <= MOST_DOTS
    for key, visual, wanted in (
        ("regret", draw.line_xy, True),
        ("rounds", draw.scatter_xy, dots),
    ):
        if wanted and options[key] is not False:
            defaults = {"size": 12} if key == "rounds" else {}
            plot_collection.map(visual, key, data=data, **{**defaults, **options[key]})

    texts = {
        "title": f"Regret against {found.best!r}",
        "xlabel": f"{found.unit}, all arms",
        "ylabel": "regret, draws of the best arm",
    }
    for key, label in (
        ("title", draw.labelled_title),
        ("xlabel", draw.labelled_x),
        ("ylabel", draw.labelled_y),
    ):
        if options[key] is not False:
            plot_collection.map(
                label, key, data=data, ignore_aes="all", **{"text": texts[key], **options[key]}
            )
    mapped = plot_collection.aes["color"].dataset if "color" in plot_collection.aes_set else {}
    if several and options["legend"] is not False and "run" in getattr(mapped, "dims", ()):
        plot_collection.add_legend("run", **options["legend"])
    return plot_collection


class _Found(NamedTuple):
    """Arm compared with, and unit of costs."""

    best: str
    unit: str


def _curves(
    runs: Mapping[str, xr.DataTree], best: str | None, variances: Mapping[str, float] | None
) -> tuple[xr.Dataset, _Found]:
    """Compute cost and regret at the ends of rounds; runs with fewer rounds are padded with nan."""
    names = _common_arms(runs)
    pulls = {
        run: dataset_of(dt, "pulls", ("arm", "round", "cost", "failed"), _label(run))
        for run, dt in runs.items()
    }
    costs, known, n_known = _moments(runs, pulls, names, variances)
    price = costs * known
    if best is None:
        k = _most_likely_best(price, n_known)
    elif best in names:
        k = names.index(best)
    else:
        raise ValueError(f"best must be an arm, one of {_listed(names)}, got {best!r}.")
    if not math.isfinite(price[k]):
        raise ValueError(
            f"The variance of {names[k]!r} is not known; pass variances={{{names[k]!r}: ...}}."
        )
    if price[k] <= 0.0:
        raise ValueError(
            f"The variance of {names[k]!r} is zero, and regret is in units of it; pass another best "
            f"or variances={{{names[k]!r}: ...}}."
        )
    excess = np.where(np.isnan(price), np.nan, price / price[k] - 1.0)
    if best is None:
        excess = np.maximum(excess, 0.0)
    curves = {run: _curve(p, excess, names) for run, p in pulls.items()}
    steps = max(c.shape[1] for c in curves.values())
    padded = np.full((len(runs), 2, steps), np.nan)
    for i, c in enumerate(curves.values()):
        padded[i, :, : c.shape[1]] = c
    data = xr.Dataset(
        {"regret": (("run", "plot_axis", "step"), padded)},
        {"run": list(map(str, runs)), "plot_axis": ["x", "y"]},
    )
    return data, _Found(names[k], _unit(runs, pulls))


def _curve(pulls: xr.Dataset, excess: np.ndarray, names: list[str]) -> np.ndarray:
    """Compute cost and regret (2, R) of a run at the ends of rounds."""
    arms, good = pulls["arm"].values, ~pulls["failed"].values
    unknown = np.isnan(excess) & (np.bincount(arms[good], minlength=excess.size) > 0)
    if unknown.any():
        which = [name for name, bad in zip(names, unknown, strict=True) if bad]
        raise ValueError(
            f"Nothing is known of the variance of {_listed(which)}, drawn less than twice; pass "
            f"variances={{{which[0]!r}: ...}}."
        )
    lost = np.where(good, excess[arms], 0.0)
    alone = pulls.assign(cost=("pull", lost))
    group = np.zeros(excess.size, np.int64)
    spent = round_ends(pulls, group, MOST_POINTS).cost[:, 0]
    return np.stack([spent, round_ends(alone, group, MOST_POINTS).cost[:, 0]])


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
        table = dataset_of(dt, "arms", (error,), _label(run))
        variance = n * table[error].values ** 2
        usable = np.isfinite(variance) & (n > 1.0)
        squares[usable] += (n[usable] - 1.0) * variance[usable]
        df[usable] += n[usable] - 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        costs, known = spent / good, squares / df
    for name, value in ({} if variances is None else variances).items():
        if name not in names:
            raise ValueError(f"variances names {name!r}, the arms are {_listed(names)}.")
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
        run: [str(name) for name in dataset_of(dt, "arms", ("draws",), _label(run))["arm"].values]
        for run, dt in runs.items()
    }
    first, *others = found
    for run in others:
        if found[run] != found[first]:
            raise ValueError(
                f"Runs must be of the same arms: {first!r} has {_listed(found[first])}, "
                f"{run!r} has {_listed(found[run])}."
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


def _label(run: str) -> str:
    return f"dt[{run!r}]" if run else "dt"


def _listed(names: list[str], most: int = 6) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"
