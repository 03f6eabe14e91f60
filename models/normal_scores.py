r"""Priors as functions of independent standard normal numbers, and three estimators of the evidence.

If parameters are T(z) with z standard normal, then

.. math:: Z = \int N(z; 0, I)\, L(T(z))\, dz ,

without a Jacobian. Particles are moved from the prior to the posterior by elliptical slice moves, which use the
normal prior and need no tuning (Murray, Adams & MacKay 2010, *Elliptical slice sampling*, AISTATS). Around
the particles, Z is estimated by the trapezoidal rule in few dimensions, by importance sampling at quasi-random points
in more, or by annealing from a normal distribution fitted to them in many. The only code shared with the package
are checks of arguments and seeds.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scipy.special import (
    betainccinv,
    betaincinv,
    gammainccinv,
    gammaincinv,
    log_ndtr,
    logsumexp,
    ndtr,
    ndtri,
)

from amc_pymc.rng import as_generator, spawn_generators
from models.evidence_problem import EvidenceProblem
from models.student_importance import Component, Reference, average, importance_evidence

LOG_2PI = math.log(2.0 * math.pi)
Batch = Callable[[np.ndarray], np.ndarray]


class NormalScores(NamedTuple):
    """Prior and likelihood for many points at once.

    Attributes
    ----------
    n_dim : int
        Number of dimensions D.
    parameters : callable
        Function from normal scores (n, D) to parameters (n, D).
    log_likelihood : callable
        Function from parameters (n, D) to log likelihoods (n,).
    """

    n_dim: int
    parameters: Batch
    log_likelihood: Batch

    def log_given(self, z: np.ndarray) -> np.ndarray:
        """Return the log likelihood (n,) at scores (n, D); -inf if it is not a number."""
        with np.errstate(all="ignore"):
            values = self.log_likelihood(self.parameters(z))
        return np.where(np.isnan(values), -np.inf, values)

    def log_joint(self, z: np.ndarray) -> np.ndarray:
        """Return the log (n,) of the density of scores (n, D) times the likelihood."""
        return self.log_given(z) - 0.5 * np.square(z).sum(axis=1) - 0.5 * self.n_dim * LOG_2PI

    def prior_transform(self, u: np.ndarray) -> np.ndarray:
        """Map a point (D,) of the unit cube to parameters (D,)."""
        return self.parameters(ndtri(u)[None])[0]

    def likelihood_of_one(self, parameters: np.ndarray) -> float:
        """Return the log likelihood of one parameter vector (D,)."""
        return float(self.log_likelihood(np.asarray(parameters, dtype=float)[None])[0])


class Particles(NamedTuple):
    """Scores (n, D) distributed as the posterior, and the estimate of log Z from annealing."""

    z: np.ndarray
    log_evidence: float


# --- from the prior to the posterior -------------------------------------------------------------


def slice_move(
    z: np.ndarray, values: np.ndarray, log_given: Batch, beta: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Make one elliptical slice move of all particles under N(z; 0, I) exp(beta log_given(z))."""
    n = len(z)
    nu = rng.standard_normal(z.shape)
    level = beta * values + np.log(rng.random(n))
    angle = rng.uniform(0.0, 2.0 * math.pi, n)
    low, high = angle - 2.0 * math.pi, angle.copy()
    new_z, new_values, left = z.copy(), values.copy(), np.arange(n)
    for _ in range(60):
        t = angle[left, None]
        proposed = z[left] * np.cos(t) + nu[left] * np.sin(t)
        found = log_given(proposed)
        good = beta * found > level[left]
        new_z[left[good]], new_values[left[good]] = proposed[good], found[good]
        left = left[~good]
        if not left.size:
            break
        below = angle[left] < 0.0
        low[left[below]] = angle[left[below]]
        high[left[~below]] = angle[left[~below]]
        angle[left] = rng.uniform(low[left], high[left])
    return new_z, new_values


