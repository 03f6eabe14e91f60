r"""A Gaussian reference for coefficients given hyperparameters, and moves along both.

Only priors depend on the hyperparameters phi. Given phi, the posterior of the coefficients theta that
units depend on is nearly Gaussian; that of phi is not. Let H and b be the precision and linear term,
at the centre, of everything besides the Gaussian priors, and Lambda(phi), m_0(phi) the precisions and
means of these priors. Then

.. math::

    Q(\phi) &= H + \Lambda(\phi), \qquad m(\phi) = Q^{-1}(\phi) (b + \Lambda m_0), \\
    \log \tilde p(\phi) &= \log p(m(\phi), \phi, y) - \tfrac12 \log |Q(\phi)| ,

is the nested Laplace approximation (Rue, Martino & Chopin 2009, JRSS B 71:319-392,
doi:10.1111/j.1467-9868.2008.00700.x). A move draws phi' near its mode and sets theta' = m(phi') +
Q(phi')^-1/2 w' with w' = sqrt(1 - s^2) w + s z, z standard normal. The accept step corrects for errors.

Some coordinates psi of theta are transformed, such as the log standard deviation of effects that have
been integrated out. Their posterior is often skewed, so they are drawn together with phi, and the
Gaussian is that of the other coefficients given psi' and phi'. Because psi comes last in theta and
the factor L of Q is lower triangular, the last entries of w' = L' (theta' - m) are a function of psi'
alone, and the move draws only the others.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from scipy import linalg, optimize

from amc_pymc.flags import Flag, flag
from amc_pymc.jit import njit
from amc_pymc.proxies import gaussian_factor
from amc_pymc.samplers.compiled import put
from amc_pymc.samplers.mode import search_mode
from amc_pymc.samplers.preparation import GaussianFit, NoProxy
from amc_pymc.samplers.raced import RacedModel
from amc_pymc.samplers.surrogate import Surrogate, surrogate_at

__all__ = [
    "HyperPrior",
    "Nested",
    "NestedFit",
    "at_phi",
    "expand",
    "fit_nested",
    "no_nested",
    "propose_nested",
]

#: Degrees of freedom of the hyperparameters' proposals, and the share of random-walk steps.
_FREEDOM, _WALKS = 5.0, 0.1
_MOST_ROUNDS = 8
#: Change of the hyperparameters, in standard deviations, below which the fit has converged.
_SETTLED = 0.1


class HyperPrior(Protocol):
    """Gaussian priors of coefficients given hyperparameters.

    ``theta`` (T,) and ``phi`` (F,) are coordinates of x; the last ``n_psi`` of theta are psi.
    ``block`` (T,) is the index of each coefficient's prior, -1 if it is not Gaussian; ``n_blocks`` is B.
    """

    @property
    def theta(self) -> np.ndarray:
        """Coordinates (T,) of the coefficients."""

    @property
    def phi(self) -> np.ndarray:
        """Coordinates (F,) of the hyperparameters."""

    @property
    def n_psi(self) -> int:
        """Number of coefficients psi."""

    @property
    def block(self) -> np.ndarray:
        """Index (T,) of each coefficient's prior, -1 if it is not Gaussian."""

    @property
    def n_blocks(self) -> int:
        """Number B of priors."""

    @property
    def native(self) -> Any:
        """First-class ``x (D,) -> (2B,)``: precisions, then means of the priors."""

    @property
    def evaluate(self) -> Any:
        """The same function for Python."""


class Nested(NamedTuple):
    """Arguments of compiled nested moves.

    ``precision`` (T, T) and ``linear`` (T,) are H and b. ``outer`` (F + P,) are the coordinates of
    phi and psi; ``mode`` (F + P,), ``factor`` (F + P, F + P) and its inverse describe their proposal.
    ``known_phi`` (2, F), ``known_mean`` (2, T), ``known_factor`` (2, T, T) and ``known_log_det`` (2,)
    cache the last two references.
    """

    theta: np.ndarray
    phi: np.ndarray
    outer: np.ndarray
    block: np.ndarray
    precision: np.ndarray
    linear: np.ndarray
    mode: np.ndarray
    factor: np.ndarray
    inverse: np.ndarray
    known_phi: np.ndarray
    known_mean: np.ndarray
    known_factor: np.ndarray
    known_log_det: np.ndarray


