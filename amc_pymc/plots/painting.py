"""Shared parts of all plots: arguments, the collection, painting, axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from amc_pymc.results import listed

if TYPE_CHECKING:
    from arviz_plots import PlotCollection

__all__ = [
    "BACKENDS",
    "MOST_DOTS",
    "Painter",
    "dashed",
    "log_axis",
    "one_of",
    "panel",
    "percent",
    "scaled_size",
    "sized",
    "write",
    "xy",
    "y_ticks",
]

#: Plotting libraries, with the packages that each needs.
BACKENDS: dict[str, tuple[str, ...]] = {
    "matplotlib": ("matplotlib",),
    "bokeh": ("bokeh",),
    "plotly": ("plotly", "webcolors"),
    "none": (),
}
#: Maximum number of rounds drawn with dots.
MOST_DOTS = 40

Visuals = Mapping[Any, Mapping[str, Any] | bool] | None
Aesthetics = Mapping[Any, Iterable[str]] | None


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Check that an argument is one of the known strings."""
    known = list(known)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")


class Painter:
    """Draws visuals in a collection of plots, with the options of the user.

    The arguments are those that all plots share. They are checked before anything is drawn.

    Parameters
    ----------
    plot_collection : PlotCollection, optional
    backend : str, optional
    visuals : mapping of {str : mapping or bool}, optional
    aes_by_visuals : mapping of {str : iterable of str}, optional
    known : iterable of str
        Names of the visuals.
    pc_kwargs : mapping, optional
        The user's arguments of a new collection, which must be none if there is one.

    Attributes
    ----------
    collection : PlotCollection
        The collection, after :meth:`open`.
    backend : str
    options : dict
        Options of every visual, False for those left out.
    """

    collection: PlotCollection

    def __init__(
        self,
        plot_collection: PlotCollection | None,
        backend: str | None,
        visuals: Visuals,
        aes_by_visuals: Aesthetics,
        known: Iterable[str],
        pc_kwargs: Mapping[str, Any] | None = None,
    ):
        if plot_collection is not None and pc_kwargs:
            raise ValueError(
                f"{', '.join(pc_kwargs)} and plot_collection exclude each other: its plots are made already."
            )
        known = tuple(known)
        self.options = _visual_options(visuals, known)
        self._aes = _aesthetics(aes_by_visuals, known)
        self.backend = _backend(backend, plot_collection)
        self._given = plot_collection

    def wants(self, key: str) -> bool:
        """Whether a visual is drawn."""
        return self.options[key] is not False

    def open(self, layout: xr.Dataset, pc_kwargs: dict[str, Any]) -> bool:
        """Make the collection with a plot for each variable, or take the one given; return whether it is new."""
        from arviz_plots import PlotCollection

        if self._given is None:
            self.collection = PlotCollection.wrap(layout, backend=self.backend, **pc_kwargs)
            return True
        plots = self._given.viz["plot"]  # an array if all variables share one plot
        missing = [v for v in layout if v not in plots] if isinstance(plots, xr.DataTree) else []
        if missing:
            raise ValueError(
                f"plot_collection must have plots for {listed(layout)}, and has none for {listed(missing)}."
            )
        self.collection = self._given
        return False

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
            Aesthetics that it uses unless the user names others.
        **defaults
            Options that those of the user replace.
        """
        if self.options[key] is False:
            return
        known = self.collection.aes_set
        used = self._aes.get(key, known if aes == "all" else set(aes))
        self.collection.map(
            visual, key, data=data, ignore_aes=known - used, **{**defaults, **self.options[key]}
        )

    def set(self, visual: Callable[..., Any], data: xr.Dataset, **options: Any) -> None:
        """Change a setting of plots that is not a visual."""
        self.collection.map(visual, data=data, ignore_aes="all", store_artist=False, **options)

    def ticks(
        self, visual: Callable[..., Any], key: str, name: str, values: Any, labels: Any
    ) -> None:
        """Set the ticks of a plot, unless they are left out."""
        if self.options[key] is not False:
            self.set(
                visual, panel(name), **{"values": values, "labels": labels, **self.options[key]}
            )

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

    def rows(self, dim: str, names: list[str]) -> np.ndarray:
        """Place the values of a dimension in rows from top to bottom, and return the heights of the rows."""
        heights: np.ndarray = np.arange(len(names))[::-1].astype(float)
        mapping = xr.Dataset({"mapping": (dim, heights)}, {dim: names})
        self.collection.update_aes_from_dataset("y", mapping)
        return heights

    def log(self, data: xr.Dataset, *axes: str) -> None:
        """Make axes logarithmic if the data span a factor of three."""
        for axis in axes:
            self.set(log_axis, data, axis=axis)

    def colour_by(self, dim: str, labels: list[str], plain: str | None = None) -> None:
        """Map colours to the values of a dimension, unless the user maps them; `plain` gets the text colour."""
        if "color" in self.collection.aes_set:
            return
        backend = import_module(f"arviz_plots.backend.{self.backend}")
        found = backend.get_default_aes("color", len(labels))
        colours = np.empty(len(labels), object)  # some libraries use triples as colours
        for i, label in enumerate(labels):
            colours[i] = "B1" if label == plain else found[i]
        mapping = xr.Dataset({"mapping": (dim, colours)}, {dim: labels})
        self.collection.update_aes_from_dataset("color", mapping)

    def legend(self, dim: str, **defaults: Any) -> None:
        """Add the legend of a dimension, if a colour is mapped to it."""
        if self.options["legend"] is False or "color" not in self.collection.aes_set:
            return
        if dim in self.collection.aes["color"].dataset.dims:
            self.collection.add_legend(dim, **{**defaults, **self.options["legend"]})


def _backend(backend: str | None, plot_collection: PlotCollection | None) -> str:
    """Return the plotting library: that of the collection if given, else `backend`, else the default of ArviZ."""
    if plot_collection is not None:
        from arviz_plots import PlotCollection

        if not isinstance(plot_collection, PlotCollection):
            raise TypeError(
                f"plot_collection must be an arviz_plots.PlotCollection, got {type(plot_collection).__name__}."
            )
        if backend not in (None, plot_collection.backend):
            raise ValueError(
                f"backend must be that of plot_collection, {plot_collection.backend!r}, got {backend!r}."
            )
        found: str = plot_collection.backend
        return found
    if backend is None:
        from arviz_base import rcParams

        backend = rcParams["plot.backend"]
    one_of("backend", backend, BACKENDS)
    missing = [package for package in BACKENDS[backend] if find_spec(package) is None]
    if missing:
        raise ImportError(f"backend={backend!r} needs {' and '.join(missing)}, not installed here.")
    return backend


def _visual_options(visuals: Visuals, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the options of every visual, False for those left out."""
    given = _of_visuals("visuals", visuals, known)
    for key, value in given.items():
        if not isinstance(value, Mapping | bool):
            raise TypeError(f"visuals[{key!r}] must be a mapping or a boolean, got {value!r}.")
    given = {k: dict(v) if isinstance(v, Mapping) else {} if v else False for k, v in given.items()}
    return {key: given.get(key, {}) for key in known}


