r"""Races over arms with separate populations of different sizes.

Arm k has N_k rewards l_{k,n} and a bias; the race finds the arm with the highest sum
:math:`S_k = \sum_n l_{k,n} + b_k`. Appendix C.3 of Chen & Ghahramani (2016) races such arms with
independent variances. Its eq. 26 lacks squares, has the exponent -1/2 for 1/2, and is about means,
while arms of different sizes must be compared by sums. This module uses, with T_k rewards of arm k
read without replacement, their mean m_k and variance s_k^2 (divisor T_k - 1, which makes the second
line unbiased):

.. math::

    \hat S_k &= N_k m_k + b_k, \\
    V_k &= N_k^2 \frac{s_k^2}{T_k} \left(1 - \frac{T_k}{N_k}\right), \\
    B &= \Phi^{-1}\!\left(1 - \frac{\delta}{M (t^* - 1)}\right).

Arm k is dropped when :math:`\hat S_{best} - \hat S_k > B \sqrt{V_{best} + V_k}`, and V_k = 0 once
the arm is read completely. t* is the number of rounds of the longest schedule. M is the number of
error events: D - 1, or the number of arms with rows left after the first round if that is smaller,
because arms read completely are exact and can win wrongly only through the single error of the best
arm's own sum.

The first batch is so small (3) that s_k, and V_k with it, is often tiny by chance. Therefore the lead is
measured by Student's t with Welch's degrees of freedom,

.. math:: \nu = \frac{(V_i + V_j)^2}{V_i^2 / (T_i - 1) + V_j^2 / (T_j - 1)},

and mapped to the normal deviate of the same probability by Wallace's formula,
:math:`z = \sqrt{\nu \log(1 + t^2/\nu)}\,(8\nu + 1)/(8\nu + 3)`, before it is compared with B. An
arm that is not read completely and whose rewards so far are equal takes part in no elimination.

Error rates measured in the worst case, all sums equal, at delta = 0.05 with first batches of 3 (4,000
races each; ten arms of 2,000 down to 0 normal rewards, and two arms of 2,000) are 0.02 and 0.04
(``tests/models/test_race_sums.py``). No small-sample correction helps against skewness: the few rewards that
dominate the sum of lognormal ones may not be seen.

References
----------
Chen & Ghahramani (2016), *Scalable Discrete Sampling as a Multi-Armed Bandit Problem*, ICML,
PMLR 48:2492-2501. Wallace (1959), *Bounds on normal approximations to Student's and the chi-square
distributions*, Annals of Mathematical Statistics 30:1121-1130, doi:10.1214/aoms/1177706100.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from amc_pymc.engine.jit import njit

__all__ = ["Arms", "SumsResult", "SumsRule", "make_arms", "race_sums"]


class Arms(NamedTuple):
    """Populations of K arms in shared arrays.

    Arm k owns ``members[start[k] : start[k] + size[k]]``, labels of rows that no other arm has;
    ``place[label]`` is the position of a label in ``members``. A race permutes an arm's members in
    place and keeps ``place`` up to date; draws are uniform for any initial order.
    """

    start: np.ndarray
    size: np.ndarray
    members: np.ndarray
    place: np.ndarray


class SumsRule(NamedTuple):
    """Decision rule of a race of sums.

    Attributes
    ----------
    delta : float
        Promised error probability of one decision.
    first : int
        Rewards of each arm in the first round; ``first >= max N_k`` reads all rewards at once.
    """

    delta: float = 0.05
    first: int = 3


class SumsResult(NamedTuple):
    """Outcome of one race: the winner, -1 if a reward is not finite, and the numbers of rewards read and of rounds."""

    winner: int
    rows: int
    rounds: int


def make_arms(sizes) -> Arms:
    """Return arms with rows numbered consecutively from arm to arm, starting at 0.

    Parameters
    ----------
    sizes : (K,) sequence of int
        Sizes N_k. The sum of an arm of size zero is its bias.

    Examples
    --------
    >>> from models.race_sums import make_arms
    >>> make_arms([2, 0, 3]).start
    array([0, 2, 2])
    """
    sizes = np.asarray(sizes)
    sizes = sizes.astype(np.int64)
    total = int(sizes.sum())
    start = np.cumsum(sizes) - sizes
    return Arms(start, sizes, np.arange(total), np.arange(total))


@njit(cache=True)
def rows_after(seen, size, first):
    """Return the number of rewards of an arm read after its next round, of which ``seen`` are read.

    First ``first``, then a tenth of the remaining rewards more (at least one), then doubling.
    """
    if seen == 0:
        target = first
    elif seen == first:
        target = first + max((size - first) // 10, 1)
    else:
        target = 2 * seen
    return min(target, size)


@njit(cache=True)
def longest_schedule(size, first):
    """Return the number of rounds that read an arm of ``size`` rewards completely."""
    seen, rounds = 0, 0
    while seen < size:
        seen = rows_after(seen, size, first)
        rounds += 1
    return rounds


@njit(cache=True)
def _upper_quantile(p):
    """Return the standard normal z with P(Z > z) = p, 0 < p < 1/2, by Newton's method on log P."""
    z = math.sqrt(max(-2.0 * math.log(2.0 * p), 0.0))
    for _ in range(50):
        tail = 0.5 * math.erfc(z / math.sqrt(2.0))
        density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        step = math.log(tail / p) * tail / density
        z += step
        if abs(step) < 1e-12 * (1.0 + abs(z)):
            break
    return z