@dataclass(frozen=True)
class NestedFit:
    """Gaussian reference of a model.

    ``mode`` (F + P,) and ``covariance`` (F + P, F + P) are those of phi and psi.
    """

    prior: HyperPrior
    precision: np.ndarray
    linear: np.ndarray
    mode: np.ndarray
    covariance: np.ndarray

    @property
    def prior_of(self) -> Any:
        """First-class function of the Gaussian priors."""
        return self.prior.native

    def compiled(self) -> Nested:
        """Return arguments of compiled moves with empty caches."""
        p = self.prior
        t, f = p.theta.size, p.phi.size
        factor = np.ascontiguousarray(linalg.cholesky(self.covariance, lower=True))
        return Nested(
            p.theta,
            p.phi,
            _outer(p),
            p.block,
            np.ascontiguousarray(self.precision),
            self.linear,
            self.mode.copy(),
            factor,
            np.linalg.inv(factor),
            np.full((2, f), np.nan),
            np.zeros((2, t)),
            np.zeros((2, t, t)),
            np.zeros(2),
        )


def _outer(prior: HyperPrior) -> np.ndarray:
    """Return the coordinates (F + P,) of phi and psi."""
    return np.concatenate([prior.phi, prior.theta[prior.theta.size - prior.n_psi :]])


def no_nested() -> Nested:
    """Return a placeholder for models without hyperparameters."""
    none, empty = np.empty(0, np.int64), np.empty(0)
    square = np.empty((0, 0))
    return Nested(
        none, none, none, none, square, empty, empty, square, square,
        np.empty((2, 0)), np.empty((2, 0)), np.empty((2, 0, 0)), np.empty(2),
    )  # fmt: skip


# --- compiled moves -------------------------------------------------------------------------------


@njit(cache=True)
def _n_inner(nested: Nested) -> int:
    """Return the number of coefficients that are not psi; they come first in theta."""
    return nested.theta.size - (nested.outer.size - nested.phi.size)


@njit(cache=True)
def _whitened(x: np.ndarray, nested: Nested, slot: int) -> np.ndarray:
    """Return whitened coefficients w (T,) = L' (theta - m) under the reference in a slot."""
    t = nested.theta.size
    shift = x[nested.theta] - nested.known_mean[slot]
    w = np.zeros(t)
    for j in range(t):
        for k in range(j, t):
            w[j] += nested.known_factor[slot, k, j] * shift[k]
    return w


@njit(cache=True)
def _same_phi(x: np.ndarray, nested: Nested, slot: int) -> bool:
    for k in range(nested.phi.size):
        if nested.known_phi[slot, k] != x[nested.phi[k]]:
            return False
    return True


@njit(cache=True)
def _reference(
    x: np.ndarray, nested: Nested, prior_of: Callable[[np.ndarray], np.ndarray], other: int
) -> int:
    """Return the slot of the reference at phi of x; compute it outside slot ``other`` if new."""
    for slot in range(2):
        if _same_phi(x, nested, slot):
            return slot
    slot = 1 - other
    t = nested.theta.size
    prior = prior_of(x)
    n_blocks = prior.size // 2
    q = nested.precision.copy()
    right = nested.linear.copy()
    for j in range(t):
        b = nested.block[j]
        if b >= 0:
            q[j, j] += prior[b]
            right[j] += prior[b] * prior[n_blocks + b]
    lower = np.linalg.cholesky(q)
    y = np.empty(t)
    for j in range(t):
        y[j] = (right[j] - np.dot(lower[j, :j], y[:j])) / lower[j, j]
    log_det = 0.0
    for j in range(_n_inner(nested)):
        log_det += math.log(lower[j, j])
    mean = _solve_upper(lower, y)
    for j in range(t):
        nested.known_mean[slot, j] = mean[j]
        for k in range(t):
            nested.known_factor[slot, j, k] = lower[j, k]
    nested.known_log_det[slot] = log_det
    for k in range(nested.phi.size):
        nested.known_phi[slot, k] = x[nested.phi[k]]
    return slot


