r"""The bandit game on fixed boxes: proposals that follow what each acceptance tells.

O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*, algorithm 1. Boxes with prior masses pi_k accept with
unknown probabilities mu_k; the posterior p is proportional to pi mu. Before each simulation

.. math:: \hat p_k \propto \pi_k \eta_k, \qquad \hat q = q^*(\hat p),

where eta_k is the mean of what is believed of mu_k, or a draw of it, and q* the proposal that a
utility is maximised by. How much is lost on the best proposal is the regret of eq. 3.7.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.engine.jit import njit
from amc_pymc.likelihood_free.proposal import best_proposal

#: Numbers of the utilities in compiled code.
_ESS, _EFFICIENCY, _POSTERIOR, _KL = range(4)
_CODES = {"ess": _ESS, "efficiency": _EFFICIENCY, "posterior": _POSTERIOR, "kl": _KL}
#: Least exponent, as in :mod:`amc_pymc.likelihood_free.utilities`, and steps of a root search.
_SMALLEST, _STEPS = -700.0, 200


class Played(NamedTuple):
    """A game of n simulations on K boxes.

    Attributes
    ----------
    box : array of int (n,)
        Where each was made.
    accepted : array of bool (n,)
    q : array (n,)
        Probability that its box was drawn with; ``pi[box] / q`` is its importance weight.
    regret : array (n,)
        Of each proposal, in units of the utility; the mean of the first t is R_t of eq. 3.7.
    alpha, beta : arrays (K,)
        Parameters of the Beta distributions at the end.
    """

    box: np.ndarray
    accepted: np.ndarray
    q: np.ndarray
    regret: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray


def inner_loop(
    pi: ArrayLike, rates: ArrayLike, n: int, rng: np.random.Generator, *, utility: str = "ess",
    judge: str | None = None, draw: bool = False, plays: int = 0,
) -> Played:  # fmt: skip
    """Play the bandit game of algorithm 1 with known rates of acceptance.

    Takes O(K) a simulation: 0.2 to 2 microseconds for ten boxes, 1 to 16 for a hundred.

    Parameters
    ----------
    pi : array_like (K,)
        Prior masses of the boxes, positive; made to sum to one.
    rates : array_like (K,)
        Probability that a simulation in each box is accepted; one is positive at least.
    n : int
        Simulations.
    rng : numpy.random.Generator
    utility : {"ess", "efficiency", "posterior", "kl"}
        Which the proposals maximise; see :func:`amc_pymc.likelihood_free.best_proposal`.
    judge : str, optional
        Utility that the regret is of; by default the same.
    draw : bool
        Take draws from the Beta distributions for rates, instead of their means.
    plays : int
        Simulations that each box begins with, in turn, as in theorem 3.1; they count as drawn from
        1 / K.

    Returns
    -------
    Played

    Examples
    --------
    >>> import numpy as np
    >>> from benchmarks.papers.inner_loop import inner_loop
    >>> from amc_pymc.rng import as_generator
    >>> played = inner_loop(np.full(4, 0.25), [0.0, 0.1, 0.2, 0.4], 20_000, as_generator(1))
    >>> p = np.bincount(played.box, played.accepted * 0.25 / played.q)
    >>> (p / p.sum()).round(1), bool(played.regret[-1000:].mean() < 0.1 * played.regret[0])
    (array([0. , 0.1, 0.3, 0.6]), True)
    """
    pi, rates = np.array(pi, float) / np.sum(pi), np.array(rates, float)
    a, b = np.ones(len(pi)), np.ones(len(pi))
    judge = utility if judge is None else judge
    code, judging = _CODES[utility], _CODES[judge]
    p = pi * rates / (pi @ rates)
    top = _value(best_proposal(p, pi, judge), p, pi, judging)
    box, accepted, q, value = _play(pi, rates, n, rng, code, judging, bool(draw), plays, a, b)
    return Played(box, accepted, q, top - value, a, b)


def regret(q: ArrayLike, p: ArrayLike, pi: ArrayLike, utility: str = "ess") -> np.ndarray:
    r"""Utility that proposals lose on the best one, :math:`\omega_p(q^*(p)) - \omega_p(q)`.

    The utilities are :math:`1 / \sum_k p_k \pi_k / q_k` for "ess", effective draws per simulation
    over those of rejection, and those of eqs. 3.6 and C.1 in the paper; constants cancel.

    Parameters
    ----------
    q : array_like (..., K)
        Proposals; each is made to sum to one.
    p : array_like (K,)
        Posterior masses of the boxes, up to a factor.
    pi : array_like (K,)
        Prior masses, positive.
    utility : {"ess", "efficiency", "posterior", "kl"}

    Returns
    -------
    array (...)
        Not negative but for rounding; inf for "kl" where q is positive and p is not.

    Examples
    --------
    >>> import numpy as np
    >>> from benchmarks.papers.inner_loop import regret
    >>> p, pi = np.array([0.0, 0.2, 0.8]), np.full(3, 1 / 3)
    >>> regret([pi, p], p, pi).round(3)  # of the best, 5/3: rejection has 1, the posterior 1.5
    array([0.667, 0.167])
    """
    pi, masses = np.array(pi, float) / np.sum(pi), np.array(p, float) / np.sum(p)
    code, q = _CODES[utility], np.asarray(q, float)
    rows = np.ascontiguousarray(q / q.sum(axis=-1, keepdims=True)).reshape(-1, len(pi))
    top = _value(best_proposal(masses, pi, utility), masses, pi, code)
    values = np.array([_value(row, masses, pi, code) for row in rows])
    return top - values.reshape(q.shape[:-1])


def initial_plays(n: int, boxes: int, least_rate: float) -> int:
    r"""How often theorem 3.1 plays each box first, :math:`m = K \gamma^{-1} \log^2 n`, rounded up.

    Parameters
    ----------
    n : int
        Simulations in all.
    boxes : int
        K.
    least_rate : float
        gamma, below all rates of acceptance; in (0, 1].

    Examples
    --------
    >>> from benchmarks.papers.inner_loop import initial_plays
    >>> initial_plays(100_000, 3, 0.5)
    796
    """
    return math.ceil(boxes * math.log(n) ** 2 / least_rate)


@njit(cache=True)
def _play(pi, rates, n, rng, code, judging, draw, plays, alpha, beta):
    k = len(pi)
    true = pi * rates / (pi @ rates)
    boxes, accepted = np.empty(n, np.int64), np.empty(n, np.bool_)
    drawn, value = np.empty(n), np.empty(n)
    p, q, start = np.empty(k), np.full(k, 1.0 / k), 1.0
    even = _value(q, true, pi, judging)
    for t in range(n):
        if t < plays * k:
            box = t % k
            value[t] = even
        else:
            for i in range(k):
                eta = rng.beta(alpha[i], beta[i]) if draw else alpha[i] / (alpha[i] + beta[i])
                p[i] = pi[i] * eta
            p /= p.sum()
            start = _propose(p, pi, code, start, q)
            box = pull(q, rng.random())
            value[t] = _value(q, true, pi, judging)
        boxes[t], drawn[t] = box, q[box]
        accepted[t] = rng.random() < rates[box]
        if accepted[t]:
            alpha[box] += 1.0
        else:
            beta[box] += 1.0
    return boxes, accepted, drawn, value


@njit(cache=True)
def pull(q, coin):
    """The box (an index) that a number from [0, 1) falls to."""
    last = 0
    for i in range(len(q)):
        if q[i] > 0.0:
            last = i
            coin -= q[i]
            if coin < 0.0:
                break
    return last


@njit(cache=True)
def _propose(p, pi, code, start, q):
    """The best proposal into q (K,); returns the root that it took, from where the next search starts."""
    if code == _ESS:
        q[:] = np.sqrt(p * pi)
    elif code == _POSTERIOR:
        q[:] = p
    else:
        top = 0.0
        for i in range(len(p)):
            top = max(top, p[i] / pi[i])
        start = _root(p, pi, top, code, start)
        for i in range(len(p)):
            rate = p[i] / (pi[i] * top)
            if code == _EFFICIENCY:
                q[i] = math.sqrt(p[i] * pi[i] / (2.0 * start - rate)) if p[i] > 0.0 else 0.0
            else:
                q[i] = p[i] * math.exp(max((rate - 1.0) / start, _SMALLEST))
    q /= q.sum()
    return start


@njit(cache=True)
def _root(p, pi, top, code, start):
    """The mean rate A under the best proposal, relative to the largest: by Newton's steps in a bracket."""
    low = 0.5 * (1.0 + 1e-15) if code == _EFFICIENCY else 0.0
    high = 1.0
    a = start if low < start <= high else high
    for _ in range(_STEPS):
        gap, slope = _gap(p, pi, top, a) if code == _EFFICIENCY else _tilted_gap(p, pi, top, a)
        if gap > 0.0:
            high = a
        else:
            low = a
        step = a - gap / slope
        if not low < step < high:
            step = 0.5 * (low + high)
        if abs(step - a) <= 1e-14:
            break
        a = step
    return a


