r"""Posteriors of difficult shapes and their evidence: thin, bent, skewed, with many modes.

Eggbox function: equal peaks on a grid
--------------------------------------
.. math:: x \sim U[0, 10\pi]^2, \qquad
          \log L(x) = \left(2 + \cos\tfrac{x_1}{2} \cos\tfrac{x_2}{2}\right)^5 .

Feroz & Hobson (2008), *Multimodal nested sampling*, MNRAS 384, 449-463
(doi:10.1111/j.1365-2966.2007.12353.x). With u = x / 2 the box is five half periods wide in each
direction, and adding half a period to one coordinate only changes the sign of the product, which
a reflection of the other coordinate reverses: Z is the average of L over one cell :math:`u \in [0, \pi]^2`.

Two Gaussian shells in a box: curved, bimodal, and relatively thinner in more dimensions
----------------------------------------------------------------------------------------
.. math:: x \sim U[-6, 6]^d, \qquad
          L(x) = \sum_{c \in \{-a, a\}} \frac{1}{\sqrt{2\pi}\,w}
          \exp\left(-\frac{(\|x - c\| - r)^2}{2 w^2}\right), \qquad a = (3.5, 0, \ldots, 0)

with r = 2 and w = 0.1. Feroz, Hobson & Bridges (2009), *MultiNest*, MNRAS 398, 1601-1614
(doi:10.1111/j.1365-2966.2009.14548.x). The two shells have the same integral, which is over the
radius. From a sphere of radius s about a centre, the face of the box at distance h = 2.5 cuts off the
share :math:`\tfrac12 I_{1 - h^2/s^2}(\tfrac{d-1}{2}, \tfrac12)`.

Log-gamma and normal factors: skewed tails and four modes in a product over coordinates
---------------------------------------------------------------------------------------
.. math:: x \sim U[-30, 30]^d, \qquad L(x) = \prod_i g_i(x_i), \qquad
          \text{LG}(x | l) = \exp(x - l - e^{x - l}), \\
          g_1 = \tfrac12 \text{LG}(10) + \tfrac12 \text{LG}(-10), \quad
          g_2 = \tfrac12 N(10, 1) + \tfrac12 N(-10, 1), \\
          g_i = \text{LG}(10) \text{ for } 3 \le i \le (d + 2) / 2, \quad
          g_i = N(10, 1) \text{ after that} .

The logarithm of a standard exponential variable has the density LG(0), with a heavy tail on the left. Every
factor integrates to one except for the mass outside the box, :math:`10^{-9}` of :math:`g_1`, so
:math:`Z = 60^{-d}`. Beaujean & Caldwell (2013), *Initializing adaptive importance sampling with Markov
chains*, arXiv:1304.7808.

Two separated normal modes of unequal width in a box, each with half of the mass
--------------------------------------------------------------------------------
.. math:: x \sim U[-10, 10]^d, \qquad
          L(x) = \tfrac12 N(x; -c, s_1^2 I) + \tfrac12 N(x; c, s_2^2 I), \qquad c = (4, \dots, 4) .

The mass outside the box is negligible, so Z is :math:`20^{-d}`. Starting points drawn from the
prior that lead to the narrow mode are rarer than those of the wide one by the factor (s_2 / s_1)^d.

Correlated normal likelihood in a wide box: one mode, whose evidence depends on its volume alone
------------------------------------------------------------------------------------------------
.. math:: x \sim U[-W, W]^d, \quad y \sim N(x, C), \quad
          C_{ij} = \rho + (1 - \rho)\,1\{i = j\}, \qquad Z = (2W)^{-d}

apart from the mass outside the box, which is below rounding error: every y is at least eight standard deviations
from its faces. Nested samplers are often tested with y = 0; here y is not centred, so symmetry does
not help.

Pairs of coordinates, each along a narrow curved valley (Rosenbrock's function)
-------------------------------------------------------------------------------
.. math:: x_i, y_i \sim U[-5, 5] \times U[-5, 25], \qquad
          \log L = -\sum_i \left[ \tfrac{1}{2} (1 - x_i)^2 / \sigma^2 + 10 (y_i - x_i^2)^2 \right] .

The evidence is a product over pairs; that of one is an integral over x of a difference of normal probabilities.
With five pairs, a mixture of a few normal distributions cannot cover all arms.
"""

from __future__ import annotations

import math

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.integrate import quad
from scipy.special import betainc, gammaln, log_ndtr, logsumexp, ndtr

from models.evidence_problem import EvidenceProblem
from models.normal_scores import LOG_2PI

