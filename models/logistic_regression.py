r"""Logistic regression with a normal prior, on simulated, breast cancer and Pima data.

.. math:: \theta_j \sim N(0, s_j^2), \qquad y_i \sim \text{Bernoulli}(\text{expit}(x_i^\top\theta)) .

The log posterior is concave. A Student distribution at its mode, with the inverse Hessian as
scale matrix, is therefore a good proposal in moderate dimensions, and importance sampling at its quasi-random
points gives the reference (:func:`reference`). References that need no file are stored in ``FROZEN``.

The Pima Indians diabetes data are not included: pass the path of a CSV file of 768 rows with the eight
covariates and the class, or let scikit-learn download them from OpenML (data set 37).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError

import numpy as np
import pymc as pm

from scipy.special import expit, ndtri

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.student_importance import Component, Reference, importance_evidence

#: Prior standard deviations of a coefficient and of the intercept.
SCALE, INTERCEPT_SCALE = np.float64(2.5), np.float64(5.0)
FROZEN = {
    "logistic_regression": Reference(-34.82040, 0.00018),
    "breast_cancer": Reference(-92.64701, 0.00021),
}


class BinaryData(NamedTuple):
    """Covariates (N, p) and outcomes (N,), 0 or 1."""

    X: np.ndarray
    y: np.ndarray


# --- data ----------------------------------------------------------------------------------------


def simulate(n: int, p: int, *, seed: int = 1) -> BinaryData:
    """Simulate standard normal covariates and coefficients."""
    rng = as_generator(seed)
    X = rng.standard_normal((n, p))
    return BinaryData(X, (rng.random(n) < expit(X @ rng.standard_normal(p))).astype(np.int64))


def load_breast_cancer() -> BinaryData:
    """Load the first eight covariates of the Wisconsin data, standardised, and whether a tumour is malignant."""
    from sklearn.datasets import load_breast_cancer as load

    X, benign = load(return_X_y=True)
    return BinaryData(standardise(X[:, :8]), 1 - benign)


def load_pima(path: str | Path | None = None) -> BinaryData:
    """Load all 768 rows of the Pima data unchanged, including zeros for missing values.

    Parameters
    ----------
    path : str, Path or None
        A CSV file of nine columns, the class 0 or 1 last; a line of column names is skipped. None
        downloads the data through scikit-learn.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ConnectionError
        If OpenML cannot be reached.
    ValueError
        If the file is not the Pima data.
    """
    if path is None:
        from sklearn.datasets import fetch_openml

        try:
            bunch = fetch_openml(data_id=37, as_frame=False)
        except URLError as error:
            raise ConnectionError(
                f"The Pima data cannot be downloaded from OpenML ({error.reason}); pass path=, a CSV file with them."
            ) from error
        table = np.column_stack([bunch.data, bunch.target == "tested_positive"]).astype(float)
    else:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        rows = [line.split(",") for line in lines if line.strip()]
        if rows and not _is_number(rows[0][0]):
            rows = rows[1:]
        try:
            table = np.array(rows, dtype=float)
        except ValueError as error:
            raise ValueError(f"{path} is not a table of numbers separated by commas") from error
    return BinaryData(table[:, :8], table[:, 8].astype(np.int64))


def standardise(X: np.ndarray) -> np.ndarray:
    """Return columns with mean zero and standard deviation one."""
    return (X - X.mean(axis=0)) / X.std(axis=0)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- reference -----------------------------------------------------------------------------------


def log_likelihoods(theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log likelihood (n,) at each row of theta (n, D)."""
    signed = (1 - 2 * y)[:, None] * (X @ theta.T)
    return -np.logaddexp(0.0, signed, out=signed).sum(axis=0)


