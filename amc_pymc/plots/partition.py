"""Plot of the boxes of a likelihood-free run and the posterior density on them."""

from __future__ import annotations

import itertools

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import xarray as xr

from amc_pymc.diagnostics.boxes import cell_masses
from amc_pymc.plots.abc import ABC_SOURCE
from amc_pymc.plots.box_axis import Axis, box_axis
from amc_pymc.plots.mesh import colour_bar, coloured_cells
from amc_pymc.plots.painting import Painter, panel, sized, xy
from amc_pymc.results import listed, result_group

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = ["plot_partition"]

Visual = Literal[
    "density", "boxes", "draws", "marginal", "fill", "rug", "colorbar", "title", "xlabel", "ylabel",
]  # fmt: skip
#: Default and maximum number of coordinates shown.
_SHOWN, _MOST = 4, 6
#: Maximum number of draws in a plot.
_MOST_DRAWS = 1000
#: Range of the colour scale in decades; lower densities have the same colour.
_DECADES = 4.0


def plot_partition(
    dt: xr.DataTree,
    *,
    var_names: str | Sequence[str] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    zoom: bool = True,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    aes_by_visuals: Mapping[Visual, Iterable[str]] | None = None,
    visuals: Mapping[Visual, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot the boxes of a likelihood-free run, coloured by posterior density, with draws on top.

    One coordinate is shown by its marginal density, which is a step function, and two by their boxes.
    More coordinates are shown as the lower triangle of a matrix: marginal densities on the diagonal, and
    densities of pairs, onto which boxes of more dimensions are projected.

    Parameters
    ----------
    dt : DataTree
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
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Aesthetics of `plot_collection` that each visual uses, by default none.
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
        If `dt` is not such a result or lacks a group, a coordinate is unknown or named twice, or an
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
    from arviz_plots import visuals as draw

    paint = Painter(plot_collection, backend, visuals, aes_by_visuals, get_args(Visual), pc_kwargs)
    steps = _steps(dt)
    known = [str(name) for name in steps["coordinate"].values]
    wanted = _wanted(var_names, pairs, known)
    names = list(dict.fromkeys(name for one in wanted for name in one))
    axes, mass = _axes(dt, steps, names, known, zoom), steps["mass"].values
    panels = {", ".join(p): _panel([axes[name] for name in p], mass) for p in wanted}
    # More than two coordinates make a matrix; otherwise there is one plot, or plots side by side.
    side = len(names) if pairs is None and len(names) > 2 else 0
    layout = _layout(wanted, names, side)
    bar = paint.wants("colorbar") and any(len(p) > 1 for p in wanted)
    if paint.open(layout, _sized(pc_kwargs, paint.backend, len(wanted), side, bar=bar)):
        for name in set(layout) - set(panels):
            paint.set(draw.remove_axis, layout[[name]], axis="both")

    relative = sum(len(p) > 1 for p in wanted) > 1
    limits = _colour_limits([p for p in panels.values() if p.y is not None], relative)
    for row, (name, shown) in enumerate(panels.items()):
        if shown.y is None:
            _paint_marginal(paint, name, shown)
            height = 1.08 * float(shown.density.max())
            view = (-0.06 * height, height)
        else:
            top = float(shown.density.max()) if relative else 1.0
            _paint_boxes(paint, name, shown, shown.y, top, limits, outlined=len(known) == 2)
            view = shown.y.view
        paint.set(draw.set_xlim, panel(name), limits=shown.x.view)
        paint.set(draw.set_ylim, panel(name), limits=view)
        if not side or wanted[row][-1] == names[-1] or wanted[row] == (names[-1],):
            paint.label({name: {"xlabel": shown.x.label}})
        if not side or wanted[row][0] == names[0]:
            paint.label({name: {"ylabel": "density" if shown.y is None else shown.y.label}})

    if limits is not None and paint.wants("density"):
        blank = f"{names[-1]}, {names[0]}" if side else ""
        inside = blank in paint.collection.viz["plot"].data_vars
        text = "density / highest of the plot" if relative else "posterior density"
        at = panel(blank if inside else list(panels)[-1])
        more = {k: v for k, v in paint.options["density"].items() if k == "colors"}
        paint(colour_bar, "colorbar", at, limits=limits, text=text, inside=inside, **more)
    title = _title(dt, steps)
    if len(layout) == 1:
        paint.label({str(next(iter(layout))): {"title": title}})
    elif paint.wants("title"):
        paint.collection.add_title(**{"text": title, **paint.options["title"]})
    return paint.collection


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


def _steps(dt: xr.DataTree) -> xr.Dataset:
    """Check and return the group ``step_posterior``, with normalised masses."""
    steps = result_group(dt, "step_posterior", ("lower", "upper", "mass"), ABC_SOURCE)
    if "coordinate" not in steps.coords or not steps.sizes.get("box", 0):
        raise ValueError(
            "Group 'step_posterior' of dt must have boxes and coordinates (dims box, coordinate), got "
            f"{dict(steps.sizes)}."
        )
    order = ("box", "coordinate")
    bounds = {k: v.transpose(*order) for k, v in steps.items() if v.ndim == 2}
    steps = steps.assign(bounds)
    lower, upper, mass = (steps[k].values for k in ("lower", "upper", "mass"))
    if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower < upper).all()):
        raise ValueError("lower must be below upper in all boxes of group 'step_posterior' of dt.")
    if not (np.isfinite(mass).all() and (mass >= 0.0).all() and mass.sum() > 0.0):
        raise ValueError(
            "mass in group 'step_posterior' of dt must be finite and not negative, with a positive sum."
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
        raise ValueError(f"var_names must name at least one of {listed(known)}, got none.")
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
        raise ValueError(f"{argument} names {name!r}; known are the coordinates {listed(known)}.")
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
                    f"pairs names {name!r}; known are the coordinates {listed(known)}."
                )
    out = [tuple(pair) for pair in pairs]
    if len(set(out)) < len(out):
        raise ValueError(f"pairs must name each pair once, got {out}.")
    return out


