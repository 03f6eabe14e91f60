"""Data and models of the benchmarks, one definition for all PyMC methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from benchmarks.harness import jobs

PRIOR_SD = 2.5
_CHUNK = 200_000

Data = dict[str, np.ndarray]


@dataclass(frozen=True)
class Job(jobs.Job):
    """One method on so many rows of a problem, to be run by a worker.

    Methods are ``racing:10`` (transitions per draw), ``racing:exact``,
    ``hmcecs:300`` (rows of a subsample), ``nuts``, ``nuts:lowrank``, ``metropolis``, ``laplace`` and so on.
    ``cap`` bounds warm-up and sampling together, in seconds. ``draws`` and ``tune`` are per chain;
    None leaves them to the method.
    """

    n_rows: int
    seed: int
    cap: float
    chains: int = 1
    cores: int = 1
    draws: int | None = None
    tune: int | None = None


@dataclass(frozen=True)
class Problem:
    """A posterior to sample.

    Attributes
    ----------
    make_data : callable
        ``(n_rows, seed) -> data``.
    make_model : callable
        ``data -> pm.Model``, all data in ``pm.Data``.
    variables : tuple of str
        Names of the parameters, in the order of the summaries.
    logistic : bool
        The rows are Bernoulli(logit X beta), beta ~ Normal(0, PRIOR_SD): what the Laplace reference
        and the NumPyro model are written for.
    """

    name: str
    title: str
    make_data: Callable[[int, int], Data]
    make_model: Callable[[Data], Any]
    variables: tuple[str, ...]
    logistic: bool
    #: Whether rows are in groups, see :mod:`benchmarks.tall.grouped_problems`.
    grouped: ClassVar[bool] = False
    #: Whether racing_forecast is asked as well.
    forecast: ClassVar[bool] = False

    def model(self, data: Data, options: tuple[str, ...] = ()):
        """The model in the form that a method's options ask for."""
        if "noncentred" in options:
            raise NotImplementedError(f"{self.name} has one parameterisation only")
        return self.make_model(data)


def _mean_and_outcomes(data: Data, prior_sd: float):
    """X beta and y in the model of the context; the first column of X is the intercept's."""
    import pymc as pm

    X, y = pm.Data("X", data["X"]), pm.Data("y", data["y"])
    return X @ pm.Normal("beta", 0.0, prior_sd, shape=data["X"].shape[1]), y


def logistic_model(data: Data):
    """Logistic regression; the first column of X is the intercept's."""
    import pymc as pm

    with pm.Model() as model:
        mean, y = _mean_and_outcomes(data, PRIOR_SD)
        pm.Bernoulli("obs", logit_p=mean, observed=y)
    return model


def student_model(data: Data):
    """Linear regression with Student-t errors of unknown scale and degrees of freedom."""
    import pymc as pm

    with pm.Model() as model:
        mean, y = _mean_and_outcomes(data, 10.0)
        sigma = pm.HalfNormal("sigma", 5.0)
        nu = pm.Gamma("nu", 2.0, 0.1)
        pm.StudentT("obs", nu=nu, mu=mean, sigma=sigma, observed=y)
    return model


def quantile_model(data: Data):
    """Regression of the nine-in-ten quantile, by asymmetric Laplace errors of unknown scale."""
    import pymc as pm

    with pm.Model() as model:
        mean, y = _mean_and_outcomes(data, 10.0)
        sigma = pm.HalfNormal("sigma", 5.0)
        pm.AsymmetricLaplace("obs", mu=mean, b=1.0 / sigma, q=0.9, observed=y)
    return model


def logistic_problem(name: str, title: str, make_data: Callable[[int, int], Data]) -> Problem:
    """A logistic regression with data of its own."""
    return Problem(name, title, make_data, logistic_model, ("beta",), True)


def correlated_normal(rng: np.random.Generator, n_rows: int, columns: int) -> np.ndarray:
    """Standard normal columns, neighbours correlated at one half."""
    out = rng.standard_normal((n_rows, columns))
    for k in range(1, columns):
        out[:, k] = 0.5 * out[:, k - 1] + np.sqrt(0.75) * out[:, k]
    return out


def heavy_tailed(rng: np.random.Generator, n_rows: int, columns: int) -> np.ndarray:
    """Independent columns of Student's t with two degrees of freedom, scaled by one half."""
    return 0.5 * rng.standard_t(2.0, size=(n_rows, columns))


def tall_logistic_data(n_rows: int, seed: int) -> Data:
    """D = 10: an intercept and nine covariates with neighbours correlated at one half."""
    return logistic_data(n_rows, seed, np.linspace(-0.8, 0.8, 10))


def rare_events_data(n_rows: int, seed: int) -> Data:
    """Two positives among a thousand rows."""
    from scipy.optimize import brentq

    slopes = np.array([0.5, -0.5, 0.3, -0.3])
    logits = correlated_normal(np.random.default_rng([seed, 2]), _CHUNK, slopes.size) @ slopes
    intercept = brentq(lambda a: _sigmoid(logits + a).mean() - 0.002, -30.0, 10.0)
    coefficients = np.array([intercept, *slopes])
    return logistic_data(n_rows, seed, coefficients)


