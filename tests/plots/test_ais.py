"""The picture of annealing: paths, effective draws, axes, and what is refused."""

import numpy as np
import pytest
import xarray as xr

from scipy.special import logsumexp

from amc_pymc.plots.ais import plot_ais
from amc_pymc.results import normal_interval
from amc_pymc.results.tables import ANNEALING


@pytest.fixture(autouse=True)
def close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def result(
    n=11, n_paths=30, *, spread=1.0, paths=None, stored=None, flags="", accept=None, **evidence
):
    """A result as sample_ais returns it, of weights exp(-beta x^2 / 2), x normal, without moves."""
    beta = np.linspace(0.0, 1.0, n) ** 4
    if paths is None:
        x = spread * np.random.default_rng(1).normal(size=n_paths)
        paths = -0.5 * np.outer(x**2, beta)
    weights = np.exp(paths)
    with np.errstate(invalid="ignore"):
        ess = weights.mean(axis=0) ** 2 / (weights**2).mean(axis=0)
    usable = np.where(np.isnan(paths), -np.inf, paths)
    log_mean = logsumexp(usable, axis=0) - np.log(len(paths))
    accept = np.append(np.nan, np.full(n - 1, 0.8)) if accept is None else accept
    found = {
        "log_evidence": logsumexp(paths[:, -1]) - np.log(len(paths)), "log_evidence_mcse": 0.02,
        **evidence,
    }  # fmt: skip
    lower, upper = normal_interval(found["log_evidence"], found["log_evidence_mcse"])
    found = {"log_evidence_lower": lower, "log_evidence_upper": upper, **found}
    return xr.DataTree.from_dict(
        {
            "evidence": xr.Dataset(found, attrs={"flags": flags}),
            "annealing": xr.Dataset(
                {
                    "beta": ("temperature", beta),
                    "log_weight_path": (("path", "temperature"), paths[:stored]),
                    "log_mean_weight": ("temperature", log_mean),
                    "ess": ("temperature", ess),
                    "accept": ("temperature", accept),
                }
            ),
        }
    )


def setting(pc, function, name):
    """What was set of a plot of the library 'none'; None if nothing was."""
    calls = [a for a in pc.get_viz("plot", name) if a["function"] == function]
    return calls[-1] if calls else None


def absolute(dt, **options):
    return plot_ais(dt, relative=False, backend="none", **options)


def test_the_mean_of_all_particles_ends_at_the_log_evidence():
    all_paths = result()["annealing"]["log_weight_path"].values
    dt = result(stored=4)
    assert dt["annealing"].sizes["path"] == 4
    pc = absolute(dt)
    line = pc.get_viz("mean", "log_weight")
    np.testing.assert_allclose(line["y"], logsumexp(all_paths, axis=0) - np.log(30))
    np.testing.assert_allclose(line["x"], np.arange(11))
    end = dt["evidence"]["log_evidence"].item()
    assert line["y"][-1] == pytest.approx(end)
    assert pc.get_viz("level", "log_weight")["y"] == pytest.approx(end)
    final = pc.get_viz("final", "log_weight")
    assert np.ravel(final["x"]).tolist() == [10.0]
    interval = pc.get_viz("final_interval", "log_weight")
    np.testing.assert_allclose(
        np.ravel([interval["y_bottom"], interval["y_top"]]),
        [end - 0.02 * 1.959964, end + 0.02 * 1.959964],
    )


def test_log_weights_are_shown_relative_to_the_mean():
    dt = result(stored=4)
    found, plain = plot_ais(dt, backend="none"), absolute(dt)
    mean = np.asarray(plain.get_viz("mean", "log_weight")["y"])
    assert np.all(np.asarray(found.get_viz("mean", "log_weight")["y"]) == 0.0)
    np.testing.assert_allclose(
        found.get_viz("paths", "log_weight")["y"],
        np.asarray(plain.get_viz("paths", "log_weight")["y"]) - mean[:, None],
    )
    for visual, key in (
        ("final", "y"), ("level", "y"), ("final_interval", "y_bottom"), ("final_interval", "y_top"),
    ):  # fmt: skip
        assert np.ravel(found.get_viz(visual, "log_weight")[key]) == pytest.approx(
            np.ravel(plain.get_viz(visual, "log_weight")[key]) - mean[-1]
        )
    for pc, text in (
        (found, "log of weight / mean weight"),
        (plain, ANNEALING["log_weight_path"].label),
    ):
        assert pc.get_viz("ylabel", "log_weight")["string"] == text


def test_a_spread_that_is_small_beside_the_evidence_fills_the_plot():
    paths = np.outer(np.random.default_rng(1).normal(-1000.0, 0.5, 30), np.linspace(0, 1, 11))
    pc = plot_ais(result(paths=paths, log_evidence=-999.9), backend="none")
    low, high = setting(pc, "ylim", "log_weight")["lims"]
    assert -3.0 < low < -0.5 and 0.3 < high < 3.0