@njit(cache=True)
def _gap(p, pi, top, a):
    r"""Eq. A.2 as :math:`\sum_k (A - r_k) \sqrt{p_k \pi_k / (2 A - r_k)}`, and its slope in A."""
    gap, slope = 0.0, 0.0
    for i in range(len(p)):
        if p[i] > 0.0:
            rate = p[i] / (pi[i] * top)
            below = 2.0 * a - rate
            root = math.sqrt(p[i] * pi[i] / below)
            gap += (a - rate) * root
            slope += root * a / below
    return gap, slope


@njit(cache=True)
def _tilted_gap(p, pi, top, a):
    """A less the mean rate under p exp(rate / A), and its slope in A."""
    total, first, second = 0.0, 0.0, 0.0
    for i in range(len(p)):
        rate = p[i] / (pi[i] * top)
        weight = p[i] * math.exp(max((rate - 1.0) / a, _SMALLEST))
        total += weight
        first += weight * rate
        second += weight * rate * rate
    mean = first / total
    return a - mean, 1.0 + max(second / total - mean * mean, 0.0) / (a * a)


@njit(cache=True)
def _value(q, p, pi, code):
    """A proposal's utility, of p that sums to one; "kl" up to a constant."""
    squares, hits, spread, divergence = 0.0, 0.0, 0.0, 0.0
    for i in range(len(q)):
        squares += (q[i] - p[i]) ** 2
        hits += q[i] * p[i] / pi[i]
        if p[i] > 0.0:
            spread += p[i] * pi[i] / q[i] if q[i] > 0.0 else np.inf
        if q[i] > 0.0:
            divergence += q[i] * math.log(q[i] / p[i]) if p[i] > 0.0 else np.inf
    if code == _POSTERIOR:
        return -squares
    if code == _ESS:
        return 1.0 / spread
    if code == _EFFICIENCY:
        return hits / spread
    return (math.log(hits) if hits > 0.0 else -np.inf) - divergence
