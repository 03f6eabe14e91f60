"""Logistic regressions: the reference against quadrature, the frozen values, the reading of data."""

import math

from urllib.error import URLError

import numpy as np
import pytest

from scipy.special import logsumexp
from scipy.stats import norm

from models import logistic_regression as module
from models.logistic_regression import (
    FRIEL_WYSE_2,
    FROZEN,
    breast_cancer,
    complete_pima,
    laplace,
    load_breast_cancer,
    load_pima,
    log_likelihoods,
    logistic_regression,
    neufeld,
    pima,
    reference,
    simulate,
    standardise,
)
from models.student_importance import Reference


def test_reference_by_quadrature():
    X, y = simulate(30, 2, seed=3)
    scales = np.array([2.5, 0.8])
    grid = [np.linspace(-8.0 * s, 8.0 * s, 401) for s in scales]
    theta = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1).reshape(-1, 2)
    log_joint = log_likelihoods(theta, X, y) + norm.logpdf(theta, 0.0, scales).sum(axis=1)
    cell = math.prod(g[1] - g[0] for g in grid)
    exact = logsumexp(log_joint) + math.log(cell)
    found = reference(X, y, scales, log2_points=10)
    assert found.error < 1e-3
    assert abs(found.log_evidence - exact) < 4.0 * found.error


def test_laplace_is_at_the_mode():
    X, y = simulate(40, 3, seed=2)
    scales = np.full(3, 1.5)
    mode, covariance = laplace(X, y, scales)

    def log_joint(theta):
        return log_likelihoods(theta[None], X, y)[0] - 0.5 * np.square(theta / scales).sum()

    step = 1e-4 * np.eye(3)
    slope = [(log_joint(mode + e) - log_joint(mode - e)) / 2e-4 for e in step]
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)
    hessian = np.array([
        [
            log_joint(mode + a + b) - log_joint(mode + a) - log_joint(mode + b) + log_joint(mode)
            for a in step
        ]
        for b in step
    ]) / 1e-8  # fmt: skip
    np.testing.assert_allclose(-hessian @ covariance, np.eye(3), atol=5e-3)


def test_frozen_references():
    """A quick run with another seed."""
    X, y = simulate(50, 8)
    found = reference(X, y, np.full(8, 2.5), log2_points=10, seed=5)
    frozen = FROZEN["simulated", 50, 8, 2.5, 1]
    assert logistic_regression().log_evidence == frozen.log_evidence
    assert frozen.error < 5e-4 < found.error < 0.01
    assert abs(found.log_evidence - frozen.log_evidence) < 4.0 * found.error

    X, y = load_breast_cancer()
    design = np.column_stack([np.ones(y.size), X])
    found = reference(design, y, np.append(5.0, np.full(8, 2.5)), log2_points=9, seed=5)
    frozen = FROZEN["breast cancer", 8, 2.5, 5.0]
    assert breast_cancer().log_evidence == frozen.log_evidence
    assert frozen.error < 5e-4 < found.error < 0.01
    assert abs(found.log_evidence - frozen.log_evidence) < 4.0 * found.error


def test_other_sizes():
    assert logistic_regression(20, 3, seed=2).n_dim == 3
    problem = breast_cancer(2)
    assert problem.n_dim == 3
    assert [str(v) for v in problem.build().free_RVs] == ["intercept", "beta"]


def write_table(path, header=False, rows=768):
    rng = np.random.default_rng(1)
    table = rng.integers(0, 100, (rows, 9)).astype(float)
    table[:, 8] = rng.integers(0, 2, rows)
    text = "\n".join(",".join(f"{value:g}" for value in row) for row in table)
    path.write_text(("a,b,c,d,e,f,g,h,class\n" if header else "") + text, encoding="utf-8")
    return table


