"""Models of Bambi with racing steps and evidence. ``make test-bambi`` runs it with the PyMC that Bambi needs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import amc_pymc as amc

from tests.documented_code import blocks_of, run_block

bmb = pytest.importorskip("bambi")

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "other_libraries.md"
SHORT = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False}


def table(n_rows=1_200, n_groups=40):
    """Rows of a regression with effects of groups, covariates far from zero."""
    rng = np.random.default_rng(5)
    x, group = rng.normal(3.0, 1.0, n_rows), np.arange(n_rows) % n_groups
    y = 1.0 - 0.5 * x + rng.normal(0.0, 0.6, n_groups)[group] + rng.normal(0.0, 0.8, n_rows)
    return pd.DataFrame({"y": y, "x": x, "g": [f"g{k:02d}" for k in group]})


def built(formula, data, **options):
    model = bmb.Model(formula, data, **options)
    model.build()
    return model


def racing(model, **options):
    with model.backend.model:
        return amc.RacingMetropolis(progressbar=False, **options)


@pytest.fixture(scope="module")
def data():
    return table()


@pytest.fixture(scope="module")
def simple(data):
    model = built("y ~ x", data)
    return model, model.fit(draws=400, tune=300, step=racing(model), **SHORT)


def test_draws_of_a_regression_are_around_least_squares(data, simple):
    """Its default priors are wide. The intercept is that of covariates that are not centred."""
    _, idata = simple
    design = np.column_stack([np.ones(len(data)), data["x"]])
    fitted, (rss,), *_ = np.linalg.lstsq(design, data["y"])
    sd = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * rss / (len(data) - 2))
    for name, centre, scale in zip(("Intercept", "x"), fitted, sd, strict=True):
        draws = idata["posterior"][name]
        assert float(draws.mean()) == pytest.approx(centre, abs=0.4 * scale), name
        assert float(draws.std()) == pytest.approx(scale, rel=0.25), name


def test_predictions(data, simple):
    model, idata = simple
    model.predict(idata, kind="response", random_seed=1)
    mean = idata["posterior"]["mu"].mean(("chain", "draw"))
    assert np.corrcoef(mean, data["x"])[0, 1] < -0.999
    assert abs(float(idata["posterior_predictive"]["y"].mean()) - data["y"].mean()) < 0.1


def test_effects_of_groups_are_integrated_out_and_drawn(data):
    model = built("y ~ x + (1|g)", data)
    step = racing(model)
    assert step.prepared.densities.unit == "group"
    idata = model.fit(draws=200, tune=200, step=step, **SHORT)
    posterior = idata["posterior"]
    residual = data["y"] - 1.0 + 0.5 * data["x"]
    effects = posterior["1|g"].mean(("chain", "draw"))
    assert np.corrcoef(effects, residual.groupby(data["g"]).mean())[0, 1] > 0.98
    assert 0.4 < float(posterior["1|g_sigma"].mean()) < 0.9


def test_evidence_is_that_of_the_model_written_by_hand(data):
    priors = {
        "Intercept": bmb.Prior("Normal", mu=0.0, sigma=2.0),
        "x": bmb.Prior("Normal", mu=0.0, sigma=1.0),
        "sigma": bmb.Prior("HalfNormal", sigma=1.0),
    }
    model = built("y ~ x", data, priors=priors, center_predictors=False)
    with pm.Model() as by_hand:
        mean = pm.Normal("b0", 0.0, 2.0) + pm.Normal("b1", 0.0, 1.0) * data["x"].values
        pm.Normal("y", mean, pm.HalfNormal("sigma", 1.0), observed=data["y"].values)
    one, two = (
        amc.estimate_evidence(m, target_mcse=0.01, draws=50, random_seed=1, progressbar=False)
        for m in (model.backend.model, by_hand)
    )
    z = [float(t["evidence"]["log_evidence"]) for t in (one, two)]
    error = np.hypot(*(float(t["evidence"]["log_evidence_mcse"]) for t in (one, two)))
    assert abs(z[0] - z[1]) < 4.0 * error


def test_the_code_of_the_page_runs():
    """The blocks on Bambi, after those that they need."""
    names = {"__name__": "__main__"}
    blocks = blocks_of(PAGE.read_text(encoding="utf-8"))
    needed = [b for b in blocks if "def regression" in b[1] or "bambi" in b[1]]
    for line, code, _ in needed:
        run_block(PAGE, line, code, names)
    assert {"wind", "Intercept"} <= set(names["idata"]["posterior"].data_vars)
