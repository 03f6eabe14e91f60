"""The picture of decision errors: rows, intervals and notes are those of the table."""

import numpy as np
import pytest

from arviz_base import from_dict

import amc_pymc as amc


def raced(wrong=3, *, delta=0.05, rows=200.0, audited=True, steps=0):
    shape = (2, 100) + (steps,) * bool(steps)
    late = np.arange(100).reshape((100,) + (1,) * bool(steps))
    stats = {
        "race_delta": np.full(shape, delta),
        "race_audited": np.full(shape, float(audited)),
        "race_wrong": np.broadcast_to(1.0 * (late < wrong), shape),
        "race_rows": np.full(shape, rows),
        "race_audit_rows": np.zeros(shape),
    }
    return from_dict({"sample_stats": stats})


def drawn(axes):
    """Names of the rows, their points, intervals and notes."""
    names = [text.get_text() for text in axes.get_yticklabels()]
    segments = [s[:, 0].tolist() for s in axes.collections[0].get_segments()]
    return names, axes.lines[0].get_xdata(), segments, [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("by", ["chain", "step"])
def test_a_row_for_each_line_of_the_table(by):
    dt = raced(steps=2)
    table = amc.decision_error(dt, by=by)
    error, rows = amc.plot_race(dt, by=by).axes
    names, points, segments, notes = drawn(error)
    assert names == [f"{by} 0", f"{by} 1", "all"]
    np.testing.assert_array_equal(points, table["error"])
    np.testing.assert_allclose(segments, table[["ci_low", "ci_high"]])
    assert notes == [f"{w} of {n}" for w, n in zip(table["wrong"], table["audited"], strict=True)]
    assert error.lines[1].get_xdata().tolist() == [0.05] * 3
    np.testing.assert_array_equal(drawn(rows)[1], table["rows"])


def test_one_step_is_one_row_and_several_results_one_each():
    assert drawn(amc.plot_race(raced()).axes[0])[0] == ["step 0"]
    runs = {"plain": raced(rows=5000.0), "control variate": raced(0, rows=50.0, delta=0.2)}
    error, rows = amc.plot_race(runs).axes
    assert drawn(error)[0] == list(runs)
    assert error.lines[1].get_xdata().tolist() == [0.05, 0.2]
    assert rows.get_xscale() == "log"
    with pytest.raises(ValueError, match="at least one result, got an empty mapping"):
        amc.plot_race({})


def test_without_audits_the_interval_is_cut_at_the_axis():
    error = amc.plot_race({"no": raced(0, audited=False), "yes": raced()}).axes[0]
    _, points, _, notes = drawn(error)
    assert notes[0] == "no audits"
    assert np.isnan(points[0])
    assert error.get_xlim()[1] < 0.2
