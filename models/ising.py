r"""Small Ising model: only discrete variables, and few enough states for enumeration.

.. math:: s_i \in \{-1, 1\} \text{ with equal chances}, \qquad
          \log L(s) = J \sum_{i \sim j} s_i s_j + h \sum_i s_i, \qquad
          Z = 2^{-n} \sum_s L(s)

on a grid of r rows and c columns with free edges. Transfer matrices, one row at a time, give the same sum.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import logsumexp

from models.evidence_problem import EvidenceProblem


def all_spins(n: int) -> np.ndarray:
    """Return all 2^n vectors of n spins, (2^n, n)."""
    return 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1) - 1.0


def log_likelihood(spins: np.ndarray, coupling: float, field: float) -> np.ndarray:
    """Return the log of L of grids of spins (..., r, c)."""
    pairs = (spins[..., 1:, :] * spins[..., :-1, :]).sum(axis=(-2, -1))
    pairs += (spins[..., 1:] * spins[..., :-1]).sum(axis=(-2, -1))
    return coupling * pairs + field * spins.sum(axis=(-2, -1))


def log_evidence(rows: int, columns: int, coupling: float, field: float) -> float:
    """Return log Z by enumeration."""
    n = rows * columns
    spins = all_spins(n).reshape(-1, rows, columns)
    return float(logsumexp(log_likelihood(spins, coupling, field)) - n * math.log(2.0))


def ising(
    rows: int = 4, columns: int = 4, *, coupling: float = 0.3, field: float = 0.1
) -> EvidenceProblem:
    """Build the problem with spins as Bernoulli variables and their energy as a potential.

    Parameters
    ----------
    rows, columns : int
        Size of the grid, at most 20 spins in total.
    coupling, field : float
        J and h. With the defaults the interaction is weak enough for one mode.
    """
    n = rows * columns

    def variables() -> None:
        up = pm.Bernoulli("up", np.float64(0.5), shape=(rows, columns))
        s = 2 * up - 1
        pairs = pt.sum(s[1:, :] * s[:-1, :]) + pt.sum(s[:, 1:] * s[:, :-1])
        pm.Potential("energy", coupling * pairs + field * pt.sum(s))

    return EvidenceProblem(
        name="ising", variables=variables,
        log_evidence=log_evidence(rows, columns, coupling, field), source="enumeration", n_dim=n,
        easy=abs(coupling) <= 0.3,
    )  # fmt: skip