@njit(cache=True)
def _solve_upper(lower: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return L^-T y."""
    out = y.copy()
    for j in range(y.size - 1, -1, -1):
        out[j] /= lower[j, j]
        out[:j] -= lower[j, :j] * out[j]
    return out


@njit(cache=True)
def _log_student(outer: np.ndarray, nested: Nested) -> float:
    """Return the log proposal density of phi and psi up to a constant."""
    z = nested.inverse @ (outer - nested.mode)
    return -0.5 * (_FREEDOM + outer.size) * math.log1p(np.dot(z, z) / _FREEDOM)


@njit(cache=True)
def _propose_outer(points: np.ndarray, nested: Nested, rng: np.random.Generator) -> float:
    """Write phi' and psi' to points[1]; return their log q(x | x') - log q(x' | x)."""
    here = points[0][nested.outer]
    walks = rng.random() < _WALKS
    length = 2.38 / math.sqrt(here.size) if walks else 1.0
    if not walks:
        square = 0.0
        for _ in range(int(_FREEDOM)):
            square += rng.standard_normal() ** 2
        length = math.sqrt(_FREEDOM / square)
    step = length * (nested.factor @ rng.standard_normal(here.size))
    there = here + step if walks else nested.mode + step
    put(points[1], nested.outer, there)
    return 0.0 if walks else _log_student(here, nested) - _log_student(there, nested)


@njit(cache=True)
def propose_nested(
    points: np.ndarray,
    scale: float,
    nested: Nested,
    prior_of: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
) -> float:
    """Write x' to points[1]; return log q(x | x') - log q(x' | x).

    ``prior_of`` is the first-class function ``native`` of :class:`HyperPrior`.
    """
    here = _reference(points[0], nested, prior_of, 0)
    log_ratio = _propose_outer(points, nested, rng)
    there = _reference(points[1], nested, prior_of, here)
    inner = _n_inner(nested)
    w, w_new = _whitened(points[0], nested, here), _whitened(points[1], nested, there)
    for j in range(inner):  # the other entries of w' are determined by psi'
        w_new[j] = math.sqrt(max(0.0, 1.0 - scale * scale)) * w[j] + scale * rng.standard_normal()
        log_ratio += 0.5 * (w_new[j] ** 2 - w[j] ** 2)
    theta = nested.known_mean[there] + _solve_upper(nested.known_factor[there], w_new)
    put(points[1], nested.theta[:inner], theta)
    return log_ratio + nested.known_log_det[here] - nested.known_log_det[there]


# --- fitting --------------------------------------------------------------------------------------


class _Laplace(NamedTuple):
    """Second-order expansion besides Gaussian priors: H, b and the surrogate of the units."""

    precision: np.ndarray
    linear: np.ndarray
    surrogate: Surrogate


def fit_nested(
    model: RacedModel,
    prior: HyperPrior,
    start: np.ndarray,
    subsample: int,
    rng: np.random.Generator,
) -> tuple[Surrogate, GaussianFit, NestedFit, tuple[Flag, ...], bool]:
    """Find the mode of the nested Laplace approximation of coefficients and hyperparameters.

    Modes of the coefficients given the hyperparameters, and of the hyperparameters given the expansion
    there, are computed in turn until the hyperparameters converge.

    Returns
    -------
    surrogate : Surrogate
        Surrogate of the units at the mode.
    fit : GaussianFit
        Coefficients and hyperparameters, independent of each other, for other kinds of moves.
    nested : NestedFit
    flags : tuple of Flag
        Warnings.
    kinked : bool
        Whether log-likelihoods have kinks.
    """
    x, flags = start.copy(), tuple[Flag, ...]()
    for _ in range(_MOST_ROUNDS):
        mode = search_mode(model, x, prior.theta, subsample, rng)
        x = mode.x
        flags = () if mode.converged else (flag("mode_not_found", message=mode.message),)
        model.forget_centre()
        laplace = expand(model, prior, x, given_phi=mode.precision)
        phi, covariance = _hyper_mode(model, prior, laplace, x)
        moved = linalg.solve_triangular(
            linalg.cholesky(covariance, lower=True), phi - x[prior.phi], lower=True
        )
        x[prior.phi] = phi
        if np.linalg.norm(moved) < _SETTLED:
            break
        x[prior.theta] = at_phi(prior, laplace, x)[0]
    precision, _ = at_phi(prior, laplace, x)[1:]
    whole = np.zeros((x.size, x.size))
    whole[np.ix_(prior.theta, prior.theta)] = precision
    whole[np.ix_(prior.phi, prior.phi)] = np.linalg.inv(covariance)
    inside = np.sort(np.concatenate([prior.theta, prior.phi]))
    fit = GaussianFit(x.copy(), whole, inside)
    outer = _outer(prior)
    psi_covariance = np.linalg.inv(precision)[-prior.n_psi :, -prior.n_psi :]
    nested = NestedFit(
        prior,
        laplace.precision,
        laplace.linear,
        x[outer],
        linalg.block_diag(covariance, psi_covariance) if prior.n_psi else covariance,
    )
    return laplace.surrogate, fit, nested, flags, mode.precision is not None


def _prior_terms(prior: HyperPrior, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return precision and mean (T,) of each coefficient's Gaussian prior; zeros without one."""
    found = np.append(prior.evaluate(x), 0.0)  # the zero is for block -1
    b = prior.n_blocks
    has = prior.block >= 0
    precision = np.where(has, found[np.where(has, prior.block, 2 * b)], 0.0)
    return precision, np.where(has, found[np.where(has, b + prior.block, 2 * b)], 0.0)


def expand(
    model: RacedModel,
    prior: HyperPrior,
    x: np.ndarray,
    rest_hessian: np.ndarray | None = None,
    given_phi: np.ndarray | None = None,
) -> _Laplace:
    """Expand the units and the priors that are not Gaussian at x.

    ``rest_hessian`` (D, D) is the Hessian of the log density without the units, if known. A precision ``given_phi``
    (T, T) of the coefficients given the hyperparameters takes the place of second derivatives.
    """
    surrogate = surrogate_at(model, x)
    if surrogate is None:
        raise NoProxy("the derivatives are not finite at the mode")
    theta = prior.theta
    inside = np.ix_(theta, theta)
    precision, mean = _prior_terms(prior, x)
    if given_phi is not None:
        curvature = given_phi - np.diag(precision)
    else:
        if rest_hessian is None:
            rest_hessian = model.rest_hessian(x, theta)
        other = rest_hessian[inside] + np.diag(precision)
        curvature = -(surrogate.hessian[inside] + other)
    slope = model.rest_value_and_gradient(x)[1][theta] + precision * (x[theta] - mean)
    values, vectors = linalg.eigh(0.5 * (curvature + curvature.T))
    # The curvature may be slightly negative in directions that the data do not inform.
    curvature = (vectors * np.maximum(values, 1e-9 * max(values.max(), 1.0))) @ vectors.T
    gradient = surrogate.gradient[theta] + slope
    return _Laplace(curvature, curvature @ x[theta] + gradient, surrogate)


def at_phi(
    prior: HyperPrior, laplace: _Laplace, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return mean (T,), precision (T, T) and half its log determinant at the phi of x."""
    precision, mean = _prior_terms(prior, x)
    q = laplace.precision + np.diag(precision)
    factor = linalg.cho_factor(q, lower=True)
    centre = linalg.cho_solve(factor, laplace.linear + precision * mean)
    return centre, q, float(np.log(np.diag(factor[0])).sum())


def _hyper_mode(
    model: RacedModel, prior: HyperPrior, laplace: _Laplace, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mode (F,) and covariance (F, F) of phi under the nested Laplace approximation."""

    def objective(phi: np.ndarray) -> float:
        at = x.copy()
        at[prior.phi] = phi
        try:
            at[prior.theta], _, half_log_det = at_phi(prior, laplace, at)
        except (linalg.LinAlgError, ValueError):
            return 1e300
        u = at - laplace.surrogate.centre
        units = laplace.surrogate.gradient @ u + 0.5 * u @ laplace.surrogate.hessian @ u
        value = units + model.rest_value_and_gradient(at)[0] - half_log_det
        return -value if np.isfinite(value) else 1e300

    with np.errstate(all="ignore"):
        found = optimize.minimize(objective, x[prior.phi], method="BFGS", options={"gtol": 1e-3})
        curvature = _curvature(objective, found.x)
    factor, _ = gaussian_factor(curvature, floor=1e-2)
    return found.x, factor @ factor.T


def _curvature(
    objective: Callable[[np.ndarray], float], at: np.ndarray, step: float = 0.05
) -> np.ndarray:
    """Return the Hessian (F, F) of a function by central differences."""
    f = at.size
    steps = step * np.eye(f)
    out = np.empty((f, f))
    for a in range(f):
        for b in range(a + 1):
            corners = [
                objective(at + i * steps[a] + j * steps[b]) * i * j
                for i in (1, -1)
                for j in (1, -1)
            ]
            out[a, b] = out[b, a] = sum(corners) / (4.0 * step**2)
    return out
