"""Summaries, diagnostics, cross-validation and plots of ArviZ on every result with draws."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

from tests.interoperability.results import OF_SIMULATORS, WITH_DRAWS, result

#: The likelihood takes four values, to whose tail no Pareto distribution can be fitted.
DISCRETE = {"racing_gibbs"}
PLOTS = [az.plot_trace_dist, az.plot_rank]

every_result = pytest.mark.parametrize("name", WITH_DRAWS)


def size_of(posterior):
    """Return the number of scalars of a draw."""
    return sum(v[0, 0].size for v in posterior.data_vars.values())


@every_result
def test_summary_has_a_row_per_element_and_the_means_of_the_draws(name):
    draws = result(name).draws
    table = az.summary(draws, round_to="none")
    assert len(table) == size_of(draws["posterior"])
    means = np.concatenate(
        [v.mean(("chain", "draw")).values.ravel() for v in draws["posterior"].data_vars.values()]
    )
    np.testing.assert_allclose(table["mean"].astype(float), means, rtol=1e-6, atol=1e-12)


@every_result
@pytest.mark.parametrize("plot", PLOTS, ids=lambda p: p.__name__)
def test_plots_show_every_variable(plot, name):
    draws = result(name).draws
    with az.rc_context({"plot.max_subplots": 100}):
        shown = plot(draws, backend="none").viz
    drawn = {v for group in shown.subtree for v in group.data_vars}
    assert set(draws["posterior"].data_vars) <= drawn


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution:UserWarning")
@pytest.mark.parametrize("name", [n for n in WITH_DRAWS if n not in OF_SIMULATORS | DISCRETE])
def test_loo_of_pointwise_log_likelihoods(name):
    """Smaller than the log density of the data given the draws, by about the number of parameters."""
    model, draws = result(name).model, result(name).draws
    with model:
        pointwise = pm.compute_log_likelihood(draws, extend_inferencedata=False, progressbar=False)
    scored = draws.copy()
    scored["log_likelihood"] = pointwise
    found = az.loo(scored, pointwise=True)
    values = pointwise["y"].stack(s=("chain", "draw"))
    within = float(np.log(np.exp(values).mean("s")).sum())
    assert found.n_data_points == values.sizes["y_dim_0"]
    assert within - 100.0 < found.elpd < within
    assert found.p == pytest.approx(within - found.elpd, rel=1e-6)
