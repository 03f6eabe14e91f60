r"""Simulators of points and summaries with an exact posterior.

Two moons: a posterior of two crescents, each with half of the mass
-------------------------------------------------------------------
.. math:: \theta \sim U(-1, 1)^2, \quad a \sim U(-\pi/2, \pi/2), \quad r \sim N(0.1, 0.01^2), \quad
          x = \begin{pmatrix} r \cos a + 0.25 \\ r \sin a \end{pmatrix}
              + \frac{1}{\sqrt 2}
              \begin{pmatrix} -|\theta_1 + \theta_2| \\ -\theta_1 + \theta_2 \end{pmatrix}

Greenberg, Nonnenmacher & Macke (2019), *Automatic posterior transformation for likelihood-free
inference* (arXiv:1905.07488); in the benchmark of Lueckmann et al. (2021), *Benchmarking
simulation-based inference* (arXiv:2101.04653), task T.8. Data are one pair x.

The map from noise to parameters is linear on either side of the line :math:`\theta_1 = -\theta_2`.
Its Jacobian is therefore constant, and the density of the posterior is that of the noise at x minus the shift:
a draw of the noise and of a sign gives a draw from the posterior, rejected outside the
square. With x uniform in a disc around the data, it is a draw from the posterior at that tolerance.
Exchanging :math:`(\theta_1, \theta_2)` and :math:`(-\theta_2, -\theta_1)` changes neither prior
nor likelihood: each crescent has exactly half of the mass, at every tolerance. There is no single
mode: the density is constant along each crescent.

Two normal components with one mean and two scales
--------------------------------------------------
.. math:: \theta \sim U(-10, 10)^2, \qquad
          x \sim \tfrac12 N(\theta, I) + \tfrac12 N(\theta, 0.01 I)

Sisson, Fan & Tanaka (2007), *Sequential Monte Carlo without likelihoods*, PNAS 104, 1760-1765
(doi:10.1073/pnas.0607208104), in two dimensions as in task T.7 of Lueckmann et al. (2021),
*Benchmarking simulation-based inference* (arXiv:2101.04653). Data are one pair x, not that of the
benchmark.

The posterior is the same mixture around x, truncated to the square. So x minus noise, rejected outside
the square, is an exact draw; with x uniform in a disc it is a draw from the posterior at that tolerance.

Simple likelihood with a complex posterior (SLCP): four points of a bivariate normal distribution
-------------------------------------------------------------------------------------------------
.. math:: \theta \sim U(-3, 3)^5, \qquad x_k \sim N(m, \Sigma), \quad k = 1, \ldots, 4, \qquad
          m = (\theta_1, \theta_2), \qquad
          \Sigma = \begin{pmatrix} s_1^2 & \rho s_1 s_2 \\ \rho s_1 s_2 & s_2^2 \end{pmatrix},
          \quad s_1 = \theta_3^2, \; s_2 = \theta_4^2, \; \rho = \tanh \theta_5

Papamakarios, Sterratt & Murray (2019, arXiv:1805.07226), and task T.3 of Lueckmann et al. (2021), *Benchmarking
simulation-based inference* (arXiv:2101.04653), with other data. The signs of :math:`\theta_3` and :math:`\theta_4` are
not identified, which makes four modes.

The reference is exact. The mean given :math:`\Sigma` is normal around that of the data with covariance
:math:`\Sigma / 4`, and the remaining factor of the likelihood is bounded,

.. math:: |\Sigma|^{-3/2} \exp\bigl(-\tfrac12 \mathrm{tr}\, \Sigma^{-1} S\bigr)
          \le |S / 3|^{-3/2} e^{-3},

with S the sums of squares and products about the mean. So draws of :math:`\theta_3, \theta_4, \theta_5` from the prior
are accepted with the ratio of the two, and means with them if they lie in the square.

Normal mean with a uniform prior in a box, whose posterior is a truncated normal distribution
---------------------------------------------------------------------------------------------
.. math:: \theta \sim U(-1, 1)^d, \qquad x \sim N(\theta, 0.1 I), \qquad
          p(\theta \mid x) \propto \prod_j N(\theta_j; x_j, 0.1)\, 1\{|\theta_j| < 1\}

Task T.2 of Lueckmann et al. (2021), *Benchmarking simulation-based inference* (arXiv:2101.04653), with other data. At a
tolerance :math:`\theta` follows the same distribution given x' in place of x, which has its marginal distribution

.. math:: p(x') = \prod_j \tfrac12 \Bigl[\Phi\Bigl(\frac{1 - x'_j}{\sqrt{0.1}}\Bigr)
          - \Phi\Bigl(\frac{-1 - x'_j}{\sqrt{0.1}}\Bigr)\Bigr]

given that it lies in the ball around the data; no factor exceeds its value at zero.

Normal mean with a normal prior, for which exact results are known in any dimension
-----------------------------------------------------------------------------------
.. math:: \theta \sim N(0, 0.1 I), \qquad x \sim N(\theta, 0.1 I), \qquad
          \theta \mid x \sim N(x / 2, 0.05 I)

Task T.1 of Lueckmann et al. (2021), *Benchmarking simulation-based inference* (arXiv:2101.04653),
with other data. At a tolerance, parameters follow :math:`N(x' / 2, 0.05 I)`, where x' has its
marginal distribution N(0, 0.2 I) given that it lies in a ball around the data. x' is symmetric about the
direction of the data, so integrals over one coordinate remain: :func:`epsilon_moments`.

Means of groups from one population
-----------------------------------
.. math:: \mu \sim N(0, 2^2), \qquad \tau \sim N^+(0, 1), \qquad \sigma \sim N^+(0, 1), \qquad
          \alpha_j \sim N(\mu, \tau^2), \qquad y_{ij} \sim N(\alpha_j, \sigma^2)

for j = 1, ..., J groups and i = 1, ..., n observations in each, as in Gelman & Hill (2007), *Data Analysis Using
Regression and Multilevel/Hierarchical Models*, section 12.5. The means of groups and the logarithm of the
standard deviation within groups are sufficient summaries, and are simulated directly.

Given :math:`\tau` and :math:`\sigma` everything else is normal. With :math:`v = \tau^2 + \sigma^2 / n` and
:math:`\bar y` the mean of group means, these two have the density

.. math:: p(\tau, \sigma \mid y) \propto p(\tau) p(\sigma)\, \sigma^{-J(n-1)} e^{-S / 2\sigma^2}
          \prod_j N(\bar y_j; \bar y, v) \, v^{1/2} N(\bar y; 0, 4 + v / J),

where S is the sum of squares within groups. The reference draws them from a fine grid, uniformly within cells.
"""

