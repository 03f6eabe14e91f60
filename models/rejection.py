r"""Independent draws from a density with one mode, by rejection from a mixture fitted to it.

Population Monte Carlo: a normal mixture is fitted to weighted draws at a temperature, and draws from it, with
Student tails, are weighted at the next, until the temperature is one (Cappe et al. 2008, *Adaptive
importance sampling in general mixture classes*, Statistics and Computing 18, 447-459,
doi:10.1007/s11222-008-9059-x). Draws from the last mixture q are accepted with probability f / (c q),
where c is the largest ratio f / q among `pilot` draws times 1.2; draws with a ratio above c
are underrepresented by the factor by which they exceed it.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scipy.special import logsumexp

from models.simulator_example import accepted_draws
from models.student_importance import log_student

LogDensity = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Students:
    """Mixture of Student distributions.

    Attributes
    ----------
    shares : array (K,)
    means : array (K, D)
    roots : array (K, D, D)
        Cholesky factors of the scale matrices.
    df : float
    """

    shares: np.ndarray
    means: np.ndarray
    roots: np.ndarray
    df: float = 5.0

    @classmethod
    def fitted(cls, x: np.ndarray, n_components: int) -> Students:
        """Fit the mixture to points (n, D), as a normal mixture whose covariances are then widened."""
        from sklearn.mixture import GaussianMixture

        centre, spread = x.mean(axis=0), x.std(axis=0)
        fit = GaussianMixture(n_components, random_state=0, reg_covar=1e-3)
        fit.fit((x - centre) / spread)
        means = centre + spread * fit.means_
        roots = spread[:, None] * np.linalg.cholesky(1.3 * fit.covariances_)
        return cls(fit.weights_, means, roots)

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draw points (n, D)."""
        k = rng.choice(len(self.shares), n, p=self.shares)
        normal = np.einsum(
            "nij,nj->ni", self.roots[k], rng.standard_normal((n, len(self.means[0])))
        )
        return self.means[k] + normal * np.sqrt(self.df / rng.chisquare(self.df, n))[:, None]

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return the natural logarithm (n,) of the density at points (n, D)."""
        terms = [
            math.log(share) + log_student(x, mean, root, self.df)
            for share, mean, root in zip(self.shares, self.means, self.roots, strict=True)
        ]
        return logsumexp(terms, axis=0)


@dataclass(frozen=True)
class RejectionSampler:
    """Sampler of a density by rejection from a mixture.

    Attributes
    ----------
    log_density : callable
        Log density at points (n, D); it need not be normalised.
    proposal : Students
    log_bound : float
        Natural logarithm of c.
    rate : float
        Acceptance rate of the proposals.
    """

    log_density: LogDensity
    proposal: Students
    log_bound: float
    rate: float

    @classmethod
    def fitted(
        cls, log_density: LogDensity, start: np.ndarray, rng: np.random.Generator, *,
        n: int = 10_000, pilot: int = 50_000,
    ) -> RejectionSampler:  # fmt: skip
        """Fit a sampler for a density, starting from points (m, D) that are spread over all of it.

        Parameters
        ----------
        log_density, start, rng
        n : int
            Number of draws in a round of the fit.
        pilot : int
            Number of draws for the bound.

        Raises
        ------
        RuntimeError
            If the temperature did not reach one, or all starting points have zero density.
        """
        x, log_q, temperature = start, np.zeros(len(start)), 0.0
        refinements = 0
        for _ in range(50):
            level = log_density(x)
            if not np.isfinite(level).any():
                raise RuntimeError("no starting point has a finite log density")
            temperature = next_temperature(level, log_q, temperature)
            log_w = np.where(np.isfinite(level), temperature * level - log_q, -np.inf)
            weights = np.exp(log_w - logsumexp(log_w))
            kept = x[rng.choice(len(x), 4000, p=weights)]
            proposal = Students.fitted(kept, 6 if temperature == 1.0 else 1)
            refinements += temperature == 1.0
            if refinements == 3:
                break
            x = proposal.draw(rng, n)
            log_q = proposal.log_density(x)
        else:
            raise RuntimeError(f"temperature {temperature} after 50 rounds")
        x = proposal.draw(rng, pilot)
        ratio = log_density(x) - proposal.log_density(x)
        bound = float(ratio.max()) + math.log(1.2)
        return cls(log_density, proposal, bound, float(np.exp(ratio - bound).mean()))

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draw independent points (n, D)."""

        def propose(rng, m):
            x = self.proposal.draw(rng, m)
            ratio = self.log_density(x) - self.proposal.log_density(x) - self.log_bound
            return x, np.log(rng.random(m)) < ratio

        return accepted_draws(propose, rng, n)


def next_temperature(level: np.ndarray, log_q: np.ndarray, last: float) -> float:
    """Return the largest value at which the effective sample size is 5 % of the points, at most one."""

    def share(temperature: float) -> float:
        log_w = np.where(np.isfinite(level), temperature * level - log_q, -np.inf)
        return float(np.exp(2.0 * logsumexp(log_w) - logsumexp(2.0 * log_w))) / len(level)

    if share(1.0) >= 0.05:
        return 1.0
    lower, upper = last, 1.0
    for _ in range(40):
        middle = 0.5 * (lower + upper)
        lower, upper = (middle, upper) if share(middle) >= 0.05 else (lower, middle)
    return max(lower, min(last + 1e-3, 1.0))
