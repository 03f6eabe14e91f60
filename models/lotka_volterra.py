r"""Predators and prey as a Markov jump process.

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
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from amc_pymc.engine.jit import njit
from amc_pymc.rng import as_generator
from models.simulator_example import SimulatorExample, noise_scale

START = (100, 50)
DURATION, STEP = 30.0, 0.2
TRUTH = np.array([0.7, 0.01, 0.005, 0.4])
LOWEST = 1e-3
SUMMARIES = (
    "mean prey", "mean predators", "log variance prey", "log variance predators",
    "autocorrelation prey 1", "autocorrelation prey 2", "autocorrelation predators 1",
    "autocorrelation predators 2", "cross-correlation",
)  # fmt: skip

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
    rng: np.random.Generator, rates: np.ndarray, *, start: tuple[int, int] = START,
    duration: float = DURATION, n_times: int = 151, max_events: int = 10_000,
) -> np.ndarray:  # fmt: skip
    """Simulate numbers (n, n_times, 2) of prey and predators for rates (n, 4); NaN for runs that are too long."""
    out = np.full((len(rates), n_times, 2), np.nan)
    for i, row in enumerate(rates):
        if gillespie(rng, row, *start, duration, n_times, max_events, out[i]) < 0:
            out[i] = np.nan
    return out


# --- the example --------------------------------------------------------------------------------


def lotka_volterra(
    *, prior: str = "log", truth=TRUTH, data_seed: int = 1, epsilon: float = 4.0,
    max_events: int = 10_000,
) -> SimulatorExample:  # fmt: skip
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
        name="lotka_volterra" if log else "lotka_volterra_unit", prior=prior, simulate=simulate,
        cube=cube, observed=observed, scale=scale, epsilon=epsilon, shapes=dict.fromkeys(names, ()),
        truth=theta,
    )  # fmt: skip
