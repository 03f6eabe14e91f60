"""Doubts about a forecast are flags: a warning, and in the forecast."""

import numpy as np
import pymc as pm
import pytest

import amc_pymc as amc

N = 3_000


def separated():
    """A logistic regression whose likelihood increases with the slope, and a flat prior."""
    x = np.linspace(-1.0, 1.0, N)
    with pm.Model() as model:
        slope = pm.Flat("slope", initval=0.0)
        pm.Bernoulli("y", logit_p=slope * x, observed=(x > 0.0).astype(int))
    return model


def edge():
    """A model whose rows are impossible beside the mode."""
    y = np.random.default_rng(1).random(N)
    with pm.Model() as model:
        pm.Uniform("y", 0.0, pm.HalfNormal("top", 3.0, initval=2.0), observed=y)
    return model


def test_doubts_are_flags_that_warn():
    with pytest.warns(UserWarning, match="racing_forecast: the mode of the posterior") as caught:
        found = amc.racing_forecast(model=separated(), marginalize=None, progressbar=False)
    assert [f.name for f in found.flags] == ["mode_not_found"]
    assert caught[0].filename == __file__
    assert found.flags[0].message in str(caught[0].message)
    assert str(found).endswith(found.flags[0].message)
    assert "nan" not in str(found)


def test_without_a_control_variate_the_reason_is_told():
    """Of the same words as the error of the step."""
    model = edge()
    found = amc.racing_forecast(model=model, progressbar=False)
    with pytest.raises(ValueError, match="There is no control variate: rows are impossible") as e:
        amc.RacingMetropolis(model=model, progressbar=False)
    assert "rows are impossible" in found.suggestion and "rows are impossible" in str(e.value)
    assert str(found).endswith(found.suggestion) and "use NUTS" in found.suggestion
    assert not found.pays and found.expected_rows == N and found.flags == ()
    assert "nan" not in str(found)


def test_without_doubts():
    y = np.random.default_rng(1).poisson(3.0, size=N)
    with pm.Model() as model:
        pm.Poisson("y", pm.Gamma("rate", 1, 1), observed=y)
    found = amc.racing_forecast(model=model, progressbar=False)
    assert found.flags == () and str(found).endswith(found.suggestion)
    assert found.effective_draws > found.nuts_effective_draws > 0.0  # over a hundred times
    assert found.pays


def test_a_step_tells_its_preparation(caplog):
    y = np.random.default_rng(1).normal(2.0, 1.0, size=500)
    with pm.Model():
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("obs", mu, 1, observed=y)
        with caplog.at_level("INFO", logger="amc_pymc"):
            step = amc.RacingMetropolis(progressbar=False)
    seconds = step.prepared.seconds
    assert seconds > 0.0 and f"Prepared in {seconds:.1f} s." in caplog.text
