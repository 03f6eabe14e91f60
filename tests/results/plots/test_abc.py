"""The picture of a likelihood-free run: lines, axes, and what is refused."""

import numpy as np
import pytest
import xarray as xr

from scipy import stats

import amc_pymc as amc

from amc_pymc.results.plots.abc import plot_abc
from tests.likelihood_free.abc_runs import rejection

OWN, FINAL, REJECTION = "tolerance of the round", "final tolerance", "rejection"


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


def line(figure, k, quantity):
    """Points of a line; those left out are left out."""
    (found,) = (x for x in figure.axes[k].lines if x.get_label() == quantity)
    points = np.array(found.get_xydata(), float).T
    return points[:, np.isfinite(points).all(axis=0)].tolist()


def test_lines_are_those_of_the_table():
    figure = plot_abc(result(), figsize=(8.0, 5.0))
    assert line(figure, 0, OWN) == [[200.0, 400.0], [2.0, 0.5]]
    assert line(figure, 0, FINAL) == [[100.0, 200.0, 400.0], [0.5] * 3]
    assert line(figure, 1, OWN) == [[100.0, 200.0, 400.0], [1.0, 0.2, 0.1]]
    assert line(figure, 1, FINAL) == [[200.0, 400.0], [0.02, 0.02]]
    assert line(figure, 2, FINAL) == [[200.0, 400.0], [0.02, 0.015]]
    for k in (1, 2):
        assert line(figure, k, REJECTION) == [[100.0, 200.0, 400.0], [0.005] * 3]
    assert line(figure, 3, FINAL) == [[100.0, 200.0, 400.0], [0.0, 2.0, 4.8]]
    assert line(figure, 3, REJECTION) == [[100.0, 200.0, 400.0], [0.5, 1.0, 2.0]]
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [OWN, FINAL, REJECTION]
    assert [h.get_linestyle() for h in legend.get_lines()] == ["-", "-", "--"]
    assert [ax.get_yscale() for ax in figure.axes] == ["log", "log", "log", "linear"]
    assert figure.get_size_inches().tolist() == [8.0, 5.0]


def test_a_real_run():
    problem = amc.SimulatorProblem(
        {"mu": stats.norm(0.0, 3.0)}, lambda rng, mu: rng.normal(mu, 1.0), observed=2.0
    )
    options = {
        "max_simulations": 2000, "model": problem, "batched": True, "random_seed": 1,
        "progressbar": False,
    }  # fmt: skip
    for sample in (amc.sample_abc_tree, rejection):
        with pytest.warns(UserWarning, match="Likelihood-free"):
            found = sample(**options)
        figure = amc.plot_abc(found)
        x, y = line(figure, 3, FINAL)
        assert x[-1] == 2000.0 - 126.0  # of the trial before the run
        weighted = found["weighted_posterior"]
        number, w = weighted["round"].values, np.exp(weighted["log_weight"].values)
        for k, so_far in enumerate(found["abc"]["ess_so_far"].values):
            of_these = w[number <= k]
            expected = of_these.sum() ** 2 / (of_these**2).sum() if of_these.size else 0.0
            assert so_far == pytest.approx(expected)
        assert y[-1] == pytest.approx(found["abc"]["effective_draws"].item())
        if sample is rejection:
            assert y[-1] == pytest.approx(line(figure, 3, REJECTION)[1][-1])