def test_own_intervals_are_kept():
    pc = absolute(result(log_evidence_lower=-0.3, log_evidence_upper=-0.1))
    interval = pc.get_viz("final_interval", "log_weight")
    assert np.ravel([interval["y_bottom"], interval["y_top"]]).tolist() == [-0.3, -0.1]


@pytest.mark.parametrize("error", [50.0, 1e12, np.inf, np.nan])
def test_an_interval_that_says_nothing_is_cut_off(error):
    dt = result(log_evidence_mcse=error)
    pc = absolute(dt)
    paths = dt["annealing"]["log_weight_path"].values
    low, high = setting(pc, "ylim", "log_weight")["lims"]
    assert high - low < 4.0 * np.ptp(paths)
    interval = pc.get_viz("final_interval", "log_weight")
    shown = np.ravel([interval["y_bottom"], interval["y_top"]])
    np.testing.assert_allclose(shown, [low, high])
    if error > 100.0:
        assert high - low < 1.2 * np.ptp(paths)


def test_all_stored_paths_are_drawn():
    dt = result()
    drawn = absolute(dt).get_viz("paths", "log_weight")
    np.testing.assert_array_equal(
        np.asarray(drawn["y"]), dt["annealing"]["log_weight_path"].values.T
    )


def test_shares_are_effective_draws_and_acceptance():
    dt = result()
    pc = plot_ais(dt, backend="none")
    shares = pc.viz["shares"]["share"]
    effective = shares.sel(quantity="effective draws").item()
    np.testing.assert_array_equal(effective["y"], dt["annealing"]["ess"].values)
    accept = shares.sel(quantity="acceptance").item()
    np.testing.assert_array_equal(accept["y"], dt["annealing"]["accept"].values)
    assert effective["color"] != accept["color"]
    percent = 100 * dt["annealing"]["ess"].values[-1]
    assert pc.get_viz("title", "share")["string"] == (
        f"Effective draws {percent:.0f} %, acceptance 0.80"
    )
    assert setting(pc, "yscale", "share") is None
    assert list(setting(pc, "ylim", "share")["lims"]) == [0.0, 1.05]


def test_few_effective_draws_are_drawn_on_a_log_axis():
    dt = result(spread=30.0, n_paths=500)
    assert dt["annealing"]["ess"].values[-1] < 0.1
    pc = plot_ais(dt, backend="none")
    assert setting(pc, "yscale", "share")["scale"] == "log"
    assert setting(pc, "ylim", "share") is None
    stuck = result(spread=30.0, n_paths=500, accept=np.r_[np.nan, np.zeros(10)])
    accept = plot_ais(stuck, backend="none").viz["shares"]["share"].sel(quantity="acceptance")
    assert accept.item() is None


def test_the_axis_shows_steps_or_temperatures():
    dt = result()
    beta = dt["annealing"]["beta"].values
    pc = plot_ais(dt, backend="none")
    ticks = setting(pc, "xticks", "share")
    assert list(ticks["ticks"]) == [0, 2, 4, 6, 8, 10]
    assert list(ticks["labels"]) == ["0", "0.0016", "0.026", "0.13", "0.41", "1"]
    pc = absolute(dt, against="beta")
    assert setting(pc, "xticks", "share") is None
    np.testing.assert_array_equal(pc.get_viz("mean", "log_weight")["x"], beta)
    assert pc.get_viz("level", "log_weight")["y"] == dt["evidence"]["log_evidence"].item()


def test_paths_of_weight_zero_end_and_count_as_zero():
    paths = np.zeros((4, 5))
    paths[:2, 2:] = -np.inf
    paths[1, 2:] = np.nan
    dt = result(5, paths=paths)
    dt["evidence"]["log_evidence"] = -np.log(2.0)
    pc = absolute(dt)
    np.testing.assert_allclose(pc.get_viz("mean", "log_weight")["y"], [0, 0, *[-np.log(2.0)] * 3])
    drawn = np.asarray(pc.get_viz("paths", "log_weight")["y"])
    assert np.isnan(drawn[2:, :2]).all() and np.isfinite(drawn[:2]).all()
    none = result(5, paths=np.where(np.arange(5) > 2, -np.inf, np.zeros((4, 5))))
    none["evidence"]["log_evidence"] = -np.inf
    pc = plot_ais(none, backend="none")
    assert pc.get_viz("title", "log_weight")["string"] == "Log evidence no estimate"
    assert pc.get_viz("title", "share")["string"] == "Effective draws unknown, acceptance 0.80"