def next_temperature(values: np.ndarray, beta: float, share: float) -> float:
    """Return the inverse temperature at which the effective sample size falls to `share` of all, at most one."""

    def enough(new: float) -> bool:
        logs = (new - beta) * values
        return 2.0 * logsumexp(logs) - logsumexp(2.0 * logs) >= math.log(share * len(values))

    if enough(1.0):
        return 1.0
    low, high = beta, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def climb(
    log_given: Batch, n_dim: int, *, particles: int = 2048, moves: int = 5, share: float = 0.7,
    last: int = 4, seed: int | np.random.Generator = 0,
) -> Particles:  # fmt: skip
    """Run sequential Monte Carlo from N(0, I) to N(z; 0, I) exp(log_given(z)).

    Parameters
    ----------
    log_given : callable
        Function from scores (n, D) to log likelihoods (n,).
    n_dim : int
        Number of dimensions D.
    particles : int
    moves : int
        Number of elliptical slice moves at every temperature.
    share : float
        Effective share of the weights between two temperatures.
    last : int
        Factor by which the number of moves at the last temperature is larger.
    seed : int or Generator

    Examples
    --------
    >>> found = climb(lambda z: -0.5 * (z**2).sum(axis=1), 2)
    >>> bool(abs(found.log_evidence + np.log(2.0)) < 0.1)
    True
    """
    rng = as_generator(seed)
    z = rng.standard_normal((particles, n_dim))
    values, beta, total = log_given(z), 0.0, 0.0
    while beta < 1.0:
        new = next_temperature(values, beta, share)
        logs = (new - beta) * values
        total += float(logsumexp(logs)) - math.log(particles)
        weights = np.exp(logs - logsumexp(logs))
        places = (np.arange(particles) + rng.random()) / particles
        chosen = np.minimum(np.searchsorted(np.cumsum(weights), places), particles - 1)
        z, values, beta = z[chosen], values[chosen], new
        for _ in range(moves * (last if beta == 1.0 else 1)):
            z, values = slice_move(z, values, log_given, beta, rng)
    return Particles(z, total)


# --- references ----------------------------------------------------------------------------------


def grid_evidence(
    scores: NormalScores, *, step: float = 0.25, reach: float = 9.0, particles: int = 1024,
    seed: int = 0,
) -> Reference:  # fmt: skip
    """Return log Z by the trapezoidal rule in coordinates whitened by the particles, in up to four dimensions.

    The rule converges faster than any power of the step. The stated error is the difference from
    the rule with twice the step.
    """
    z = climb(scores.log_given, scores.n_dim, particles=particles, seed=seed).z
    return whitened_grid(scores.log_joint, z.mean(axis=0), np.cov(z.T), step=step, reach=reach)


