"""Plot of the evidence of several models, or of the arms of one estimate."""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd
import xarray as xr

from amc_pymc.plots.combinations import plot_backend, side_by_side, visual_options

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["LARGEST_ERROR", "evidence_group", "number_with_error", "plot_evidence"]

_Several = Mapping[str, xr.DataTree | tuple[float, float]]

_VISUALS = (
    "bar", "band", "reference", "interval", "point", "value", "names", "ticks", "title", "xlabel",
)  # fmt: skip
#: Half width of a 95 % interval in standard errors.
_Z95 = 1.96
#: Range of differences in nats above which the axis becomes logarithmic.
_LINEAR_RANGE = 20.0
#: Horizontal position of the numbers beside probabilities.
_NOTES = 1.08
#: Ratio of the range of the axis to an interval above which the interval is too short to see.
_SHORT = 60.0
#: Pareto k above which a few weights dominate the sum.
_LARGEST_K = 0.7
#: Standard error in nats above which estimates are flagged, as in compare_evidence.
_ROUGH = 1.0
#: Standard error in nats above which it is shown as unknown.
LARGEST_ERROR = 100.0
#: Start of the flag of compare_evidence that is not a warning.
_NO_WARNING = "not separated from "


def plot_evidence(
    data: pd.DataFrame | xr.DataTree | Mapping[str, xr.DataTree | tuple[float, float]],
    *,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot the evidence of several models, or the estimates from the arms of one result.

    For several models, the first plot shows log evidences with 95 % intervals, as differences from the
    best, and as numbers with standard errors. The second shows posterior probabilities.

    For one result with several arms, the first plot shows the estimate of each arm, with the 95 % interval
    of the combined estimate as a band. The second shows the weights of the arms.

    If a linear axis would hide differences close to zero, it is linear near zero and logarithmic beyond:
    for models beyond one nat if differences exceed 20 nats, for arms beyond about three times the
    shortest interval if that would be too short to see.

    Parameters
    ----------
    data : DataFrame, mapping of {str : DataTree or (float, float)} or DataTree
        Table from :func:`amc_pymc.compare_evidence`, drawn in its order with intervals of 1.96 standard errors;
        mapping from model names to results of :func:`amc_pymc.sample_ais` or :func:`amc_pymc.estimate_evidence`,
        or to pairs of natural log evidence and standard error (nan if unknown), sorted and with equal prior
        probabilities; or a single result. Results have their own intervals.
    plot_collection : PlotCollection, optional
        Collection to draw in, with plots for the variables "log_evidence" and, for several rows, "prob" or
        "weight".
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        By default ``rcParams["plot.backend"]`` of ArviZ.
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * bar, from zero to a probability or weight
          -> passed to :func:`~arviz_plots.visuals.fill_between_y`
        * band -> passed to :func:`~arviz_plots.visuals.vspan`
        * reference, a line at the best model or combined estimate
          -> passed to :func:`~arviz_plots.visuals.vline`
        * interval -> passed to :func:`~arviz_plots.visuals.line_x`
        * point -> passed to :func:`~arviz_plots.visuals.scatter_x`
        * value, the numbers -> passed to :func:`~arviz_plots.visuals.annotate_xy`
        * names (of the rows) and ticks -> passed to functions ``yticks`` and ``xticks`` of the library
        * title -> passed to :func:`~arviz_plots.visuals.labelled_title`
        * xlabel -> passed to :func:`~arviz_plots.visuals.labelled_x`

    **pc_kwargs
        Passed to :meth:`arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        If `data` is none of these or lacks a group or column, or an option is unknown.

    Notes
    -----
    Names followed by (!) mark estimates that are flagged or have an error that is unknown or above one
    nat, and arms with a few dominant weights (Pareto k above 0.7). Their intervals are not reliable.

    For other results and for unequal prior probabilities, use :func:`amc_pymc.compare_evidence`, which
    also checks that the data are the same.

    See Also
    --------
    amc_pymc.compare_evidence : table of evidences and probabilities.
    amc_pymc.plot_ais : weights of annealed importance sampling.

    Examples
    --------
    >>> import xarray as xr
    >>> from amc_pymc.plots.evidence import plot_evidence
    >>> found = {
    ...     name: xr.DataTree.from_dict(
    ...         {"evidence": xr.Dataset({"log_evidence": value, "log_evidence_mcse": 0.1})}
    ...     )
    ...     for name, value in {"linear": -14.1, "quadratic": -12.0}.items()
    ... }
    >>> pc = plot_evidence(found, backend="none")
    >>> pc.get_viz("value", "log_evidence", model="linear")["string"]
    '−14.10 ± 0.10'

    Numbers from elsewhere:

    >>> pc = plot_evidence(
    ...     {"linear": (-14.1, 0.1), "quadratic": found["quadratic"]}, backend="none"
    ... )
    >>> pc.get_viz("value", "log_evidence", model="quadratic")["string"]
    '−12.00 ± 0.10'
    """
    from arviz_plots import PlotCollection
    from arviz_plots import visuals as draw

    options = visual_options(visuals, _VISUALS)
    rows = _rows(data)
    backend = plot_backend(backend, plot_collection)
    scale = _scale(rows)
    points, intervals, texts, text_x = _layers(rows, scale)
    labels = [
        f"{name} (!)" if bad else name for name, bad in zip(rows.names, rows.bad, strict=True)
    ]

    if plot_collection is None:
        pc_kwargs = _sized(pc_kwargs, backend, labels, two=len(points) > 1)
        pc_kwargs = side_by_side(pc_kwargs, backend, len(points), legend=False)
        plot_collection = PlotCollection.wrap(points, backend=backend, **pc_kwargs)
    heights = np.arange(len(labels))[::-1].astype(float)
    plot_collection.update_aes_from_dataset(
        "y", xr.Dataset({"mapping": (rows.dim, heights)}, {rows.dim: rows.names})
    )

    def paint(
        visual: Callable[..., Any],
        key: str,
        data: xr.Dataset,
        ignore_aes: Any = "all",
        **defaults: Any,
    ) -> None:
        if options[key] is not False:
            plot_collection.map(
                visual, key, data=data, ignore_aes=ignore_aes, **{**defaults, **options[key]}
            )

    each: frozenset[str] = frozenset(plot_collection.aes_set - {"y"})
    if rows.band is not None:
        band = xr.Dataset({"log_evidence": ("bound", scale(np.array(rows.band)))})
        paint(draw.vspan, "band", band, color="C0", alpha=0.2)
    paint(draw.vline, "reference", xr.Dataset({"log_evidence": 0.0}), color="#888888", width=1)
    if rows.share is not None:
        paint(draw.fill_between_y, "bar", _bars(rows, rows.share), each, color="C0", alpha=0.35)
    paint(draw.line_x, "interval", intervals, each, color="C0", width=2)
    paint(draw.scatter_x, "point", points, each, color="C0")
    paint(_write, "value", points.fillna(0.0), each, text=texts, x=text_x, horizontal_align="left")

    limits = {"log_evidence": _limits(rows, scale, texts)}
    ticks = {"log_evidence": _ticks(rows, scale, limits["log_evidence"])}
    if rows.share_name in points:
        letters = max(map(len, rows.notes))
        limits[rows.share_name] = (-0.03, _NOTES + 0.04 * letters)
        ticks[rows.share_name] = (np.array([0.0, 0.5, 1.0]), ["0", "0.5", "1"])
    for column, name in enumerate(map(str, points)):
        one = xr.Dataset({name: 0.0})
        set_up = {"ignore_aes": "all", "store_artist": False, "data": one}
        plot_collection.map(draw.set_xlim, limits=limits[name], **set_up)
        plot_collection.map(draw.set_ylim, limits=(-0.7, len(labels) - 0.3), **set_up)
        for key, visual, (places, words) in (
            ("names", _y_ticks, (heights, [""] * len(labels) if column else labels)),
            ("ticks", draw.set_xticks, ticks[name]),
        ):
            paint(visual, key, one, store_artist=False, values=places, labels=words)
        paint(draw.labelled_title, "title", one, text=rows.titles[name])
        log = scale.unit is not None and not column
        suffix = f" (log beyond {scale.unit:g})" if log else ""
        paint(draw.labelled_x, "xlabel", one, text=rows.xlabels[name] + suffix)
    return plot_collection


def evidence_group(
    dt: xr.DataTree, group: str, variables: tuple[str, ...], name: str, source: str
) -> xr.Dataset:
    """Return a group of a result after checking that it has the required variables."""
    if not isinstance(dt, xr.DataTree):
        raise TypeError(
            f"{name} must be the xarray.DataTree that {source} returns, got {type(dt).__name__}."
        )
    if group not in dt.children:
        raise ValueError(
            f"{name} has no group {group!r}, only {sorted(map(str, dt.children))}; pass what "
            f"{source} returned."
        )
    data = dt[group].to_dataset()
    missing = [v for v in variables if v not in data]
    if missing:
        raise ValueError(
            f"Group {group!r} of {name} has no {', '.join(missing)}; pass what {source} returned."
        )
    return data


def number_with_error(centre: float, error: float) -> str:
    """Format a number and its standard error to two digits; errors above 100 nats count as unknown.

    Examples
    --------
    >>> number_with_error(-1234.5678, 0.0321), number_with_error(-2.5, float("nan"))
    ('−1234.568 ± 0.032', '−2.500 ± ?')
    """
    if not math.isfinite(centre):
        return "no estimate"
    if not error <= LARGEST_ERROR:
        return f"{centre:.3f} ± ?".replace("-", "−")
    digits = 3 if error <= 0.0 else min(max(1 - math.floor(math.log10(error)), 0), 6)
    return f"{centre:.{digits}f} ± {error:.{digits}f}".replace("-", "−")


class _Rows(NamedTuple):
    """Data of the plot, in rows from top to bottom.

    Attributes
    ----------
    dim : str
    names : list of str (R,)
    centre, error : array (R,)
        Log evidences relative to `reference`, and standard errors.
    bounds : array (R, 2)
        Bounds of intervals, relative to `reference`.
    bad : list of bool (R,)
        Whether an estimate is flagged.
    reference : float
        Log evidence at zero of the axis.
    band : (float, float) or None
        Interval of the combined estimate, relative to `reference`.
    share_name : str
    share, share_error : array (R,) or None
        Probabilities or weights.
    notes : list of str (R,)
        Text beside the probabilities or weights.
    titles, xlabels : dict of {str : str}
    """

    dim: str
    names: list[str]
    centre: np.ndarray
    error: np.ndarray
    bounds: np.ndarray
    bad: list[bool]
    reference: float
    band: tuple[float, float] | None
    share_name: str
    share: np.ndarray | None
    share_error: np.ndarray | None
    notes: list[str]
    titles: dict[str, str]
    xlabels: dict[str, str]


def _rows(data: pd.DataFrame | xr.DataTree | _Several) -> _Rows:
    if isinstance(data, pd.DataFrame):
        return _of_models(data)
    if isinstance(data, xr.DataTree):
        return _of_arms(data) if "arms" in data.children else _of_runs(data)
    if isinstance(data, Mapping):
        if not data:
            raise ValueError("data must hold at least one model, got an empty mapping.")
        return _of_models(_table(cast(_Several, data)))
    raise TypeError(
        "data must be a table of amc_pymc.compare_evidence, a result of amc_pymc.sample_ais or "
        f"amc_pymc.estimate_evidence, or a mapping of names to results or pairs, got {type(data).__name__}."
    )


def _table(results: _Several) -> pd.DataFrame:
    """Make a table of several results with equal prior probabilities, the best first."""
    found = {name: _own(dt, f"data[{name!r}]") for name, dt in results.items()}
    table = pd.DataFrame(found.values(), index=list(found), columns=[*_Own._fields])
    table = table.sort_values("log_evidence", ascending=False, kind="stable")
    p = np.exp((table["log_evidence"] - table["log_evidence"].max()).to_numpy())
    p /= p.sum()
    slopes = np.diag(p) - np.outer(p, p)
    mcse = table["log_evidence_mcse"].to_numpy()
    parts = np.where(slopes == 0.0, 0.0, slopes * mcse)
    return table.assign(prob=p, prob_mcse=np.sqrt(np.sum(parts**2, axis=1)))


class _Own(NamedTuple):
    """Log evidence of one result, with error, interval and flags."""

    log_evidence: float
    log_evidence_mcse: float
    lower: float
    upper: float
    flags: str


def _own(dt: xr.DataTree | tuple[float, float], name: str) -> _Own:
    if isinstance(dt, tuple | list):
        centre, error = _pair(dt, name)
        return _checked(centre, error, centre - _Z95 * error, centre + _Z95 * error, "", name)
    source = "amc_pymc.sample_ais or amc_pymc.estimate_evidence"
    if isinstance(dt, xr.DataTree) and "evidence" not in dt.children:
        source += ", or the table that amc_pymc.compare_evidence makes of other results,"
    group = evidence_group(dt, "evidence", ("log_evidence", "log_evidence_mcse"), name, source)
    centre, error = float(group["log_evidence"]), float(group["log_evidence_mcse"])
    flags = str(group.attrs.get("flags", dt.attrs.get("flags", "")))
    lower = float(group.get("log_evidence_lower", centre - _Z95 * error))
    upper = float(group.get("log_evidence_upper", centre + _Z95 * error))
    return _checked(centre, error, lower, upper, flags, name)


def _pair(pair: tuple[Any, ...] | list[Any], name: str) -> tuple[float, float]:
    """Check and return a pair of log evidence and standard error, as for compare_evidence."""
    try:
        centre, error = (float(value) for value in pair)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a result, or a tuple (log_evidence, mcse) of numbers, got {pair!r}."
        ) from None
    if error < 0.0:
        raise ValueError(f"The standard error of {name} must not be negative, got {error}.")
    return centre, error


def _checked(
    centre: float, error: float, lower: float, upper: float, flags: str, name: str
) -> _Own:
    """Check a log evidence, and flag it if its error is unknown or large."""
    if not math.isfinite(centre):
        raise ValueError(f"The log evidence of {name} must be finite, got {centre}.")
    if not error <= _ROUGH:
        flags = f"{flags}; error unknown or above {_ROUGH:g} nat".removeprefix("; ")
    if not error <= LARGEST_ERROR:
        return _Own(centre, math.nan, math.nan, math.nan, flags)
    return _Own(centre, error, lower, upper, flags)


def _of_models(table: pd.DataFrame) -> _Rows:
    needed = ["log_evidence", "log_evidence_mcse", "prob", "prob_mcse"]
    missing = [column for column in needed if column not in table]
    if missing:
        raise ValueError(
            f"data has no column {', '.join(missing)}; pass the table of amc_pymc.compare_evidence."
        )
    if table.empty:
        raise ValueError("data must hold at least one model, got an empty table.")
    centre, error, share, share_error = (table[column].to_numpy(float) for column in needed)
    reference = float(centre.max())
    half = _Z95 * np.where(error <= LARGEST_ERROR, error, np.nan)
    bounds = np.stack([centre - half, centre + half], axis=1)
    if "lower" in table:
        bounds = table[["lower", "upper"]].to_numpy(float)
    flags = table["flags"] if "flags" in table else [""] * len(table)
    bad = [
        any(flag.strip() and not flag.strip().startswith(_NO_WARNING) for flag in text.split(";"))
        for text in flags
    ]
    several = len(table) > 1
    return _Rows(
        "model", list(map(str, table.index)), centre - reference, error, bounds - reference, bad,
        reference, None, "prob", share if several else None, share_error if several else None,
        [_probability(p, e) for p, e in zip(share, share_error, strict=True)],
        {"log_evidence": _title("Log evidence ± standard error", bad),
         "prob": "Posterior probability"},
        {"log_evidence": f"difference from the {'best' if several else 'estimate'}, 95 % intervals", "prob": "probability"},
    )  # fmt: skip


def _of_arms(dt: xr.DataTree) -> _Rows:
    source = "amc_pymc.estimate_evidence"
    combined = _own(dt, "data")
    arms = evidence_group(dt, "arms", ("log_evidence", "log_evidence_mcse"), "data", source)
    names = list(map(str, arms["arm"].values))
    centre, error = arms["log_evidence"].values, arms["log_evidence_mcse"].values
    reference = combined.log_evidence
    centre = np.where(np.isfinite(centre), centre, np.nan) - reference
    half = _Z95 * np.where(error <= LARGEST_ERROR, error, np.nan)
    nothing = np.full(len(names), np.nan)
    k = arms["pareto_k"].values if "pareto_k" in arms else nothing
    share = arms["weight"].values.astype(float) if "weight" in arms else None
    notes = [""] * len(names) if share is None else [f"{w:.3f}" for w in share]
    if "draws" in arms:
        notes = [f"{w}, {n:,.0f} draws" for w, n in zip(notes, arms["draws"].values, strict=True)]
    bad = [bool(x > _LARGEST_K) for x in k]
    title = f"Log evidence: {number_with_error(reference, combined.log_evidence_mcse)}"
    if combined.flags.strip():
        title += ", flagged"
    return _Rows(
        "arm", names, centre, error, np.stack([centre - half, centre + half], axis=1), bad,
        reference, (combined.lower - reference, combined.upper - reference),
        "weight", share, nothing if share is not None else None, notes,
        {"log_evidence": _title(title, bad, "heavy tail"), "weight": "Weight of the arm"},
        {"log_evidence": "difference from combined, 95 % intervals",
         "weight": "weight"},
    )  # fmt: skip


def _of_runs(dt: xr.DataTree) -> _Rows:
    """Make rows of a result without arms: its estimate, and that of reverse runs if present."""
    own = _own(dt, "data")
    group = dt["evidence"].to_dataset()
    names, centre, error = ["estimate"], [own.log_evidence], [own.log_evidence_mcse]
    bounds = [[own.lower, own.upper]]
    if "reverse_log_evidence" in group:
        names = ["forward", "reverse"]
        centre.append(float(group["reverse_log_evidence"]))
        error.append(float(group.get("reverse_log_evidence_mcse", math.nan)))
        bounds.append([centre[1] - _Z95 * error[1], centre[1] + _Z95 * error[1]])
    bad = [bool(own.flags.strip())] + [False] * (len(names) - 1)
    reference = own.log_evidence
    return _Rows(
        "run", names, np.array(centre) - reference, np.array(error), np.array(bounds) - reference,
        bad, reference, None, "weight", None, None, [],
        {"log_evidence": _title("Log evidence ± standard error", bad)},
        {"log_evidence": "difference from the estimate, 95 % intervals"},
    )  # fmt: skip


def _title(text: str, bad: list[bool], why: str = "flagged") -> str:
    return f"{text}; (!) {why}" if any(bad) else text


def _probability(p: float, error: float) -> str:
    if p < 1e-4:
        return "< 0.0001"
    if p > 1.0 - 1e-4:
        return "> 0.9999"
    if not error <= 0.5:
        return f"{p:.4f} ± ?"
    if error < 1e-5:
        return f"{p:.4f}"
    digits = min(max(1 - math.floor(math.log10(error)), 2), 5)
    return f"{p:.{digits}f} ± {error:.{digits}f}"


class _Scale(NamedTuple):
    """Scale of the axis of differences: linear, or linear up to a unit and logarithmic beyond."""

    unit: float | None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, float)
        return x if self.unit is None else np.sign(x) * np.log10(1.0 + np.abs(x) / self.unit)


def _scale(rows: _Rows) -> _Scale:
    low, high = _extremes(rows)
    if rows.dim == "model":
        return _Scale(1.0 if high - low > _LINEAR_RANGE else None)
    half = 0.5 * (rows.bounds[:, 1] - rows.bounds[:, 0])
    half = half[half > 0.0]
    if half.size == 0 or high - low < _SHORT * half.min():
        return _Scale(None)
    return _Scale(10.0 ** round(math.log10(3.0 * half.min())))


def _extremes(rows: _Rows) -> tuple[float, float]:
    shown = [rows.centre, rows.bounds.ravel(), np.array([0.0])]
    if rows.band is not None:
        shown.append(np.array(rows.band))
    values = np.concatenate(shown)
    values = values[np.isfinite(values)]
    return float(values.min()), float(values.max())


def _layers(rows: _Rows, scale: _Scale) -> tuple[xr.Dataset, xr.Dataset, xr.Dataset, xr.Dataset]:
    """Return the points, intervals, texts and positions of the texts for each plot."""
    low, high = (float(scale(np.array(x))) for x in _extremes(rows))
    points = {"log_evidence": scale(rows.centre)}
    bounds = {"log_evidence": scale(rows.bounds)}
    texts = {
        "log_evidence": [
            number_with_error(c + rows.reference, e)
            for c, e in zip(rows.centre, rows.error, strict=True)
        ]
    }
    places = {"log_evidence": high + 0.05 * _width(low, high)}
    if rows.share is not None and rows.share_error is not None:
        half = _Z95 * rows.share_error[:, None] * [-1.0, 1.0]
        points[rows.share_name] = rows.share
        bounds[rows.share_name] = np.clip(rows.share[:, None] + half, 0.0, 1.0)
        texts[rows.share_name] = rows.notes
        places[rows.share_name] = _NOTES

    def dataset(columns: Mapping[str, Any], *dims: str) -> xr.Dataset:
        return xr.Dataset(
            {k: (dims, v) for k, v in columns.items()}, {rows.dim: rows.names} if dims else None
        )

    return (
        dataset(points, rows.dim), dataset(bounds, rows.dim, "bound"), dataset(texts, rows.dim),
        dataset(places),
    )  # fmt: skip


def _width(low: float, high: float) -> float:
    return high - low if high > low else 1.0


def _limits(rows: _Rows, scale: _Scale, texts: xr.Dataset) -> tuple[float, float]:
    """Return the limits of the axis of differences, with room for the numbers on the right."""
    low, high = (float(scale(np.array(x))) for x in _extremes(rows))
    width = _width(low, high)
    letters = max(len(text) for text in texts["log_evidence"].values)
    return low - 0.06 * width, high + (0.05 + 0.028 * letters) * width


def _ticks(rows: _Rows, scale: _Scale, limits: tuple[float, float]) -> tuple[np.ndarray, list[str]]:
    """Return positions and labels of ticks, outside the room for the numbers."""
    low, high = _extremes(rows)
    if scale.unit is None:
        step = _width(low, high) / 6.0
        power = 10.0 ** math.floor(math.log10(step))
        step = power * next(m for m in (1.0, 2.0, 5.0, 10.0) if m * power >= step * (1 - 1e-9))
        values = step * np.arange(math.ceil(low / step), math.floor(high / step) + 1)
    else:
        decades = math.floor(math.log10(max(-low, high) / scale.unit))
        powers = scale.unit * np.power(10.0, np.arange(decades, -1, -1))
        sizes = np.concatenate([powers, 3.0 * powers])
        values = np.concatenate([[0.0], np.stack([-sizes, sizes], axis=1).ravel()])
    values = values[(values >= low) & (values <= high)]
    # Keep ticks in the order of their importance if their labels do not overlap.
    letter = 0.016 * (limits[1] - limits[0])
    places: list[float] = []
    labels: list[str] = []
    for place, value in zip(scale(values).tolist(), values.tolist(), strict=True):
        label = f"{value:,.6g}".replace("-", "−")
        if all(
            abs(place - p) > 0.5 * letter * (len(label) + len(other) + 1)
            for p, other in zip(places, labels, strict=True)
        ):
            places.append(place)
            labels.append(label)
    return np.array(places), labels


def _bars(rows: _Rows, share: np.ndarray) -> xr.Dataset:
    """Return bars from zero to the shares, as areas around height zero."""
    ends = np.stack([np.zeros_like(share), share], axis=1)
    half = np.full_like(ends, 0.14)
    return xr.Dataset(
        {rows.share_name: ((rows.dim, "kwarg", "end"), np.stack([ends, -half, half], axis=1))},
        {rows.dim: rows.names, "kwarg": ["x", "y_bottom", "y_top"]},
    )


def _sized(
    pc_kwargs: dict[str, Any], backend: str, labels: list[str], *, two: bool
) -> dict[str, Any]:
    """Return collection options with a figure height that depends on the number of rows."""
    figure = dict(pc_kwargs.get("figure_kwargs", {}))
    if "figsize" not in figure:
        names = 0.08 * max(map(len, labels))
        inches = np.array([5.2 + names + 4.0 * two, 1.3 + 0.38 * max(len(labels), 2)])
        dots = backend != "matplotlib"
        figure["figsize"] = tuple((100.0 * inches if dots else inches).tolist())
        figure["figsize_units"] = "dots" if dots else "inches"
    if two:
        figure.setdefault("width_ratios", [1.4, 1.0])
    return {**pc_kwargs, "figure_kwargs": figure}


def _write(
    da: xr.DataArray, target: Any, *, text: xr.DataArray, x: Any, y: Any, **kwargs: Any
) -> Any:
    """Write the text of a row (a visual)."""
    from arviz_plots.plot_collection import backend_from_object

    return backend_from_object(target).text(float(x), float(y), str(text.item()), target, **kwargs)


def _y_ticks(da: xr.DataArray, target: Any, *, values: Any, labels: Any, **kwargs: Any) -> Any:
    """Label the rows (a visual)."""
    from arviz_plots.plot_collection import backend_from_object

    return backend_from_object(target).yticks(values, labels, target, **kwargs)
