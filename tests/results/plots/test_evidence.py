"""The picture of evidences: what is drawn of tables and results, on which axis, and what is refused."""

import numpy as np
import pytest
import xarray as xr

from amc_pymc.results import compare_evidence
from amc_pymc.results.plots.evidence import plot_evidence

Z95 = 1.959964


@pytest.fixture(autouse=True)
def close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def tree(log_evidence, mcse, flags="", arms=None, **more):
    """A result as estimate_evidence returns it; `arms` are columns over the arms a, b, ..."""
    groups = {
        "evidence": xr.Dataset(
            {"log_evidence": log_evidence, "log_evidence_mcse": mcse, **more},
            attrs={"flags": flags},
        )
    }
    if arms is not None:
        names = [*"abcdefgh"][: len(arms["log_evidence"])]
        groups["arms"] = xr.Dataset({k: ("arm", v) for k, v in arms.items()}, {"arm": names})
    return xr.DataTree.from_dict(groups)


ARMS = {
    "log_evidence": [-10.0, -10.4, -np.inf],
    "log_evidence_mcse": [0.1, 0.3, np.nan],
    "weight": [0.9, 0.1, 0.0],
    "draws": [9000, 1000, 10],
    "pareto_k": [0.2, 0.8, np.nan],
}


def at(pc, visual, name, **row):
    """Places of an artist of the library 'none' on the axis."""
    return np.asarray(pc.get_viz(visual, name, **row)["x"], float).ravel()


def setting(pc, function, name="log_evidence"):
    """What was last set of a plot of the library 'none'."""
    calls = [a for a in pc.get_viz("plot", name) if a["function"] == function]
    return calls[-1]


def test_a_table_is_drawn_relative_to_the_best():
    table = compare_evidence({"a": (-12.0, 0.3), "b": (-10.0, 0.4)})
    pc = plot_evidence(table, backend="none")
    assert at(pc, "point", "log_evidence", model="a") == [-2.0]
    np.testing.assert_allclose(
        at(pc, "interval", "log_evidence", model="a"), [-2 - Z95 * 0.3, -2 + Z95 * 0.3]
    )
    assert pc.get_viz("value", "log_evidence", model="a")["string"] == "−12.00 ± 0.30"
    assert at(pc, "point", "prob", model="b") == [table.loc["b", "prob"]]
    p, error = table.loc["b", ["prob", "prob_mcse"]]
    np.testing.assert_allclose(
        at(pc, "interval", "prob", model="b"), np.clip([p - Z95 * error, p + Z95 * error], 0, 1)
    )
    assert pc.get_viz("value", "prob", model="a")["string"].startswith(f"{1 - p:.3f} ± ")
    names = setting(pc, "yticks")
    assert dict(zip(names["labels"], names["ticks"], strict=True)) == {"b": 1.0, "a": 0.0}
    assert setting(pc, "yticks", "prob")["labels"] == ["", ""]


def test_results_give_the_same_picture_as_their_table():
    results = {
        "a": tree(-12.0, 0.3, "Pareto k 0.9"),
        "b": tree(-10.0, 0.4),
        "c": tree(-10.1, 0.2),
        "d": tree(-2000.0, 0.2),
    }
    drawn, table = compare_evidence(results), plot_evidence(results, backend="none")
    expected = plot_evidence(drawn, backend="none")
    assert setting(table, "yticks")["labels"] == ["b", "c", "a (!)", "d"]
    assert setting(expected, "yticks")["labels"] == ["b", "c", "a (!)", "d"]
    for name in ("log_evidence", "prob"):
        for model in results:
            for visual in ("point", "interval"):
                np.testing.assert_allclose(
                    at(table, visual, name, model=model),
                    at(expected, visual, name, model=model),
                    rtol=1e-12,
                )
            assert (
                table.get_viz("value", name, model=model)["string"]
                == expected.get_viz("value", name, model=model)["string"]
            )
    assert "(!) flagged" in table.get_viz("title", "log_evidence")["string"]


def test_results_keep_their_own_intervals():
    own = tree(-10.0, 0.4, log_evidence_lower=-10.3, log_evidence_upper=-9.0)
    pc = plot_evidence({"a": own, "b": tree(-11.0, 0.1)}, backend="none")
    np.testing.assert_allclose(at(pc, "interval", "log_evidence", model="a"), [-0.3, 1.0])


def test_pairs_of_numbers():
    """The same as the table that compare_evidence makes of them."""
    pairs = {"a": (-12.0, 0.3), "b": (-10.0, 0.4), "c": (-11.0, 1.5)}
    of_pairs, of_table = (
        plot_evidence(data, backend="none") for data in (pairs, compare_evidence(pairs))
    )
    for name in ("log_evidence", "prob"):
        for model in pairs:
            for what in ("point", "interval"):
                np.testing.assert_allclose(
                    at(of_pairs, what, name, model=model), at(of_table, what, name, model=model)
                )
    assert setting(of_pairs, "yticks")["labels"] == ["b", "c (!)", "a"]
    mixed = plot_evidence({"a": (-12.0, 0.3), "b": tree(-10.0, 0.4)}, backend="none")
    assert setting(mixed, "yticks")["labels"] == ["b", "a"]