def laplace(X: np.ndarray, y: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode (D,) of the posterior and the inverse (D, D) of the negative Hessian there."""
    theta, tolerance = np.zeros(X.shape[1]), 1e-10
    precision = np.diag(scales**-2.0)

    def log_posterior(theta: np.ndarray) -> float:
        return log_likelihoods(theta[None], X, y)[0] - 0.5 * np.square(theta / scales).sum()

    for _ in range(100):
        p = expit(X @ theta)
        hessian = (X * (p * (1.0 - p))[:, None]).T @ X + precision
        step = np.linalg.solve(hessian, X.T @ (y - p) - precision @ theta)
        if np.abs(step).max() < tolerance:
            break
        here = log_posterior(theta)
        while log_posterior(theta + step) < here and np.abs(step).max() > tolerance:
            step *= 0.5
        theta = theta + step
    return theta, np.linalg.inv(hessian)


def reference(
    X: np.ndarray, y: np.ndarray, scales: np.ndarray, *, log2_points: int = 12,
    replicates: int = 16, seed: int = 0,
) -> Reference:  # fmt: skip
    """Estimate the log evidence by quasi-random importance sampling from a Student at the Laplace approximation.

    Parameters
    ----------
    X, y : array (N, D), (N,)
        Covariates, including a column of ones for the intercept, and outcomes.
    scales : array (D,)
        Prior standard deviations.
    log2_points, replicates, seed : int
        See :func:`models.student_importance.importance_evidence`.
    """
    mode, covariance = laplace(X, y, scales)
    constant = -np.log(scales).sum() - 0.5 * scales.size * np.log(2.0 * np.pi)
    rows = max(1, 2**20 // y.size)

    def log_joint(theta: np.ndarray) -> np.ndarray:
        blocks = np.array_split(theta, -(-len(theta) // rows))
        log_likelihood = np.concatenate([log_likelihoods(block, X, y) for block in blocks])
        return log_likelihood + constant - 0.5 * np.square(theta / scales).sum(axis=1)

    return importance_evidence(
        log_joint, [Component(1.0, mode, covariance)], log2_points=log2_points,
        replicates=replicates, seed=seed,
    )  # fmt: skip


# --- problems ------------------------------------------------------------------------------------


def logistic_regression(n: int = 50, p: int = 8) -> EvidenceProblem:
    """Build the problem of simulated rows without an intercept.

    Parameters
    ----------
    n, p : int
        Numbers of rows and covariates. Beyond some 30 covariates the reference loses precision; check
        the problem's `error`.
    """
    found = FROZEN["logistic_regression"] if (n, p) == (50, 8) else None
    return _problem("logistic_regression", *simulate(n, p), SCALE, found)


def breast_cancer() -> EvidenceProblem:
    """Build the problem of malignant or benign tumours, from the first covariates of the Wisconsin data.

    The 569 rows come with scikit-learn; an intercept is added. Radius, perimeter and area of a tumour are nearly
    collinear, so the posterior is long and narrow, but it has one mode.
    """
    X, y = load_breast_cancer()
    return _problem("breast_cancer", X, y, SCALE, FROZEN["breast_cancer"], intercept=True)


def neufeld(path: str | Path | None = None, n_rows: int = 50) -> EvidenceProblem:
    """Build the problem of the first rows of the Pima data, as in section 6.3 of Neufeld et al. (2014).

    The model has all eight covariates, standardised over all 768 rows (with n), no intercept, and prior
    N(0, 0.05 I). The paper's experiment has 5, 10 and 50 rows.

    Parameters
    ----------
    path : str, Path or None
        See :func:`load_pima`.
    n_rows : int
    """
    X, y = load_pima(path)
    return _problem("neufeld", standardise(X)[:n_rows], y[:n_rows], np.float64(0.05**0.5))


def _problem(
    name: str, X: np.ndarray, y: np.ndarray, scale: np.float64, found: Reference | None = None, *,
    intercept: bool = False,
) -> EvidenceProblem:  # fmt: skip
    design, scales = X, np.full(X.shape[1], scale)
    if intercept:
        design, scales = np.column_stack([np.ones(y.size), X]), np.append(INTERCEPT_SCALE, scales)
    found = found or reference(design, y, scales)

    def variables() -> None:
        level = pm.Normal("intercept", 0.0, INTERCEPT_SCALE) if intercept else None
        beta = pm.Normal("beta", 0.0, scale, shape=X.shape[1])
        logit = level + X @ beta if intercept else X @ beta
        pm.Bernoulli("y", logit_p=logit, observed=y)

    def log_likelihood(theta: np.ndarray) -> float:
        return float(log_likelihoods(theta[None], design, y)[0])

    return EvidenceProblem(
        name=name, variables=variables, log_evidence=found.log_evidence, error=found.error,
        source="quasi-random importance sampling from a Student distribution at the mode",
        n_dim=scales.size, easy=True, prior_transform=lambda u: scales * ndtri(u),
        log_likelihood=log_likelihood,
    )  # fmt: skip
