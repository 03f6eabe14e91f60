r"""Spike inside a slab: annealing finds the slab but not the spike, which has a hundred times its evidence.

.. math:: x \sim U[-\tfrac12, \tfrac12]^d, \qquad
          L(x) = N(x; 0, u^2 I) + w\, N(x; c, v^2 I), \qquad
          Z = m(0, u) + w\, m(c, v)

with u = 0.1, v = 0.01, c = (0.031, ..., 0.031), w = 100 and d = 20; m is the mass inside the
box, and Z is 101 up to a part in ten million. The tempered posteriors go through a phase transition of
first order: at temperature one the spike has nearly all the mass, in a volume too small to be found
from the slab. Brewer, Partay & Csanyi (2011), *Diffusive nested sampling*, Statistics and Computing
21, 649-656 (doi:10.1007/s11222-010-9198-8), after Skilling (2006), Bayesian Analysis 1, 833-859
(doi:10.1214/06-BA127).
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import ndtr

from models.evidence_problem import EvidenceProblem


def log_mass(mean: float, sd: float) -> float:
    """Return the log probability that a N(mean, sd^2) variable lies in [-1/2, 1/2]."""
    return math.log1p(-float(ndtr((-0.5 - mean) / sd) + ndtr((mean - 0.5) / sd)))


def log_evidence(d: int, slab: float, spike: float, shift: float, weight: float) -> float:
    """Return log Z, corrected for the mass outside the box."""
    return float(
        np.logaddexp(d * log_mass(0.0, slab), math.log(weight) + d * log_mass(shift, spike))
    )


def spike_and_slab(
    d: int = 20, *, slab: float = 0.1, spike: float = 0.01, shift: float = 0.031,
    weight: float = 100.0,
) -> EvidenceProblem:  # fmt: skip
    """Build the problem: a uniform prior, and the likelihood as a potential.

    Parameters
    ----------
    d : int
        Number of coordinates.
    slab, spike : float
        Standard deviations u and v.
    shift : float
        Mean of the spike in every coordinate.
    weight : float
        Evidence w of the spike relative to the slab.
    """
    slab, spike, shift = np.float64(slab), np.float64(spike), np.float64(shift)
    log_weight = math.log(weight)
    constant = -0.5 * d * math.log(2.0 * math.pi)

    def variables() -> None:
        x = pm.Uniform("x", -0.5, 0.5, shape=d)
        broad = pm.logp(pm.Normal.dist(0.0, slab), x).sum()
        narrow = pm.logp(pm.Normal.dist(shift, spike), x).sum()
        pm.Potential("likelihood", pt.logaddexp(broad, log_weight + narrow))

    def log_likelihood(x: np.ndarray) -> float:
        broad = constant - d * math.log(slab) - 0.5 * np.square(x / slab).sum()
        narrow = constant - d * math.log(spike) - 0.5 * np.square((x - shift) / spike).sum()
        return float(np.logaddexp(broad, log_weight + narrow))

    return EvidenceProblem(
        name=f"spike_and_slab_{d}", variables=variables,
        log_evidence=log_evidence(d, slab, spike, shift, weight), n_dim=d, easy=False,
        prior_transform=lambda u: u - 0.5, log_likelihood=log_likelihood,
    )  # fmt: skip