def test_a_hopeless_path_does_not_set_the_axis():
    x = np.r_[np.linspace(0.5, 2.0, 99), 1e4]
    pc = absolute(result(paths=-0.5 * np.outer(x**2, np.linspace(0, 1, 11))))
    low, high = setting(pc, "ylim", "log_weight")["lims"]
    assert -5.0 < low < -1.0 and 0.0 < high < 1.0


def test_many_temperatures_are_thinned():
    dt = result(5000, 20)
    pc = plot_ais(dt, backend="none")
    x = np.asarray(pc.get_viz("mean", "log_weight")["x"])
    assert x.size == 400 and (x[0], x[-1]) == (0, 4999)
    assert np.asarray(pc.get_viz("paths", "log_weight")["y"]).shape == (400, 20)
    assert np.diff(x).max() - np.diff(x).min() <= 1


def test_the_title_tells_of_flags_and_reverse_runs():
    dt = result(
        flags="Pareto k 0.9", log_evidence=-3.0, reverse_log_evidence=-2.9,
        reverse_log_evidence_mcse=0.04,
    )  # fmt: skip
    assert plot_ais(dt, backend="none").get_viz("title", "log_weight")["string"] == (
        "Log evidence −3.000 ± 0.020, flagged\nreverse −2.900 ± 0.040"
    )


def test_visuals_can_be_left_out_and_altered():
    off = dict.fromkeys(("paths", "level", "final", "final_interval", "title", "legend"), False)
    pc = plot_ais(result(), backend="none", visuals={**off, "mean": {"color": "red"}})
    assert not set(off) & set(pc.viz.children)
    assert pc.get_viz("mean", "log_weight")["color"] == "red"


def test_a_given_collection_is_drawn_into():
    pc = plot_ais(result(), backend="none", visuals={"legend": False})
    again = plot_ais(result(log_evidence=-9.0), plot_collection=pc, visuals={"legend": False})
    assert again is pc
    mean = result()["annealing"]["log_mean_weight"].values
    assert pc.get_viz("level", "log_weight")["y"] == pytest.approx(-9.0 - mean[-1])


def test_the_picture_in_matplotlib():
    pytest.importorskip("matplotlib")
    dt = result(200)
    pc = plot_ais(dt, backend="matplotlib")
    figure = pc.get_viz("figure")
    figure.canvas.draw()
    left, right = figure.axes
    end = dt["evidence"]["log_evidence"].item()
    left_end = plot_ais(dt, relative=False, backend="matplotlib").get_viz("mean", "log_weight")
    assert left_end.get_ydata()[-1] == pytest.approx(end)
    assert pc.get_viz("mean", "log_weight").get_ydata()[-1] == 0.0
    low, high = left.get_ylim()
    assert low < -0.04 < 0.04 < high
    assert len(left.collections[0].get_segments()) == 30
    assert [text.get_text() for text in left.get_xticklabels()][-1] == "1"
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["effective draws", "acceptance"]
    drawn = pc.get_viz("shares", "share", quantity="acceptance")
    assert legend.get_lines()[1].get_color() == drawn.get_color()
    assert right.get_yscale() == "linear"


@pytest.mark.parametrize("backend", ["matplotlib", "plotly", "bokeh"])
@pytest.mark.parametrize(
    "options", [{}, {"spread": 30.0, "n_paths": 500}, {"n": 2, "n_paths": 1}], ids=str
)
@pytest.mark.parametrize("against", ["step", "beta"])
def test_every_library_draws_it(backend, options, against):
    pytest.importorskip(backend)
    if backend == "plotly":
        pytest.importorskip("webcolors")
    assert plot_ais(result(**options), against=against, backend=backend).backend == backend


def test_what_is_no_result_is_refused():
    dt = result()
    with pytest.raises(TypeError, match=r"DataTree that amc_pymc.sample_ais returns, got Dataset"):
        plot_ais(dt["annealing"].to_dataset())
    for group in ("annealing", "evidence"):
        cut = xr.DataTree.from_dict(
            {k: v.to_dataset() for k, v in dt.children.items() if k != group}
        )
        with pytest.raises(ValueError, match=f"dt has no group '{group}', only"):
            plot_ais(cut, backend="none")
    broken = dt.copy()
    broken["annealing"] = xr.DataTree(dt["annealing"].to_dataset().drop_vars("ess"))
    with pytest.raises(ValueError, match="Group 'annealing' of dt has no ess"):
        plot_ais(broken, backend="none")
    with pytest.raises(ValueError, match="against must be one of step, beta, got 'time'"):
        plot_ais(dt, against="time", backend="none")
    with pytest.raises(ValueError, match=r"keys \['lines'\]; known are paths"):
        plot_ais(dt, backend="none", visuals={"lines": False})
