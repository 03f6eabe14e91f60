"""The picture of a likelihood-free run: lines, axes, and what is refused."""

import numpy as np
import pytest
import xarray as xr

from scipy import stats

import amc_pymc as amc

from amc_pymc.results.plots.abc import _ticks, plot_abc
from amc_pymc.results.tables import ABC

OWN, FINAL, REJECTION = "tolerance of the round", "final tolerance", "rejection"


@pytest.fixture(autouse=True)
def close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def result(**changes):
    """A result as sample_abc_tree returns it: three rounds."""
    table = {
        "tolerance": [np.inf, 2.0, 0.5],
        "simulations": [100, 100, 200],
        "acceptance": [1.0, 0.2, 0.1],
        "final_acceptance": [0.0, 0.02, 0.02],
        "ess": [0.0, 2.0, 3.0],
        "ess_so_far": [0.0, 2.0, 4.8],
        **{k: v for k, v in changes.items() if np.ndim(v)},
    }
    totals = {
        "final_tolerance": 0.5, "effective_draws": 4.8, "prior_acceptance": 0.005,
        **{k: v for k, v in changes.items() if not np.ndim(v)},
    }  # fmt: skip
    found = xr.Dataset({k: ("round", np.array(v)) for k, v in table.items()})
    return xr.DataTree.from_dict({"abc": found.assign(totals)})


def line(pc, name, quantity, key="lines"):
    """Points of a line; those left out are left out."""
    artist = pc.viz[key][name].sel(quantity=quantity).item()
    points = np.stack([np.asarray(artist["x"], float), np.asarray(artist["y"], float)])
    return points[:, np.isfinite(points).all(axis=0)].tolist()


def setting(pc, function, name):
    calls = [a for a in pc.get_viz("plot", name) if a["function"] == function]
    return calls[-1] if calls else None


def test_lines_are_those_of_the_table():
    pc = plot_abc(result(), backend="none")
    assert line(pc, "tolerance", OWN) == [[200.0, 400.0], [2.0, 0.5]]
    assert line(pc, "tolerance", FINAL) == [[100.0, 200.0, 400.0], [0.5] * 3]
    assert line(pc, "acceptance", OWN) == [[100.0, 200.0, 400.0], [1.0, 0.2, 0.1]]
    assert line(pc, "acceptance", FINAL) == [[200.0, 400.0], [0.02, 0.02]]
    assert line(pc, "efficiency", FINAL) == [[200.0, 400.0], [0.02, 0.015]]
    for name in ("acceptance", "efficiency"):
        assert line(pc, name, REJECTION, "rejection") == [[100.0, 200.0, 400.0], [0.005] * 3]
    assert line(pc, "draws", FINAL) == [[100.0, 200.0, 400.0], [0.0, 2.0, 4.8]]
    assert line(pc, "draws", REJECTION, "rejection") == [[100.0, 200.0, 400.0], [0.5, 1.0, 2.0]]


def test_the_titles_tell_the_numbers():
    # Of adjusted draws fewer are effective than weights say, which is what the lines show.
    pc = plot_abc(result(effective_draws=3.0, prior_acceptance=0.002), backend="none")
    texts = [pc.get_viz("title", n)["string"] for n in pc.viz["plot"].data_vars]
    assert texts == [
        "Tolerance 0.5 in the end",
        "Acceptance 2 % in the last round",
        "Effective draws per simulation, 6 × rejection",
        "5 effective draws, rejection 1",
    ]
    labels = [pc.get_viz("ylabel", n)["string"] for n in ("tolerance", "acceptance", "draws")]
    assert labels == [ABC[n].label for n in ("tolerance", "acceptance", "ess_so_far")]
    assert labels[1:] == ["share accepted", "effective draws so far"]
    none = plot_abc(result(prior_acceptance=0.0), backend="none")
    assert none.get_viz("title", "efficiency")["string"] == "Effective draws per simulation"


def test_axes_are_logarithmic_but_those_of_draws():
    pc = plot_abc(result(), backend="none")
    for name, x, y in (
        ("tolerance", "log", "log"), ("acceptance", "log", "log"), ("efficiency", "log", "log"),
        ("draws", None, None),
    ):  # fmt: skip
        for axis, expected in (("xscale", x), ("yscale", y)):
            found = setting(pc, axis, name)
            assert (None if found is None else found["scale"]) == expected


