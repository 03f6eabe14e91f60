"""The picture of an allocation: what is drawn, in every plotting library, and what is refused."""

import numpy as np
import pytest

import amc_pymc as amc

from tests.combined_results import result


@pytest.fixture(scope="module")
def equal():
    # Round 0: arm 0 twice, arm 1 once; round 1: arm 1 three times; round 2: arm 0 six times.
    return result([0, 0, 1] + [1] * 3 + [0] * 6, [0] * 3 + [1] * 3 + [2] * 6, np.ones(12))


def lines(axes):
    """Points of the lines of a plot by label."""
    return {line.get_label(): np.array(line.get_xydata()).T.tolist() for line in axes.lines}


def interval(axes):
    """Middle and ends of the final interval."""
    (bars,) = axes.containers
    point, _, (sticks,) = bars
    return [float(point.get_ydata()[0]), *sticks.get_segments()[0][:, 1].tolist()]


def test_lines_are_running_totals_at_the_ends_of_rounds(equal):
    found = lines(amc.plot_allocation(equal).axes[0])
    assert found == {"arm 0": [[3, 6, 12], [2, 2, 8]], "arm 1": [[3, 6, 12], [1, 4, 4]]}


def test_the_estimate_and_its_band_are_those_of_the_weights(equal):
    axes = amc.plot_allocation(equal).axes[1]
    # The predictable estimate has no error after the first round.
    assert axes.lines[0].get_xydata().T.tolist() == [[6, 12], [10.0, 20.0]]
    corners = {tuple(p) for p in axes.collections[0].get_paths()[0].vertices.round(9).tolist()}
    assert {(6.0, 9.5), (6.0, 10.5), (12.0, 19.666666667), (12.0, 20.333333333)} <= corners
    np.testing.assert_allclose(interval(axes), [4.0, 3.8, 4.2])


def test_the_log_scale_shows_log_means():
    found = result([0, 1, 0, 0], [0, 0, 1, 1], np.ones(4), scale="log")
    axes = amc.plot_allocation(found).axes[1]
    assert "log of" in axes.get_ylabel()
    np.testing.assert_allclose(interval(axes), [-4.0, -4.02, -3.98])


def test_costs_that_differ_get_a_plot_of_their_own():
    found = result([0, 1, 1, 0], [0, 0, 1, 1], [2.0, 0.5, 0.5, 4.0])
    draws, cost, estimate = amc.plot_allocation(found).axes
    assert lines(draws)["arm 0"] == [[2, 4], [1, 2]]
    assert lines(cost)["arm 0"] == [[2.5, 7.0], [2.0, 6.0]]
    assert estimate.get_xlabel() == "cost, all arms"
    assert estimate.containers[0][0].get_xdata() == [7.0]


def test_a_real_run():
    found = amc.combine_estimators(
        {"sharp": lambda rng: rng.normal(1.0, 0.1), "vague": lambda rng: rng.normal(1.0, 5.0)},
        draws=500, random_seed=1, progressbar=False,
    )  # fmt: skip
    figure = amc.plot_allocation(found)
    left, right = figure.axes
    assert (left.get_xscale(), left.get_yscale(), right.get_yscale()) == ("log", "log", "linear")
    assert [y[-1] for _, y in lines(left).values()] == found["arms"]["draws"].values.tolist()
    final = found["estimate"].sel(weights="predictable")
    assert right.lines[0].get_ydata()[-1] == pytest.approx(final["mean"].item(), rel=1e-12)
    spent = found["rounds"]["draws"].sum("arm").values.cumsum()
    np.testing.assert_array_equal(right.lines[0].get_xdata(), spent)
    low, high = right.get_ylim()
    assert low < final["mean"] - 2.0 * final["mcse"] < final["mean"] + 2.0 * final["mcse"] < high
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["sharp", "vague"]


@pytest.mark.parametrize(
    ("arms", "rounds", "labels"),
    [
        ([0] * 9, [0] * 3 + [1] * 6, ["arm 0"]),
        ([0, 1], [0, 0], ["arm 0", "arm 1"]),
        ([*range(2000)] + [5] * 900, [0] * 2000 + [1] * 900, [*"01234567"]),
    ],
    ids=["one arm", "one draw each", "many"],
)
def test_few_and_many_arms(arms, rounds, labels):
    figure = amc.plot_allocation(result(arms, rounds, np.ones(len(arms))))
    figure.canvas.draw()
    found = [t.get_text().removeprefix("arm ") for t in figure.legends[0].get_texts()]
    assert found == [label.removeprefix("arm ") for label in labels]
