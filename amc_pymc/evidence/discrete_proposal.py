"""Proposals for models with discrete variables, which draw continuous variables first and discrete ones in turn."""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scipy.special import expit, log_expit, logit

from amc_pymc.evidence.paths import PriorPath
from amc_pymc.logweights import summarise_log_weights
from amc_pymc.mixtures import (
    StudentTMixture,
    choose_mixture,
    fit_student_t_mixture,
    log_mixture_density,
)

#: Maximum number of states whose probabilities depend on other coordinates.
_FEW_STATES = 12
#: Maximum number of predictors of a coordinate, and their minimum correlation with it in standard errors.
_PREDICTORS, _SIGNIFICANT = 24, 3.0
#: Ridge penalty on coefficients and on intercepts, in draws.
_RIDGE, _RIDGE_INTERCEPT = 1.0, 0.1
#: Maximum number of Newton steps, largest change of a logit per step, and change below which to stop.
_NEWTON, _LEAP, _SETTLED = 12, 4.0, 1e-3
#: Probability spread evenly over the states, summed over all coordinates.
_EVEN = 0.02
#: Standard deviations at which standardised predictors are clipped.
_CLIP = 4.0
#: Minimum standard deviation of an integer coordinate before rounding.
_SMALLEST_SD = 0.3
#: Number of points processed at once.
_BLOCK = 4096
#: Relative variance that is good enough, largest fraction of the best variance that counts as progress, and
#: variance above which lack of progress does not stop the adaptation.
_ENOUGH, _PROGRESS, _WILD = 0.2, 0.8, 2.0
_COMPONENTS = 6


class _Look(NamedTuple):
    """Predictors made from a coordinate for those after it: indicators of all states but one, or z and z^2.

    Attributes
    ----------
    states : array (S,) or None
        States, if there are few.
    centre : array (S - 1,) or float
    spread : float
    """

    states: np.ndarray | None
    centre: np.ndarray | float
    spread: float

    @property
    def size(self) -> int:
        return 2 if self.states is None else len(self.states) - 1

    def rows(self, values: np.ndarray) -> np.ndarray:
        """Return the predictors (size, P)."""
        if self.states is not None:
            return (values == self.states[1:, None]) - np.asarray(self.centre)[:, None]
        z = np.clip((values - self.centre) / self.spread, -_CLIP, _CLIP)
        return np.stack([z, z * z])