@pytest.mark.parametrize("largest", [1.0, 7.0, 400.0, 2000.0, 30_000.0, 123_456.0, 999_999.0])
def test_ticks_are_few_and_reach_far(largest):
    ticks = _ticks(largest)
    assert 3 <= len(ticks) <= 6
    assert ticks[0] == 0.0 and 0.6 * largest < ticks[-1] <= largest


def test_many_rounds_have_no_dots():
    n = 60
    table = {
        "tolerance": np.linspace(2.0, 0.5, n), "simulations": np.full(n, 10),
        "acceptance": np.full(n, 0.1), "final_acceptance": np.full(n, 0.1), "ess": np.full(n, 1.0),
        "ess_so_far": np.arange(n),
    }  # fmt: skip
    assert "rounds" not in plot_abc(result(**table), backend="none").viz.children
    dots = plot_abc(result(), backend="none").viz["rounds"]
    assert dots["tolerance"].sel(quantity=FINAL).item() is None
    assert dots["acceptance"].sel(quantity=FINAL).item() is not None


def test_one_round_and_nothing_on_the_log_scale():
    dt = result(
        tolerance=[np.inf], simulations=[50], acceptance=[0.0], final_acceptance=[0.0], ess=[0.0],
        ess_so_far=[1.0],
        final_tolerance=np.inf, prior_acceptance=0.0,
    )  # fmt: skip
    for backend in ("none", "matplotlib"):
        assert plot_abc(dt, backend=backend).backend == backend


def test_visuals_can_be_left_out_and_altered():
    off = dict.fromkeys(("rounds", "rejection", "title", "legend"), False)
    pc = plot_abc(result(), backend="none", visuals={**off, "lines": {"color": "red"}})
    assert not set(off) & set(pc.viz.children)
    assert pc.viz["lines"]["acceptance"].sel(quantity=OWN).item()["color"] == "red"


def test_the_picture_in_matplotlib():
    pytest.importorskip("matplotlib")
    pc = plot_abc(result(), backend="matplotlib")
    figure = pc.get_viz("figure")
    figure.canvas.draw()
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [OWN, FINAL, REJECTION]
    assert [h.get_linestyle() for h in legend.get_lines()] == ["-", "-", "--"]
    drawn = pc.viz["rejection"]["draws"].sel(quantity=REJECTION).item()
    assert drawn.get_linestyle() == "--"
    assert [ax.get_yscale() for ax in figure.axes] == ["log", "log", "log", "linear"]
    sized = plot_abc(
        result(), backend="matplotlib",
        figure_kwargs={"figsize": (8.0, 5.0), "figsize_units": "inches"},
    )  # fmt: skip
    assert sized.get_viz("figure").get_size_inches().tolist() == [8.0, 5.0]


def test_a_real_run():
    problem = amc.SimulatorProblem(
        {"mu": stats.norm(0.0, 3.0)}, lambda rng, mu: rng.normal(mu, 1.0), observed=2.0
    )
    options = {
        "max_simulations": 2000, "model": problem, "batched": True, "random_seed": 1,
        "progressbar": False,
    }  # fmt: skip
    for sample in (amc.sample_abc_tree, amc.sample_abc_rejection):
        with pytest.warns(UserWarning, match="Likelihood-free"):
            found = sample(**options)
        pc = amc.plot_abc(found, backend="none")
        x, y = line(pc, "draws", FINAL)
        assert x[-1] == 2000.0 - 126.0  # of the trial before the run
        weighted = found["weighted_posterior"]
        number, w = weighted["round"].values, np.exp(weighted["log_weight"].values)
        for k, so_far in enumerate(found["abc"]["ess_so_far"].values):
            of_these = w[number <= k]
            expected = of_these.sum() ** 2 / (of_these**2).sum() if of_these.size else 0.0
            assert so_far == pytest.approx(expected)
        assert y[-1] == pytest.approx(found["abc"]["effective_draws"].item())
        if sample is amc.sample_abc_rejection:
            assert y[-1] == pytest.approx(line(pc, "draws", REJECTION, "rejection")[1][-1])
