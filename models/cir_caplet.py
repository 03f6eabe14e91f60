r"""A caplet under the Cox-Ingersoll-Ross interest rate, priced by importance sampling.

Section 6.2 and appendix F of Neufeld et al. (2014), *Adaptive Monte Carlo via Bandit Allocation*,
ICML, PMLR 32(2):1944-1952, after Douc, Guillin, Marin & Robert (2007), ESAIM: Probability and
Statistics 11, 427-447 (doi:10.1051/ps:2007028). The rate and the price are

.. math:: dr = (\eta - \kappa r)\,dt + \sigma \sqrt{r}\,dW, \qquad
          P = E\left[e^{-\int_0^T r\,dt}\, M \max(r(T) - K, 0)\right] .

With n steps of Euler's scheme, :math:`h = T/n`,

.. math:: r_t = r_{t-1} + (\eta - \kappa r_{t-1}) h + \sigma \sqrt{r_{t-1} h}\, \varepsilon_t,
          \qquad \int_0^T r\,dt \approx h \left[\tfrac{r_0 + r_n}{2}
          + \textstyle\sum_{t=1}^{n-1} r_t\right] .

Exponential twisting draws :math:`\varepsilon_t \sim N(\theta/\sqrt n, 1)` instead of N(0, 1). With
:math:`z = \sum_t \varepsilon_t / \sqrt n`, which is N(theta, 1), the weight is
:math:`w = \exp(-\theta z + \theta^2 / 2)`, and :math:`w P` is unbiased for every theta: sixteen arms
:math:`\theta_k = k/10`.

Differences from appendix F as printed: there, the noise lacks the root of T/n, the weight lacks theta, and the
trapezoid counts the last rate one and a half times and the first not at all. In section 6.2, eta is called nu.
The paper adds theta to *every* step, which shifts z by :math:`\sqrt n\,\theta` and makes the
relative variance of weights :math:`e^{n \theta^2} - 1`: from theta = 0.5 on, no feasible number of paths
shows the mean.
"""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from scipy.stats import ncx2

from amc_pymc.engine.jit import njit

THETAS = tuple(k / 10 for k in range(16))
STRIKES = (0.06, 0.07, 0.08)
Adapt = Literal["payoff", "weight"]
_BLOCK = 64


class Paths(NamedTuple):
    """Simulated paths.

    Attributes
    ----------
    rate : array (n,)
        r(T).
    discount : array (n,)
        Exponential of minus the integral of the rate.
    z : array (n,)
        Sum of the noise over the root of the number of steps.
    """

    rate: np.ndarray
    discount: np.ndarray
    z: np.ndarray


@njit(cache=True)
def euler(shift, eta, kappa, sigma, r0, step, n_steps, rng):
    """Return rates, discount factors and noise of paths; shift[i] is added to each noise term of path i."""
    n = shift.size
    rate, discount, z = np.empty(n), np.empty(n), np.empty(n)
    noise, r, total, summed, drift = (
        np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    )  # fmt: skip
    root = sigma * math.sqrt(step)
    keep = 1.0 - kappa * step
    for start in range(0, n, _BLOCK):
        size = min(_BLOCK, n - start)
        for j in range(size):
            r[j], total[j], summed[j], drift[j] = r0, 0.5 * r0, 0.0, shift[start + j]
        for _ in range(n_steps):
            for j in range(size):
                noise[j] = rng.standard_normal()
            for j in range(size):
                e = noise[j] + drift[j]
                summed[j] += e
                r[j] = eta * step + keep * r[j] + root * math.sqrt(max(r[j], 0.0)) * e
                total[j] += r[j]
        for j in range(size):
            rate[start + j] = r[j]
            discount[start + j] = math.exp(-step * (total[j] - 0.5 * r[j]))
            z[start + j] = summed[j] / math.sqrt(n_steps)
    return rate, discount, z


