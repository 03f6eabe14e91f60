"""Models of Bambi with racing steps and evidence; ``make test-bambi`` makes the environment for it."""

from pathlib import Path

import arviz as az
import numpy as np
import pandas as pd
import pytest

from documented_code import blocks_of, run_block
from scipy import stats
from scipy.special import logsumexp

import amc_pymc as amc

bmb = pytest.importorskip("bambi")

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "other_libraries.md"
SHORT = {"draws": 500, "tune": 300, "chains": 2, "cores": 1, "quiet": True}
QUIET = {"random_seed": 1, "progressbar": False}


def built(formula, data, **options):
    model = bmb.Model(formula, data, center_predictors=False, **options)
    model.build()
    return model


def racing_draws(model, unit):
    with model.backend.model:
        step = amc.RacingMetropolis(progressbar=False)
    assert step.prepared.densities.unit == unit
    return model.fit(step=step, **SHORT, **QUIET)


def assert_means(idata, exact):
    """Posterior means are within four standard errors of what they should be."""
    draws = idata["posterior"].to_dataset()[list(exact)]
    error = az.mcse(draws)
    for name, mean in exact.items():
        assert float(error[name]) < 0.25 * float(draws[name].std()), name
        assert float(draws[name].mean()) == pytest.approx(mean, abs=4 * float(error[name])), name


def assert_evidence(model, exact):
    found = amc.estimate_evidence(model.backend.model, draws=100, **QUIET)["evidence"]
    error = float(found["log_evidence_mcse"])
    assert error < 0.05
    assert float(found["log_evidence"]) == pytest.approx(exact, abs=4 * error)


class Hierarchical:
    """Linear regression with effects of groups; given both standard deviations, all is Gaussian."""

    def __init__(self):
        rng = np.random.default_rng(5)
        x, group = rng.normal(3.0, 1.0, 1_200), np.arange(1_200) % 40
        y = 1.0 - 0.5 * x + rng.normal(0.0, 0.6, 40)[group] + rng.normal(0.0, 0.8, 1_200)
        self.y, self.design = y, np.column_stack([np.eye(40)[group], np.ones(x.size), x])
        half = bmb.Prior("HalfNormal", sigma=1.0)
        self.model = built(
            "y ~ x + (1|g)",
            pd.DataFrame({"y": y, "x": x, "g": pd.Categorical(group)}),
            priors={
                "Intercept": bmb.Prior("Normal", mu=0.0, sigma=2.0),
                "x": bmb.Prior("Normal", mu=0.0, sigma=1.0),
                "sigma": half,
                "1|g": bmb.Prior("Normal", mu=0.0, sigma=half),
            },
        )

    def given(self, sigma, tau):
        """Log density of the data, and mean of intercept and slope, by Woodbury's formula."""
        precision = np.r_[np.full(40, tau**-2.0), 0.25, 1.0]
        root = np.linalg.cholesky(np.diag(precision) + self.design.T @ self.design / sigma**2)
        half = np.linalg.solve(root, self.design.T @ self.y / sigma**2)
        log_det = 2 * np.log(np.diag(root)).sum() - np.log(precision).sum()
        constant = self.y.size * np.log(2 * np.pi * sigma**2)
        log_density = -0.5 * (constant + log_det + self.y @ self.y / sigma**2 - half @ half)
        return log_density, np.linalg.solve(root.T, half)[-2:]

    def exact(self):
        """Log evidence and posterior means, by quadrature over both standard deviations."""
        nodes, weights = np.polynomial.legendre.leggauss(40)
        sigmas, taus = 0.8 + 0.12 * nodes, 0.65 + 0.5 * nodes
        at = [(s, t) for s in sigmas for t in taus]
        log_density, means = (np.array(v) for v in zip(*(self.given(*p) for p in at), strict=True))
        log_prior = stats.halfnorm.logpdf(at).sum(axis=1)
        log_terms = (
            log_density + log_prior + np.log(np.outer(0.12 * weights, 0.5 * weights)).ravel()
        )
        log_evidence = logsumexp(log_terms)
        b0, b1, sigma, tau = np.exp(log_terms - log_evidence) @ np.column_stack([means, at])
        return log_evidence, {"Intercept": b0, "x": b1, "sigma": sigma, "1|g_sigma": tau}


@pytest.fixture(scope="module")
def hierarchical():
    return Hierarchical()


def test_racing_a_hierarchical_regression(hierarchical):
    """Effects of groups are integrated out in the races, and drawn."""
    idata = racing_draws(hierarchical.model, "group")
    assert_means(idata, hierarchical.exact()[1])
    assert idata["posterior"]["1|g"].sizes["g__factor_dim"] == 40


def test_evidence_of_a_hierarchical_regression(hierarchical):
    assert_evidence(hierarchical.model, hierarchical.exact()[0])


def test_the_code_of_the_page_runs():
    """The block on Bambi, after the one that makes its data."""
    names = {"__name__": "__main__"}
    blocks = blocks_of(PAGE.read_text(encoding="utf-8"))
    for line, code, _ in (b for b in blocks if "default_rng" in b[1] or "bambi" in b[1]):
        run_block(PAGE, line, code, names)
    assert {"wind", "Intercept", "p"} <= set(names["idata"]["posterior"].data_vars)
    assert "log_evidence" in names["evidence"]["evidence"]
