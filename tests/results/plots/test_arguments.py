"""The arguments that all plots share: what is drawn and what is refused."""

import numpy as np
import pytest
import xarray as xr

from arviz_base import from_dict
from combined_results import result as combined
from matplotlib.figure import Figure

import amc_pymc as amc

from amc_pymc.results import plots


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
    "plot_race": (raced, "sample_stats"),
}
every_plot = pytest.mark.parametrize("name", sorted(PLOTS))


def test_the_table_has_all_plots():
    assert sorted(PLOTS) == sorted(plots.__all__)


@every_plot
def test_a_figure_of_the_wanted_size_is_returned(name):
    figure = getattr(amc, name)(PLOTS[name][0](), figsize=(7.0, 3.0))
    assert isinstance(figure, Figure)
    assert figure.get_size_inches().tolist() == [7.0, 3.0]
    assert figure.axes[0].get_title()


@every_plot
def test_a_missing_group_is_named(name):
    make, group = PLOTS[name]
    cut = {k: v.to_dataset() for k, v in make().children.items() if k != group}
    with pytest.raises(ValueError, match=rf"no group '?{group}'?, only"):
        getattr(amc, name)(xr.DataTree.from_dict(cut))


@every_plot
def test_what_is_no_result_is_refused(name):
    with pytest.raises(TypeError, match=r"dt must be .*got (Dataset|ndarray)"):
        getattr(amc, name)(np.zeros(3))
