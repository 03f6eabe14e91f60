"""PyMC models with known evidence, for testing estimators of the evidence."""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm

from amc_pymc.arguments import positive_int

Transform = Callable[[np.ndarray], np.ndarray]
LogLikelihood = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class EvidenceProblem:
    """Model, its log evidence, and the same model in plain NumPy.

    The NumPy functions take a parameter vector (D,): the model's free variables in its own order, each
    flattened in C order and on its own scale, not PyMC's unconstrained one. A simplex is given without
    its last entry, which follows from the others.

    Numbers in the models are NumPy doubles. A Python float that is exact in single precision, such as 2.5,
    is stored in single precision by PyTensor, which then also takes its logarithm in single precision: an
    error of about 1e-8 for every row and parameter.

    Parameters
    ----------
    name : str
    build : callable
        Function that returns a new model with prior and likelihood as a user of PyMC writes them.
    log_evidence : float
        Natural logarithm of the integral of prior times likelihood, observed variables and
        potentials both being likelihood. Priors and likelihoods are normalised as PyMC does it: the
        binomial coefficient counts.
    error : float
        Standard error of `log_evidence`; 0 if the value is exact up to rounding.
    source : str
        Source of the value.
    n_dim : int
        D, the number of unconstrained coordinates. Discrete variables count too.
    easy : bool
        Whether there is one mode and no difficulty, so that a method has no reason to warn.
    prior_transform : callable or None
        Function from the unit cube (D,) to parameters (D,) with the prior distribution, as needed by nested
        samplers; None for models with discrete variables.
    log_likelihood : callable or None
        Log likelihood of one parameter vector (D,).

    Raises
    ------
    ValueError
        If the evidence is not finite, the error is negative or not finite, or only one of
        `prior_transform` and `log_likelihood` is given.
    TypeError, ValueError
        If `n_dim` is not a positive integer.
    """

    name: str
    build: Callable[[], pm.Model]
    log_evidence: float
    error: float
    source: str
    n_dim: int
    easy: bool
    prior_transform: Transform | None = None
    log_likelihood: LogLikelihood | None = None

    def __post_init__(self):
        if not math.isfinite(self.log_evidence):
            raise ValueError(f"log_evidence must be finite, got {self.log_evidence}")
        if not 0.0 <= self.error < math.inf:
            raise ValueError(f"error must be a standard error, got {self.error}")
        if (self.prior_transform is None) != (self.log_likelihood is None):
            raise ValueError("give prior_transform and log_likelihood both, or neither")
        positive_int("n_dim", self.n_dim)


def check_positive(**values: float) -> None:
    """Raise a ValueError that names the first value which is not positive and finite."""
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")
