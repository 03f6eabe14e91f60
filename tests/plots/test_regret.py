"""The picture of regret: sums computed by hand, several runs together, and what is refused."""

import numpy as np
import pytest
import xarray as xr

import amc_pymc as amc

from tests.combined_results import result


@pytest.fixture(autouse=True)
def close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def run(arms, rounds, costs=None, sd=(1.0, 2.0), **options):
    return result(arms, rounds, np.ones(len(arms)) if costs is None else costs, sd=sd, **options)


def curve(pc, name=""):
    data = pc.data["regret"].sel(run=name)
    return data.sel(plot_axis="x").values.tolist(), data.sel(plot_axis="y").values.tolist()


# Arm 0 twice, arm 1 twice; then arm 0 ten times; then arm 1 thrice.
ARMS, ROUNDS = [0, 0, 1, 1] + [0] * 10 + [1] * 3, [0] * 4 + [1] * 10 + [2] * 3


def test_regret_is_excess_variance_in_draws_of_the_best_arm():
    # The variances are 1 and 4: each draw of arm 1 loses (4 - 1) / 1.
    pc = amc.plot_regret(run(ARMS, ROUNDS), backend="none")
    x, y = curve(pc)
    assert x == [4, 14, 17]
    np.testing.assert_allclose(y, [6.0, 6.0, 15.0])
    line = pc.viz["regret"]["regret"].item()
    np.testing.assert_allclose(line["y"], y)
    assert pc.get_viz("title", "regret")["string"] == "Regret against 'arm 0'"
    assert pc.get_viz("xlabel", "regret")["string"] == "draws, all arms"


def test_costs_count():
    # Cost times variance: 6 * 1 and 1 * 4; arm 1 is the best, a draw of arm 0 loses (6 - 4) / 4.
    costs = np.where(np.array(ARMS) == 0, 6.0, 1.0)
    pc = amc.plot_regret(run(ARMS, ROUNDS, costs), backend="none")
    x, y = curve(pc)
    assert x == [14, 74, 77]
    np.testing.assert_allclose(y, [1.0, 6.0, 6.0])
    assert pc.get_viz("title", "regret")["string"] == "Regret against 'arm 1'"
    assert pc.get_viz("xlabel", "regret")["string"] == "cost, all arms"


def test_regret_is_the_excess_of_the_mean_squared_error():
    # Theorem 1 of Neufeld et al.: variance of the plain average over that of the best arm's.
    variances = np.array([1.0, 4.0])
    n = np.bincount(ARMS)
    exact = (n @ variances / n.sum() ** 2) / (variances[0] / n.sum())
    pc = amc.plot_regret(run(ARMS, ROUNDS), backend="none")
    assert 1.0 + curve(pc)[1][-1] / n.sum() == pytest.approx(exact, rel=1e-12)


def test_failed_draws_cost_and_tell_nothing():
    found = run([0] * 4 + [1] * 4, [0] * 8)
    found["pulls"]["failed"][:2] = True
    # What two good draws of arm 0 cost is 4; arm 0's error becomes that of two draws of variance 1.
    found["arms"]["mcse"][0] = np.sqrt(1.0 / 2.0)
    pc = amc.plot_regret(found, backend="none")
    np.testing.assert_allclose(curve(pc), [[8.0], [4 * (4.0 - 2.0) / 2.0]])


def test_known_variances_replace_estimates():
    pc = amc.plot_regret(run(ARMS, ROUNDS), variances={"arm 1": 0.5}, backend="none")
    # Now arm 1 is the best: 12 draws of arm 0 lose one each, twice 0.5.
    np.testing.assert_allclose(curve(pc)[1], [2.0, 12.0, 12.0])


def test_against_a_chosen_arm_regret_can_be_negative():
    pc = amc.plot_regret(run(ARMS, ROUNDS), best="arm 1", backend="none")
    np.testing.assert_allclose(curve(pc)[1], np.array([2, 12, 12]) * (1.0 - 4.0) / 4.0)


def test_a_few_lucky_draws_do_not_make_an_arm_the_best():
    arms = [0] * 40 + [1] * 3
    pc = amc.plot_regret(run(arms, [0] * 43, sd=(1.0, 0.01)), backend="none")
    assert pc.get_viz("title", "regret")["string"] == "Regret against 'arm 0'"
    assert curve(pc)[1] == [0.0]


