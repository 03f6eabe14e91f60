r"""Selection of the order of an ARCH model with Student-t innovations.

Section 5.2 and appendix C.2, figure 2, of Chen & Ghahramani (2016), *Scalable Discrete Sampling as
a Multi-Armed Bandit Problem*, ICML, PMLR 48:2492-2501:

.. math:: r_t = \sigma_t z_t, \quad z_t \sim t_\nu(0, 1), \quad
          \sigma_t^2 = \alpha_0 + \sum_{i=1}^{q} \alpha_i r_{t-i}^2, \qquad
          \alpha_i, \nu \sim \text{Gamma}(1, 1), \quad q \in \{5, 10, 15, 20, 25, 30\} .

:math:`\sigma_t` is the *scale* of Student's t, not its standard deviation. Returns are demeaned and
scaled to unit variance first: Gamma(1, 1) implies that alpha_0 is of the order of one, which is not the
case for raw returns (variance about 1e-4). All orders explain the same returns, those after
the first ``max(orders)``, on which every model is conditioned. The paper samples parameters as
x' = log(exp(x) - 1), in which coefficients near zero have a long exponential tail that a Gaussian
pseudo-prior fits badly; here every prior is a standard normal, theta = -log(1 - Phi(y)).

The paper's five-minute Shanghai index is not available. :func:`load_returns` loads daily returns that
the package ``arch`` ships, and :func:`simulate_arch` simulates series of a known order.

:func:`log_density` and :func:`arch_evidence` are a reference without any code from PyMC.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from scipy.optimize import minimize
from scipy.special import gammaln, log_ndtr, logsumexp, ndtri

from amc_pymc.rng import as_generator

ORDERS = (5, 10, 15, 20, 25, 30)
#: Degrees of freedom of the proposal of importance sampling.
_DF = 20.0


# --- data ----------------------------------------------------------------------------------------


def standardise(returns) -> np.ndarray:
    """Return returns with mean zero and variance one."""
    returns = np.asarray(returns, dtype=float)
    return (returns - returns.mean()) / returns.std()


def load_returns() -> np.ndarray:
    """Load 5,030 standardised daily log returns of the NASDAQ index, 1999 to 2018.

    The package ``arch`` is required.
    """
    from arch.data import nasdaq

    prices = nasdaq.load()["Adj Close"].dropna().to_numpy(dtype=float)
    return standardise(np.diff(np.log(prices)))


def simulate_arch(n: int, alpha, nu: float, rng) -> np.ndarray:
    """Simulate n returns, neither demeaned nor scaled, and drop the 500 before them.

    Parameters
    ----------
    n : int
    alpha : (q + 1,) sequence
        alpha_0, ..., alpha_q.
    nu : float
        Degrees of freedom. The variance is finite if nu/(nu - 2) times alpha_1 + ... + alpha_q is
        less than one.
    rng : numpy.random.Generator
    """
    alpha = np.asarray(alpha, dtype=float)
    q = alpha.size - 1
    noise = rng.standard_t(nu, size=n + 500)
    r = np.zeros(n + 500 + q)
    for t in range(q, r.size):
        r[t] = noise[t - q] * math.sqrt(alpha[0] + alpha[1:] @ r[t - q : t][::-1] ** 2)
    return r[-n:]


class Rows(NamedTuple):
    """Rows of the likelihood of one order: returns (N,) and their squared lags (N, q), lag 1 first."""

    r: np.ndarray
    squares: np.ndarray


def lagged_rows(returns: np.ndarray, order: int, conditioned: int = max(ORDERS)) -> Rows:
    """Return the observed returns, those after the first ``conditioned``, with their squared lags."""
    returns = np.asarray(returns, dtype=float)
    windows = np.lib.stride_tricks.sliding_window_view(returns**2, order)
    squares = windows[conditioned - order : returns.size - order, ::-1]
    return Rows(returns[conditioned:].copy(), np.ascontiguousarray(squares))


# --- models --------------------------------------------------------------------------------------


def arch_models(returns: np.ndarray, orders: Sequence[int] = ORDERS) -> dict:
    """Build one ``pm.Model`` per order, all with the same observed returns.

    Parameters
    ----------
    returns : (n,) array
        Standardised returns (:func:`standardise`); the first ``max(orders)`` are conditioned on.
    orders : sequence of int

    Returns
    -------
    dict of str to pm.Model
        ``"arch5"``, ... with variables ``alpha`` (dims "lag", from 0), ``nu`` and ``r`` (dims
        "time").
    """
    orders = [int(q) for q in orders]
    return {f"arch{q}": arch_model(lagged_rows(returns, q, max(orders))) for q in orders}


def arch_model(rows: Rows):
    """Build an ARCH model of order q with Student-t innovations for given rows."""
    import pymc as pm

    coordinates = _normal_score()
    order = rows.squares.shape[1]
    coords = {
        "lag": np.arange(order + 1),
        "past": np.arange(1, order + 1),
        "time": np.arange(rows.r.size),
    }
    with pm.Model(coords=coords) as model:
        squares = pm.Data("squares", rows.squares, dims=("time", "past"))
        alpha = pm.Gamma("alpha", 1.0, 1.0, dims="lag", default_transform=coordinates)
        nu = pm.Gamma("nu", 1.0, 1.0, default_transform=coordinates)
        variance = alpha[0] + squares @ alpha[1:]
        pm.StudentT("r", nu=nu, mu=0.0, sigma=variance**0.5, observed=rows.r, dims="time")
    return model


def _normal_score():
    """Return the transform of a variable with prior Gamma(1, 1)."""
    import pytensor.tensor as pt

    from pymc.distributions.transforms import Transform

    class NormalScore(Transform):
        """Transform theta = -log(1 - Phi(x)) with a standard normal prior of x, for theta below about 35."""

        name = "normal_score"

        def forward(self, value, *inputs):
            return math.sqrt(2.0) * pt.erfinv(1.0 - 2.0 * pt.exp(-value))

        def backward(self, value, *inputs):
            return -pt.log1p(-0.5 * pt.erfc(-value / math.sqrt(2.0)))

        def log_jac_det(self, value, *inputs):
            log_density = -0.5 * (value**2 + math.log(2.0 * math.pi))
            return log_density + self.backward(value, *inputs)

    return NormalScore()


# --- reference -----------------------------------------------------------------------------------


def log_density(rows: Rows, y) -> np.ndarray:
    """Return the log of likelihood times prior (...) at normal scores y (..., q + 2) of alpha and nu."""
    log_prior = -0.5 * np.sum(y**2 + math.log(2.0 * math.pi), axis=-1)
    return _in_chunks(rows, -log_ndtr(-y)) + log_prior


def _in_chunks(rows, theta):
    """Return the log likelihood at theta (..., q + 2), computed in chunks of bounded size."""
    flat = theta.reshape(-1, theta.shape[-1])
    out = np.empty(flat.shape[0])
    chunk = max(1, 4_000_000 // rows.r.size)
    for start in range(0, flat.shape[0], chunk):
        part = flat[start : start + chunk]
        out[start : start + chunk] = _log_likelihood(rows, part[:, :-1], part[:, -1:])
    return out.reshape(theta.shape[:-1])


def _log_likelihood(rows, alpha, nu):
    """Return sums over rows (P,) at P parameters alpha (P, q + 1), nu (P, 1)."""
    variance = alpha[:, :1] + alpha[:, 1:] @ rows.squares.T
    constant = gammaln((nu + 1.0) / 2.0) - gammaln(nu / 2.0) - 0.5 * np.log(nu * np.pi)
    z2 = rows.r**2 / (nu * variance)
    each = -0.5 * np.log(variance) - 0.5 * (nu + 1.0) * np.log1p(z2)
    return rows.r.size * constant[:, 0] + each.sum(axis=1)


class Evidence(NamedTuple):
    """Log evidence (natural), its standard error, and the effective number of draws."""

    log_evidence: float
    standard_error: float
    effective_draws: float


def importance_evidence(
    log_target: Callable[[np.ndarray], np.ndarray], start, rng, *, draws: int = 20_000
) -> Evidence:
    """Estimate the log evidence by importance sampling from a split Student-t (Geweke 1989, section 4).

    The proposal is centred at the mode, its axes are those of the inverse Hessian there, and each
    axis has separate scales to the left and right, for skewed posteriors. The scales are
    fitted to the weighted draws of four samples; a last, independent sample gives the
    estimate.

    Parameters
    ----------
    log_target : callable
        Unnormalised log density, (P, D) -> (P,).
    start : (D,) array
        Starting point of the search for the mode.
    rng : numpy.random.Generator
    draws : int
        Draws of the last sample, and of each earlier one.

    References
    ----------
    Geweke (1989), *Bayesian inference in econometric models using Monte Carlo integration*,
    Econometrica 57:1317-1339, doi:10.2307/1913710.
    """
    start = np.asarray(start, dtype=float)
    mode = _mode(log_target, start)
    root = np.linalg.cholesky(_inverse_hessian(log_target, mode))
    scales = np.ones((2, start.size))
    for _ in range(4):
        log_w, v = _weighted_draws(log_target, mode, root, scales, draws, rng)
        scales = _split_scales(_tempered(log_w, 0.1 * draws), v) * math.sqrt((_DF - 2.0) / _DF)
    log_w, _ = _weighted_draws(log_target, mode, root, scales, draws, rng)
    w = np.exp(log_w - log_w.max())
    return Evidence(
        float(log_w.max() + math.log(w.mean())),
        float(w.std(ddof=1) / (w.mean() * math.sqrt(draws))),
        float(w.sum() ** 2 / (w @ w)),
    )


def _weighted_draws(log_target, mode, root, scales, draws, rng):
    """Return log importance weights (P,) and whitened draws (P, D) of a split Student-t.

    ``scales`` (2, D) are those of the left and right sides. The density is continuous at the mode.
    """
    d, df = mode.size, _DF
    left, right = scales
    u = np.abs(rng.standard_normal((draws, d)))
    g = rng.chisquare(df, size=(draws, 1)) / df
    to_right = rng.random((draws, d)) < right / (left + right)
    v = np.where(to_right, right, -left) * u / np.sqrt(g)
    log_q = (
        gammaln((df + d) / 2.0)
        - gammaln(df / 2.0)
        - 0.5 * d * math.log(df * math.pi)
        - 0.5 * (df + d) * np.log1p(np.sum(u**2, axis=1) / (g[:, 0] * df))
        - np.log((left + right) / 2.0).sum()
        - np.log(np.diag(root)).sum()
    )
    return log_target(mode + v @ root.T) - log_q, v


def _split_scales(w, v):
    """Return maximum-likelihood scales (2, D) of a split normal with mode zero, from weighted draws."""
    left = (w @ np.where(v < 0.0, v, 0.0) ** 2) ** (1.0 / 3.0)
    right = (w @ np.where(v > 0.0, v, 0.0) ** 2) ** (1.0 / 3.0)
    return np.maximum(np.stack([left, right]) * np.sqrt(left + right), 0.05)


def _tempered(log_w, least):
    """Return normalised weights w^power with the largest power in (0, 1] for ``least`` effective draws."""
    power = 1.0
    while True:
        w = np.exp(power * log_w - logsumexp(power * log_w))
        if 1.0 / (w @ w) >= least or power < 1e-3:
            return w
        power *= 0.8


def _mode(log_target, start):
    """Find the mode by BFGS with gradients from central differences, all points in one call."""
    step = 1e-5

    def objective(x):
        return -float(log_target(x[None])[0])

    def gradient(x):
        shifts = step * np.eye(x.size)
        values = log_target(np.concatenate([x + shifts, x - shifts]))
        return -(values[: x.size] - values[x.size :]) / (2.0 * step)

    x = start
    for _ in range(3):
        x = minimize(objective, x, jac=gradient, method="L-BFGS-B", options={"maxiter": 1000}).x
    return x


def _inverse_hessian(log_target, mode):
    """Return the inverse of minus the Hessian at the mode, by differences; curvatures are at least 0.1."""
    d, step = mode.size, 1e-3
    eye = step * np.eye(d)
    i, j = np.triu_indices(d)
    values = [log_target(mode + a * eye[i] + b * eye[j]) for a in (1.0, -1.0) for b in (1.0, -1.0)]
    second = (values[0] - values[1] - values[2] + values[3]) / (4.0 * step**2)
    hessian = np.zeros((d, d))
    hessian[i, j] = hessian[j, i] = -second
    curvature, axes = np.linalg.eigh(hessian)
    return (axes / np.maximum(curvature, 0.1)) @ axes.T


def arch_evidence(rows: Rows, rng, *, draws: int = 20_000) -> Evidence:
    """Estimate the log evidence of one order by importance sampling.

    Parameters
    ----------
    rows : Rows
        Rows from :func:`lagged_rows`; all orders must be conditioned on the same returns.
    rng : numpy.random.Generator
    draws : int
        Draws of the last sample, which gives the estimate.
    """
    q = rows.squares.shape[1]
    theta = np.concatenate([[0.3], np.full(q, 0.5 / q), [4.0]])
    start = -ndtri(np.exp(-theta))
    return importance_evidence(partial(log_density, rows), start, rng, draws=draws)


def order_probabilities(evidences: dict[str, Evidence]) -> dict[str, tuple[float, float]]:
    """Return the posterior probability of each model under equal priors, with its standard error.

    Errors of the log evidences are treated as independent and propagated to first order.
    """
    log_z = np.array([e.log_evidence for e in evidences.values()])
    se = np.array([e.standard_error for e in evidences.values()])
    p = np.exp(log_z - logsumexp(log_z))
    jacobian = np.diag(p) - np.outer(p, p)
    return {
        name: (float(pk), float(np.linalg.norm(row * se)))
        for name, pk, row in zip(evidences, p, jacobian)
    }


def reference_probabilities(
    returns: np.ndarray, orders: Sequence[int] = ORDERS, *, seed: int = 0
) -> tuple[dict[str, Evidence], dict[str, tuple[float, float]]]:
    """Estimate evidence and posterior probability of every order, by importance sampling."""
    rng = as_generator(seed)
    evidences = {
        f"arch{q}": arch_evidence(lagged_rows(returns, q, max(orders)), rng) for q in orders
    }
    return evidences, order_probabilities(evidences)