@dataclass(frozen=True)
class Caplet:
    """Caplet under the Cox-Ingersoll-Ross model: process, contract and discretisation.

    Parameters
    ----------
    strike : float, default 0.07
        K.
    eta, kappa, sigma, r0 : float
        Parameters of the process; its rate reverts to eta / kappa.
    maturity : float
        T.
    nominal : float
        M.
    steps : int
        Number of steps n. A negative rate counts as zero under the root; this does not happen at
        the paper's parameters.

    Examples
    --------
    >>> import numpy as np
    >>> caplet = Caplet(0.08)
    >>> values = caplet.arm(1.0).sample(10_000, np.random.default_rng(1))
    >>> bool(abs(values.mean() - caplet.price()) < 0.05), round(caplet.price(), 3)
    (True, 1.885)
    """

    strike: float = 0.07
    eta: float = 0.016
    kappa: float = 0.2
    sigma: float = 0.02
    r0: float = 0.08
    maturity: float = 1.0
    nominal: float = 1000.0
    steps: int = 100

    def simulate(self, tilts: np.ndarray, rng: np.random.Generator) -> Paths:
        """Simulate paths whose z is N(tilts[i], 1), one for every element of `tilts` (n,)."""
        shift = np.ascontiguousarray(tilts, float) / math.sqrt(self.steps)
        step = self.maturity / self.steps
        return Paths(
            *euler(shift, self.eta, self.kappa, self.sigma, self.r0, step, self.steps, rng)
        )

    def payoff(self, paths: Paths, strike: float | None = None) -> np.ndarray:
        """Return discounted payoffs (n,), by default at the caplet's own strike."""
        level = self.strike if strike is None else strike
        return self.nominal * paths.discount * np.maximum(paths.rate - level, 0.0)

    def arm(self, theta: float) -> TwistedCaplet:
        """Return the estimator with drift `theta`."""
        return TwistedCaplet(self, float(theta))

    def arms(self) -> tuple[TwistedCaplet, ...]:
        """Return the estimators with all drifts."""
        return tuple(self.arm(theta) for theta in THETAS)

    def price(self) -> float:
        r"""Return the price in continuous time, to which Euler's scheme adds O(1/n).

        Under the forward measure, the discount factor becomes the bond price, and
        :math:`q\,r(T)` is noncentral chi-square (Brigo & Mercurio 2006, section 3.2.3,
        doi:10.1007/978-3-540-34604-3).
        """
        h = math.sqrt(self.kappa**2 + 2.0 * self.sigma**2)
        grown = math.expm1(h * self.maturity)
        below = 2.0 * h + (self.kappa + h) * grown
        log_a = (2.0 * self.eta / self.sigma**2) * (
            math.log(2.0 * h / below) + (self.kappa + h) * self.maturity / 2.0
        )
        bond = math.exp(log_a - 2.0 * grown / below * self.r0)
        rho = 2.0 * h / (self.sigma**2 * grown)
        q = 2.0 * (rho + (self.kappa + h) / self.sigma**2)
        df = 4.0 * self.eta / self.sigma**2
        shift = 4.0 * rho**2 * self.r0 * math.exp(h * self.maturity) / q
        x = q * self.strike
        above = df * ncx2.sf(x, df + 2.0, shift) + shift * ncx2.sf(x, df + 4.0, shift)
        return float(self.nominal * bond * (above / q - self.strike * ncx2.sf(x, df, shift)))


@dataclass(frozen=True)
class TwistedCaplet:
    """Estimator with one drift: call it with a generator for one value, or draw n values at once."""

    caplet: Caplet
    theta: float

    def __call__(self, rng: np.random.Generator) -> float:
        """Draw one weighted payoff."""
        return float(self.sample(1, rng)[0])

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw independent weighted payoffs (n,)."""
        paths = self.caplet.simulate(np.full(n, self.theta), rng)
        return weights(paths.z, self.theta) * self.caplet.payoff(paths)


def weights(z: np.ndarray, theta: float) -> np.ndarray:
    """Return the density of N(0, 1) over that of N(theta, 1), at z."""
    return np.exp(-theta * z + 0.5 * theta**2)


class Population(NamedTuple):
    """Population of :func:`population_monte_carlo`.

    Attributes
    ----------
    alpha : array (K,)
        Mixture weights from which it was drawn.
    drawn : array (K,)
        Number of paths from each drift.
    values : array (G,)
        Payoffs times weights; each is unbiased given the earlier populations.
    """

    alpha: np.ndarray
    drawn: np.ndarray
    values: np.ndarray


def mixture_weights(z: np.ndarray, tilts: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Return the density of N(0, 1) over that of the mixture of N(tilts[k], 1), at z (n,)."""
    used = alpha > 0.0
    exponents = np.outer(z, tilts[used]) - 0.5 * tilts[used] ** 2
    return 1.0 / (np.exp(exponents) @ alpha[used])


def population_monte_carlo(
    caplet: Caplet, populations: int, *, size: int, rng: np.random.Generator,
    adapt: Adapt = "payoff",
) -> list[Population]:  # fmt: skip
    r"""Run D-kernel Population Monte Carlo over the drifts.

    Each path draws its drift from the mixture :math:`\alpha` and is weighted relative to the *mixture*,
    as in Douc et al. (2007), so its value is unbiased for any :math:`\alpha`. Then
    :math:`\alpha_k` becomes proportional to the sum of the values u of the paths with drift k,

    .. math:: \alpha_k \propto \sum_{t=1}^{G} u_t\, 1\{I_t = k\} .

    Parameters
    ----------
    caplet : Caplet
    populations : int
    size : int
        G.
    rng : numpy.random.Generator
    adapt : {"payoff", "weight"}
        Definition of u. "payoff": weight times payoff, the importance weight towards the density under which
        the price has no variance. "weight": the weight alone, a possible reading of the formula of
        Neufeld et al.; alpha then converges to the arm without drift, for any payoff. A drift that is missing from
        one population is never drawn again.

    Returns
    -------
    list of Population

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> done = population_monte_carlo(Caplet(0.08), 10, size=1000, rng=rng)
    >>> round(float(np.mean([p.values.mean() for p in done])), 1)
    1.9
    """
    tilts = np.array(THETAS)
    n_arms = tilts.size
    alpha = np.full(n_arms, 1.0 / n_arms)
    done = []
    for _ in range(populations):
        arms = rng.choice(n_arms, size, p=alpha)
        paths = caplet.simulate(tilts[arms], rng)
        weight = mixture_weights(paths.z, tilts, alpha)
        values = weight * caplet.payoff(paths)
        done.append(Population(alpha, np.bincount(arms, minlength=n_arms), values))
        u = weight if adapt == "weight" else values
        sums = np.bincount(arms, u, minlength=n_arms)
        if sums.sum() > 0.0:
            alpha = sums / sums.sum()
            alpha /= alpha.sum()
    return done