@njit(cache=True)
def _deviate(t, df):
    """Return the normal deviate with the tail probability of Student's t > 0 (Wallace 1959)."""
    return math.sqrt(df * math.log1p(t * t / df)) * (8.0 * df + 1.0) / (8.0 * df + 3.0)


@njit(cache=True)
def draw_members(arms, k, seen, target, rng):
    """Move a random sample of arm k's unread members to its positions ``seen`` to ``target``."""
    members, place = arms.members, arms.place
    start, size = arms.start[k], arms.size[k]
    if target == size:
        return
    for j in range(seen, target):
        other = j + np.int64(rng.random() * (size - j))
        a, b = members[start + j], members[start + other]
        members[start + j], members[start + other] = b, a
        place[b], place[a] = start + j, start + other


@njit(cache=True)
def _merge(mean, comoment, seen, values):
    """Return mean and sum of squared deviations updated with a batch of rewards."""
    m = values.size
    total = 0.0
    for value in values:
        total += value
    shift = total / m - mean
    squares = 0.0
    for value in values:
        squares += (value - total / m) ** 2
    return (
        mean + shift * m / (seen + m),
        comoment + squares + shift * shift * seen * m / (seen + m),
    )


@njit(cache=True)
def _variance(comoment, seen, size):
    """Return V_k, the variance of the estimated sum of an arm; zero once it is exact."""
    if seen >= size:
        return 0.0
    return size * (size - seen) * comoment / (seen * (seen - 1.0))


@njit(cache=True)
def _eliminate(alive, scores, comoment, seen, size, bound):
    """Drop arms that the best arm leads by more than B standard errors; return the best arm."""
    best = -1
    for k in range(alive.size):
        if alive[k] and (best < 0 or scores[k] > scores[best]):
            best = k
    v_best = _variance(comoment[best], seen[best], size[best])
    if seen[best] < size[best] and v_best <= 0.0:
        return best
    for k in range(alive.size):
        if not alive[k] or k == best:
            continue
        v = _variance(comoment[k], seen[k], size[k])
        if seen[k] < size[k] and v <= 0.0:
            continue
        total = v_best + v
        lead = scores[best] - scores[k]
        if total <= 0.0:
            alive[k] = False
            continue
        inverse_df = 0.0
        if v_best > 0.0:
            inverse_df += (v_best / total) ** 2 / (seen[best] - 1.0)
        if v > 0.0:
            inverse_df += (v / total) ** 2 / (seen[k] - 1.0)
        if _deviate(lead / math.sqrt(total), 1.0 / inverse_df) > bound:
            alive[k] = False
    return best


@njit(cache=True)
def race_sums(rewards, context, arms, bias, rule, rng):
    """Find the arm with the highest sum of rewards plus bias.

    Parameters
    ----------
    rewards : first-class function (arm, rows (m,) int64, context) -> (m,) float64
        Compiled rewards, natural logarithms, of some labels of an arm.
    context : any Numba type
        Data passed to ``rewards``.
    arms : Arms
        Members are permuted within their arms.
    bias : (K,) array
        Natural logarithms, including Gumbel noise; finite.
    rule : SumsRule
    rng : numpy.random.Generator

    Returns
    -------
    SumsResult

    Notes
    -----
    The first arm wins ties.
    """
    n_arms = bias.size
    size = arms.size
    mean = np.zeros(n_arms)
    comoment = np.zeros(n_arms)
    seen = np.zeros(n_arms, dtype=np.int64)
    scores = bias.copy()
    alive = np.ones(n_arms, dtype=np.bool_)
    n_long = np.count_nonzero(size > rule.first)
    events = min(n_arms - 1, n_long) * (longest_schedule(size.max(), rule.first) - 1)
    bound = _upper_quantile(rule.delta / events) if events > 0 else 0.0
    rounds, read, winner = 0, 0, 0
    while np.count_nonzero(alive) > 1:
        unread = 0
        for k in range(n_arms):
            if not alive[k]:
                continue
            target = rows_after(seen[k], size[k], rule.first)
            m = target - seen[k]
            if m == 0:
                continue
            draw_members(arms, k, seen[k], target, rng)
            rows = arms.members[arms.start[k] + seen[k] : arms.start[k] + target]
            values = rewards(k, rows, context)
            read += m
            if not np.isfinite(values).all():
                return SumsResult(-1, read, rounds + 1)
            mean[k], comoment[k] = _merge(mean[k], comoment[k], seen[k], values)
            seen[k] = target
            scores[k] = size[k] * mean[k] + bias[k]
            unread += size[k] - target
        rounds += 1
        winner = _eliminate(alive, scores, comoment, seen, size, bound)
        if unread == 0:
            break
    return SumsResult(winner, read, rounds)