# --- eggbox -----------------------------------------------------------------------------------------


def eggbox_log_evidence(power: float = 5.0, *, points: int = 2000) -> float:
    """Return log Z by the midpoint rule on one cell, which has spectral accuracy for a periodic function."""
    cosines = np.cos(np.pi * (np.arange(points) + 0.5) / points)
    return float(logsumexp((2.0 + np.outer(cosines, cosines)) ** power) - 2.0 * math.log(points))


def eggbox(cells: int = 5, *, power: float = 5.0) -> EvidenceProblem:
    """Build the problem: a uniform prior, and the likelihood as a potential.

    Parameters
    ----------
    cells : int
        Half periods of the cosine along each side, which do not affect the evidence.
    power : float
        Exponent, 5 in the formula above.
    """
    side = 2.0 * math.pi * cells

    def variables() -> None:
        x = pm.Uniform("x", 0.0, side, shape=2)
        pm.Potential("likelihood", (2.0 + pt.cos(x[0] / 2.0) * pt.cos(x[1] / 2.0)) ** power)

    def log_likelihood(x: np.ndarray) -> float:
        return float((2.0 + math.cos(0.5 * x[0]) * math.cos(0.5 * x[1])) ** power)

    return EvidenceProblem(
        name="eggbox", variables=variables, log_evidence=eggbox_log_evidence(power),
        source="two-dimensional quadrature", n_dim=2, easy=False,
        prior_transform=lambda u: side * u, log_likelihood=log_likelihood,
    )  # fmt: skip


# --- shells -----------------------------------------------------------------------------------------


def log_sphere(d: int) -> float:
    """Return the log surface of the unit sphere in d dimensions (two points for d = 1)."""
    return float(math.log(2.0) + 0.5 * d * math.log(math.pi) - gammaln(0.5 * d))


def shells_log_evidence(d: int, radius: float, width: float, distance: float, box: float) -> float:
    """Return log Z by adaptive quadrature over the radius."""
    gap = box - distance

    def inside(s: float) -> float:
        if s <= gap:
            return 1.0
        return 1.0 - 0.5 * float(betainc(0.5 * (d - 1), 0.5, 1.0 - (gap / s) ** 2))

    def log_density(s: float) -> float:
        return (d - 1) * math.log(s) - 0.5 * ((s - radius) / width) ** 2

    # Radius at which the derivative of log_density vanishes.
    mode = 0.5 * (radius + math.sqrt(radius**2 + 4.0 * (d - 1) * width**2))
    top = log_density(mode)
    low, high = max(mode - 12.0 * width, 1e-9 * radius), mode + 12.0 * width
    area = quad(
        lambda s: math.exp(log_density(s) - top) * inside(s),
        low, high, points=sorted({mode, min(max(gap, low), high)}),
        epsabs=0.0, epsrel=1e-12, limit=500,
    )[0]  # fmt: skip
    shell = math.log(area) + top + log_sphere(d) - 0.5 * LOG_2PI - math.log(width)
    return math.log(2.0) + shell - d * math.log(2.0 * box)


def shells(d: int = 10, *, width: float = 0.1) -> EvidenceProblem:
    """Build the problem: a uniform prior, and the likelihood as a potential.

    Parameters
    ----------
    d : int
        Number of coordinates, at least two.
    width : float
        Width w of both shells.
    """
    radius, width, box, distance = np.array([2.0, width, 6.0, 3.5])
    centre = np.zeros(d)
    centre[0] = distance
    constant = -0.5 * LOG_2PI - math.log(width)

    def variables() -> None:
        x = pm.Uniform("x", -box, box, shape=d)
        norms = [pt.sqrt(pt.sum((x - c) ** 2)) for c in (-centre, centre)]
        logs = [pm.logp(pm.Normal.dist(radius, width), norm) for norm in norms]
        pm.Potential("likelihood", pt.logaddexp(*logs))

    def log_likelihood(x: np.ndarray) -> float:
        norms = np.sqrt([np.square(x + centre).sum(), np.square(x - centre).sum()])
        return float(constant + np.logaddexp(*(-0.5 * ((norms - radius) / width) ** 2)))

    return EvidenceProblem(
        name=f"shells_{d}", variables=variables,
        log_evidence=shells_log_evidence(d, radius, width, distance, box),
        source="quadrature over the radius", n_dim=d, easy=False,
        prior_transform=lambda u: box * (2.0 * u - 1.0), log_likelihood=log_likelihood,
    )  # fmt: skip


