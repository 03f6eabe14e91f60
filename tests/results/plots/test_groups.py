"""The picture of the effects of groups: order, intervals, titles, and what is refused."""

import numpy as np
import pytest

from arviz_base import from_dict

import amc_pymc as amc

RNG = np.random.default_rng(1)
#: Draws of three groups with two effects each, and of 200 groups.
FEW = RNG.normal([[3.0, 1.0], [1.0, 2.0], [2.0, 3.0]], 0.1, size=(2, 100, 3, 2))
MANY = RNG.normal(np.linspace(1.0, -1.0, 200), 0.1, size=(2, 100, 200))


def tree(**variables):
    return from_dict(
        {"posterior": variables}, dims={"few": ["school", "slope"]},
        coords={"school": ["A", "B", "C"], "slope": ["x", "y"]},
    )  # fmt: skip


def test_groups_are_sorted_by_their_means_in_each_plot():
    pc = amc.plot_groups(tree(few=FEW), var_names="few", backend="none", ci_prob=0.8)
    for i, (slope, order) in enumerate({"x": [1, 2, 0], "y": [0, 1, 2]}.items()):
        draws = FEW[:, :, order, i].reshape(-1, 3)
        np.testing.assert_allclose(pc.get_viz("point", "few", slope=slope)["y"], draws.mean(axis=0))
        interval = pc.get_viz("interval", "few", slope=slope)
        low, high = np.quantile(draws, [0.1, 0.9], axis=0)
        np.testing.assert_allclose(interval["y_bottom"], low, atol=0.01)
        np.testing.assert_allclose(interval["y_top"], high, atol=0.01)
    assert pc.get_viz("title", "few", slope="y")["string"] == "few\ny (3 groups)"
    assert pc.get_viz("ylabel", "few", slope="x")["string"] == "effect, 80 % intervals"


def test_names_of_groups_are_in_their_order():
    dt = tree(few=FEW).sel(slope="x")
    pc = amc.plot_groups(dt, var_names="few", backend="none")
    calls = [a for a in pc.get_viz("plot", "few") if a["function"] == "xticks"]
    assert calls[-1]["labels"] == ["B", "C", "A"]


def test_many_groups_are_a_band():
    dt = tree(few=FEW, many=MANY)
    dt["posterior"]["many"].attrs["integrated_out"] = "many"
    pc = amc.plot_groups(dt, backend="none")
    assert list(pc.viz["plot"].data_vars) == ["many"]
    assert pc.get_viz("interval", "many")["function"] == "fill_between_y"
    np.testing.assert_allclose(pc.get_viz("point", "many")["y"], np.sort(MANY.mean(axis=(0, 1))))
    assert pc.get_viz("title", "many")["string"] == "many (200 groups, integrated out)"


def test_what_is_no_effect_of_groups_is_refused():
    dt = tree(few=FEW, single=FEW[..., 0, 0], gone=np.where(MANY > 0.5, np.nan, MANY))
    with pytest.raises(ValueError, match=r"var_names must name the effects .*has 'few', 'single'"):
        amc.plot_groups(dt, backend="none")
    with pytest.raises(ValueError, match="var_names names 'single', which has a single value"):
        amc.plot_groups(dt, var_names="single", backend="none")
    with pytest.raises(ValueError, match=r"'gone' has draws that are nan; .*recover_marginals"):
        amc.plot_groups(dt, var_names="gone", backend="none")
    with pytest.raises(KeyError, match="nothing"):
        amc.plot_groups(dt, var_names="nothing", backend="none")
