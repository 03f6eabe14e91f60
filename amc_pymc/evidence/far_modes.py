"""Modes far from those that are known: prior draws whose gradients lead elsewhere, and how rarely prior draws reach a mode."""

from __future__ import annotations

import numpy as np

from scipy.linalg import solve_triangular
from scipy.special import softmax

from amc_pymc.evidence.modes import Joint, Modes, finite, modes_and_mixture
from amc_pymc.mixtures import StudentTMixture

#: Draws of a round as a share of what annealing from the prior cost, and most rounds.
_SHARE, _ROUNDS = 0.25, 50
#: Rounds with several modes, if every mode is reached by at least this share of the draws.
_FEWER_ROUNDS, _OFTEN = 8, 1.0 / 64.0
#: Rounds with a single mode, and in few dimensions.
_FEWEST_ROUNDS, _FEW_DIMENSIONS, _MORE_ROUNDS = 2, 5, 4
#: Share of the gradient that leads to a known mode, below which a search starts, and searches per round.
_STRAY, _SEARCHES = 0.8, 256
#: Slope at a point over that of the normal approximation, above which it leads to another, narrower mode.
_STEEP = 10.0
#: Draws that reach a mode, below which others like it may be unseen.
_RARE = 30


def find_far_modes(
    joint: Joint, modes: Modes, spent: int, rng: np.random.Generator
) -> tuple[Modes, float]:
    """Look for modes from prior draws.

    A narrow mode beside a wide one is reached from few prior draws. Most draws lead to known modes, which one gradient
    shows; searches start from the others. There are a few rounds for a single mode, and more if few draws reach one
    of several modes.

    Parameters
    ----------
    joint : Joint
    modes : Modes
        Those that are known, at least one.
    spent : int
        Evaluations and gradients of the annealing, which limit the number of draws.
    rng : numpy.random.Generator

    Returns
    -------
    modes : Modes
        The known ones and those found.
    rare : float
        Share of the evidence, by the Laplace approximation, of modes that fewer than 30 draws have reached since the last
        mode was found. Others that are somewhat rarer may be unseen (Good 1953, doi:10.1093/biomet/40.3-4.237).
    """
    n = max(int(_SHARE * spent), 1)
    least = _FEWEST_ROUNDS if joint.n_dim > _FEW_DIMENSIONS else _MORE_ROUNDS
    reached = np.zeros(len(modes.x), int)
    for done in range(1, _ROUNDS + 1):
        assert modes.mixture is not None
        strays, counts = scan_prior(joint, modes.mixture, n, rng)
        reached += counts
        if len(strays):
            known = len(modes.x)
            modes = modes_and_mixture(joint, np.concatenate([modes.x, strays]))
            if len(modes.x) != known:
                reached = np.zeros(len(modes.x), int)
                continue
        if len(modes.x) == 1:
            if done >= least:
                break
        elif done >= _FEWER_ROUNDS and reached.min() >= _OFTEN * reached.sum():
            break
    rare = softmax(modes.log_evidence)[reached < _RARE].sum()
    return modes, float(rare) if len(modes.x) > 1 else 0.0


def scan_prior(
    joint: Joint, mixture: StudentTMixture, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Follow the gradients at n prior draws.

    Returns
    -------
    strays : array (P, D)
        Draws whose gradients lead to no mode of the mixture, at most 256.
    counts : array of int (K,)
        Number of draws whose gradients lead to each mode.
    """
    counts = np.zeros(mixture.components, int)
    strays, shares, size = [], [], joint.settings.scan_block
    for i in range(0, n, size):
        x = finite(joint.draw_prior(min(size, n - i), rng))
        if joint.images is not None:
            x = joint.images.folded(x, mixture)
        values, gradients = joint.with_gradient(x)
        possible = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
        x, gradients = x[possible], gradients[possible]
        share, heights = uphill_shares(x, gradients, mixture)
        best = share.max(axis=0)
        lost = best < _STRAY
        reached = np.where(share >= _STRAY, heights, -np.inf)[:, ~lost].argmax(axis=0)
        counts += np.bincount(reached, minlength=mixture.components)
        strays.append(x[lost])
        shares.append(best[lost])
    lowest = np.argsort(np.concatenate(shares), kind="stable")[:_SEARCHES]
    return np.concatenate(strays)[lowest], counts


def uphill_shares(
    x: np.ndarray, gradients: np.ndarray, mixture: StudentTMixture
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the share of the gradient at each point that leads to each mode, (K, P), and normal approximations (K, P).

    .. math:: r_k = \frac{\sum_j u_j v_j}{\sum_j |u_j v_j|} \min(1, 10 |v| / |u|),
              \qquad u = L_k^T g, \quad v = L_k^{-1} (\mu_k - x)

    In the region of a normal mode u = v and the share is 1; at points that a distant, narrow mode attracts, signs do not
    agree or the slope is larger. Signs remain if each coordinate of a mode with independent coordinates is transformed.
    """
    shares = np.ones((mixture.components, len(x)))
    heights = np.empty_like(shares)
    for k, (mean, chol) in enumerate(zip(mixture.means, mixture.choleskys, strict=True)):
        towards = solve_triangular(chol, (mean - x).T, lower=True).T
        uphill = gradients @ chol
        terms = towards * uphill
        size = np.abs(terms).sum(axis=1)
        np.divide(terms.sum(axis=1), size, out=shares[k], where=size > 0.0)
        slope = np.linalg.norm(uphill, axis=1)
        usual = _STEEP * np.linalg.norm(towards, axis=1)
        shares[k] *= np.divide(usual, slope, out=np.ones(len(x)), where=slope > usual)
        top = np.log(mixture.weights[k]) - np.log(np.diagonal(chol)).sum()
        heights[k] = top - 0.5 * np.vecdot(towards, towards)
    return shares, heights
