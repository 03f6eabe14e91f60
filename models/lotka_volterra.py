r"""Predators and prey as a Markov jump process, and the pelts of the Hudson's Bay Company.

One of x prey and y predators is born or dies at a time, at the rates

.. math:: x \to x + 1 : \theta_1 x, \qquad x \to x - 1 : \theta_2 x y, \qquad
          y \to y + 1 : \theta_3 x y, \qquad y \to y - 1 : \theta_4 y

O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*, appendix C.2, figure 12. Their
parameters lie in [0, 1]^4. They do not give the initial populations, the duration, the recording times,
the summaries or the true parameters. All of these
follow Papamakarios & Murray (2016), *Fast epsilon-free inference of simulation models with
Bayesian conditional density estimation* (arXiv:1605.06376), after Wilkinson (2011), *Stochastic
modelling for systems biology*: 100 prey and 50 predators, numbers recorded every 0.2 units of time
until 30, and nine summaries, see :func:`summarise`. Their true prey birth rate lies at the edge of
the prior of O'Hagan et al.; the one here does not.

In most of [0, 1]^4 predation exceeds 0.1 and the prey die within a few units of time. Therefore the
default prior is uniform for the logarithms of the rates, over :math:`[\log 0.001, \log 1]^4`;
``prior="unit"`` is the paper's. If predators die out, prey multiply without limit: a run of more
than `max_events` events gives NaN.

:func:`hudson_bay` uses real data: pelts of snowshoe hares and Canadian lynxes, in thousands,
1900-1920, in the table of Howard (2009), *Modeling basics*, from Odum (1953), *Fundamentals of
Ecology*, which Carpenter (2018), *Predator-prey population dynamics: the Lotka-Volterra model in
Stan*, fits by differential equations. Its posterior means for the four rates there are 0.55,
0.028, 0.024 and 0.80.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from scipy.special import ndtri

from amc_pymc.engine.jit import njit
from amc_pymc.rng import as_generator
from models.simulator_example import SimulatorExample, noise_scale

START = (100, 50)
DURATION, STEP = 30.0, 0.2
TRUTH = np.array([0.7, 0.01, 0.005, 0.4])
LOWEST = 1e-3
SUMMARIES = (
    "mean prey",
    "mean predators",
    "log variance prey",
    "log variance predators",
    "autocorrelation prey 1",
    "autocorrelation prey 2",
    "autocorrelation predators 1",
    "autocorrelation predators 2",
    "cross-correlation",
)

YEARS = np.arange(1900, 1921)
HARES = np.array([
    30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1,
    40.3, 57.0, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7,
])  # fmt: skip
LYNXES = np.array([
    4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4,
    8.0, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6,
])  # fmt: skip
RATE_NAMES = ("hare_birth", "predation", "lynx_growth", "lynx_death")
RATE_MEDIANS = np.array([0.7, 0.03, 0.03, 0.7])
RATE_LOG_SD = 0.5


# --- the process ---------------------------------------------------------------------------------


@njit(cache=True)
def gillespie(rng, rates, prey, predators, duration, n_times, max_events, out):
    """Simulate the process; numbers (n_times, 2) are written to `out`, beginning with the start.

    Returns the number of events, or -1 if there were more than `max_events` or a rate is not a
    number or negative.
    """
    for rate in rates:
        if not (0.0 <= rate < np.inf):
            return -1
    x, y = prey, predators
    step = duration / (n_times - 1)
    time, row = 0.0, 0
    for event in range(max_events + 1):
        birth = rates[0] * x
        death = rates[1] * x * y
        growth = rates[2] * x * y
        decline = rates[3] * y
        total = birth + death + growth + decline
        time = np.inf if total == 0.0 else time + rng.standard_exponential() / total
        while row < n_times and row * step <= time:
            out[row, 0] = x
            out[row, 1] = y
            row += 1
        if row == n_times:
            return event
        u = rng.random() * total
        if u < birth:
            x += 1
        elif u < birth + death:
            x -= 1
        elif u < birth + death + growth:
            y += 1
        else:
            y -= 1
    return -1


@njit(cache=True)
def summarise(path, out):
    """Compute nine summaries of numbers (n_times, 2): see ``SUMMARIES``.

    The variance is increased by one before taking its logarithm, and correlations with a constant are 0.
    """
    n = path.shape[0]
    mean = np.zeros(2)
    for t in range(n):
        mean[0] += path[t, 0] / n
        mean[1] += path[t, 1] / n
    lag0, lag1, lag2, cross = np.zeros(2), np.zeros(2), np.zeros(2), 0.0
    for t in range(n):
        for k in range(2):
            here = path[t, k] - mean[k]
            lag0[k] += here * here
            if t >= 1:
                lag1[k] += here * (path[t - 1, k] - mean[k])
            if t >= 2:
                lag2[k] += here * (path[t - 2, k] - mean[k])
        cross += (path[t, 0] - mean[0]) * (path[t, 1] - mean[1])
    for k in range(2):
        out[k] = mean[k]
        out[2 + k] = math.log1p(lag0[k] / n)
        varies = lag0[k] > 1e-9
        out[4 + 2 * k] = lag1[k] / lag0[k] if varies else 0.0
        out[5 + 2 * k] = lag2[k] / lag0[k] if varies else 0.0
    varies = lag0[0] > 1e-9 and lag0[1] > 1e-9
    out[8] = cross / math.sqrt(lag0[0] * lag0[1]) if varies else 0.0


@njit(cache=True)
def summaries_of_runs(rng, rates, prey, predators, duration, n_times, max_events):
    out = np.full((rates.shape[0], 9), np.nan)
    path = np.empty((n_times, 2))
    for i in range(rates.shape[0]):
        if gillespie(rng, rates[i], prey, predators, duration, n_times, max_events, path) >= 0:
            summarise(path, out[i])
    return out


def paths(
    rng: np.random.Generator,
    rates: np.ndarray,
    *,
    start: tuple[int, int] = START,
    duration: float = DURATION,
    n_times: int = 151,
    max_events: int = 10_000,
) -> np.ndarray:
    """Simulate numbers (n, n_times, 2) of prey and predators for rates (n, 4); NaN for runs that are too long."""
    out = np.full((len(rates), n_times, 2), np.nan)
    for i, row in enumerate(rates):
        if gillespie(rng, row, *start, duration, n_times, max_events, out[i]) < 0:
            out[i] = np.nan
    return out


@njit(cache=True)
def leaps(rng, rates, hares, lynxes, n_years, per_year, animals, noise):
    """Simulate pelts (n, n_years, 2) by leaps of equal length; NaN if more than 10^5 thousands are alive.

    Rates (n, 4) are for numbers in thousands; a thousand corresponds to `animals` individuals of the process.
    """
    out = np.full((rates.shape[0], n_years, 2), np.nan)
    tau = 1.0 / per_year
    limit = 1e5 * animals
    for i in range(rates.shape[0]):
        valid = True
        for rate in rates[i]:
            valid &= 0.0 <= rate < np.inf
        x, y = hares * animals, lynxes * animals
        for year in range(n_years):
            for _ in range(per_year):
                valid &= x + y < limit
                if not valid:
                    break
                meetings = x * y / animals
                births = rng.poisson(min(rates[i, 0] * x * tau, limit))
                deaths = rng.poisson(min(rates[i, 1] * meetings * tau, limit))
                grown = rng.poisson(min(rates[i, 2] * meetings * tau, limit))
                lost = rng.poisson(min(rates[i, 3] * y * tau, limit))
                x = max(x + births - deaths, 0.0)
                y = max(y + grown - lost, 0.0)
            if not valid:
                break
            out[i, year, 0] = max(x, 0.5) / animals * math.exp(noise * rng.standard_normal())
            out[i, year, 1] = max(y, 0.5) / animals * math.exp(noise * rng.standard_normal())
    return out


# --- the examples --------------------------------------------------------------------------------


def lotka_volterra(
    *,
    prior: str = "log",
    truth=TRUTH,
    data_seed: int = 1,
    epsilon: float = 4.0,
    max_events: int = 10_000,
) -> SimulatorExample:
    """Build the example: rates of the jump process from nine summaries of one run.

    Parameters
    ----------
    prior : {"log", "unit"}
        Logarithms of the rates uniform on [log 0.001, 0], or rates uniform on [0, 1].
    truth : sequence of 4 floats
        Rates of the simulated data.
    data_seed : int
        Seed of that simulation.
    epsilon : float
        Tolerance of the Euclidean distance between summaries, each divided by its standard
        deviation at the true rates.
    max_events : int
        Maximum number of events; longer runs give NaN.

    Raises
    ------
    ValueError
        If `prior` is unknown, a rate is not positive, or the simulation of the data was too long.
    """
    truth = np.array(truth, float)
    n_times = round(DURATION / STEP) + 1
    log = prior == "log"

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        rates = np.exp(theta) if log else theta
        return summaries_of_runs(rng, rates, *START, DURATION, n_times, max_events)

    def cube(u: np.ndarray) -> np.ndarray:
        return math.log(LOWEST) * (1.0 - u) if log else u.copy()

    theta = np.log(truth) if log else truth
    observed = simulate(as_generator(data_seed), theta[None])[0]
    scale = noise_scale(simulate, theta, 1000)
    names = [f"log_theta{i}" if log else f"theta{i}" for i in range(1, 5)]

    def prior() -> list:
        lower, upper = (math.log(LOWEST), 0.0) if log else (0.0, 1.0)
        return [pm.Uniform(name, lower, upper) for name in names]

    return SimulatorExample(
        name="lotka_volterra" if log else "lotka_volterra_unit",
        prior=prior,
        simulate=simulate,
        cube=cube,
        observed=observed,
        scale=scale,
        epsilon=epsilon,
        shapes=dict.fromkeys(names, ()),
        truth=theta,
    )


def hudson_bay(
    *, epsilon: float = 0.45, noise: float = 0.2, animals: int = 10, per_year: int = 20
) -> SimulatorExample:
    """Build the example: rates of the process from the pelts of 1901-1920, given those of 1900.

    The process is simulated by leaps in time (Gillespie 2001, doi:10.1063/1.1378322), in which
    numbers of births and deaths are Poisson; a number that falls below zero is set to zero, and
    counts as half an animal in the logarithms. Rates have log-normal priors with medians 0.7 for
    births of hares and deaths of lynxes and 0.03 for the two rates of encounters, and standard
    deviation 0.5 of the logarithms. Each year and species is a summary: the distance is the root
    mean square of the differences of logarithms.

    Parameters
    ----------
    epsilon : float
        Tolerance of that distance.
    noise : float
        Standard deviation of the logarithms of pelts given the numbers of animals.
    animals : int
        Individuals of the process per thousand pelts: the more, the smaller the fluctuations.
        The true number is not known, because trappers do not catch every animal.
    per_year : int
        Number of leaps per year.
    """
    observed = np.log(np.column_stack([HARES, LYNXES])[1:]).ravel()
    scale = np.full(observed.size, math.sqrt(observed.size))

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        rates = theta
        n_years = len(YEARS) - 1
        pelts = leaps(rng, rates, HARES[0], LYNXES[0], n_years, per_year, animals, noise)
        return np.log(pelts).reshape(len(rates), observed.size)

    def prior() -> list:
        return [
            pm.LogNormal(name, np.log(median), RATE_LOG_SD)
            for name, median in zip(RATE_NAMES, RATE_MEDIANS, strict=True)
        ]

    return SimulatorExample(
        name="hudson_bay",
        prior=prior,
        simulate=simulate,
        cube=lambda u: RATE_MEDIANS * np.exp(RATE_LOG_SD * ndtri(u)),
        observed=observed,
        scale=scale,
        epsilon=epsilon,
        shapes=dict.fromkeys(RATE_NAMES, ()),
    )
