r"""Optimal sampling probabilities of boxes, given an estimate of the posterior.

Box k has prior mass pi_k and acceptance probability mu_k; its posterior mass p_k is proportional to pi_k
mu_k. Draws from proposal q are weighted by pi_k / q_k. At a fixed tolerance the effective draws per
simulation are

.. math:: \frac{Z}{\sum_k p_k \pi_k / q_k}, \qquad Z = \sum_k \pi_k \mu_k.

They are maximised by q_k proportional to pi_k sqrt(mu_k). For q = p they equal those of rejection sampling, Z.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scipy.optimize import brentq

__all__ = ["UTILITIES", "best_proposal", "draws_per_simulation"]

#: Largest exponent used; beyond it, one box has all of the proposal.
_LARGEST = 700.0
#: Relative difference below which rates are treated as equal.
_ALIKE = 1e-12


def best_proposal(p: np.ndarray, pi: np.ndarray, utility: str = "ess") -> np.ndarray:
    r"""Return the optimal proposal for a posterior under one of several utilities.

    Parameters
    ----------
    p : array (K,)
        Posterior masses of the boxes, up to a factor.
    pi : array (K,)
        Prior masses of the boxes, positive.
    utility : {"ess", "efficiency", "posterior", "kl"}
        "ess": effective draws per simulation; :math:`q_k \propto \sqrt{p_k \pi_k}`. The others are those of
        O'Hagan, Kim & Rockova: "posterior", :math:`\omega^1 = -\|q - p\|^2` (eq. 3.6), maximised by q =
        p; "efficiency", :math:`\omega^2 = \sum_k (q_k p_k / \pi_k) / \sum_k (p_k \pi_k / q_k)` (eq. 3.6; Alsing,
        Wandelt & Feeney 2018, arXiv:1808.06040); "kl", :math:`\omega^3 = \log \sum_k q_k \mu_k -
        \mathrm{KL}(q \| p)` (eq. C.1).

    Returns
    -------
    array (K,)
        Proposal probabilities, which sum to one; zero where p is zero.

    Raises
    ------
    ValueError
        If the utility is unknown, or no p is positive.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree import best_proposal
    >>> best_proposal(np.array([0.0, 0.2, 0.8]), np.full(3, 1 / 3))
    array([0.        , 0.33333333, 0.66666667])
    """
    if utility not in UTILITIES:
        raise ValueError(f"utility must be one of {', '.join(UTILITIES)}, got {utility!r}.")
    total = p.sum()
    if not 0.0 < total < np.inf:
        raise ValueError("p must have a positive, finite sum.")
    q = UTILITIES[utility](p / total, pi)
    return q / q.sum()


def draws_per_simulation(p: np.ndarray, pi: np.ndarray, q: np.ndarray) -> float:
    """Return effective draws per simulation from proposal q, relative to rejection sampling.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree import best_proposal, draws_per_simulation
    >>> p, pi = np.array([0.0, 0.2, 0.8]), np.full(3, 1 / 3)
    >>> (
    ...     round(draws_per_simulation(p, pi, p), 3),
    ...     round(draws_per_simulation(p, pi, best_proposal(p, pi)), 3),
    ... )
    (1.5, 1.667)
    """
    some = p > 0.0
    return float(p.sum() / (p[some] * pi[some] / q[some]).sum())


def _ess(p: np.ndarray, pi: np.ndarray) -> np.ndarray:
    return np.sqrt(p * pi)


def _posterior(p: np.ndarray, pi: np.ndarray) -> np.ndarray:
    return p


def _efficiency(p: np.ndarray, pi: np.ndarray) -> np.ndarray:
    """Solve eq. A.2 with A = sum q p / pi, which lies between half of the largest p / pi and the largest."""
    out, some = np.zeros_like(p), p > 0.0
    ratio, root = p[some] / pi[some], np.sqrt(p[some] * pi[some])
    top = float(ratio.max())
    ratio /= top
    if ratio.min() > 1.0 - _ALIKE:
        out[some] = root
        return out

    def gap(a: float) -> float:
        return float(((a - ratio) * root / np.sqrt(2.0 * a - ratio)).sum())

    a = brentq(gap, 0.5 * (1.0 + 1e-15), 1.0, xtol=1e-16, rtol=1e-14)
    out[some] = root / np.sqrt(2.0 * a - ratio)
    return out


def _kl(p: np.ndarray, pi: np.ndarray) -> np.ndarray:
    r"""Solve q_k proportional to p_k exp(mu_k / A) for A = sum q mu, with mu relative to the largest."""
    out, some = np.zeros_like(p), p > 0.0
    mu = p[some] / pi[some]
    mu /= mu.max()
    if mu.min() > 1.0 - _ALIKE:
        return p

    def proposal(a: float) -> np.ndarray:
        q = p[some] * np.exp(np.maximum((mu - 1.0) / a, -_LARGEST))
        return q / q.sum()

    # For any A, q favours high rates more than p does, so the mean rate under p is a lower bound.
    a = brentq(lambda a: a - float(proposal(a) @ mu), float(p[some] @ mu), 1.0, xtol=1e-15)
    out[some] = proposal(a)
    return out


#: Functions of p, which sums to one, and pi, both (K,), by the name of the utility they maximise.
UTILITIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "ess": _ess,
    "efficiency": _efficiency,
    "posterior": _posterior,
    "kl": _kl,
}
