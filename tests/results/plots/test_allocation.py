"""The picture of an allocation: what is drawn, in every plotting library, and what is refused."""

import numpy as np
import pytest

import amc_pymc as amc

from tests.combined_results import result


@pytest.fixture(scope="module")
def equal():
    # Round 0: arm 0 twice, arm 1 once; round 1: arm 1 three times; round 2: arm 0 six times.
    return result([0, 0, 1] + [1] * 3 + [0] * 6, [0] * 3 + [1] * 3 + [2] * 6, np.ones(12))


@pytest.fixture(autouse=True)
def close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def xy(artist):
    """Data of an artist of the library 'none'."""
    return np.asarray(artist["x"], float).tolist(), np.asarray(artist["y"], float).tolist()


def test_lines_are_running_totals_at_the_ends_of_rounds(equal):
    pc = amc.plot_allocation(equal, backend="none")
    arms = pc.viz["arms"]["draws"]
    assert xy(arms.sel(arm="arm 0").item()) == ([3, 6, 12], [2, 2, 8])
    assert xy(arms.sel(arm="arm 1").item()) == ([3, 6, 12], [1, 4, 4])
    assert xy(pc.viz["rounds"]["draws"].sel(arm="arm 1").item()) == ([3, 6, 12], [1, 4, 4])


def test_the_estimate_and_its_band_are_those_of_the_weights(equal):
    pc = amc.plot_allocation(equal, backend="none")
    # The predictable estimate has no error after the first round.
    assert xy(pc.get_viz("estimate", "estimate")) == ([6, 12], [10.0, 20.0])
    band = pc.get_viz("band", "estimate")
    np.testing.assert_allclose(band["y_bottom"], [10.0 - 0.5, 20.0 - 1.0 / 3.0])
    np.testing.assert_allclose(band["y_top"], [10.0 + 0.5, 20.0 + 1.0 / 3.0])
    assert np.ravel(xy(pc.get_viz("final", "estimate"))).tolist() == [12.0, 4.0]
    interval = pc.get_viz("final_interval", "estimate")
    np.testing.assert_allclose(np.ravel([interval["y_bottom"], interval["y_top"]]), [3.8, 4.2])
    assert pc.get_viz("level", "estimate")["y"] == 4.0

    pc = amc.plot_allocation(equal, weights="uniform", backend="none")
    assert xy(pc.get_viz("estimate", "estimate")) == ([3, 6, 12], [2.0, 12.0, 22.0])
    assert pc.get_viz("level", "estimate")["y"] == 6.0


def test_the_log_scale_shows_log_means():
    found = result([0, 1, 0, 0], [0, 0, 1, 1], np.ones(4), scale="log")
    pc = amc.plot_allocation(found, backend="none")
    assert pc.get_viz("level", "estimate")["y"] == -4.0
    assert "log of" in pc.get_viz("ylabel", "estimate")["string"]
    interval = pc.get_viz("final_interval", "estimate")
    np.testing.assert_allclose(np.ravel([interval["y_bottom"], interval["y_top"]]), [-4.02, -3.98])


def test_costs_that_differ_get_a_plot_of_their_own():
    found = result([0, 1, 1, 0], [0, 0, 1, 1], [2.0, 0.5, 0.5, 4.0])
    pc = amc.plot_allocation(found, backend="none")
    assert list(pc.viz["plot"].data_vars) == ["draws", "cost", "estimate"]
    assert xy(pc.viz["arms"]["cost"].sel(arm="arm 0").item()) == ([2.5, 7.0], [2.0, 6.0])
    assert xy(pc.viz["arms"]["draws"].sel(arm="arm 0").item()) == ([2, 4], [1, 2])
    np.testing.assert_allclose(pc.get_viz("final_interval", "estimate")["x"], 7.0)
    assert pc.get_viz("xlabel", "estimate")["string"] == "cost, all arms"


def test_a_real_run_in_matplotlib(monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    found = amc.combine_estimators(
        {"sharp": lambda rng: rng.normal(1.0, 0.1), "vague": lambda rng: rng.normal(1.0, 5.0)},
        draws=500, random_seed=1, progressbar=False,
    )  # fmt: skip
    pc = amc.plot_allocation(found, backend="matplotlib")
    left, right = pc.get_viz("figure").axes
    assert (left.get_xscale(), left.get_yscale(), right.get_yscale()) == ("log", "log", "linear")
    lines = {line.get_color(): line.get_ydata() for line in left.lines}
    assert sorted(y[-1] for y in lines.values()) == sorted(found["arms"]["draws"].values)
    assert len(lines) == 2
    estimate = pc.get_viz("estimate", "estimate")
    final = found["estimate"].sel(weights="predictable")
    assert estimate.get_ydata()[-1] == pytest.approx(final["mean"].item(), rel=1e-12)
    np.testing.assert_array_equal(
        estimate.get_xdata(), found["rounds"]["draws"].sum("arm").values.cumsum()
    )
    low, high = right.get_ylim()
    assert low < final["mean"] - 2.0 * final["mcse"] < final["mean"] + 2.0 * final["mcse"] < high
    legend = pc.get_viz("figure").legends[0]
    assert [t.get_text() for t in legend.get_texts()] == ["sharp", "vague"]
    assert legend.get_lines()[0].get_color() == pc.get_viz("arms", "draws", arm="sharp").get_color()
    pc.get_viz("figure").canvas.draw()
    assert plt.get_fignums()


@pytest.mark.parametrize("backend", ["matplotlib", "plotly", "bokeh"])
@pytest.mark.parametrize("what", ["one arm", "one draw each", "costs", "many"])
def test_every_library_draws_every_kind_of_run(backend, what):
    pytest.importorskip(backend)
    if backend == "plotly":
        pytest.importorskip("webcolors")
    found = {
        "one arm": lambda: result([0] * 9, [0] * 3 + [1] * 6, np.ones(9)),
        "one draw each": lambda: result([0, 1], [0, 0], np.ones(2)),
        "costs": lambda: result([0, 1, 1, 0], [0, 0, 1, 1], [2.0, 0.5, 0.5, 4.0]),
        "many": lambda: result([*range(2000)] + [5] * 900, [0] * 2000 + [1] * 900, np.ones(2900)),
    }[what]()
    pc = amc.plot_allocation(found, backend=backend)
    assert pc.backend == backend
    assert "estimate" in pc.viz["plot"].data_vars
