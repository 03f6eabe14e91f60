"""The picture of evidences: what is drawn of tables and results, on which axis, and what is refused."""

import numpy as np
import pytest
import xarray as xr

from amc_pymc.results import compare_evidence
from amc_pymc.results.plots.evidence import plot_evidence

Z95 = 1.959964


def tree(log_evidence, mcse, flags="", **more):
    """A result as estimate_evidence returns it."""
    group = {"log_evidence": log_evidence, "log_evidence_mcse": mcse, **more}
    return xr.DataTree.from_dict({"evidence": xr.Dataset(group, attrs={"flags": flags})})


def drawn(figure, k=0):
    """Names of the rows, their points, intervals and notes."""
    axes = figure.axes[k]
    names = [text.get_text() for text in axes.get_yticklabels()]
    points = axes.lines[-1].get_xdata()
    intervals = {y[0]: x for x, y in (s.T for s in axes.collections[-1].get_segments())}
    bounds = [intervals.get(h, [np.nan] * 2) for h in axes.get_yticks()]
    return names, np.array(points), np.array(bounds), [text.get_text() for text in axes.texts]


def test_a_table_is_drawn_relative_to_the_best():
    table = compare_evidence({"a": (-12.0, 0.3), "b": (-10.0, 0.4)})
    figure = plot_evidence(table)
    names, points, bounds, notes = drawn(figure)
    assert names == ["b", "a"]
    np.testing.assert_allclose(points, [0.0, -2.0])
    half = Z95 * np.array([0.4, 0.3])
    np.testing.assert_allclose(bounds, np.stack([points - half, points + half], axis=1))
    assert notes == ["−10.00 ± 0.40", "−12.00 ± 0.30"]
    names, points, bounds, notes = drawn(figure, 1)
    p, error = table["prob"].to_numpy(), table["prob_mcse"].to_numpy()
    assert names == ["", ""]
    np.testing.assert_array_equal(points, p)
    ends = np.stack([p - Z95 * error, p + Z95 * error], axis=1)
    np.testing.assert_allclose(bounds, np.clip(ends, 0.0, 1.0))
    assert notes[1].startswith(f"{p[1]:.3f} ± ")
    np.testing.assert_allclose([bar.get_width() for bar in figure.axes[1].patches], p)


def test_results_give_the_same_picture_as_their_table():
    results = {
        "a": tree(-12.0, 0.3, "Pareto k 0.9"),
        "b": tree(-10.0, 0.4),
        "c": tree(-10.1, 0.2),
        "d": tree(-2000.0, 0.2),
    }
    figure, expected = plot_evidence(results), plot_evidence(compare_evidence(results))
    assert drawn(figure)[0] == ["b", "c", "a (!)", "d"]
    assert "(!) flagged" in figure.axes[0].get_title()
    assert figure.axes[0].get_xscale() == "symlog"
    for k in range(2):
        for ours, theirs in zip(drawn(figure, k), drawn(expected, k), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_results_keep_their_own_intervals():
    own = tree(-10.0, 0.4, log_evidence_lower=-10.3, log_evidence_upper=-9.0)
    bounds = drawn(plot_evidence({"a": own, "b": (-11.0, 0.1)}))[2]
    np.testing.assert_allclose(bounds[0], [-0.3, 1.0])


@pytest.mark.parametrize("error", [np.inf, 1e12])
def test_results_with_unknown_or_large_errors_are_marked(error):
    """As their table marks them."""
    infinite = {"log_evidence_lower": -error, "log_evidence_upper": error}
    results = {"a": tree(-5.0, error, **infinite), "b": tree(-5.5, 0.1), "c": tree(-6.0, 1.5)}
    for data in (results, compare_evidence(results)):
        figure = plot_evidence(data)
        names, _, bounds, notes = drawn(figure)
        assert names == ["a (!)", "b", "c (!)"]
        assert np.isnan(bounds[0]).all()
        assert notes[0].endswith(" ± ?")
        assert drawn(figure, 1)[3][0].endswith(" ± ?")
        assert np.abs(figure.axes[0].get_xlim()).max() < 10.0
    assert drawn(plot_evidence(tree(-5.0, error, "few draws", **infinite)))[0] == ["estimate (!)"]


@pytest.mark.parametrize("error", [0.0, np.nan])
def test_a_single_result_is_drawn(error):
    names, points, _, _ = drawn(plot_evidence(tree(-10.0, error)))
    assert names == ["estimate" if error == 0.0 else "estimate (!)"]
    assert points.tolist() == [0.0]