# --- log gamma --------------------------------------------------------------------------------------

LOG_GAMMA_BOX = np.float64(30.0)
PLACE = np.float64(10.0)


def n_skewed(d: int) -> int:
    """Return the number of log-gamma coordinates after the second."""
    return (d + 2) // 2 - 2


def log_gamma_log_evidence(d: int) -> float:
    """Return log Z, corrected for the mass outside the box."""

    def skewed(place: float) -> float:
        return math.exp(-math.exp(-LOG_GAMMA_BOX - place)) - math.exp(
            -math.exp(LOG_GAMMA_BOX - place)
        )

    def normal(place: float) -> float:
        return float(ndtr(LOG_GAMMA_BOX - place) - ndtr(-LOG_GAMMA_BOX - place))

    factors = [
        0.5 * (skewed(PLACE) + skewed(-PLACE)), 0.5 * (normal(PLACE) + normal(-PLACE)),
        *[skewed(PLACE)] * n_skewed(d), *[normal(PLACE)] * (d - 2 - n_skewed(d)),
    ]  # fmt: skip
    return sum(map(math.log, factors)) - d * math.log(2.0 * LOG_GAMMA_BOX)


def log_gamma_log_likelihood(x: np.ndarray) -> float:
    """Return the log of L at x (d,)."""
    first, second, rest = x[0], x[1], x[2:] - PLACE
    with np.errstate(over="ignore"):
        ends = np.array([first - PLACE, first + PLACE])
        total = np.logaddexp(*(ends - np.exp(ends))) - 2.0 * math.log(2.0)
        squares = np.array([second - PLACE, second + PLACE]) ** 2
        total += np.logaddexp(*(-0.5 * squares)) - 0.5 * LOG_2PI
        k = n_skewed(x.size)
        total += (rest[:k] - np.exp(rest[:k])).sum()
        total -= 0.5 * (np.square(rest[k:]).sum() + rest[k:].size * LOG_2PI)
    return float(total)


def log_gamma(d: int = 10) -> EvidenceProblem:
    """Build the problem: a uniform prior, and the likelihood as a custom distribution.

    Parameters
    ----------
    d : int
        Number of coordinates, at least two.
    """
    k = 2 + n_skewed(d)

    def log_density(value, x):
        def skewed(place, t):
            return t - place - pt.exp(t - place)

        def normal(place, t):
            return pm.logp(pm.Normal.dist(place, 1.0), t)

        def either(law, t):
            return pt.logaddexp(law(PLACE, t), law(-PLACE, t)) - math.log(2.0)

        total = either(skewed, x[0]) + either(normal, x[1])
        return total + skewed(PLACE, x[2:k]).sum() + normal(PLACE, x[k:]).sum()

    def variables() -> None:
        x = pm.Uniform("x", -LOG_GAMMA_BOX, LOG_GAMMA_BOX, shape=d)
        pm.CustomDist("likelihood", x, logp=log_density, signature="(d)->()", observed=0.0)

    return EvidenceProblem(
        name=f"log_gamma_{d}", variables=variables, log_evidence=log_gamma_log_evidence(d), n_dim=d,
        easy=False, prior_transform=lambda u: LOG_GAMMA_BOX * (2.0 * u - 1.0), log_likelihood=log_gamma_log_likelihood,
    )  # fmt: skip


# --- unequal modes ----------------------------------------------------------------------------------

MODES_BOX = np.float64(10.0)


def modes_log_evidence(d: int, centre: float, sds: Sequence[float]) -> float:
    """Return log Z in closed form, corrected for the mass outside the box."""
    inside = []
    for sd in sds:
        beyond = np.exp(log_ndtr(-(MODES_BOX - centre) / sd)) + np.exp(
            log_ndtr(-(MODES_BOX + centre) / sd)
        )
        inside.append(d * math.log1p(-beyond))
    return float(logsumexp(inside)) - math.log(len(sds)) - d * math.log(2.0 * MODES_BOX)


