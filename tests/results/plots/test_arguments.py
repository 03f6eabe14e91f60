"""The arguments that all plots share: what is refused, and that the message names argument and value."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from arviz_base import from_dict
from arviz_plots import PlotCollection
from combined_results import result as combined

import amc_pymc as amc

from amc_pymc.results import plots


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def of(**groups):
    return xr.DataTree.from_dict({k: xr.Dataset(v) for k, v in groups.items()})


def columns(dim, **values):
    return {k: (dim, np.asarray(v, float)) for k, v in values.items()}


def abc():
    table = columns(
        "round", tolerance=[2.0, 1.0], simulations=[10, 20], acceptance=[0.2, 0.1],
        final_acceptance=[0.05, 0.1], ess=[1.0, 2.0], ess_so_far=[1.0, 3.0],
    )  # fmt: skip
    return of(abc=table | {"final_tolerance": 1.0, "prior_acceptance": 0.02})


EVIDENCE = {
    "log_evidence": -1.0, "log_evidence_mcse": 0.1, "log_evidence_lower": -1.2,
    "log_evidence_upper": -0.8,
}  # fmt: skip


def partition():
    both = ("box", "coordinate")
    steps = {
        "lower": (both, [[0.0], [0.5]]), "upper": (both, [[0.5], [1.0]]), "mass": ("box", [0.9, 0.1]),
    }  # fmt: skip
    posterior = {"mu": (("chain", "draw"), np.linspace(0.0, 1.0, 9)[None])}
    boxes = xr.Dataset(steps, {"coordinate": ["mu"]})
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior), "step_posterior": boxes})


def raced():
    zeros = np.zeros((2, 40))
    stats = {
        "race_delta": zeros + 0.05, "race_audited": zeros + 1.0, "race_wrong": zeros,
        "race_rows": zeros + 100.0, "race_audit_rows": zeros,
    }  # fmt: skip
    return from_dict({"sample_stats": stats})


#: For each plot: a result, and a group that it needs.
PLOTS = {
    "plot_abc": (abc, "abc"),
    "plot_allocation": (lambda: combined([0, 0, 1, 1], [0] * 4, np.ones(4)), "pulls"),
    "plot_evidence": (lambda: of(evidence=EVIDENCE), "evidence"),
    "plot_partition": (partition, "step_posterior"),
    "plot_race": (raced, "sample_stats"),
}
every_plot = pytest.mark.parametrize("name", sorted(PLOTS))


def drawn(name, **options):
    return getattr(amc, name)(PLOTS[name][0](), **{"backend": "none", **options})


def test_the_table_has_all_plots():
    assert sorted(PLOTS) == sorted(plots.__all__)


@every_plot
@pytest.mark.parametrize("backend", ["none", "matplotlib"])
def test_the_collection_is_returned(name, backend):
    pc = drawn(name, backend=backend)
    assert isinstance(pc, PlotCollection)
    assert pc.backend == backend
    assert "title" in pc.viz.children


@every_plot
@pytest.mark.parametrize("backend", ["bokeh", "plotly"])
def test_other_libraries_draw_it_or_are_named_as_missing(name, backend):
    try:
        pytest.importorskip(backend)
        pytest.importorskip("webcolors")
    except pytest.skip.Exception:
        with pytest.raises(ImportError, match=f"backend='{backend}' needs "):
            drawn(name, backend=backend)
    else:
        assert drawn(name, backend=backend).backend == backend


@every_plot
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backend": "ggplot"}, ValueError, "backend must be one of matplotlib, .*got 'ggplot'"),
        ({"backend": 3}, ValueError, "backend must be one of .*got 3"),
        ({"visuals": {"wheel": False}}, ValueError, r"visuals has the keys \['wheel'\]; known are"),
        ({"visuals": ["title"]}, TypeError, r"visuals must be a mapping .*got \['title'\]"),
        ({"visuals": {"title": "red"}}, TypeError, r"visuals\['title'\] must be .*got 'red'"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_options_are_refused(name, options, error, message):
    with pytest.raises(error, match=message):
        drawn(name, **options)


@every_plot
def test_a_missing_group_is_named(name):
    make, group = PLOTS[name]
    cut = {k: v.to_dataset() for k, v in make().children.items() if k != group}
    with pytest.raises(ValueError, match=rf"no group '?{group}'?, only"):
        getattr(amc, name)(xr.DataTree.from_dict(cut), backend="none")


@every_plot
def test_what_is_no_result_is_refused(name):
    with pytest.raises(TypeError, match=r"dt must be .*got (Dataset|ndarray)"):
        getattr(amc, name)(np.zeros(3), backend="none")


@every_plot
def test_every_visual_can_be_left_out(name):
    for key in _visuals(name):
        assert key not in drawn(name, visuals={key: False}).viz.children


def _visuals(name):
    """Names of the visuals of a plot, from what it says of an unknown one."""
    with pytest.raises(ValueError, match="known are") as found:
        drawn(name, visuals={"wheel": False})
    return str(found.value).rstrip(".").split("known are ")[1].split(", ")
