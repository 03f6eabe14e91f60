"""PyMC models with known evidence, for testing estimators of the evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm

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
    variables : callable
        Function that adds prior and likelihood, as a user of PyMC writes them, to the model of the context.
    log_evidence : float
        Natural logarithm of the integral of prior times likelihood, observed variables and
        potentials both being likelihood. Priors and likelihoods are normalised as PyMC does it: the
        binomial coefficient counts.
    n_dim : int
        D, the number of unconstrained coordinates. Discrete variables count too.
    easy : bool
        Whether there is one mode and no difficulty, so that a method has no reason to warn.
    error : float
        Standard error of `log_evidence`; 0 if the value is exact up to rounding.
    source : str
        Source of the value.
    prior_transform : callable or None
        Function from the unit cube (D,) to parameters (D,) with the prior distribution, as needed by nested
        samplers; None for models with discrete variables.
    log_likelihood : callable or None
        Log likelihood of one parameter vector (D,).
    """

    name: str
    variables: Callable[[], None]
    log_evidence: float
    n_dim: int
    easy: bool
    error: float = 0.0
    source: str = "closed form"
    prior_transform: Transform | None = None
    log_likelihood: LogLikelihood | None = None

    def build(self) -> pm.Model:
        """Return a new model."""
        with pm.Model() as model:
            self.variables()
        return model