def whitened_grid(
    log_joint: Batch, mean: np.ndarray, covariance: np.ndarray, *, step: float, reach: float
) -> Reference:
    """Apply the trapezoidal rule around a mean (D,) with a covariance (D, D), in blocks."""
    root = np.linalg.cholesky(np.atleast_2d(covariance))
    d = mean.size
    half = math.ceil(reach / step / 2.0) * 2
    axis = np.arange(-half, half + 1)
    rest = np.stack(np.meshgrid(*[axis] * (d - 1), indexing="ij"), axis=-1).reshape(-1, d - 1)
    even = np.all(rest % 2 == 0, axis=1)
    fine, coarse = [], []
    for first in axis:
        nodes = np.column_stack([np.full(len(rest), first), rest])
        logs = np.concatenate([
            log_joint(mean + step * (block @ root.T))
            for block in np.array_split(nodes, -(-len(nodes) // 50_000))
        ])  # fmt: skip
        fine.append(logsumexp(logs))
        if first % 2 == 0:
            coarse.append(logsumexp(logs[even]))
    log_volume = d * math.log(step) + float(np.log(np.diag(root)).sum())
    value = float(logsumexp(fine)) + log_volume
    other = float(logsumexp(coarse)) + log_volume + d * math.log(2.0)
    return Reference(value, max(abs(value - other), 1e-12 * abs(value)))


def sampled_evidence(
    scores: NormalScores, *, n_components: int = 8, log2_points: int = 11, replicates: int = 16,
    df: float = 8.0, particles: int = 2048, seed: int = 0,
) -> Reference:  # fmt: skip
    """Estimate log Z by quasi-random importance sampling from Student distributions fitted to the particles.

    A twentieth of the proposal is a Student distribution about as wide as the prior.
    """
    from sklearn.mixture import GaussianMixture

    z = climb(scores.log_given, scores.n_dim, particles=particles, seed=seed).z
    fit = GaussianMixture(n_components, random_state=0, reg_covar=1e-6).fit(z)
    components = [
        Component(0.95 * w, m, c)
        for w, m, c in zip(fit.weights_, fit.means_, fit.covariances_, strict=True)
        if w > 0.0
    ]
    components.append(Component(0.05, np.zeros(scores.n_dim), np.eye(scores.n_dim)))
    return importance_evidence(
        scores.log_joint, components, df=df, log2_points=log2_points, replicates=replicates,
        seed=seed,
    )  # fmt: skip


def annealed_evidence(
    log_joint: Batch, mean: np.ndarray, covariance: np.ndarray, *, particles: int = 2048,
    replicates: int = 8, moves: int = 5, share: float = 0.9, seed: int = 0,
) -> Reference:  # fmt: skip
    """Estimate the log integral of exp(log_joint) by annealing from a normal distribution near it.

    A first run, with twice the number of particles, finds the mean and the covariance for the others.

    Parameters
    ----------
    log_joint : callable
        Function from points (n, D) to log densities (n,).
    mean, covariance : array (D,), (D, D)
        Moments of the normal distribution from which the first run starts.
    particles, moves, share, seed
        See :func:`climb`.
    replicates : int
        Number of independent runs, at least two, which give the standard error.
    """
    rough = AboveNormal(log_joint, mean, np.linalg.cholesky(np.atleast_2d(covariance)))
    first, *rest = spawn_generators(as_generator(seed), replicates + 1)
    pilot = climb(
        rough, mean.size, particles=2 * particles, last=4, seed=first, moves=moves, share=share
    )
    x = rough.points(pilot.z)
    fitted = AboveNormal(log_joint, x.mean(axis=0), np.linalg.cholesky(np.atleast_2d(np.cov(x.T))))
    runs = [
        climb(fitted, mean.size, particles=particles, last=0, seed=rng, moves=moves, share=share)
        for rng in rest
    ]
    return average(np.array([run.log_evidence for run in runs]))


class AboveNormal(NamedTuple):
    """Log density less that of a normal distribution, as a function of normal scores."""

    log_joint: Batch
    mean: np.ndarray
    root: np.ndarray

    def points(self, z: np.ndarray) -> np.ndarray:
        """Return points (n, D) for scores (n, D)."""
        return self.mean + z @ self.root.T

    def __call__(self, z: np.ndarray) -> np.ndarray:
        constant = float(np.log(np.diag(self.root)).sum()) + 0.5 * self.mean.size * LOG_2PI
        with np.errstate(all="ignore"):
            values = self.log_joint(self.points(z)) + 0.5 * np.square(z).sum(axis=1) + constant
        return np.where(np.isnan(values), -np.inf, values)


# --- priors --------------------------------------------------------------------------------------


def half_normal(z: np.ndarray, sd: float) -> np.ndarray:
    """Return half-normal numbers with scale `sd`, from normal scores of any shape."""
    low = np.where(z < -6.0, math.sqrt(0.5 * math.pi) * ndtr(z), ndtri(0.5 + 0.5 * ndtr(z)))
    return sd * np.where(z < 0.0, low, -ndtri(0.5 * ndtr(-z)))


def half_cauchy(z: np.ndarray, scale: float) -> np.ndarray:
    """Return half-Cauchy numbers."""
    half = 0.5 * math.pi
    return scale * np.where(z < 0.0, np.tan(half * ndtr(z)), 1.0 / np.tan(half * ndtr(-z)))


def exponential(z: np.ndarray, rate: float) -> np.ndarray:
    """Return exponential numbers."""
    return -log_ndtr(-z) / rate


def gamma(z: np.ndarray, shape: float, rate: float) -> np.ndarray:
    """Return gamma numbers."""
    upper = gammainccinv(shape, ndtr(-z))
    return np.where(z < 0.0, gammaincinv(shape, ndtr(z)), upper) / rate


def beta(z: np.ndarray, a: float, b: float) -> np.ndarray:
    """Return beta numbers."""
    return np.where(z < 0.0, betaincinv(a, b, ndtr(z)), betainccinv(a, b, ndtr(-z)))


def uniform(z: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return uniform numbers."""
    return low + (high - low) * ndtr(z)


def scored_problem(
    name: str, variables: Callable[[], None], scores: NormalScores, reference: Reference, source: str,
    *, easy: bool = True,
) -> EvidenceProblem:  # fmt: skip
    """Build the problem of a model whose prior is a function of normal scores."""
    return EvidenceProblem(
        name=name, variables=variables, log_evidence=reference.log_evidence, error=reference.error,
        source=source, n_dim=scores.n_dim, easy=easy, prior_transform=scores.prior_transform,
        log_likelihood=scores.likelihood_of_one,
    )  # fmt: skip