def _axes(
    dt: xr.DataTree, steps: xr.Dataset, names: list[str], known: list[str], zoom: bool
) -> dict[str, Axis]:
    draws = _draws(dt, names)
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


def _draws(dt: xr.DataTree, names: list[str]) -> dict[str, np.ndarray]:
    """Return at most 1000 draws of the coordinates that have draws."""
    posterior = result_group(dt, "posterior", (), ABC_SOURCE)
    found = {name: _column(posterior, name) for name in names}
    out = {name: flat for name, flat in found.items() if flat is not None}
    if not out:
        return {}
    size = next(iter(out.values())).size
    place = np.linspace(0, size - 1, min(size, _MOST_DRAWS)).round().astype(int)
    good = np.all([np.isfinite(v[place]) for v in out.values()], axis=0)
    return {name: v[place][good] for name, v in out.items()} if good.any() else {}


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


def _panel(axes: list[Axis], mass: np.ndarray) -> _Panel:
    x, *rest = axes
    masses = cell_masses(mass, *((axis.lower, axis.upper, axis.edges) for axis in axes))
    sizes = np.diff(x.places)
    if rest:
        sizes = np.outer(sizes, np.diff(rest[0].places))
    return _Panel(x, rest[0] if rest else None, masses / sizes)


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
    if side:
        return sized(pc_kwargs, backend, 0.42 * side, 0.39 * side, col_wrap=side)
    if n == 1 and bar:
        return sized(pc_kwargs, backend, 0.95, 0.76)
    return sized(pc_kwargs, backend, 0.85 * (n + 0.2 * bar), 0.61)


def _colour_limits(panels: list[_Panel], relative: bool) -> tuple[float, float] | None:
    """Return the densities of the first and last colours, which may be relative to the highest of each plot."""
    if not panels:
        return None
    lowest, highest = np.inf, 0.0
    for shown in panels:
        top = float(shown.density.max())
        positive = shown.density[shown.density > 0.0] / (top if relative else 1.0)
        lowest, highest = min(lowest, float(positive.min())), max(highest, float(positive.max()))
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


def _paint_marginal(paint: Painter, name: str, shown: _Panel) -> None:
    """Draw a marginal density as a step function with the area below it, and a rug of draws."""
    from arviz_plots import visuals as draw

    x = np.repeat(shown.x.places, 2)
    y = np.concatenate([[0.0], np.repeat(shown.density, 2), [0.0]])
    area = np.stack([x, np.zeros_like(x), y])
    kwarg = {"kwarg": ["x", "y_bottom", "y_top"]}
    filled = xr.Dataset({name: (("kwarg", "point"), area)}, kwarg)
    paint(draw.fill_between_y, "fill", filled, color="C0", alpha=0.25)
    paint(draw.line_xy, "marginal", xr.Dataset({name: xy(x, y)}), color="C0", width=1.5)
    if shown.x.draws is not None:
        height = np.full_like(shown.x.draws, -0.03 * float(shown.density.max()))
        paint(draw.scatter_xy, "rug", xr.Dataset({name: xy(shown.x.draws, height)}),
              color="C1", alpha=0.25, size=20.0, marker="|")  # fmt: skip


def _paint_boxes(
    paint: Painter,
    name: str,
    shown: _Panel,
    y: Axis,
    top: float,
    limits: tuple[float, float] | None,
    *,
    outlined: bool,
) -> None:
    """Draw the density of two coordinates relative to `top`, the outlines of boxes, and draws."""
    from arviz_plots import visuals as draw

    x = shown.x
    density = xr.Dataset({name: (("x_cell", "y_cell"), shown.density / top)})
    paint(coloured_cells, "density", density, x=x.places, y=y.places, limits=limits)
    if outlined:
        outlines = xr.Dataset({name: xy(*_outlines(x, y))})
        width = min(10.0 / outlines.sizes["point"] ** 0.5, 0.8)
        paint(draw.line_xy, "boxes", outlines, color="white", width=width)
    if x.draws is not None and y.draws is not None:
        few = min(300.0 / len(x.draws), 1.0)
        paint(draw.scatter_xy, "draws", xr.Dataset({name: xy(x.draws, y.draws)}),
              color="C1", alpha=0.5 + 0.3 * few, size=2.0 + 6.0 * few, width=0.0)  # fmt: skip


def _title(dt: xr.DataTree, steps: xr.Dataset) -> str:
    """Summarise the run in a title."""
    n = steps.sizes["box"]
    parts = [f"{n:,} box{'es' if n != 1 else ''}"]
    attrs = dt["posterior"].attrs
    if "tolerance" in attrs:
        parts.append(f"tolerance {float(attrs['tolerance']):.3g}")
    if "effective_draws" in attrs:
        parts.append(f"{float(attrs['effective_draws']):,.0f} effective draws")
    return ", ".join(parts)