def test_arms_are_drawn_around_the_combined_estimate():
    dt = tree(-10.05, 0.08, arms=ARMS, log_evidence_lower=-10.2, log_evidence_upper=-9.9)
    pc = plot_evidence(dt, backend="none")
    np.testing.assert_allclose(at(pc, "point", "log_evidence", arm="a"), [0.05])
    np.testing.assert_allclose(
        at(pc, "interval", "log_evidence", arm="b"), [-0.35 - 0.3 * Z95, -0.35 + 0.3 * Z95]
    )
    band = pc.get_viz("band", "log_evidence")
    np.testing.assert_allclose([band["xmin"], band["xmax"]], [-0.15, 0.15])
    assert at(pc, "point", "weight", arm="b") == [0.1]
    assert pc.get_viz("value", "weight", arm="b")["string"] == "0.100, 1,000 draws"
    assert setting(pc, "yticks")["labels"] == ["a", "b (!)", "c"]
    assert pc.get_viz("value", "log_evidence", arm="c")["string"] == "no estimate"
    assert pc.viz["point"]["log_evidence"].sel(arm="c").item() is None
    assert pc.get_viz("title", "log_evidence")["string"] == (
        "Log evidence: −10.050 ± 0.080; (!) heavy tail"
    )


@pytest.mark.parametrize("error", [np.inf, 1e12])
def test_results_with_unknown_or_large_errors_are_marked(error):
    """As their table marks them."""
    infinite = {"log_evidence_lower": -error, "log_evidence_upper": error}
    results = {"a": tree(-5.0, error, **infinite), "b": tree(-5.5, 0.1), "c": tree(-6.0, 1.5)}
    for data in (results, compare_evidence(results)):
        pc = plot_evidence(data, backend="none")
        assert setting(pc, "yticks")["labels"] == ["a (!)", "b", "c (!)"]
        assert pc.viz["interval"]["log_evidence"].sel(model="a").item() is None
        for name in ("log_evidence", "prob"):
            assert pc.get_viz("value", name, model="a")["string"].endswith(" ± ?")
        assert np.abs(setting(pc, "xlim")["lims"]).max() < 10.0
    pc = plot_evidence(tree(-5.0, error, "few draws", **infinite), backend="none")
    assert setting(pc, "yticks")["labels"] == ["estimate (!)"]


def overlaps(texts):
    """Whether texts of a drawn figure cover each other."""
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    return any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize("n", [1, 2, 8, 12])
def test_labels_and_figures_do_not_overlap_in_matplotlib(n):
    pytest.importorskip("matplotlib")
    models = {f"a model with a name, {i}": (-1234.5 - 3.0 * i**2, 0.02 * (i + 1)) for i in range(n)}
    pc = plot_evidence(compare_evidence(models), backend="matplotlib")
    figure = pc.get_viz("figure")
    figure.canvas.draw()
    assert len(figure.axes) == (1 if n == 1 else 2)
    for axes in figure.axes:
        assert not overlaps([*axes.get_xticklabels(), *axes.texts])
        assert not overlaps([*axes.get_yticklabels(), *axes.texts])
        frame = axes.get_window_extent()
        for text in axes.texts:
            box = text.get_window_extent()
            assert frame.x0 < box.x0 and box.x1 < frame.x1
        for x in np.concatenate([line.get_xdata() for line in axes.lines]):
            right = min(text.get_position()[0] for text in axes.texts)
            assert axes.get_xlim()[0] <= x < right
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == list(models)


@pytest.mark.parametrize("backend", ["matplotlib", "plotly", "bokeh"])
@pytest.mark.parametrize("what", ["models", "far", "arms", "one", "unknown"])
def test_every_library_draws_every_kind(backend, what):
    pytest.importorskip(backend)
    if backend == "plotly":
        pytest.importorskip("webcolors")
    data = {
        "models": lambda: {"a": tree(-1.0, 0.1), "b": tree(-2.0, 0.1)},
        "far": lambda: compare_evidence({"a": (-1.0, 0.1), "b": (-900.0, 0.1)}),
        "arms": lambda: tree(-10.0, 0.1, arms=ARMS),
        "one": lambda: tree(-10.0, 0.0),
        "unknown": lambda: tree(-10.0, np.nan),
    }[what]()
    pc = plot_evidence(data, backend=backend)
    assert pc.backend == backend
    assert "log_evidence" in pc.viz["plot"].data_vars
