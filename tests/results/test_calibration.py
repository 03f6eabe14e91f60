"""Coverage of intervals over experiments: by hand, by theory, and drawn."""

import numpy as np
import pytest
import xarray as xr

from arviz_base import from_dict
from scipy.stats import binom

import amc_pymc as amc

from amc_pymc.results import calibration


def posterior(**draws):
    return from_dict({"posterior": draws})


def experiments(n, factor=1.0, seed=1):
    """A normal mean with a standard normal prior and one observation of sd 1; posteriors too wide by a factor."""
    rng = np.random.default_rng(seed)
    mu = rng.normal(size=n)
    centre = 0.5 * (mu + rng.normal(size=n))
    draws = centre[:, None, None] + factor * np.sqrt(0.5) * rng.normal(size=(n, 1, 400))
    return [posterior(mu=d) for d in draws], [{"mu": m} for m in mu]


def test_coverage_and_width_by_hand():
    draws = np.arange(101.0)[None]
    posteriors = [posterior(a=draws, b=np.stack([draws, 2.0 * draws], axis=-1))] * 2
    truths = [{"a": 50.0, "b": [95.0, 100.0]}, {"a": 20.0, "b": [50.0, 0.0]}]
    found = calibration(posteriors, truths, levels=[0.5, 0.8])
    assert found["coverage"]["a"].values.tolist() == [0.5, 1.0]
    assert found["coverage"]["b"].values.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    np.testing.assert_allclose(found["width"]["a"], [50.0, 80.0])
    np.testing.assert_allclose(found["width"]["b"], [[50.0, 100.0], [80.0, 160.0]])
    assert found.attrs["experiments"] == 2


def test_exact_posteriors_cover_at_their_level_and_wide_ones_more_often():
    levels = np.array([0.2, 0.5, 0.8])
    exact, wide = (
        calibration(*experiments(400, factor), levels=levels)["coverage"]["mu"].values
        for factor in (1.0, 2.0)
    )
    error = np.sqrt(levels * (1.0 - levels) / 400)
    assert (np.abs(exact - levels) < 4.0 * error).all()
    assert (wide - levels > 4.0 * error).all()


def test_the_band_is_that_of_chance():
    found = calibration(*experiments(30), levels=[0.3], confidence=0.8)
    lower, upper = (found["chance"][k].item() * 30 for k in ("lower", "upper"))
    assert binom(30, 0.3).cdf(lower - 1) < 0.1 <= binom(30, 0.3).cdf(lower)
    assert binom(30, 0.3).cdf(upper - 1) < 0.9 <= binom(30, 0.3).cdf(upper)


@pytest.mark.parametrize(
    ("posteriors", "truths", "options", "error", "message"),
    [
        ([], [], {}, ValueError, "at least one, got 0 and 0"),
        ([posterior(a=np.zeros((1, 3)))], [], {}, ValueError, "got 1 and 0"),
        ([posterior(a=np.zeros((1, 3)))], [{}], {}, TypeError, r"truths\[0\] must map"),
        ([posterior(a=np.zeros((1, 3)))], [{"b": 0.0}], {}, ValueError, r"posteriors\[0\] has no b"),
        ([posterior(a=np.zeros((1, 3)))], [{"a": [0.0]}], {}, ValueError, r"truths\[0\]\['a'\] must have the shape"),
        ([posterior(a=np.zeros((1, 3)))] * 2, [{"a": 0.0}, {"b": 0.0}], {}, ValueError, "the same variables"),
        ([3.0], [{"a": 0.0}], {}, TypeError, r"posteriors\[0\] must be the xarray.DataTree"),
        (*experiments(2), {"levels": [0.5, 1.0]}, ValueError, "levels must be between 0 and 1"),
        (*experiments(2), {"confidence": 0.0}, ValueError, "confidence must be between 0 and 1"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(posteriors, truths, options, error, message):
    with pytest.raises(error, match=message):
        calibration(posteriors, truths, **options)


def test_the_plot_draws_the_numbers():
    runs = {"exact": calibration(*experiments(30)), "wide": calibration(*experiments(30, 2.0))}
    pc = amc.plot_calibration(runs, backend="none")
    for run, found in runs.items():
        for key in ("coverage", "width"):
            drawn = pc.get_viz(key, "mu", run=run, quantity=key)
            np.testing.assert_array_equal(drawn["x"], found["coverage"]["level"])
            np.testing.assert_array_equal(drawn["y"], found[key]["mu"])
    band = pc.get_viz("chance", "mu", quantity="coverage")
    np.testing.assert_array_equal(band["y_top"], runs["exact"]["chance"]["upper"])
    assert pc.get_viz("ylabel", "mu", quantity="coverage")["string"] == "share of 30 experiments"
    assert pc.get_viz("title", "mu", quantity="width")["string"] == "mu\nwidth"


def test_results_of_other_levels_or_variables_are_not_drawn_together():
    first = calibration(*experiments(5))
    other = calibration(*experiments(5), levels=[0.5])
    with pytest.raises(ValueError, match="same variables and levels: 'a' has 'mu', 'b' has 'mu'"):
        amc.plot_calibration({"a": first, "b": other}, backend="none")
    cut = xr.DataTree.from_dict({"coverage": first["coverage"].to_dataset()})
    with pytest.raises(ValueError, match="dt has no group 'width', only"):
        amc.plot_calibration(cut, backend="none")
    with pytest.raises(KeyError, match="nu"):
        amc.plot_calibration(first, var_names="nu", backend="none")
