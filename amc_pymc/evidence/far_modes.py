"""Modes far from those that are known: prior draws whose gradients lead elsewhere, and how rarely prior draws reach a mode."""

from __future__ import annotations

import math

from collections.abc import Callable

import numpy as np

from scipy.special import logsumexp, softmax

from amc_pymc.evidence.modes import Joint, Modes, finite, log_volumes, modes_and_mixture
from amc_pymc.mixtures import StudentTMixture

#: Draws of a round as a share of what annealing from the prior cost, and most rounds.
_SHARE, _ROUNDS = 0.25, 50
#: Rounds without an important new mode that end the search: with one mode, with several, and with several of which one
#: is reached by less than a 64th of the draws.
_ONE, _SEVERAL, _UNEQUAL, _SELDOM = 2, 8, 25, 1.0 / 64.0
#: Share of the gradient that leads to a known mode, below which a search starts, and searches per round.
_STRAY, _SEARCHES = 0.8, 256
#: Share of draws that lead to no known mode, above which the posterior is not made of nearly normal modes.
_MOST = 0.05
#: Slope at a point over that of the normal approximation, above which it leads to another, narrower mode.
_STEEP = 10.0
#: Draws that reach a mode, below which others like it may be unseen.
_RARE = 30


def find_far_modes(
    joint: Joint,
    modes: Modes,
    spent: int,
    rng: np.random.Generator,
    over: Callable[[], bool] = lambda: False,
) -> tuple[Modes, float]:
    """Look for modes from prior draws.

    A narrow mode beside a wide one is reached from few prior draws. Most draws lead to known modes, which one gradient
    shows; searches start from the others. Rounds end when several in succession find no mode that holds a
    hundredth of the evidence, or if gradients do not tell modes apart because these are far from normal.

    Parameters
    ----------
    joint : Joint
    modes : Modes
        Those that are known, at least one.
    spent : int
        Evaluations and gradients of the annealing, which limit the number of draws.
    rng : numpy.random.Generator
    over : callable, optional
        Whether a time limit has passed, which ends the search after a round.

    Returns
    -------
    modes : Modes
        The known ones and those found.
    rare : float
        Share of the evidence, by the Laplace approximation, of modes that fewer than 30 draws have reached since the last
        mode was found. Others that are somewhat rarer may be unseen (Good 1953, doi:10.1093/biomet/40.3-4.237).
    """
    n = max(int(_SHARE * spent), 1)
    reached, quiet = np.zeros(len(modes.x), int), 0
    for _ in range(_ROUNDS):
        assert modes.mixture is not None
        strays, counts, lost = scan_prior(joint, modes.mixture, n, rng)
        reached, quiet = reached + counts, quiet + 1
        if len(strays):
            more = modes_and_mixture(joint, np.concatenate([modes.x, strays]))
            gain = logsumexp(more.log_evidence) - logsumexp(modes.log_evidence)
            if gain > joint.settings.covered:
                modes, reached, quiet = more, np.zeros(len(more.x), int), 0
        if lost > _MOST * (lost + counts.sum()):
            return modes, 0.0
        if quiet >= _quiet_rounds(reached[~nested(joint, modes)]) or over():
            break
    rare = softmax(modes.log_evidence)[(reached < _RARE) & ~nested(joint, modes)].sum()
    return modes, float(rare) if len(modes.x) > 1 else 0.0


def nested(joint: Joint, modes: Modes) -> np.ndarray:
    """Whether each mode is so close to the centre of a wider one that it is found there (:func:`scan`), not by prior draws."""
    assert modes.mixture is not None
    volumes, reach = log_volumes(modes.mixture), max(joint.settings.scan_scales)
    near = modes.mixture.distances(modes.x) < reach**2 * joint.n_dim
    return (near & (volumes[:, None] > volumes)).any(axis=0)


def _quiet_rounds(reached: np.ndarray) -> int:
    """Return the number of rounds without a new mode that are enough if modes (K,) were reached by so many draws."""
    if len(reached) == 1:
        return _ONE
    return _UNEQUAL if reached.min() < _SELDOM * reached.sum() else _SEVERAL


def scan_prior(
    joint: Joint, mixture: StudentTMixture, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, int]:
    """Follow the gradients at n prior draws.

    Returns
    -------
    strays : array (P, D)
        Draws whose gradients lead to no mode of the mixture, at most 256.
    counts : array of int (K,)
        Number of draws whose gradients lead to each mode.
    lost : int
        Number of draws whose gradients lead to none.
    """
    counts = np.zeros(mixture.components, int)
    strays, shares, size = [], [], joint.settings.block
    for i in range(0, n, size):
        x = finite(joint.draw_prior(min(size, n - i), rng))
        values, gradients = joint.with_gradient(x)
        possible = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
        x, gradients = x[possible], gradients[possible]
        share, terms = uphill_shares(x, gradients, mixture)
        best = share.max(axis=0)
        stray = best < _STRAY
        reached = np.where(share >= _STRAY, terms, -np.inf)[:, ~stray].argmax(axis=0)
        counts += np.bincount(reached, minlength=mixture.components)
        strays.append(x[stray])
        shares.append(best[stray])
    lowest = np.argsort(np.concatenate(shares), kind="stable")[:_SEARCHES]
    lost = np.concatenate(strays)
    return lost[lowest], counts, len(lost)


def uphill_shares(
    x: np.ndarray, gradients: np.ndarray, mixture: StudentTMixture
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the share of the gradient at each point that leads to each mode, (K, P), and the log of normal terms (K, P).

    .. math:: r_k = \frac{\sum_j u_j v_j}{\sum_j |u_j v_j|} \min(1, 10 |v| / |u|),
              \qquad u = L_k^T g, \quad v = L_k^{-1} (\mu_k - x)

    In the region of a normal mode u = v and the share is 1; at points that a distant, narrow mode attracts, signs do not
    agree or the slope is larger. Signs remain if each coordinate of a mode with independent coordinates is transformed.
    """
    normal, z = mixture.with_dof(math.inf), np.empty((mixture.components, *x.shape))
    distances = normal.distances(x, z)
    shares = np.ones_like(distances)
    for share, away, squared, chol in zip(shares, z, distances, mixture.choleskys, strict=True):
        uphill = gradients @ chol
        terms = -away * uphill
        size = np.abs(terms).sum(axis=1)
        np.divide(terms.sum(axis=1), size, out=share, where=size > 0.0)
        slope, usual = np.linalg.norm(uphill, axis=1), _STEEP * np.sqrt(squared)
        share *= np.divide(usual, slope, out=np.ones(len(x)), where=slope > usual)
    return shares, normal.terms_at(distances)