def _aesthetics(aes_by_visuals: Aesthetics, known: tuple[str, ...]) -> dict[str, set[str]]:
    """Return the aesthetics of the visuals that the user names."""
    given = _of_visuals("aes_by_visuals", aes_by_visuals, known)
    for key, value in given.items():
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise TypeError(
                f"aes_by_visuals[{key!r}] must be a sequence of aesthetics, got {value!r}."
            )
    return {key: set(value) for key, value in given.items()}


def _of_visuals(name: str, given: Any, known: tuple[str, ...]) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping of names of visuals, got {given!r}.")
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(f"{name} has the keys {unknown}; known are {', '.join(known)}.")
    return dict(given)


def panel(name: str) -> xr.Dataset:
    """Return a dataset that stands for one plot."""
    return xr.Dataset({name: 0.0})


def xy(x: Any, y: Any, *bounds: Any) -> xr.DataArray:
    """Return points (plot_axis, point), with the bounds of intervals if given."""
    axes = ["x", "y", "y_bottom", "y_top"][: 2 + len(bounds)]
    rows = np.stack([np.asarray(v, float) for v in (x, y, *bounds)])
    return xr.DataArray(rows, {"plot_axis": axes}, ("plot_axis", "point"))


def scaled_size(backend: str) -> float:
    """Return the width of a single plot of the library, in dots."""
    width: float = import_module(f"arviz_plots.backend.{backend}").scale_fig_size(None)[0]
    return width


def sized(
    pc_kwargs: Mapping[str, Any],
    backend: str,
    width: float = 1.0,
    height: float = 0.72,
    *,
    inches: bool = False,
    **defaults: Any,
) -> dict[str, Any]:
    """Return options of a collection with one plot per variable and a default size.

    Parameters
    ----------
    pc_kwargs : mapping
        Options of the user.
    backend : str
    width, height : float
        Size of the figure, in widths of a single plot, or in inches (of 100 dots for other libraries than
        matplotlib).
    inches : bool
    **defaults
        Options of the collection that those of the user replace.
    """
    figure = {**defaults.pop("figure_kwargs", {}), **pc_kwargs.get("figure_kwargs", {})}
    if "figsize" not in figure:
        dots = 100.0 if inches else scaled_size(backend)
        if inches and backend == "matplotlib":
            dots = import_module("matplotlib").rcParams["figure.dpi"]
        figure |= {"figsize": (width * dots, height * dots), "figsize_units": "dots"}
    if backend == "matplotlib":
        figure.setdefault("layout", "constrained")
    return {"cols": ["__variable__"], **defaults, **pc_kwargs, "figure_kwargs": figure}


def dashed(backend: str) -> tuple[Any, Any]:
    """Return the solid and the dashed line style of a library."""
    solid, dashes = import_module(f"arviz_plots.backend.{backend}").get_default_aes("linestyle", 2)
    return solid, dashes


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