def test_runs_share_variances_and_are_drawn_together():
    runs = {"few": run([0, 0, 1, 1], [0] * 4, sd=(1.0, 4.0)), "many": run(ARMS, ROUNDS)}
    pc = amc.plot_regret(runs, backend="none")
    # Pooled with n - 1 degrees of freedom: arm 0 stays 1, arm 1 is (1 * 16 + 4 * 4) / 5.
    loss = (1 * 16 + 4 * 4) / 5 - 1.0
    x, y = curve(pc, "few")
    assert (x[0], y[0]) == (4.0, pytest.approx(2 * loss))
    assert np.isnan(x[1:]).all()
    np.testing.assert_allclose(curve(pc, "many")[1], [2 * loss, 2 * loss, 5 * loss])
    assert pc.viz["regret"]["regret"].sizes["run"] == 2
    colours = pc.aes["color"]["mapping"]
    assert (
        pc.viz["regret"]["regret"].sel(run="few").item()["color"] == colours.sel(run="few").item()
    )


def test_the_log_scale_uses_relative_variances():
    pc = amc.plot_regret(run(ARMS, ROUNDS, scale="log"), backend="none")
    np.testing.assert_allclose(curve(pc)[1], [6.0, 6.0, 15.0])


def test_real_runs_in_matplotlib():
    pytest.importorskip("matplotlib")
    arms = {"a": lambda rng: rng.normal(1.0, 0.1), "b": lambda rng: rng.normal(1.0, 0.5)}
    runs = {
        policy: amc.combine_estimators(
            arms, policy=policy, draws=600, random_seed=1, progressbar=False
        )
        for policy in ("lcb", "round_robin")
    }
    pc = amc.plot_regret(runs, variances={"a": 0.01, "b": 0.25}, backend="matplotlib")
    (axes,) = pc.get_viz("figure").axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    ends = {name: pc.get_viz("regret", "regret", run=name).get_ydata()[-1] for name in runs}
    for name, found in runs.items():
        assert ends[name] == pytest.approx(24.0 * found["arms"]["draws"].sel(arm="b").item())
    assert ends["round_robin"] == pytest.approx(24.0 * 300)
    assert [t.get_text() for t in pc.get_viz("figure").legends[0].get_texts()] == list(runs)


@pytest.mark.parametrize("backend", ["plotly", "bokeh"])
def test_other_libraries_draw_it(backend):
    pytest.importorskip(backend)
    if backend == "plotly":
        pytest.importorskip("webcolors")
    runs = {"one": run(ARMS, ROUNDS), "two": run([0, 1, 1, 0], [0, 0, 1, 1])}
    assert amc.plot_regret(runs, backend=backend).backend == backend


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"best": "c"}, "best must be an arm, one of 'arm 0', 'arm 1', got 'c'"),
        ({"variances": {"c": 1.0}}, "variances names 'c', the arms are 'arm 0', 'arm 1'"),
        ({"variances": {"arm 0": -1.0}}, "finite and not negative, got 'arm 0': -1.0"),
        ({"variances": {"arm 0": 0.0}}, "variance of 'arm 0' is zero"),
        ({"visuals": {"line": False}}, "known are regret"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        amc.plot_regret(run(ARMS, ROUNDS), backend="none", **options)


def test_an_arm_drawn_once_needs_its_variance():
    once = run([0] * 40 + [1], [0] * 41, sd=(1.0, np.nan))
    with pytest.raises(
        ValueError, match="variance of 'arm 1', drawn less than twice; pass variances="
    ):
        amc.plot_regret(once, backend="none")
    np.testing.assert_allclose(
        curve(amc.plot_regret(once, variances={"arm 1": 3.0}, backend="none"))[1], [2.0]
    )
    both = run([0, 1], [0, 0], sd=(np.nan, np.nan))
    with pytest.raises(ValueError, match="No arm was drawn twice"):
        amc.plot_regret(both, backend="none")


def test_runs_that_do_not_belong_together_are_refused():
    one = run(ARMS, ROUNDS)
    other = run(ARMS, ROUNDS, names=["x", "y"])
    with pytest.raises(ValueError, match="same arms: 'a' has 'arm 0', 'arm 1', 'b' has 'x', 'y'"):
        amc.plot_regret({"a": one, "b": other})
    with pytest.raises(ValueError, match="same scale"):
        amc.plot_regret({"a": one, "b": run(ARMS, ROUNDS, scale="log")})
    with pytest.raises(ValueError, match="at least one run"):
        amc.plot_regret({})
    with pytest.raises(TypeError, match=r"dt\['b'\] must be the xarray"):
        amc.plot_regret({"a": one, "b": 3})
    cut = xr.DataTree.from_dict({"/arms": one["arms"].to_dataset()})
    with pytest.raises(ValueError, match=r"dt has no group 'pulls', only \['arms'\]"):
        amc.plot_regret(cut)
