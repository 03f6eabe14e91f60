"""Plot of the boxes of a likelihood-free run and the posterior density on them."""

from __future__ import annotations

import itertools

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from amc_pymc.plots.combinations import plot_backend, side_by_side, visual_options
from amc_pymc.plots.evidence import evidence_group
from amc_pymc.plots.mesh import colour_bar, coloured_cells
from amc_pymc.plots.step_density import Axis, box_axis, cell_masses, pair_masses

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["ABC_SOURCE", "plot_partition"]

ABC_SOURCE = "amc_pymc.sample_abc_tree or amc_pymc.sample_abc_rejection"
_VISUALS = (
    "density", "boxes", "draws", "marginal", "fill", "rug", "colorbar", "title", "xlabel", "ylabel",
)  # fmt: skip
#: Default and maximum number of coordinates shown.
_SHOWN, _MOST = 4, 6
#: Maximum number of draws in a plot.
_MOST_DRAWS = 1000
#: Range of the colour scale in decades; lower densities have the same colour.
_DECADES = 4.0


def plot_partition(
    data: xr.DataTree,
    *,
    var_names: str | Sequence[str] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    zoom: bool = True,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot the boxes of a likelihood-free run, coloured by posterior density, with draws on top.

    One coordinate is shown by its marginal density, which is a step function, and two by their boxes.
    More coordinates are shown as the lower triangle of a matrix: marginal densities on the diagonal, and
    densities of pairs, onto which boxes of more dimensions are projected.

    Parameters
    ----------
    data : DataTree
        Result of :func:`amc_pymc.sample_abc_tree` or :func:`amc_pymc.sample_abc_rejection`.
    var_names : str or sequence of str, optional
        At most six coordinates such as "mu[0]", or variables, which stand for all their coordinates. By
        default the first four coordinates.
    pairs : sequence of (str, str), optional
        Alternatively, coordinates of the horizontal and vertical axes, with a plot for each pair.
    zoom : bool, default True
        Whether to show only the range of the draws, with a margin, instead of the range of the prior.
        Infinite bounds are truncated to the range of the draws in either case.
    plot_collection : PlotCollection, optional
        Collection to draw in, with plots for variables "a" and "a, b" for coordinates a and pairs (a, b).
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        By default ``rcParams["plot.backend"]`` of ArviZ.
    visuals : mapping of {str : mapping or bool}, optional
        Options of each visual, or False to omit it:

        * density -> passed to ``pcolormesh``, ``quad`` or ``Heatmap`` of the library; ``colors``: a
          sequence of "#rrggbb", from low to high
        * boxes, their outlines if the problem has two dimensions -> passed to
          :func:`~arviz_plots.visuals.line_xy`
        * draws, at most 1000 of equal weight -> passed to :func:`~arviz_plots.visuals.scatter_xy`
        * marginal -> passed to :func:`~arviz_plots.visuals.line_xy`
        * fill, area below marginals -> passed to :func:`~arviz_plots.visuals.fill_between_y`
        * rug, draws below marginals -> passed to :func:`~arviz_plots.visuals.scatter_xy`
        * colorbar -> passed to ``colorbar`` or ``ColorBar`` of the library
        * title -> passed to :func:`~arviz_plots.visuals.labelled_title`, or for several plots to
          :meth:`arviz_plots.PlotCollection.add_title`
        * xlabel, ylabel -> passed to :func:`~arviz_plots.visuals.labelled_x` and
          :func:`~arviz_plots.visuals.labelled_y`

    **pc_kwargs
        Passed to :meth:`arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        If `data` is not such a result or lacks a group, a coordinate is unknown or named twice, or an
        option is unknown.

    Notes
    -----
    In each box the posterior is constant relative to the prior, that is, in the unit cube. On the
    scale of the parameters, the density of a cell between adjacent bounds of boxes is its mass over
    its size, which is exact on average over the cell. If a cell is truncated, the remaining part has all
    of its mass. An outermost cell is truncated to the range of the draws if it is unbounded, or if the
    prior is five times thinner in it than in the next cell, as in a tail that a quantile function
    truncates far out. Coordinates are shown in the cube, without draws, if the scale of the parameters is
    unknown: for priors that have no quantiles, are discrete, or depend on other parameters. Colours are on
    a log scale, and densities below a ten-thousandth of the highest one have the same colour.

    In a run with ``adjust="linear"``, the draws are adjusted, but the boxes are not.

    See Also
    --------
    plot_abc : progress of the run.

    Examples
    --------
    Two boxes, one of them with most of the mass:

    >>> import numpy as np, xarray as xr
    >>> from amc_pymc.plots.partition import plot_partition
    >>> dt = xr.DataTree.from_dict(
    ...     {
    ...         "posterior": xr.Dataset({"mu": (("chain", "draw"), np.linspace(0, 4, 9)[None])}),
    ...         "step_posterior": xr.Dataset(
    ...             {
    ...                 "lower": (("box", "coordinate"), [[0.0], [0.5]]),
    ...                 "upper": (("box", "coordinate"), [[0.5], [1.0]]),
    ...                 "theta_lower": (("box", "coordinate"), [[0.0], [2.0]]),
    ...                 "theta_upper": (("box", "coordinate"), [[2.0], [4.0]]),
    ...                 "mass": ("box", [0.9, 0.1]),
    ...             },
    ...             {"coordinate": ["mu"]},
    ...         ),
    ...     }
    ... )
    >>> pc = plot_partition(dt, backend="none")
    >>> pc.get_viz("marginal", "mu")["y"].tolist()
    [0.0, 0.45, 0.45, 0.05, 0.05, 0.0]
    """
    from arviz_plots import PlotCollection
    from arviz_plots import visuals as draw

    options = visual_options(visuals, _VISUALS)
    steps = _steps(data)
    known = [str(name) for name in steps["coordinate"].values]
    wanted = _wanted(var_names, pairs, known)
    names = list(dict.fromkeys(name for panel in wanted for name in panel))
    axes, mass = _axes(data, steps, names, known, zoom), steps["mass"].values
    panels = {", ".join(p): _panel([axes[name] for name in p], mass) for p in wanted}
    # More than two coordinates make a matrix; otherwise there is one plot, or plots side by side.
    side = len(names) if pairs is None and len(names) > 2 else 0
    layout = _layout(wanted, names, side)
    backend = plot_backend(backend, plot_collection)
    if plot_collection is None:
        bar = options["colorbar"] is not False and any(len(p) > 1 for p in wanted)
        pc_kwargs = _sized(pc_kwargs, backend, len(wanted), side, bar=bar)
        plot_collection = PlotCollection.wrap(layout, backend=backend, **pc_kwargs)
        for name in set(layout) - set(panels):
            plot_collection.map(
                draw.remove_axis, data=layout[[name]], ignore_aes="all", store_artist=False,
                axis="both",
            )  # fmt: skip

    def paint(visual: Callable[..., Any], key: str, data: xr.Dataset, **defaults: Any) -> None:
        if options[key] is not False:
            plot_collection.map(visual, key, data=data, ignore_aes="all", **defaults | options[key])

    relative = sum(len(p) > 1 for p in wanted) > 1
    limits = _colour_limits([p for p in panels.values() if p.y is not None], relative)
    for row, (name, panel) in enumerate(panels.items()):
        one = layout[[name]]
        if panel.y is None:
            _paint_marginal(paint, name, panel)
            height = 1.08 * float(panel.density.max())
            view = (-0.06 * height, height)
        else:
            top = float(panel.density.max()) if relative else 1.0
            x, y = panel.x, panel.y
            density = xr.Dataset({name: (("x_cell", "y_cell"), panel.density / top)})
            paint(coloured_cells, "density", density, x=x.places, y=y.places, limits=limits)
            if len(known) == 2:
                outlines = _xy(name, *_outlines(x, y))
                width = min(10.0 / outlines.sizes["point"] ** 0.5, 0.8)
                paint(draw.line_xy, "boxes", outlines, color="white", width=width)
            if x.draws is not None and y.draws is not None:
                few = min(300.0 / len(x.draws), 1.0)
                paint(draw.scatter_xy, "draws", _xy(name, x.draws, y.draws),
                      color="C1", alpha=0.5 + 0.3 * few, size=2.0 + 6.0 * few, width=0.0)  # fmt: skip
            view = y.view
        set_up = {"data": one, "ignore_aes": "all", "store_artist": False}
        plot_collection.map(draw.set_xlim, limits=panel.x.view, **set_up)
        plot_collection.map(draw.set_ylim, limits=view, **set_up)
        if not side or wanted[row][-1] == names[-1] or wanted[row] == (names[-1],):
            paint(draw.labelled_x, "xlabel", one, text=panel.x.label)
        if not side or wanted[row][0] == names[0]:
            text = "density" if panel.y is None else panel.y.label
            paint(draw.labelled_y, "ylabel", one, text=text)

    if limits is not None and options["density"] is not False:
        blank = f"{names[-1]}, {names[0]}" if side else ""
        inside = blank in plot_collection.viz["plot"].data_vars
        text = "density / highest of the plot" if relative else "posterior density"
        at = xr.Dataset({blank if inside else list(panels)[-1]: 0.0})
        more = {k: v for k, v in options["density"].items() if k == "colors"}
        paint(colour_bar, "colorbar", at, limits=limits, text=text, inside=inside, **more)
    title = _title(data, steps)
    if len(layout) == 1:
        paint(draw.labelled_title, "title", layout, text=title)
    elif options["title"] is not False:
        plot_collection.add_title(**{"text": title, **options["title"]})
    return plot_collection


class _Panel(NamedTuple):
    """Single plot.

    Attributes
    ----------
    x, y : Axis
        Axes; y is None for a marginal density.
    density : array (C_x,) or (C_x, C_y)
        Density in each cell.
    """

    x: Axis
    y: Axis | None
    density: np.ndarray


def _steps(data: xr.DataTree) -> xr.Dataset:
    """Check and return the group ``step_posterior``, with normalised masses."""
    steps = evidence_group(data, "step_posterior", ("lower", "upper", "mass"), "data", ABC_SOURCE)
    if "coordinate" not in steps.coords or not steps.sizes.get("box", 0):
        raise ValueError(
            "Group 'step_posterior' of data must have boxes and coordinates (dims box, coordinate), got "
            f"{dict(steps.sizes)}."
        )
    order = ("box", "coordinate")
    bounds = {k: v.transpose(*order) for k, v in steps.items() if v.ndim == 2}
    steps = steps.assign(bounds)
    lower, upper, mass = (steps[k].values for k in ("lower", "upper", "mass"))
    if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower < upper).all()):
        raise ValueError(
            "lower must be below upper in all boxes of group 'step_posterior' of data."
        )
    if not (np.isfinite(mass).all() and (mass >= 0.0).all() and mass.sum() > 0.0):
        raise ValueError(
            "mass in group 'step_posterior' of data must be finite and not negative, with a positive sum."
        )
    return steps.assign(mass=("box", mass / mass.sum()))


def _wanted(
    var_names: str | Sequence[str] | None, pairs: Sequence[tuple[str, str]] | None, known: list[str]
) -> list[tuple[str, ...]]:
    """Return the coordinates of each plot: one for a marginal density, else x and y."""
    if pairs is not None:
        if var_names is not None:
            raise ValueError("Pass var_names or pairs, not both.")
        return _pairs(pairs, known)
    if var_names is None:
        names = known[:_SHOWN]
    else:
        names = _expanded(var_names, known)
    if len(names) <= 2:
        return [tuple(names)]
    below = [
        (names[i], names[j]) for j, i in itertools.product(range(len(names)), repeat=2) if i < j
    ]
    return [*((name,) for name in names), *below]


def _expanded(var_names: str | Sequence[str], known: list[str]) -> list[str]:
    """Expand names of variables to their coordinates."""
    given = [var_names] if isinstance(var_names, str) else var_names
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"var_names must be a string or a sequence of strings, got {var_names!r}.")
    names = [
        label for name in given
        for label in ([name] if name in known else _of_variable(name, known, "var_names"))
    ]  # fmt: skip
    if not names:
        raise ValueError(f"var_names must name at least one of {_listed(known)}, got none.")
    if len(set(names)) < len(names):
        raise ValueError(f"var_names must name each coordinate once, got {names}.")
    if len(names) > _MOST:
        raise ValueError(
            f"var_names must name {_MOST} coordinates at most, got {len(names)}: {names}."
        )
    return names


def _of_variable(name: str, known: list[str], argument: str) -> list[str]:
    found = [label for label in known if label.startswith(f"{name}[")]
    if not found:
        raise ValueError(f"{argument} names {name!r}; known are the coordinates {_listed(known)}.")
    return found


def _pairs(pairs: Sequence[tuple[str, str]], known: list[str]) -> list[tuple[str, ...]]:
    if isinstance(pairs, str) or not isinstance(pairs, Sequence) or not pairs:
        raise TypeError(f"pairs must be a sequence of pairs of coordinates, got {pairs!r}.")
    for pair in pairs:
        good = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        if not good or pair[0] == pair[1]:
            raise ValueError(f"pairs must have two different coordinates each, got {pair!r}.")
        for name in pair:
            if name not in known:
                raise ValueError(
                    f"pairs names {name!r}; known are the coordinates {_listed(known)}."
                )
    out = [tuple(pair) for pair in pairs]
    if len(set(out)) < len(out):
        raise ValueError(f"pairs must name each pair once, got {out}.")
    return out


def _listed(names: list[str], most: int = 8) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def _axes(
    data: xr.DataTree, steps: xr.Dataset, names: list[str], known: list[str], zoom: bool
) -> dict[str, Axis]:
    draws = _draws(data, names)
    out = {}
    for name in names:
        at = known.index(name)
        lower, upper = (steps[k].values[:, at] for k in ("lower", "upper"))
        theta = None
        if "theta_lower" in steps and "theta_upper" in steps:
            theta = steps["theta_lower"].values[:, at], steps["theta_upper"].values[:, at]
        axis = box_axis(name, lower, upper, theta, draws.get(name), zoom=bool(zoom))
        if axis.draws is None:
            axis = axis._replace(label=f"{name}, unit cube")
        out[name] = axis
    return out


def _draws(data: xr.DataTree, names: list[str]) -> dict[str, np.ndarray]:
    """Return at most 1000 equally weighted draws of the coordinates that have draws."""
    if "posterior" in data.children:
        group, place = data["posterior"].to_dataset(), None
    elif "weighted_posterior" in data.children:
        group = data["weighted_posterior"].to_dataset()
        place = _resampled(group)
    else:
        raise ValueError(
            "data has no group 'posterior' or 'weighted_posterior', only "
            f"{sorted(map(str, data.children))}; pass what {ABC_SOURCE} returned."
        )
    out = {}
    for name in names:
        flat = _column(group, name)
        if flat is None:
            continue
        if place is None:
            place = np.linspace(0, flat.size - 1, min(flat.size, _MOST_DRAWS)).round().astype(int)
        out[name] = flat[place]
    good = np.all([np.isfinite(v) for v in out.values()], axis=0) if out else np.array([])
    return {name: v[good] for name, v in out.items()} if good.any() else {}


def _column(group: xr.Dataset, name: str) -> np.ndarray | None:
    """Return all draws of one coordinate, or None if it has none."""
    variable = name.partition("[")[0]
    if variable not in group or not {"chain", "draw"} <= set(group[variable].dims):
        return None
    values = group[variable].transpose("chain", "draw", ...).values
    for at in np.ndindex(values.shape[2:]):
        if name == (f"{variable}[{','.join(map(str, at))}]" if at else variable):
            return values[(slice(None), slice(None), *at)].reshape(-1).astype(float)
    return None


def _resampled(weighted: xr.Dataset) -> np.ndarray:
    """Return indices of draws resampled by their weights, evenly spaced in the cumulative weights."""
    if "log_weight" not in weighted:
        raise ValueError(
            f"Group 'weighted_posterior' of data has no log_weight; pass what {ABC_SOURCE} returned."
        )
    log_weight = weighted["log_weight"].transpose("chain", "draw").values.reshape(-1)
    if not len(log_weight) or not np.isfinite(log_weight).all():
        raise ValueError(
            "log_weight in group 'weighted_posterior' of data must be finite, and at least one."
        )
    total = np.cumsum(np.exp(log_weight - log_weight.max()))
    n = min(len(total), _MOST_DRAWS)
    chosen: np.ndarray = np.searchsorted(total, (np.arange(n) + 0.5) / n * total[-1])
    return chosen


def _panel(axes: list[Axis], mass: np.ndarray) -> _Panel:
    x = axes[0]
    if len(axes) == 1:
        return _Panel(x, None, cell_masses(x, mass) / np.diff(x.places))
    y = axes[1]
    areas = np.outer(np.diff(x.places), np.diff(y.places))
    return _Panel(x, y, pair_masses(x, y, mass) / areas)


def _layout(wanted: list[tuple[str, ...]], names: list[str], side: int) -> xr.Dataset:
    """Return a dataset with a variable for each plot, row by row; a matrix includes those above the diagonal."""
    if not side:
        return xr.Dataset({", ".join(p): 0.0 for p in wanted})
    cells = itertools.product(names, repeat=2)
    return xr.Dataset({y if x == y else f"{x}, {y}": 0.0 for y, x in cells})


def _sized(
    pc_kwargs: dict[str, Any], backend: str, n: int, side: int, *, bar: bool
) -> dict[str, Any]:
    """Return collection options for nearly square plots."""
    if not side:
        figure = dict(pc_kwargs.get("figure_kwargs", {}))
        if n == 1 and bar and "figsize" not in figure:
            module = import_module(f"arviz_plots.backend.{backend}")
            width = 0.95 * module.scale_fig_size(None, rows=1, cols=1)[0]
            figure |= {"figsize": (width, 0.8 * width), "figsize_units": "dots"}
        return side_by_side({**pc_kwargs, "figure_kwargs": figure}, backend, n, legend=bar)
    figure = dict(pc_kwargs.get("figure_kwargs", {}))
    if "figsize" not in figure:
        module = import_module(f"arviz_plots.backend.{backend}")
        width = 0.42 * side * module.scale_fig_size(None, rows=1, cols=1)[0]
        figure |= {"figsize": (width, 0.92 * width), "figsize_units": "dots"}
    return side_by_side(
        {"col_wrap": side, **pc_kwargs, "figure_kwargs": figure}, backend, side, legend=False
    )


def _colour_limits(panels: list[_Panel], relative: bool) -> tuple[float, float] | None:
    """Return the densities of the first and last colours, which may be relative to the highest of each plot."""
    if not panels:
        return None
    lowest, highest = np.inf, 0.0
    for panel in panels:
        top = float(panel.density.max())
        shown = panel.density[panel.density > 0.0] / (top if relative else 1.0)
        lowest, highest = min(lowest, float(shown.min())), max(highest, float(shown.max()))
    lowest = max(lowest, highest * 10.0**-_DECADES)
    # The limits must differ even if all densities are equal.
    return (min(lowest, 0.1 * highest), highest)


def _outlines(x: Axis, y: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Return the outlines of the visible boxes as one line with gaps."""
    (left, right), (bottom, top) = x.drawn, y.drawn
    seen = (left < x.view[1]) & (right > x.view[0]) & (bottom < y.view[1]) & (top > y.view[0])
    left, right, bottom, top = (v[seen] for v in (left, right, bottom, top))
    gap = np.full(len(left), np.nan)
    return (
        np.stack([left, right, right, left, left, gap], axis=1).ravel(),
        np.stack([bottom, bottom, top, top, bottom, gap], axis=1).ravel(),
    )


def _paint_marginal(paint: Callable[..., None], name: str, panel: _Panel) -> None:
    """Draw a marginal density as a step function with the area below it, and a rug of draws."""
    from arviz_plots import visuals as draw

    x = np.repeat(panel.x.places, 2)
    y = np.concatenate([[0.0], np.repeat(panel.density, 2), [0.0]])
    area = np.stack([x, np.zeros_like(x), y])
    kwarg = {"kwarg": ["x", "y_bottom", "y_top"]}
    filled = xr.Dataset({name: (("kwarg", "point"), area)}, kwarg)
    paint(draw.fill_between_y, "fill", filled, color="C0", alpha=0.25)
    paint(draw.line_xy, "marginal", _xy(name, x, y), color="C0", width=1.5)
    if panel.x.draws is not None:
        height = np.full_like(panel.x.draws, -0.03 * float(panel.density.max()))
        paint(draw.scatter_xy, "rug", _xy(name, panel.x.draws, height),
              color="C1", alpha=0.25, size=20.0, marker="|")  # fmt: skip


def _xy(name: str, x: np.ndarray, y: np.ndarray) -> xr.Dataset:
    return xr.Dataset({name: (("plot_axis", "point"), np.stack([x, y]))}, {"plot_axis": ["x", "y"]})


def _title(data: xr.DataTree, steps: xr.Dataset) -> str:
    """Summarise the run in a title."""
    n = steps.sizes["box"]
    parts = [f"{n:,} box{'es' if n != 1 else ''}"]
    attrs = data["posterior"].attrs if "posterior" in data.children else {}
    if "tolerance" in attrs:
        parts.append(f"tolerance {float(attrs['tolerance']):.3g}")
    if "effective_draws" in attrs:
        parts.append(f"{float(attrs['effective_draws']):,.0f} effective draws")
    return ", ".join(parts)
