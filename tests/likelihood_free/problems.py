"""Problems whose posterior at a tolerance is known, in coordinates of the unit cube."""

import math

import numpy as np

from scipy.stats import norm

from amc_pymc.likelihood_free.history import batch_sizes
from amc_pymc.likelihood_free.learning import TreeProposal, rounds
from amc_pymc.likelihood_free.partition import Partition
from amc_pymc.likelihood_free.problem import Simulated
from amc_pymc.rng import spawn_generators


def from_cuts(cuts, n_dim):
    """A partition by successive cuts (node, coordinate, threshold); new nodes get the next two numbers."""
    feature, left, right = (np.full(1 + 2 * len(cuts), -1) for _ in range(3))
    threshold = np.zeros(len(feature))
    for i, (node, along, at) in enumerate(cuts):
        feature[node], threshold[node] = along, at
        left[node], right[node] = 2 * i + 1, 2 * i + 2
    return Partition(feature, threshold, left, right, n_dim)


class UniformProblem:
    """A uniform prior and distances from a function of points and a generator."""

    shapes, tolerance = {"u": ()}, None

    def __init__(self, distance, n_dim=1, log_density=None):
        self._distance, self.n_dim, self._log_density = distance, n_dim, log_density

    def parameters(self, u):
        return {"u": u[:, 0]}

    def log_density(self, u):
        return None if self._log_density is None else self._log_density(u)

    def log_prior(self, u):
        return np.zeros(len(u))

    def simulate(self, u, rng, *, batched=True):
        return Simulated(self._distance(u, rng), [])


def run(problem, n, settings, seed, sizes=None):
    """The history of a run."""
    sizes = batch_sizes(n) if sizes is None else sizes
    generators = spawn_generators(seed, 2 * len(sizes))

    def simulate(u, b):
        return problem.simulate(u, generators[len(sizes) + b])

    for history in rounds(problem, simulate, sizes, generators[: len(sizes)], *settings):
        pass
    return history


def settings(tolerance=None, **options):
    """A proposal and the smallest tolerance."""
    return TreeProposal(**options), tolerance


class NormalMean(UniformProblem):
    """A normal with known sd, mean uniform between 0 and 1; its posterior by quadrature."""

    OBSERVED, SD = 0.3, 0.02

    def __init__(self, log_density=None):
        super().__init__(
            lambda u, rng: np.abs(u[:, 0] + self.SD * rng.standard_normal(len(u)) - self.OBSERVED),
            log_density=log_density,
        )

    def acceptance(self, u, tolerance):
        high, low = (self.OBSERVED + s * tolerance for s in (1.0, -1.0))
        return norm.cdf((high - u) / self.SD) - norm.cdf((low - u) / self.SD)

    def known(self, tolerance):
        """Acceptance of rejection, posterior mean and sd, probability of being below the data."""
        u = np.linspace(0.0, 1.0, 200_001)[1:-1]
        p = self.acceptance(u, tolerance)
        if self._log_density is not None:
            p = p * np.exp(self._log_density(u[:, None]))
        z = np.trapezoid(p, u)
        mean = np.trapezoid(p * u, u) / z
        sd = math.sqrt(np.trapezoid(p * (u - mean) ** 2, u) / z)
        return z, mean, sd, np.trapezoid(np.where(u < self.OBSERVED, p, 0.0), u) / z


class TwoModes(UniformProblem):
    """Two narrow modes in the square, the minor one with a share of the posterior that is exact.

    A point within `radius` of a mode is accepted with the probability of the mode: its distance is
    0 then, else its distance from the nearer mode.
    """

    MODES = np.array([[0.2, 0.7], [0.75, 0.3]])
    RADII, CHANCES = np.array([0.05, 0.05]), np.array([0.8, 0.107])

    def __init__(self):
        super().__init__(self._noisy, n_dim=2)

    def _noisy(self, u, rng):
        gaps = np.sqrt(((u[:, None] - self.MODES) ** 2).sum(axis=2))
        near = gaps.argmin(axis=1)
        gap = gaps[np.arange(len(u)), near]
        chance = self.CHANCES[near] * (gap < self.RADII[near])
        return np.where(rng.random(len(u)) < chance, 0.0, 0.02 + gap)

    @property
    def minor(self):
        mass = self.RADII**2 * self.CHANCES
        return float(mass[1] / mass.sum())