@dataclass(frozen=True)
class _Choice:
    """Logistic regression of a coordinate with few states.

    Attributes
    ----------
    states : array (S,)
    used : array of int (F,)
        Indices of the predictors, including the constant.
    coefficients : array (S, F)
        Coefficients of the log probabilities, up to a constant.
    even : float
        Share of the uniform distribution over the states.
    """

    states: np.ndarray
    used: np.ndarray
    coefficients: np.ndarray
    even: float

    def probabilities(self, predictors: np.ndarray) -> np.ndarray:
        """Return the probabilities (S, P) of all states."""
        p = _softmax(self.coefficients @ predictors[self.used])
        return (1.0 - self.even) * p + self.even / len(p)

    def log_probability(self, predictors: np.ndarray, values: np.ndarray) -> np.ndarray:
        p = self.probabilities(predictors)
        place = _places(self.states, values)
        chosen = np.log(p[place, np.arange(values.size)])
        return np.where(self.states[place] == values, chosen, -np.inf)

    def draw(self, predictors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        below = np.cumsum(self.probabilities(predictors)[:-1], axis=0)
        return self.states[(below <= rng.random(below.shape[1])).sum(axis=0)]


@dataclass(frozen=True)
class _Rounded:
    """Linear regression of an integer coordinate, with logistic noise and rounding.

    Attributes
    ----------
    used : array of int (F,)
    coefficients : array (F,)
    scale : float
    """

    used: np.ndarray
    coefficients: np.ndarray
    scale: float

    def log_probability(self, predictors: np.ndarray, values: np.ndarray) -> np.ndarray:
        z = (values - self.coefficients @ predictors[self.used]) / self.scale
        upper = 0.5 / self.scale - np.abs(z)  # by symmetry, in the tail without cancellation
        high, low = log_expit(upper), log_expit(upper - 1.0 / self.scale)
        inside = high + np.log1p(-np.exp(low - high))
        return np.where(values == np.rint(values), inside, -np.inf)

    def draw(self, predictors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        centre = self.coefficients @ predictors[self.used]
        noise = logit(np.maximum(rng.random(centre.size), 1e-300))
        return np.rint(centre + self.scale * noise)


@dataclass(frozen=True, eq=False)
class DiscreteProposal:
    r"""Proposal that draws the coordinates of a point in sequence.

    .. math:: q(x) = q(c) \prod_j q(d_j \mid c, d_1, \dots, d_{j-1})

    Continuous coordinates c have a mixture of Student t distributions. Discrete coordinates with few states
    have logistic regressions on the preceding coordinates and their squares (Schäfer & Chopin 2013, Statistics
    and Computing 23:163-184, doi:10.1007/s11222-011-9299-z), those with many states a table of probabilities,
    and unbounded ones rounded linear regressions.

    Parameters
    ----------
    n_dim : int
    continuous : list of int
    mixture : StudentTMixture or None
    discrete : list of int
    looks : list of _Look
        Predictors from the continuous and discrete coordinates, in this order.
    parts : list of _Choice, _Table or _Rounded
        Conditional distribution of each discrete coordinate.
    """

    n_dim: int
    continuous: list[int]
    mixture: StudentTMixture | None
    discrete: list[int]
    looks: list[_Look]
    parts: list[_Part]

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Evaluate the log density (P,) at points (P, D); -inf at points that cannot be drawn."""
        out = np.zeros(len(x))
        for rows in _blocks(len(x)):
            here = x[rows]
            if self.mixture is not None:
                out[rows] = self.mixture.log_density(here[:, self.continuous])
            predictors = _predictors(self.looks, self.continuous + self.discrete, here)
            for d, part in zip(self.discrete, self.parts, strict=True):
                out[rows] += part.log_probability(predictors, here[:, d])
        return out

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n points (n, D)."""
        x = np.empty((n, self.n_dim))
        if self.mixture is not None:
            x[:, self.continuous] = self.mixture.sample(n, rng)
        for rows in _blocks(n):
            self._fill(x[rows], rng)
        return x

    def _fill(self, x: np.ndarray, rng: np.random.Generator) -> None:
        """Draw the discrete coordinates, given the continuous ones."""
        predictors = np.empty((1 + sum(look.size for look in self.looks), len(x)))
        predictors[0] = 1.0
        at, order = 1, self.continuous + self.discrete
        for j, (d, look) in enumerate(zip(order, self.looks, strict=True)):
            if j >= len(self.continuous):
                x[:, d] = self.parts[j - len(self.continuous)].draw(predictors, rng)
            predictors[at : at + look.size] = look.rows(x[:, d])
            at += look.size


type _Part = _Choice | _Rounded


def fit_discrete_proposal(
    x: np.ndarray,
    weights: np.ndarray,
    coordinates: Sequence[int],
    states: Sequence[Sequence[int] | np.ndarray | None],
    rng: np.random.Generator,
    *,
    start: StudentTMixture | None = None,
) -> DiscreteProposal:
    """Fit a discrete proposal to weighted draws.

    Parameters
    ----------
    x : array (n, D)
    weights : array (n,)
        Non-negative weights; their sum counts as the number of draws.
    coordinates : sequence of int
        Discrete coordinates, in the order in which to draw them.
    states : sequence of (sequence of int or None)
        States of each in increasing order, or None if unbounded.
    rng : numpy.random.Generator
    start : StudentTMixture, optional
        Initial mixture of the continuous coordinates.

    Returns
    -------
    DiscreteProposal

    Examples
    --------
    The mean of a number depends on a coin; the proposal draws the number first:

    >>> import numpy as np
    >>> from amc_pymc.evidence.discrete_proposal import fit_discrete_proposal
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> coin = rng.integers(2, size=2000)
    >>> x = np.column_stack([coin, 3.0 * coin + rng.standard_normal(2000)])
    >>> q = fit_discrete_proposal(x, np.ones(2000), [0], [(0, 1)], rng)
    >>> log_q = q.log_density(np.array([[0.0, 3.0], [1.0, 3.0]]))
    >>> bool(3.5 < log_q[1] - log_q[0] < 5.5)  # 4.5
    True
    """
    n_dim, discrete = x.shape[1], list(coordinates)
    continuous = sorted(set(range(n_dim)) - set(discrete))
    known = [None if s is None else np.array(s, float) for s in states]
    order = continuous + discrete
    looks = [_look(x[:, d], weights, None) for d in continuous]
    looks += [_look(x[:, d], weights, s) for d, s in zip(discrete, known, strict=True)]
    predictors = _predictors(looks, order, x)
    standard = _standardised(predictors, weights)
    parts: list[_Part] = []
    end, even = 1 + sum(look.size for look in looks[: len(continuous)]), _EVEN / len(discrete)
    for d, s, look in zip(discrete, known, looks[len(continuous) :], strict=True):
        parts.append(_part(predictors[:end], standard[:end], x[:, d], s, weights, even))
        end += look.size
    mixture = _mixture(x[:, continuous], weights, start, rng) if continuous else None
    return DiscreteProposal(n_dim, continuous, mixture, discrete, looks, parts)


class AdaptedDiscreteProposal(NamedTuple):
    """Result of :func:`adapt_discrete_proposal`.

    Attributes
    ----------
    mixture : DiscreteProposal
        Best proposal among those that were sampled.
    relative_variance : float
        Relative variance of its weights, including the share of the prior, from draws not used in its fit.
    log_mean : float
        Logarithm of the mean weight.
    """

    mixture: DiscreteProposal
    relative_variance: float
    log_mean: float


def adapt_discrete_proposal(
    path: PriorPath,
    x: np.ndarray,
    coordinates: Sequence[int],
    states: Sequence[Sequence[int] | np.ndarray | None],
    rng: np.random.Generator,
    *,
    share: float,
    rounds: int = 4,
    n_first: int = 1000,
) -> AdaptedDiscreteProposal:
    """Fit a proposal to rough draws and refine it by rounds of importance sampling.

    Each round fits all draws so far; the weights of a round sum to its effective sample size (population
    Monte Carlo, Cappé et al. 2008, doi:10.1007/s11222-008-9059-x).

    Parameters
    ----------
    path : Path
        Path from the prior, with ``draw_prior``.
    x : array (P, D)
        Rough draws from the end of the path.
    coordinates, states
        As for :func:`fit_discrete_proposal`.
    rng : numpy.random.Generator
    share : float
        Share of the prior among the draws.
    rounds, n_first : int, default 4 and 1000
        Maximum number of rounds, and draws of the first one; each has twice as many as the one before.

    Returns
    -------
    AdaptedDiscreteProposal
    """
    points, weights = [x], [np.ones(len(x))]
    current = fit_discrete_proposal(x, weights[0], coordinates, states, rng)
    best = AdaptedDiscreteProposal(current, math.inf, -math.inf)
    for r in range(rounds):
        n = n_first * 2**r
        from_prior = round(share * n)
        drawn = np.concatenate(
            [path.draw_prior(from_prior, rng), current.sample(n - from_prior, rng)]
        )
        terms = path.values(drawn)
        log_w = terms.sum(axis=0)
        possible = log_w > -np.inf
        log_w[possible] -= log_mixture_density(
            current.log_density(drawn[possible]), terms[0, possible], from_prior / n
        )
        found = summarise_log_weights(log_w)
        variance, before = found.relative_variance, best.relative_variance
        if variance < before:
            best = AdaptedDiscreteProposal(current, variance, found.log_mean)
        settled = variance < _WILD and variance > _PROGRESS * before
        if variance <= _ENOUGH or settled or r == rounds - 1:
            break
        w = np.exp(log_w[possible] - log_w.max()) if possible.any() else np.empty(0)
        points.append(drawn[possible])
        weights.append(w * found.ess / w.sum() if w.size else w)
        current = fit_discrete_proposal(
            np.concatenate(points), np.concatenate(weights), coordinates, states, rng,
            start=current.mixture,
        )  # fmt: skip
    return best


def _blocks(n: int) -> list[slice]:
    return [slice(i, min(i + _BLOCK, n)) for i in range(0, n, _BLOCK)]


def _places(states: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the indices of values among the states; arbitrary for other values."""
    return np.minimum(np.searchsorted(states, values), len(states) - 1)


def _predictors(looks: Sequence[_Look], order: Sequence[int], x: np.ndarray) -> np.ndarray:
    """Return a constant and the predictors made from all coordinates (F, P)."""
    rows = [look.rows(x[:, d]) for d, look in zip(order, looks, strict=True)]
    return np.concatenate([np.ones((1, len(x))), *rows])


def _look(values: np.ndarray, weights: np.ndarray, states: np.ndarray | None) -> _Look:
    w = weights / weights.sum()
    if states is not None and len(states) <= _FEW_STATES:
        return _Look(states, (values == states[1:, None]) @ w, 1.0)
    centre = float(w @ values)
    return _Look(None, centre, math.sqrt(float(w @ (values - centre) ** 2)) or 1.0)


def _mixture(
    x: np.ndarray, weights: np.ndarray, start: StudentTMixture | None, rng: np.random.Generator
) -> StudentTMixture:
    with np.errstate(divide="ignore"):
        log_w = np.log(weights)
    if start is not None:
        return fit_student_t_mixture(x, log_w, start=start, n_iter=10)
    return choose_mixture(x, log_w, rng, max_components=_COMPONENTS)


def _part(
    predictors: np.ndarray,
    standard: np.ndarray,
    values: np.ndarray,
    states: np.ndarray | None,
    weights: np.ndarray,
    even: float,
) -> _Part:
    """Fit a coordinate given the predictors of those before it, passed as they are and standardised."""
    if states is None:
        used = _most_correlated(standard, values[None], weights)
        return _rounded(predictors[used], values, weights, used)
    if len(states) > _FEW_STATES:
        seen = np.bincount(_places(states, values), weights, len(states)) + 1.0 / len(states)
        return _Choice(states, np.zeros(1, int), np.log(seen)[:, None], even)
    wanted = (values == states[:, None]).astype(float)
    used = _most_correlated(standard, wanted, weights)
    return _Choice(states, used, _odds(predictors[used], wanted, weights), even)


def _rounded(h: np.ndarray, values: np.ndarray, weights: np.ndarray, used: np.ndarray) -> _Rounded:
    hw = h * weights
    ridge = 1e-6 * weights.sum() * np.eye(len(h))
    coefficients = np.linalg.solve(hw @ h.T + ridge, hw @ values)
    variance = float(weights @ (values - coefficients @ h) ** 2 / weights.sum())
    sd = max(math.sqrt(variance), _SMALLEST_SD)
    return _Rounded(used, coefficients, sd * math.sqrt(3.0) / math.pi)


def _standardised(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Standardise rows (F, n): inner products are weighted correlations; constant rows become zero."""
    w = weights / weights.sum()
    out = (rows - (rows @ w)[:, None]) * np.sqrt(w)
    out /= np.maximum(np.sqrt(np.vecdot(out, out)), 1e-150)[:, None]
    return out


def _most_correlated(standard: np.ndarray, wanted: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return indices of the constant and of the predictors (F, n) most correlated with the responses (S, n)."""
    strength = np.abs(standard @ _standardised(wanted, weights).T).max(axis=1)
    strength[0] = np.inf
    most = np.argsort(-strength, kind="stable")[: 1 + _PREDICTORS]
    return np.sort(most[strength[most] > _SIGNIFICANT / math.sqrt(weights.sum())])


def _softmax(logits: np.ndarray) -> np.ndarray:
    """Compute probabilities (S, P) from logits (S, P), in place."""
    logits -= logits.max(axis=0)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=0)
    return logits


def _odds(h: np.ndarray, wanted: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Fit coefficients (S, F) for states (S, n), each against the most frequent one.

    These binary regressions are consistent for the multinomial regression (Begg & Gray 1984,
    doi:10.1093/biomet/71.1.11).
    """
    out = np.zeros((len(wanted), len(h)))
    base = int(np.argmax(wanted @ weights))
    for s in range(len(wanted)):
        if s != base:
            either = np.flatnonzero(wanted[s] + wanted[base])
            out[s] = _logistic(h[:, either], wanted[s, either], weights[either])
    return out


def _logistic(h: np.ndarray, wanted: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Fit coefficients (F,) of a logistic regression with ridge penalty, by Newton's method."""
    ridge = np.full(len(h), _RIDGE)
    ridge[0] = _RIDGE_INTERCEPT
    yes, all_ = float(weights @ wanted), float(weights.sum())
    coefficients = np.zeros(len(h))
    coefficients[0] = math.log((yes + 0.5) / (all_ - yes + 0.5))
    for _ in range(_NEWTON):
        p = expit(coefficients @ h)
        slope = h @ (weights * (wanted - p)) - ridge * coefficients
        curvature = (h * (weights * p * (1.0 - p))) @ h.T + np.diag(ridge)
        step = np.linalg.solve(curvature, slope)
        change = float(np.abs(step @ h).max(initial=0.0))
        coefficients += min(1.0, _LEAP / max(change, 1e-300)) * step
        if change < _SETTLED:
            break
    return coefficients
