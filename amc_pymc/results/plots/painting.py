"""Shared parts of all plots: arguments, the collection, painting, axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = [
    "BACKENDS", "COLOURS", "GREY", "MOST_DOTS", "Painter", "Visuals", "log_axis", "one_of", "panel", "percent",
    "sized", "write", "xy", "y_ticks",
]  # fmt: skip

#: Plotting libraries, with the packages that each needs.
BACKENDS: dict[str, tuple[str, ...]] = {
    "matplotlib": ("matplotlib",),
    "bokeh": ("bokeh",),
    "plotly": ("plotly", "webcolors"),
    "none": (),
}
#: Colours that people with colour vision deficiencies can tell apart; Okabe & Ito (2008).
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#666666",
)  # fmt: skip
GREY = "#888888"
#: Maximum number of rounds drawn with dots.
MOST_DOTS = 40

Visuals = Mapping[Any, Mapping[str, Any] | bool] | None


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Check that an argument is one of the known strings."""
    known = list(known)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")


class Painter:
    """Draws visuals in a collection of plots, with the options of the user, which are checked before.

    Parameters
    ----------
    backend : str, optional
        By default ``rcParams["plot.backend"]`` of ArviZ.
    visuals : mapping of {str : mapping or bool}, optional
    known : iterable of str
        Names of the visuals.

    Attributes
    ----------
    collection : PlotCollection
        The collection, after :meth:`open`.
    options : dict
        Options of every visual, False for those left out.
    """

    collection: PlotCollection

    def __init__(self, backend: str | None, visuals: Visuals, known: Iterable[str]):
        if backend is None:
            backend = str(import_module("arviz_base").rcParams["plot.backend"])
        one_of("backend", backend, BACKENDS)
        missing = [package for package in BACKENDS[backend] if find_spec(package) is None]
        if missing:
            raise ImportError(
                f"backend={backend!r} needs {' and '.join(missing)}, not installed here."
            )
        self.backend, known = backend, tuple(known)
        if not isinstance(visuals, Mapping | None):
            raise TypeError(f"visuals must be a mapping of names of visuals, got {visuals!r}.")
        given = dict(visuals or {})
        if unknown := [key for key in given if key not in known]:
            raise ValueError(f"visuals has the keys {unknown}; known are {', '.join(known)}.")
        for key, value in given.items():
            if not isinstance(value, Mapping | bool):
                raise TypeError(f"visuals[{key!r}] must be a mapping or a boolean, got {value!r}.")
        self.options: dict[str, Any] = {
            key: {} if given.get(key, True) is True else given[key] for key in known
        }

    def wants(self, key: str) -> bool:
        """Whether a visual is drawn."""
        return self.options[key] is not False

    def open(self, layout: xr.Dataset, pc_kwargs: Mapping[str, Any]) -> None:
        """Make the collection with a plot for each variable."""
        from arviz_plots import PlotCollection

        self.collection = PlotCollection.wrap(layout, backend=self.backend, **pc_kwargs)

    def __call__(
        self,
        visual: Callable[..., Any],
        key: str,
        data: xr.Dataset,
        aes: Iterable[str] | str = (),
        **defaults: Any,
    ) -> None:
        """Draw a visual, unless it is left out.

        Parameters
        ----------
        visual : callable
            Visual of arviz_plots.
        key : str
            Its name in `visuals`.
        data : Dataset
            With the variables of the plots to draw in.
        aes : iterable of str or "all"
            Aesthetics that it uses.
        **defaults
            Options that those of the user replace.
        """
        if self.wants(key):
            known = self.collection.aes_set
            ignored = set() if aes == "all" else known - set(aes)
            options = {**defaults, **self.options[key]}
            self.collection.map(visual, key, data=data, ignore_aes=ignored, **options)

    def set(self, visual: Callable[..., Any], data: xr.Dataset, **options: Any) -> None:
        """Change a setting of plots that is not a visual."""
        self.collection.map(visual, data=data, ignore_aes="all", store_artist=False, **options)

    def ticks(
        self, visual: Callable[..., Any], key: str, name: str, values: Any, labels: Any
    ) -> None:
        """Set the ticks of a plot, unless they are left out."""
        if self.wants(key):
            options = {"values": values, "labels": labels, **self.options[key]}
            self.set(visual, panel(name), **options)

    def label(self, texts: Mapping[str, Mapping[str, str]]) -> None:
        """Write the title and the labels of the axes of each plot."""
        from arviz_plots import visuals as draw

        visuals = {
            "title": draw.labelled_title,
            "xlabel": draw.labelled_x,
            "ylabel": draw.labelled_y,
        }
        for name, of_plot in texts.items():
            for key, text in of_plot.items():
                self(visuals[key], key, panel(name), text=text)

    def map_aes(self, aes: str, dim: str, values: Iterable[Any], labels: list[str]) -> None:
        """Map an aesthetic to the values of a dimension, unless the user maps it."""
        if aes not in self.collection.aes_set:
            found = np.empty(len(labels), object)  # some libraries use triples as colours
            found[:] = list(values)
            mapping = xr.Dataset({"mapping": (dim, found)}, {dim: labels})
            self.collection.update_aes_from_dataset(aes, mapping)

    def rows(self, dim: str, names: list[str]) -> np.ndarray:
        """Place the values of a dimension in rows from top to bottom, and return the heights of the rows."""
        heights: np.ndarray = np.arange(len(names))[::-1].astype(float)
        self.map_aes("y", dim, heights, names)
        return heights

    def colour_by(self, dim: str, labels: list[str], plain: str | None = None) -> None:
        """Map colours to the values of a dimension; `plain` gets the text colour."""
        cycle = [COLOURS[i % len(COLOURS)] for i in range(len(labels))]
        self.map_aes(
            "color", dim,
            ["B1" if k == plain else c for k, c in zip(labels, cycle, strict=True)], labels,
        )  # fmt: skip

    def log(self, data: xr.Dataset, *axes: str) -> None:
        """Make axes logarithmic if the data span a factor of three."""
        for axis in axes:
            self.set(log_axis, data, axis=axis)

    @property
    def dashes(self) -> tuple[Any, Any]:
        """The solid and the dashed line style of the library."""
        styles = import_module(f"arviz_plots.backend.{self.backend}").get_default_aes(
            "linestyle", 2
        )
        return styles[0], styles[1]

    def legend(self, dim: str, **defaults: Any) -> None:
        """Add the legend of a dimension, if a colour is mapped to it."""
        if not self.wants("legend") or "color" not in self.collection.aes_set:
            return
        if dim in self.collection.aes["color"].dataset.dims:
            self.collection.add_legend(dim, **{**defaults, **self.options["legend"]})