@pytest.mark.parametrize("header", [False, True])
def test_pima_from_a_file(tmp_path, monkeypatch, header):
    asked = []

    def fake_reference(X, y, scales):
        asked.append((X, y, scales))
        return Reference(-1.0, 0.1)

    monkeypatch.setattr(module, "reference", fake_reference)
    path = tmp_path / "pima.csv"
    table = write_table(path, header)
    X, y = load_pima(path)
    np.testing.assert_array_equal(X, table[:, :8])
    np.testing.assert_array_equal(y, table[:, 8])
    kept = (table[:, [1, 2, 3, 5]] > 0.0).all(axis=1)
    np.testing.assert_array_equal(complete_pima(load_pima(path)).X, table[kept, :8])

    problem = neufeld(path, 5)
    assert problem.n_dim == 8
    theta = np.linspace(-0.3, 0.4, 8)
    rows, outcomes = standardise(X)[:5], y[:5]
    expected = log_likelihoods(theta[None], rows, outcomes)[0]
    assert abs(problem.log_likelihood(theta) - expected) < 1e-12
    np.testing.assert_allclose(problem.prior_transform(np.full(8, norm.cdf(1.0))), 0.05**0.5)
    np.testing.assert_array_equal(asked[0][0], rows)
    np.testing.assert_allclose(asked[0][2], 0.05**0.5)

    assert pima(path, FRIEL_WYSE_2).n_dim == 6
    problem = pima(path, ["age"], precision=0.25)
    np.testing.assert_allclose(problem.prior_transform(np.full(2, norm.cdf(1.0))), 2.0)
    design, outcomes, scales = asked[2]
    np.testing.assert_array_equal(design[:, 0], 1.0)
    np.testing.assert_allclose(
        [design[:, 1].mean(), design[:, 1].std(ddof=1)], [0.0, 1.0], atol=1e-12
    )
    np.testing.assert_array_equal(outcomes, table[kept, 8])
    np.testing.assert_array_equal(scales, 2.0)


def test_pima_by_download(tmp_path, monkeypatch):
    """What scikit-learn would fetch, without fetching it."""
    table = write_table(tmp_path / "pima.csv")

    class Bunch:
        data = table[:, :8]
        target = np.where(table[:, 8] == 1.0, "tested_positive", "tested_negative")

    def fetch(data_id, as_frame):
        assert data_id == 37 and not as_frame
        return Bunch

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    for here, there in zip(load_pima(), load_pima(tmp_path / "pima.csv"), strict=True):
        np.testing.assert_array_equal(here, there)


def test_pima_without_a_network(monkeypatch):
    def fetch(data_id, as_frame):
        raise URLError("Name or service not known")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    with pytest.raises(ConnectionError, match=r"OpenML \(Name or .* known\); pass path="):
        load_pima()


def test_bad_input(tmp_path):
    with pytest.raises(FileNotFoundError):
        neufeld(tmp_path / "nowhere.csv")
    path = tmp_path / "pima.csv"
    write_table(path, rows=100)
    with pytest.raises(ValueError, match="768 rows"):
        load_pima(path)
    path.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="768 rows"):
        load_pima(path)
    path.write_text("1,2\n3,4,5\n", encoding="utf-8")
    with pytest.raises(ValueError, match="not a table of numbers"):
        load_pima(path)
    write_table(path)
    with pytest.raises(ValueError, match="n_rows must be at most 768"):
        neufeld(path, 769)
    with pytest.raises(ValueError, match="n_rows must be at least 1"):
        neufeld(path, 0)
    with pytest.raises(ValueError, match="covariates must be some of"):
        pima(path, ["height"])
    with pytest.raises(ValueError, match="covariates must be some of"):
        pima(path, [])
    with pytest.raises(ValueError, match="precision must be positive"):
        pima(path, precision=0.0)
    with pytest.raises(ValueError, match="n_covariates must be between 1 and 30"):
        breast_cancer(31)
    with pytest.raises(ValueError, match="p must be at least 1"):
        logistic_regression(10, 0)
    with pytest.raises(ValueError, match="scale must be positive"):
        logistic_regression(scale=-1.0)


def test_pima_names():
    assert len(module.PIMA_NAMES) == 8 and set(FRIEL_WYSE_2) <= set(module.PIMA_NAMES)
