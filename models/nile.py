r"""Flow of the Nile at Aswan, 1871-1970: a level that follows a random walk.

.. math:: \sigma \sim N^+(0, 2^2), \quad \tau \sim N^+(0, 1), \quad l_1 \sim N(0, 10^2), \quad
          l_{t+1} = l_t + \tau \epsilon_t, \quad y_t \sim N(l_t, \sigma^2)

in units of 100 million cubic metres, less 900. The level is a variable for every year, not centred, or is
integrated out; the evidence is the same, from the Kalman filter and quadrature over sigma and tau. Data from
Cobb (1978), *The problem of the Nile*, Biometrika 65, 243-251, and Durbin & Koopman (2012).
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from models.evidence_problem import EvidenceProblem
from models.normal_scores import LOG_2PI, NormalScores, grid_evidence, half_normal, scored_problem
from models.student_importance import Reference

FLOW = np.array([
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960, 1180,
    799, 958, 1140, 1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940, 833,
    701, 916, 692, 1020, 1050, 969, 831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768, 845,
    864, 862, 698, 845, 744, 796, 1040, 759, 781, 865, 845, 944, 984, 897, 822, 1010, 771, 676, 649,
    846, 812, 742, 801, 1040, 860, 874, 848, 890, 744, 749, 838, 1050, 918, 986, 797, 923, 975, 815,
    1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
])  # fmt: skip
NOISE, WALK, START = np.float64(2.0), np.float64(1.0), np.float64(10.0)
FROZEN = Reference(-183.593889, 1e-06)


def series() -> np.ndarray:
    """Return the outcomes (100,)."""
    return (FLOW - 900.0) / 100.0


def scales(z: np.ndarray) -> np.ndarray:
    """Return sigma and tau (n, 2) from normal scores."""
    return np.column_stack([half_normal(z[:, 0], NOISE), half_normal(z[:, 1], WALK)])


def kalman(theta: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log density (n,) of a series for sigma and tau (n, 2), with the level integrated out."""
    noise, walk = np.square(theta).T
    level, variance = np.zeros(len(theta)), np.full(len(theta), START**2)
    total = np.zeros(len(theta))
    for value in y:
        spread = variance + noise
        off = value - level
        total -= 0.5 * (LOG_2PI + np.log(spread) + np.square(off) / spread)
        gain = variance / spread
        level = level + gain * off
        variance = variance * (1.0 - gain) + walk
    return total


def marginal_scores() -> NormalScores:
    """Return prior and likelihood of sigma and tau."""
    y = series()
    return NormalScores(2, scales, lambda theta: kalman(theta, y))


def reference() -> Reference:
    """Return log Z, computed again."""
    return grid_evidence(marginal_scores(), step=0.125)


def nile() -> EvidenceProblem:
    """Build the problem with a hundred levels, in 102 dimensions."""
    y = series()

    def variables() -> None:
        sigma = pm.HalfNormal("sigma", NOISE)
        tau = pm.HalfNormal("tau", WALK)
        start = pm.Normal("start", 0.0, START)
        steps = pm.Normal("steps", 0.0, 1.0, shape=y.size - 1)
        walk = pt.concatenate([pt.zeros(1), pt.cumsum(tau * steps)])
        pm.Normal("y", start + walk, sigma, observed=y)

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([scales(z[:, :2]), START * z[:, 2], z[:, 3:]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        walk = np.cumsum(theta[:, 1:2] * theta[:, 3:], axis=1)
        levels = theta[:, 2:3] + np.column_stack([np.zeros(len(theta)), walk])
        squares = np.square((y - levels) / theta[:, :1]).sum(axis=1)
        return -0.5 * (squares + y.size * LOG_2PI) - y.size * np.log(theta[:, 0])

    scores = NormalScores(y.size + 2, parameters, log_likelihood)
    source = "Kalman filter, two-dimensional quadrature"
    return scored_problem("nile", variables, scores, FROZEN, source)


def nile_marginal() -> EvidenceProblem:
    """Build the problem with the level integrated out: a multivariate normal series, in two dimensions."""
    y = series()
    times = np.arange(y.size)
    together = np.minimum(times[:, None], times).astype(float)

    def variables() -> None:
        sigma = pm.HalfNormal("sigma", NOISE)
        tau = pm.HalfNormal("tau", WALK)
        spread = START**2 + pt.sqr(tau) * together + pt.sqr(sigma) * np.eye(y.size)
        pm.MvNormal("y", np.zeros(y.size), cov=spread, observed=y)

    source = "Kalman filter, two-dimensional quadrature"
    return scored_problem("nile_marginal", variables, marginal_scores(), FROZEN, source)