from __future__ import annotations

import functools
import math

from typing import NamedTuple

import numpy as np
import pymc as pm

from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import chi2, ncx2, truncnorm

from amc_pymc.rng import as_generator
from models.simulator_example import SimulatorExample, accepted_draws, in_ball, noise_scale

PAIR: dict[str, tuple[int, ...]] = {"theta1": (), "theta2": ()}


def uniform_pair(width: float) -> list:
    """Add two uniform parameters of so much half width to the PyMC model of the context."""
    return [pm.Uniform(name, -width, width) for name in PAIR]


# --- two moons --------------------------------------------------------------------------------------

RADIUS, MOONS_WIDTH, CENTRE = 0.1, 0.01, 0.25


def crescent(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw the noise (n, 2)."""
    angle = rng.uniform(-0.5 * math.pi, 0.5 * math.pi, n)
    radius = rng.normal(RADIUS, MOONS_WIDTH, n)
    return np.column_stack([radius * np.cos(angle) + CENTRE, radius * np.sin(angle)])


def moons_simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
    """Simulate pairs (n, 2) for parameters (n, 2)."""
    x = crescent(rng, len(theta))
    x[:, 0] -= np.abs(theta[:, 0] + theta[:, 1]) / math.sqrt(2.0)
    x[:, 1] += (theta[:, 1] - theta[:, 0]) / math.sqrt(2.0)
    return x


def moons_log_likelihood(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return the log density (n,) of one pair x (2,) at parameters (n, 2); -inf behind the crescent.

    Negative radii, which are ten standard deviations away, are ignored.
    """
    a = x[0] + np.abs(theta[:, 0] + theta[:, 1]) / math.sqrt(2.0) - CENTRE
    b = x[1] - (theta[:, 1] - theta[:, 0]) / math.sqrt(2.0)
    radius = np.hypot(a, b)
    with np.errstate(divide="ignore"):
        log_density = -0.5 * ((radius - RADIUS) / MOONS_WIDTH) ** 2 - np.log(radius)
    constant = -0.5 * math.log(2.0 * math.pi) - math.log(MOONS_WIDTH * math.pi)
    return np.where(a > 0.0, log_density + constant, -np.inf)


def two_moons(observed=(0.0, 0.0)) -> SimulatorExample:
    """Build the example: two moons with their exact posterior.

    Parameters
    ----------
    observed : sequence of 2 floats
        Observed pair x.
    """
    observed = np.array(observed, float)

    def epsilon_reference(rng: np.random.Generator, n: int, epsilon: float) -> np.ndarray:
        def propose(rng, m):
            noise, x = crescent(rng, m), observed + in_ball(rng, m, 2, epsilon)
            sign = rng.choice([-1.0, 1.0], m)
            total = sign * math.sqrt(2.0) * (noise[:, 0] - x[:, 0])
            difference = math.sqrt(2.0) * (x[:, 1] - noise[:, 1])
            theta = 0.5 * np.column_stack([total - difference, total + difference])
            return theta, (noise[:, 0] > x[:, 0]) & (np.abs(theta) < 1.0).all(axis=1)

        return accepted_draws(propose, rng, n)

    return SimulatorExample(
        name="two_moons", prior=lambda: uniform_pair(1.0), simulate=moons_simulate,
        cube=lambda u: 2.0 * u - 1.0, observed=observed, epsilon=0.03, shapes=PAIR,
        reference=lambda rng, n: epsilon_reference(rng, n, 0.0),
        epsilon_reference=epsilon_reference,
    )  # fmt: skip


# --- two scale mixture ------------------------------------------------------------------------------

HALF_WIDTH = 10.0
SDS = np.array([1.0, 0.1])


def noise(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw from the mixture around zero (n, 2)."""
    return rng.choice(SDS, n)[:, None] * rng.standard_normal((n, 2))


def scales_simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
    """Simulate pairs (n, 2) for means (n, 2)."""
    return theta + noise(rng, len(theta))


def two_scale_mixture(observed=(3.0, -6.0)) -> SimulatorExample:
    """Build the example: the mixture with its exact posterior, whose mode is the observed pair x, inside the square."""
    observed = np.array(observed, float)

    def epsilon_reference(rng: np.random.Generator, n: int, epsilon: float) -> np.ndarray:
        def propose(rng, m):
            theta = observed + in_ball(rng, m, 2, epsilon) - noise(rng, m)
            return theta, (np.abs(theta) < HALF_WIDTH).all(axis=1)

        return accepted_draws(propose, rng, n)

    return SimulatorExample(
        name="two_scale_mixture", prior=lambda: uniform_pair(HALF_WIDTH), simulate=scales_simulate,
        cube=lambda u: HALF_WIDTH * (2.0 * u - 1.0), observed=observed, epsilon=0.2, shapes=PAIR,
        reference=lambda rng, n: epsilon_reference(rng, n, 0.0),
        epsilon_reference=epsilon_reference, mode=observed,
    )  # fmt: skip


# --- slcp -------------------------------------------------------------------------------------------

SLCP_TRUTH = np.array([0.7, -2.9, -1.0, -0.9, 0.6])
#: Number of points, and half width of the prior.
N_POINTS, SLCP_WIDTH = 4, 3.0


def slcp_simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
    """Simulate points (n, 8), one after the other, for parameters (n, 5)."""
    mean, spread, rho = theta[:, None, :2], np.square(theta[:, None, 2:4]), np.tanh(theta[:, 4:])
    z = rng.standard_normal((len(theta), N_POINTS, 2))
    second = rho * z[..., 0] + np.sqrt(1.0 - rho**2) * z[..., 1]
    return (mean + spread * np.stack([z[..., 0], second], axis=-1)).reshape(
        len(theta), 2 * N_POINTS
    )


def moments(points: np.ndarray) -> np.ndarray:
    """Return sufficient statistics (n, 5) of points (n, 8): means, log sds, Fisher's z of the correlation."""
    x = points.reshape(len(points), N_POINTS, 2)
    mean = x.mean(axis=1)
    gaps = x - mean[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        square = np.square(gaps).sum(axis=1)
        correlation = (gaps[..., 0] * gaps[..., 1]).sum(axis=1) / np.sqrt(square.prod(axis=1))
        found = np.column_stack(
            [mean, 0.5 * np.log(square / (N_POINTS - 1)), np.arctanh(correlation)]
        )
    return np.where(np.isfinite(found).all(axis=1, keepdims=True), found, np.nan)


def slcp_log_likelihood(points: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return the log density (m,) of points (8,) at parameters (m, 5)."""
    x = np.asarray(points).reshape(N_POINTS, 2)
    spread, rho = np.square(theta[:, None, 2:4]), np.tanh(theta[:, 4:])
    z = (x - theta[:, None, :2]) / spread
    square = (z[..., 0] ** 2 - 2.0 * rho * z[..., 0] * z[..., 1] + z[..., 1] ** 2) / (1.0 - rho**2)
    log_root = np.log(spread[:, 0]).sum(axis=1) + 0.5 * np.log1p(-(rho[:, 0] ** 2))
    return -0.5 * square.sum(axis=1) - N_POINTS * (log_root + np.log(2.0 * np.pi))


def slcp_exact(points: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw from the posterior (n, 5) given points (8,)."""
    x = np.asarray(points).reshape(N_POINTS, 2)
    mean = x.mean(axis=0)
    gaps = x - mean
    square = gaps.T @ gaps
    free = N_POINTS - 1
    highest = -0.5 * free * np.log(np.linalg.det(square / free)) - free

    def propose(rng, m):
        theta = rng.uniform(-SLCP_WIDTH, SLCP_WIDTH, (m, 5))
        s1, s2 = np.square(theta[:, 2:4]).T
        rho = np.tanh(theta[:, 4])
        root = np.sqrt(1.0 - rho**2)
        log_det = 2.0 * np.log(s1 * s2 * root)
        trace = square[0, 0] / s1**2 + square[1, 1] / s2**2 - 2.0 * rho * square[0, 1] / (s1 * s2)
        log = -0.5 * free * log_det - 0.5 * trace / root**2 - highest
        z = rng.standard_normal((2, m)) / np.sqrt(N_POINTS)
        theta[:, 0] = mean[0] + s1 * z[0]
        theta[:, 1] = mean[1] + s2 * (rho * z[0] + root * z[1])
        inside = (np.abs(theta[:, :2]) < SLCP_WIDTH).all(axis=1)
        return theta, inside & (np.log(rng.random(m)) < log)

    return accepted_draws(propose, rng, n, batch=100_000)


def slcp(*, truth=SLCP_TRUTH, data_seed: int = 1, sufficient: bool = False) -> SimulatorExample:
    """Build the example: five parameters of a normal distribution from four points.

    Parameters
    ----------
    truth : sequence of 5 floats
        Parameters of the simulated data.
    data_seed : int
        Seed of that simulation.
    sufficient : bool
        Whether summaries are five moments, each divided by its standard deviation at the true parameters, instead of
        eight coordinates: independently of the order of the points.
    """
    truth = np.array(truth, float)
    points = slcp_simulate(as_generator(data_seed), truth[None])

    def summaries(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        found = slcp_simulate(rng, theta)
        return moments(found) if sufficient else found

    observed = moments(points)[0] if sufficient else points[0]
    scale = noise_scale(summaries, truth) if sufficient else 1.0

    return SimulatorExample(
        name="slcp_sufficient" if sufficient else "slcp",
        prior=lambda: [pm.Uniform("theta", -SLCP_WIDTH, SLCP_WIDTH, shape=5)], simulate=summaries,
        cube=lambda u: SLCP_WIDTH * (2.0 * u - 1.0), observed=observed, scale=scale, epsilon=1.0,
        shapes={"theta": (5,)}, truth=truth, reference=lambda rng, n: slcp_exact(points[0], rng, n),
    )  # fmt: skip


slcp_sufficient = functools.partial(slcp, sufficient=True)


# --- gaussian uniform -------------------------------------------------------------------------------

NOISE_SD = math.sqrt(0.1)


def posterior_draws(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Draw from the posterior (n, d), once for each of the data (n, d)."""
    return truncnorm.rvs(
        (-1.0 - x) / NOISE_SD, (1.0 - x) / NOISE_SD, loc=x, scale=NOISE_SD, random_state=rng
    )


def log_marginal(x: np.ndarray) -> np.ndarray:
    """Return the log density (n,) of data (n, d) relative to data at zero."""
    upper = ndtr((1.0 - np.abs(x)) / NOISE_SD) - ndtr((-1.0 - np.abs(x)) / NOISE_SD)
    at_zero = ndtr(1.0 / NOISE_SD) - ndtr(-1.0 / NOISE_SD)
    far = log_ndtr((1.0 - np.abs(x)) / NOISE_SD)
    with np.errstate(divide="ignore"):
        log = np.where(upper > 0.0, np.log(upper), far)
    return (log - math.log(at_zero)).sum(axis=1)


def gaussian_uniform(observed=tuple(np.linspace(-0.9, 0.9, 10))) -> SimulatorExample:
    """Build the example: a normal mean of bounded coordinates with its exact posterior, at any tolerance."""
    observed = np.array(observed, float)
    d = observed.size

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return theta + NOISE_SD * rng.standard_normal(theta.shape)

    def reference(rng: np.random.Generator, n: int) -> np.ndarray:
        return posterior_draws(rng, np.tile(observed, (n, 1)))

    def epsilon_reference(rng: np.random.Generator, n: int, epsilon: float) -> np.ndarray:
        def propose(rng, m):
            x = observed + in_ball(rng, m, d, epsilon)
            return x, np.log(rng.random(m)) < log_marginal(x)

        return posterior_draws(rng, accepted_draws(propose, rng, n))

    return SimulatorExample(
        name=f"gaussian_uniform_{d}", prior=lambda: [pm.Uniform("theta", -1.0, 1.0, shape=d)],
        simulate=simulate, cube=lambda u: 2.0 * u - 1.0, observed=observed, epsilon=1.0,
        shapes={"theta": (d,)}, reference=reference, epsilon_reference=epsilon_reference,
        mode=np.clip(observed, -1.0, 1.0),
    )  # fmt: skip


# --- gaussian known ---------------------------------------------------------------------------------

PRIOR_VARIANCE = NOISE_VARIANCE = 0.1
SHRINKAGE = PRIOR_VARIANCE / (PRIOR_VARIANCE + NOISE_VARIANCE)
POSTERIOR_VARIANCE = SHRINKAGE * NOISE_VARIANCE
MARGINAL_VARIANCE = PRIOR_VARIANCE + NOISE_VARIANCE


class Moments(NamedTuple):
    """Moments of the posterior at a tolerance.

    Attributes
    ----------
    acceptance : float
        Probability that a draw of the prior gives data within the tolerance.
    mean : array (D,)
    covariance : array (D, D)
    """

    acceptance: float
    mean: np.ndarray
    covariance: np.ndarray


def acceptance(observed: np.ndarray, epsilon: float, theta: np.ndarray) -> np.ndarray:
    """Return the probability (n,) of data within a distance of the observed (D,), at means (n, D)."""
    squares = np.square(theta - observed).sum(axis=1)
    return ncx2.cdf(epsilon**2 / NOISE_VARIANCE, len(observed), squares / NOISE_VARIANCE)


def epsilon_moments(observed: np.ndarray, epsilon: float) -> Moments:
    """Compute moments of the prior given data within a distance of the observed (D,), by quadrature.

    Parameters
    ----------
    observed : array (D,)
    epsilon : float
        Radius of the ball.
    """
    order = 200  # nodes of the Gauss-Legendre rule
    observed = np.asarray(observed, dtype=np.float64)
    d, length = observed.size, float(np.linalg.norm(observed))
    axis = observed / length if length > 0.0 else np.eye(d)[0]
    # With the angle as variable, the integrand has no root singularities at the ends of the interval.
    nodes, weights = np.polynomial.legendre.leggauss(order)
    angle = 0.5 * math.pi * nodes
    along = length + epsilon * np.sin(angle)
    radius2 = np.square(epsilon * np.cos(angle))
    density = np.exp(-0.5 * np.square(along) / MARGINAL_VARIANCE)
    density *= 0.5 * math.pi * weights * epsilon * np.cos(angle)
    density /= math.sqrt(2.0 * math.pi * MARGINAL_VARIANCE)
    scaled = radius2 / MARGINAL_VARIANCE
    # For the other coordinates: probability of their ball, and their mean square in it times that probability.
    inside = chi2.cdf(scaled, d - 1) if d > 1 else np.ones(order)
    squares = MARGINAL_VARIANCE * chi2.cdf(scaled, d + 1) if d > 1 else np.zeros(order)
    total = float(density @ inside)
    mean = float((density * inside) @ along) / total
    variance = float((density * inside) @ np.square(along - mean)) / total
    across = float(density @ squares) / total
    projection = np.outer(axis, axis)
    spread = variance * projection + across * (np.eye(d) - projection)
    covariance = POSTERIOR_VARIANCE * np.eye(d) + SHRINKAGE**2 * spread
    return Moments(total, SHRINKAGE * mean * axis, covariance)


def gaussian_known(d: int = 10, *, observed=None) -> SimulatorExample:
    """Build the example: a normal mean of d coordinates with its exact posterior, at any tolerance.

    Parameters
    ----------
    d : int
        Number of coordinates.
    observed : sequence of d floats or None
        Data; evenly spaced from -0.75 to 0.75 if not given.
    """
    observed = np.array(np.linspace(-0.75, 0.75, d) if observed is None else observed, float)
    prior_sd, posterior_sd = math.sqrt(PRIOR_VARIANCE), math.sqrt(POSTERIOR_VARIANCE)

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return theta + math.sqrt(NOISE_VARIANCE) * rng.standard_normal(theta.shape)

    def reference(rng: np.random.Generator, n: int) -> np.ndarray:
        noise = rng.standard_normal((n, d))
        return SHRINKAGE * observed + posterior_sd * noise

    def epsilon_reference(rng: np.random.Generator, n: int, epsilon: float) -> np.ndarray:
        nearest = max(float(np.linalg.norm(observed)) - epsilon, 0.0)

        def propose(rng, m):
            x = observed + in_ball(rng, m, d, epsilon)
            log_ratio = 0.5 * (nearest**2 - np.square(x).sum(axis=1)) / MARGINAL_VARIANCE
            theta = SHRINKAGE * x + posterior_sd * rng.standard_normal((m, d))
            return theta, np.log(rng.random(m)) < log_ratio

        return accepted_draws(propose, rng, n)

    return SimulatorExample(
        name=f"gaussian_{d}", prior=lambda: [pm.Normal("theta", 0.0, prior_sd, shape=d)],
        simulate=simulate, cube=lambda u: prior_sd * ndtri(u), observed=observed, epsilon=1.0,
        shapes={"theta": (d,)}, reference=reference, epsilon_reference=epsilon_reference,
        mode=SHRINKAGE * observed,
    )  # fmt: skip


# --- group means ------------------------------------------------------------------------------------

PRIOR_SD = 2.0
#: Number of cells of the grid on each side.
_CELLS = 800


def log_density(
    tau: np.ndarray, sigma: np.ndarray, means: np.ndarray, within: float, n: int
) -> np.ndarray:
    """Return the log density of standard deviations between and within groups, up to a constant.

    Parameters
    ----------
    tau, sigma : arrays of one shape
    means : array (J,)
        Means of the groups.
    within : float
        Standard deviation within groups.
    n : int
        Number of observations in each group.
    """
    j, centre = len(means), means.mean()
    free = j * (n - 1)
    v = tau**2 + sigma**2 / n
    whole = PRIOR_SD**2 + v / j
    return (
        -0.5 * (tau**2 + sigma**2)
        - free * (np.log(sigma) + 0.5 * (within / sigma) ** 2)
        - 0.5 * (j - 1) * np.log(v)
        - 0.5 * np.square(means - centre).sum() / v
        - 0.5 * (np.log(whole) + centre**2 / whole)
    )


def groups_exact(
    means: np.ndarray, within: float, n: int, rng: np.random.Generator, draws: int
) -> np.ndarray:
    """Draw from the posterior (draws, J + 3): mu, tau, sigma and the effects."""
    j = len(means)
    spread = within / math.sqrt(2.0 * j * (n - 1))
    tau = 5.0 * (np.arange(_CELLS) + 0.5) / _CELLS
    least, most = max(1e-3, within - 7.0 * spread), within + 9.0 * spread
    sigma = least + (most - least) * (np.arange(_CELLS) + 0.5) / _CELLS
    log = log_density(tau[:, None], sigma[None], means, within, n)
    p = np.exp(log - log.max()).ravel()
    at = rng.choice(p.size, draws, p=p / p.sum())
    tau = tau[at // _CELLS] + 5.0 / _CELLS * (rng.random(draws) - 0.5)
    sigma = sigma[at % _CELLS] + (most - least) / _CELLS * (rng.random(draws) - 0.5)
    v = tau**2 + sigma**2 / n
    precision = 1.0 / PRIOR_SD**2 + j / v
    mu = (j * means.mean() / v) / precision + rng.standard_normal(draws) / np.sqrt(precision)
    share = (tau**2 / v)[:, None]
    effect = share * means + (1.0 - share) * mu[:, None]
    effect = effect + np.sqrt(share * (sigma**2 / n)[:, None]) * rng.standard_normal((draws, j))
    return np.column_stack([mu, tau, sigma, effect])


def group_means(
    groups: int = 9, n: int = 10, *, truth=None, data_seed: int = 1
) -> SimulatorExample:
    """Build the example: a hierarchical model with as many parameters as groups, and three more.

    Parameters
    ----------
    groups : int
        Number of groups J, at least two.
    n : int
        Number of observations in each group, at least two.
    truth : sequence of J + 3 floats or None
        mu, tau, sigma and effects of the simulated data; 0.5, 0.7, 1 and normal quantiles if not given.
    data_seed : int
        Seed of that simulation.
    """
    if truth is None:
        effects = 0.5 + 0.7 * ndtri((np.arange(groups) + 0.5) / groups)
        truth = np.concatenate([[0.5, 0.7, 1.0], effects])
    truth = np.array(truth, float)
    free = groups * (n - 1)

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        sigma = theta[:, 2:3]
        means = theta[:, 3:] + sigma / math.sqrt(n) * rng.standard_normal((len(theta), groups))
        squares = rng.chisquare(free, (len(theta), 1)) / free
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.column_stack([means, np.log(sigma) + 0.5 * np.log(squares)])

    def cube(u: np.ndarray) -> np.ndarray:
        z = ndtri(u)
        tau, sigma = ndtri(0.5 + 0.5 * u[:, 1:3]).T
        mu = PRIOR_SD * z[:, 0]
        return np.column_stack([mu, tau, sigma, mu[:, None] + tau[:, None] * z[:, 3:]])

    observed = simulate(as_generator(data_seed), truth[None])[0]
    scale = noise_scale(simulate, truth)

    def prior() -> list:
        mu = pm.Normal("mu", 0.0, PRIOR_SD)
        tau, sigma = pm.HalfNormal("tau", 1.0), pm.HalfNormal("sigma", 1.0)
        effect = pm.Normal("effect", mu, tau, shape=groups)
        return [mu, tau, sigma, effect]

    def reference(rng: np.random.Generator, draws: int) -> np.ndarray:
        return groups_exact(observed[:-1], math.exp(observed[-1]), n, rng, draws)

    return SimulatorExample(
        name=f"group_means_{groups}", prior=prior, simulate=simulate, cube=cube, observed=observed,
        scale=scale, epsilon=1.0,
        shapes={"mu": (), "tau": (), "sigma": (), "effect": (groups,)}, truth=truth,
        reference=reference,
    )  # fmt: skip