def unequal_modes() -> EvidenceProblem:
    """Build the problem in five dimensions: a uniform prior, and the likelihood as a potential."""
    d, (centre, wide, narrow) = 5, np.array([4.0, 1.0, 0.2])
    constants = [-d * (math.log(s) + 0.5 * LOG_2PI) - math.log(2.0) for s in (wide, narrow)]

    def variables() -> None:
        x = pm.Uniform("x", -MODES_BOX, MODES_BOX, shape=d)
        first = constants[0] - 0.5 * pt.sqr((x + centre) / wide).sum()
        second = constants[1] - 0.5 * pt.sqr((x - centre) / narrow).sum()
        pm.Potential("modes", pt.logaddexp(first, second))

    def log_likelihood(x: np.ndarray) -> float:
        first = constants[0] - 0.5 * np.square((x + centre) / wide).sum()
        second = constants[1] - 0.5 * np.square((x - centre) / narrow).sum()
        return float(np.logaddexp(first, second))

    return EvidenceProblem(
        name=f"unequal_modes_{d}", variables=variables,
        log_evidence=modes_log_evidence(d, centre, (wide, narrow)), n_dim=d, easy=False,
        prior_transform=lambda u: MODES_BOX * (2.0 * u - 1.0), log_likelihood=log_likelihood,
    )  # fmt: skip


# --- correlated gaussian ----------------------------------------------------------------------------


def correlated_gaussian(d: int = 10, *, rho: float = 0.95) -> EvidenceProblem:
    """Build the problem of a uniform prior and one multivariate normal measurement.

    Parameters
    ----------
    d : int
        Number of coordinates.
    rho : float
        Correlation of any two coordinates, at least 0 and below 1.
    """
    box = np.float64(10.0)  # half width W
    y, C = np.linspace(-2.0, 1.0, d), np.where(np.eye(d, dtype=bool), 1.0, rho)
    precision = np.linalg.inv(C)
    constant = -0.5 * (d * math.log(2.0 * math.pi) + np.linalg.slogdet(C)[1])

    def variables() -> None:
        x = pm.Uniform("x", -box, box, shape=d)
        pm.MvNormal("y", x, cov=C, observed=y)

    def log_likelihood(x: np.ndarray) -> float:
        residuals = y - x
        return float(constant - 0.5 * residuals @ precision @ residuals)

    return EvidenceProblem(
        name=f"correlated_gaussian_{d}", variables=variables, log_evidence=-d * math.log(2.0 * box),
        n_dim=d, easy=True, prior_transform=lambda u: box * (2.0 * u - 1.0),
        log_likelihood=log_likelihood,
    )  # fmt: skip


# --- rosenbrock pairs -------------------------------------------------------------------------------

ALONG = np.float64(5.0)
LOW, HIGH = np.float64(-5.0), np.float64(25.0)
SPREAD = np.float64(1.5)
STEEPNESS = np.float64(10.0)


def log_pair(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log likelihood of pairs."""
    return -0.5 * np.square((1.0 - x) / SPREAD) - STEEPNESS * np.square(y - np.square(x))


def rosenbrock_log_evidence(n_pairs: int) -> float:
    """Return log Z by quadrature over x; the integral over y gives normal probabilities."""
    root = math.sqrt(2.0 * STEEPNESS)

    def along(x: float) -> float:
        inside = ndtr(root * (HIGH - x * x)) - ndtr(root * (LOW - x * x))
        return math.exp(-0.5 * ((1.0 - x) / SPREAD) ** 2) * inside

    area = quad(along, -ALONG, ALONG, epsabs=0.0, epsrel=1e-12, limit=500)[0]
    area *= math.sqrt(math.pi / STEEPNESS) / (2.0 * ALONG * (HIGH - LOW))
    return n_pairs * math.log(area)


def rosenbrock_pairs() -> EvidenceProblem:
    """Build the problem of five pairs, first coordinates ``x``, second ``y``, and the likelihood as a potential."""
    n_pairs = 5

    def variables() -> None:
        x = pm.Uniform("x", -ALONG, ALONG, shape=n_pairs)
        y = pm.Uniform("y", LOW, HIGH, shape=n_pairs)
        across = STEEPNESS * pt.sqr(y - pt.sqr(x)).sum()
        pm.Potential("valleys", -0.5 * pt.sqr((1.0 - x) / SPREAD).sum() - across)

    def prior_transform(u: np.ndarray) -> np.ndarray:
        x, y = u[:n_pairs], u[n_pairs:]
        return np.concatenate([ALONG * (2.0 * x - 1.0), LOW + (HIGH - LOW) * y])

    def log_likelihood(parameters: np.ndarray) -> float:
        return float(log_pair(parameters[:n_pairs], parameters[n_pairs:]).sum())

    return EvidenceProblem(
        name=f"rosenbrock_pairs_{n_pairs}", variables=variables, log_evidence=rosenbrock_log_evidence(n_pairs),
        source="one-dimensional quadrature", n_dim=2 * n_pairs, easy=False,
        prior_transform=prior_transform, log_likelihood=log_likelihood,
    )  # fmt: skip