def panel(name: str) -> xr.Dataset:
    """Return a dataset that stands for one plot."""
    return xr.Dataset({name: 0.0})


def xy(x: Any, y: Any, *bounds: Any) -> xr.DataArray:
    """Return points (plot_axis, point), with the bounds of intervals if given."""
    axes = ["x", "y", "y_bottom", "y_top"][: 2 + len(bounds)]
    rows = np.stack([np.asarray(v, float) for v in (x, y, *bounds)])
    return xr.DataArray(rows, {"plot_axis": axes}, ("plot_axis", "point"))


def sized(
    pc_kwargs: Mapping[str, Any], backend: str, width: float, height: float, **defaults: Any
) -> dict[str, Any]:
    """Return options of a collection with one plot per variable and a default size.

    Parameters
    ----------
    pc_kwargs : mapping
        Options of the user.
    backend : str
    width, height : float
        Size of the figure, in inches of 100 dots.
    **defaults
        Options of the collection that those of the user replace.
    """
    figure = {**defaults.pop("figure_kwargs", {}), **pc_kwargs.get("figure_kwargs", {})}
    if "figsize" not in figure:
        dots = 100.0
        if backend == "matplotlib":
            dots = import_module("matplotlib").rcParams["figure.dpi"]
        figure |= {"figsize": (width * dots, height * dots), "figsize_units": "dots"}
    if backend == "matplotlib":
        figure.setdefault("layout", "constrained")
    return {"cols": ["__variable__"], **defaults, **pc_kwargs, "figure_kwargs": figure}


def percent(share: float) -> str:
    """Format a share in percent, small ones to two digits."""
    if not np.isfinite(share):
        return "unknown"
    return f"{100.0 * share:.0f} %" if share >= 0.1 else f"{100.0 * share:.2g} %"


def log_axis(da: xr.DataArray, target: Any, *, axis: str) -> None:
    """Make the axis "x" or "y" of a plot logarithmic, unless the data span less than a factor of three.

    This is a visual for ``PlotCollection.map`` and works with all plotting libraries.
    """
    from arviz_plots.plot_collection import backend_from_object

    values = da.sel(plot_axis=axis).values
    values = values[np.isfinite(values) & (values > 0.0)]
    if values.size == 0 or values.max() < 3.0 * values.min():
        return
    name = backend_from_object(target, return_module=False)
    if name == "plotly":
        getattr(target, f"update_{axis}axes")(type="log")
    elif name == "bokeh":
        from bokeh.models import LogAxis, LogScale

        setattr(target, f"{axis}_scale", LogScale())
        setattr(target, "below" if axis == "x" else "left", [LogAxis()])
    else:
        backend = import_module(f"arviz_plots.backend.{name}")
        getattr(backend, f"{axis}scale")(target, "log")
        if name == "matplotlib" and values.max() < 200.0 * values.min():
            from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

            ticks = getattr(target, f"{axis}axis")
            ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            ticks.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
            ticks.set_minor_formatter(NullFormatter())


def write(
    da: xr.DataArray, target: Any, *, text: xr.DataArray, x: Any, y: Any, **kwargs: Any
) -> Any:
    """Write the text of a row (a visual)."""
    from arviz_plots.plot_collection import backend_from_object

    return backend_from_object(target).text(float(x), float(y), str(text.item()), target, **kwargs)


def y_ticks(da: xr.DataArray, target: Any, *, values: Any, labels: Any, **kwargs: Any) -> Any:
    """Label the rows (a visual)."""
    from arviz_plots.plot_collection import backend_from_object

    return backend_from_object(target).yticks(values, labels, target, **kwargs)
