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


def at(pc, visual, name, row):
    return np.ravel(np.asarray(pc.get_viz(visual, name, row=row)["x"], float)).tolist()


def rows_of(pc):
    calls = [a for a in pc.get_viz("plot", "error") if a["function"] == "yticks"]
    return calls[-1]["labels"]


@pytest.mark.parametrize("by", ["chain", "step"])
def test_a_row_for_each_line_of_the_table(by):
    dt = raced(steps=2)
    table = amc.decision_error(dt, by=by)
    pc = amc.plot_race(dt, by=by, backend="none")
    names = [f"{by} 0", f"{by} 1", "all"]
    assert rows_of(pc) == names
    for name, (_, line) in zip(names, table.iterrows(), strict=True):
        assert at(pc, "point", "error", name) == [line["error"]]
        assert at(pc, "bound", "error", name) == [0.05]
        np.testing.assert_allclose(
            at(pc, "interval", "error", name), line[["ci_low", "ci_high"]].tolist()
        )
        assert at(pc, "point", "rows", name) == [line["rows"]]
        assert pc.get_viz("value", "error", row=name)["string"] == f"{line['wrong']:.0f} of {line['audited']:.0f}"  # fmt: skip


def test_one_step_is_one_row_and_several_results_one_each():
    assert rows_of(amc.plot_race(raced(), backend="none")) == ["step 0"]
    runs = {"plain": raced(rows=5000.0), "control variate": raced(0, rows=50.0, delta=0.2)}
    pc = amc.plot_race(runs, backend="none")
    assert rows_of(pc) == list(runs)
    assert at(pc, "bound", "error", "control variate") == [0.2]
    scales = [a["scale"] for a in pc.get_viz("plot", "rows") if a["function"] == "xscale"]
    assert scales == ["log"]
    with pytest.raises(ValueError, match="at least one result, got an empty mapping"):
        amc.plot_race({})


def test_without_audits_the_interval_is_cut_at_the_axis():
    runs = {"no": raced(0, audited=False), "yes": raced()}
    pc = amc.plot_race(runs, backend="none")
    assert pc.get_viz("value", "error", row="no")["string"] == "no audits"
    assert pc.viz["point"]["error"].sel(row="no").item() is None
    assert at(pc, "interval", "error", "no")[1] < 0.2