def heavy_tails_data(n_rows: int, seed: int) -> Data:
    """Covariates from Student's t with two degrees of freedom: no variance, rows of high leverage."""
    return logistic_data(n_rows, seed, np.array([0.2, 0.5, -0.5, 0.3, -0.3]), heavy_tailed)


def weak_data(n_rows: int, seed: int) -> Data:
    """Two covariates that nearly coincide and one that is separated.

    Columns 1 and 2 differ by noise of sd 0.003, so that the prior decides on their difference, and
    column 5 marks fifteen rows that are all negative: its coefficient has a skewed posterior.
    """
    data = logistic_data(n_rows, seed, np.array([0.2, 0.5, 0.0, 0.3, -0.3]))
    X, y = data["X"], data["y"]
    rng = np.random.default_rng([seed, 3])
    X[:, 2] = X[:, 1] + 0.003 * rng.standard_normal(n_rows)
    marked = rng.choice(n_rows, size=15, replace=False)
    flag = np.zeros((n_rows, 1))
    flag[marked] = 1.0
    y[marked] = 0
    return {"X": np.hstack([X, flag]), "y": y}


def outlier_data(n_rows: int, seed: int) -> Data:
    """Student-t errors with four degrees of freedom; one row in a hundred is off by up to 50."""
    rng = np.random.default_rng([seed, 4])
    X = np.hstack([np.ones((n_rows, 1)), correlated_normal(rng, n_rows, 4)])
    y = X @ np.array([1.0, 0.5, -0.5, 0.3, -0.3]) + rng.standard_t(4.0, size=n_rows)
    off = rng.random(n_rows) < 0.01
    y[off] += rng.uniform(-50.0, 50.0, size=int(off.sum()))
    return {"X": X, "y": y}


def logistic_data(
    n_rows: int, seed: int, coefficients: np.ndarray,
    covariates: Callable[[np.random.Generator, int, int], np.ndarray] = correlated_normal,
) -> Data:  # fmt: skip
    """Simulate in chunks, so that the peak of memory is the sampler's."""
    X = np.empty((n_rows, coefficients.size))
    y = np.empty(n_rows, dtype=np.int8)
    begin = 0
    for part in logistic_chunks(n_rows, seed, coefficients, covariates):
        rows = slice(begin, begin + part["y"].size)
        X[rows], y[rows] = part["X"], part["y"]
        begin = rows.stop
    return {"X": X, "y": y}


def logistic_chunks(
    n_rows: int, seed: int, coefficients: np.ndarray,
    covariates: Callable[[np.random.Generator, int, int], np.ndarray] = correlated_normal,
) -> Iterator[Data]:  # fmt: skip
    """The same rows, some at a time."""
    rng = np.random.default_rng([seed, 1])
    for begin in range(0, n_rows, _CHUNK):
        size = min(_CHUNK, n_rows - begin)
        X = np.ones((size, coefficients.size))
        X[:, 1:] = covariates(rng, size, coefficients.size - 1)
        yield {"X": X, "y": (rng.random(size) < _sigmoid(X @ coefficients)).astype(np.int8)}


class Laplace(NamedTuple):
    """Mode (D,) of the log density, its gradient (D,) there, and minus its Hessian (D, D)."""

    mode: np.ndarray
    gradient: np.ndarray
    precision: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        """Of the normal approximation (D, D)."""
        return np.linalg.inv(self.precision)


def laplace(data: Data, subsample: int = 20_000) -> Laplace:
    """Expand the log density of the logistic posterior at its mode, by Newton steps, first on a few rows."""
    X, y = data["X"], data["y"]
    few = np.random.default_rng(0).permutation(y.size)[:subsample]
    scale = y.size / few.size
    beta = _newton(X[few], y[few], np.zeros(X.shape[1]), scale)
    beta = _newton(X, y, beta, 1.0)
    return Laplace(beta, *_gradient_and_precision(X, y, beta, 1.0))


def _newton(X, y, beta: np.ndarray, scale: float) -> np.ndarray:
    for _ in range(50):
        gradient, precision = _gradient_and_precision(X, y, beta, scale)
        step = np.linalg.solve(precision, gradient)
        beta = beta + step / max(1.0, float(np.abs(step).max()))
        if gradient @ step < 1e-10:
            break
    return beta


def _gradient_and_precision(X, y, beta, scale):
    gradient = -beta / PRIOR_SD**2
    precision = np.eye(beta.size) / PRIOR_SD**2
    for begin in range(0, y.size, _CHUNK):
        x = X[begin : begin + _CHUNK]
        p = _sigmoid(x @ beta)
        gradient = gradient + scale * (x.T @ (y[begin : begin + _CHUNK] - p))
        precision = precision + scale * (x.T @ (x * (p * (1.0 - p))[:, None]))
    return gradient, precision


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * z))
