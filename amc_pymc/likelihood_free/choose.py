r"""Choice of an adjustment and a tolerance by predictive scores at simulations close to the data."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from scipy.optimize import nnls

from amc_pymc.likelihood_free.accepted import Accepted, closest_first, effective, effective_of_first
from amc_pymc.likelihood_free.adjust import (
    AdjustedDraws,
    Kind,
    LogDensity,
    adjusted_accepted,
    coefficients,
    epanechnikov,
    regress,
)
from amc_pymc.likelihood_free.history import AbcRun
from amc_pymc.likelihood_free.learned import cross_fitted, learn_summaries
from amc_pymc.likelihood_free.proposal import from_normal, to_normal
from amc_pymc.logweights import relative, systematic

AdjustName = Literal["none", "regression", "learned", "auto"]

#: Number of pseudo-observed data sets, and maximum share of all effective draws that they are drawn from.
_PSEUDO, _NEAREST = 100, 0.2
#: Maximum effective draws to accept when a tolerance is chosen.
_MOST = 100_000.0
#: Minimum effective draws with learned summaries: fraction of the number without, and absolute.
_CLOSER, _FEWEST = 1.0 / 3.0, 30.0
#: Minimum simulations for learning summaries.
_TO_LEARN = 100
#: Maximum number of simulations used to find the units of a distance.
_LOOKED_AT = 2000
#: Maximum error in posterior standard deviations that counts in calibration.
_FAR = 6.0
_KINDS: tuple[Kind, ...] = ("linear", "heteroscedastic", "quadratic")
_KINDS_LEARNED: tuple[Kind, ...] = ("none", "linear", "heteroscedastic")
#: Candidate bandwidths, in standard deviations of the accepted points.
_BANDWIDTHS = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0])
#: Share of the prior in a predictive density, which limits the effect of a single score.
_PRIOR_SHARE = 0.02
#: Maximum number of points in a kernel density, and of those that a regression is scored with.
_POINTS, _REGRESSED = 1000, 10_000
#: Numbers of data sets after which the worse half of the candidates is dropped, with all that are far behind the best,
#: in standard errors.
_LOOKS, _BEHIND = (10, 20, 40), 3.0
#: Standard errors, or nats, by which a candidate with more draws may be worse than the best of its kind. One standard
#: error is too small, because the best of several is so by chance, too; and standard errors alone are, because the
#: accepted simulations are similar for all data sets.
_AS_GOOD, _ALIKE = 2.0, 0.03
#: Difference of mean scores, in nats, that is rounding.
_TIE = 1e-9
#: Factor by which the number of sorted simulations grows until they have enough effective draws.
_MORE = 2
#: Ratio of the numbers of effective draws at successive candidate tolerances.
_STEP = 3.0
#: Minimum effective draws per regression coefficient.
_PER_COEFFICIENT = 2.0


class AdjustedRun(NamedTuple):
    """Adjusted draws and the adjustment that was chosen.

    Attributes
    ----------
    draws : AdjustedDraws or None
        None if the prior's density is zero at all adjusted points.
    distance : array (N,)
        Distances by which simulations were accepted.
    choice : Choice
    regression : str
        Name of the regression that learned the summaries; "" if none were learned.
    """

    draws: AdjustedDraws | None
    distance: np.ndarray
    choice: Choice
    regression: str


def adjust_run(run: AbcRun, plain: Accepted, adjust: AdjustName) -> AdjustedRun:
    """Choose an adjustment and apply it to the simulations of a run.

    Parameters
    ----------
    run : AbcRun
        Run with summary statistics.
    plain : Accepted
        Simulations accepted without adjustment. An adjustment on the raw summaries accepts at least as many
        effective draws.
    adjust : {"regression", "learned", "auto"}
        "learned" is "auto" for fewer than 100 simulations.

    Returns
    -------
    AdjustedRun
    """
    history, rng, density = run.history, run.rng.spawn(1)[0], run.problem.log_density
    assert history.summaries is not None
    out = history.distance
    at = np.flatnonzero(np.isfinite(out) & np.isfinite(history.summaries).all(axis=1))
    u, summaries, distance = history.u[at], history.summaries[at], out[at]
    log_weight = history.log_weight_in_cube[at]
    total = min(_MOST, effective(log_weight[log_weight > -math.inf]))
    base = min(plain.effective, total)
    pseudo = _pseudo_observed(distance, log_weight, density(u), base, rng)
    data = np.concatenate([summaries[pseudo], run.observed[None]])
    learned, regression = None, ""
    if len(at) >= _TO_LEARN and (adjust != "regression" or run.learned):
        x, train = to_normal(u), np.ones(len(u), bool)
        train[pseudo] = False
        how = learn_summaries(summaries[train], x[train], rng)
        fold, found, targets = cross_fitted(summaries, x, how, train, data, rng)
        learned = Space("learned", found, fold, targets, np.eye(found.shape[1]))
        regression = how.name
    spaces, tried = [], []
    if adjust != "learned" or learned is None:
        root = (
            distance_root(summaries, run.observed, distance)
            if run.scale is None
            else np.diag(1.0 / run.scale.spread)
        )
        raw = Space("raw", summaries, np.zeros(len(at), int), data[None], root)
        if learned is not None and run.learned:
            targets = np.repeat(raw.targets, len(learned.targets), axis=0)
            raw = learned._replace(name="raw", regressors=(summaries, targets))
        spaces.append(raw)
        tried = [Candidate("raw", "none", base)] if adjust != "regression" else []
        tried += candidates("raw", summaries.shape[1], _KINDS, base, total)
        tried = tried or [Candidate("raw", "linear", total)]
    if learned is not None and adjust != "regression":
        spaces.append(learned)
        fewest = min(base, max(_FEWEST, _CLOSER * base))
        tried += candidates("learned", learned.statistics.shape[1], _KINDS_LEARNED, fewest, total)
    choice = best_candidate(
        tried, spaces, u, log_weight, pseudo, density,
        prefer_first=tried[0].kind == "none" and adjust == "auto",
    )  # fmt: skip
    chosen = choice.candidate
    space = next(s for s in spaces if s.name == chosen.space)
    own = distance if space.name == "raw" else space.distance(-1)  # the data are the last target
    tolerance = plain.tolerance
    if not (space.name == "raw" and chosen.draws == base):
        order, weight = closest_first(own, log_weight)
        enough = np.flatnonzero(effective_of_first(weight) >= chosen.draws - 1e-9)
        tolerance = float(own[order[int(enough[0]) if len(enough) else -1]])
    draws = adjusted_accepted(u, space.gaps(-1), own, log_weight, tolerance, chosen.kind, density)
    out = np.full(len(out), math.inf)
    out[at] = own
    if draws is not None:
        accepted = draws.accepted
        draws = draws._replace(accepted=accepted._replace(index=at[accepted.index]))
    return AdjustedRun(draws, out, choice, regression)


def distance_root(summaries: np.ndarray, observed: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Return a matrix (S, S) whose Euclidean distance of gaps approximates a given distance.

    Squared distances are regressed on squared gaps of summaries, with nonnegative coefficients. The result is exact
    for any weighted Euclidean distance.

    Parameters
    ----------
    summaries : array (n, S)
    observed : array (S,)
    distance : array (n,)

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.choose import distance_root
    >>> s = np.random.default_rng(1).normal(size=(100, 2))
    >>> distance_root(s, np.zeros(2), np.hypot(s[:, 0], 2.0 * s[:, 1])).round(3)
    array([[1., 0.],
           [0., 2.]])
    """
    near = np.argsort(distance, kind="stable")[:_LOOKED_AT]
    squares = (summaries[near] - observed) ** 2
    scale = squares.mean(axis=0)
    scale[scale == 0.0] = 1.0
    target = distance[near] ** 2
    # Relative errors are minimised because close simulations matter most.
    weight = 1.0 / np.maximum(target, np.median(target) + 1e-300)
    found, _ = nnls(squares / scale * weight[:, None], target * weight)
    if not found.any():
        found = np.ones(len(scale))
    return np.diag(np.sqrt(found / scale))


def _pseudo_observed(
    distance: np.ndarray,
    log_weight: np.ndarray,
    log_density: np.ndarray | None,
    base: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw simulations (M,) near the data in proportion to their weights."""
    log = log_weight if log_density is None else log_weight + log_density
    order, weight = closest_first(distance, log)
    if not len(order):
        order, weight = closest_first(distance, np.zeros(len(distance)))
    reached = effective_of_first(weight)
    wanted = min(max(base, float(_PSEUDO)), _NEAREST * float(reached[-1]))
    last = int(np.flatnonzero(reached >= wanted)[0]) + 1
    weight = weight[:last] / weight[:last].sum()
    return rng.permutation(order[:last][systematic(weight, _PSEUDO, rng)])


# --- scores ---


class Space(NamedTuple):
    """Statistics by which simulations are compared.

    Attributes
    ----------
    name : str
    statistics : array (N, S)
        Statistics of all simulations.
    fold : array of int (N,)
        Fold of each simulation, see :func:`amc_pymc.likelihood_free.learned.cross_fitted`.
    targets : array (folds, M, S)
        Statistics of the M pseudo-observed data sets, for each fold.
    root : array (S, Z)
        Matrix by which gaps are multiplied; the distance is the Euclidean length of the product.
    regressors : pair of arrays (N, R), (folds, M, R), optional
        Regressors to use instead of the statistics, and those of the pseudo-observed data sets.
    """

    name: str
    statistics: np.ndarray
    fold: np.ndarray
    targets: np.ndarray
    root: np.ndarray
    regressors: tuple[np.ndarray, np.ndarray] | None = None

    def distance(self, m: int) -> np.ndarray:
        """Return distances (N,) from pseudo-observed data set m."""
        gaps = (self.statistics - self.targets[self.fold, m]) @ self.root
        return np.sqrt(np.einsum("ij,ij->i", gaps, gaps))

    def gaps(self, m: int, index: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return gaps (n, R) of regressors between simulations and pseudo-observed data set m."""
        own, targets = self.regressors or (self.statistics, self.targets)
        return own[index] - targets[self.fold[index], m]


class Candidate(NamedTuple):
    """A space, a kind of regression and the number of effective draws to accept."""

    space: str
    kind: Kind
    draws: float


class Choice(NamedTuple):
    """Chosen candidate, its gain and its calibration.

    Attributes
    ----------
    candidate : Candidate
    gain : float
        Mean log score minus that of the first candidate, in nats.
    error : float
        Standard error of the gain.
    calibration : pair of arrays (D,)
        Mean squared errors of posterior means at pseudo-observed data, in posterior variances, and their standard
        errors. They are one if means and variances are right: larger if posteriors are too narrow or their means are
        off, smaller if they are too wide.
    """

    candidate: Candidate
    gain: float
    error: float
    calibration: tuple[np.ndarray, np.ndarray]


def candidates(
    space: str, n_statistics: int, kinds: Sequence[Kind], fewest: float, most: float
) -> list[Candidate]:
    """Return candidates with increasing numbers of draws that suffice for the regression coefficients.

    Examples
    --------
    >>> from amc_pymc.likelihood_free.choose import candidates
    >>> [c.draws for c in candidates("raw", 2, ["linear"], 100.0, 1000.0)]
    [100.0, 300.0, 1000.0]
    """
    steps = max(0, math.floor(math.log(most / fewest, _STEP)))
    levels = [fewest * _STEP**i for i in range(steps + 1)]
    # The last level is the maximum, but two levels must not be nearly equal.
    if most > 1.5 * levels[-1]:
        levels.append(most)
    elif steps:
        levels[-1] = most
    return [
        Candidate(space, kind, level)
        for kind in kinds
        for level in levels
        if level >= _PER_COEFFICIENT * coefficients(n_statistics, kind)
    ]


def best_candidate(
    tried: Sequence[Candidate],
    spaces: Sequence[Space],
    u: np.ndarray,
    log_weight: np.ndarray,
    pseudo: np.ndarray,
    log_density: LogDensity,
    *,
    prefer_first: bool,
) -> Choice:
    r"""Return the candidate with the best mean log score at pseudo-observed data.

    Simulations close to the data are taken as data in turn. All others are adjusted to them, and a kernel density of
    the accepted ones is scored at the true parameters,

    .. math:: \log \hat p(x_j \mid s_j).

    This score is proper: its expectation is highest for the posterior itself. It depends on location, spread and
    shape. The bandwidth has the best mean score. Among candidates that differ from the best one only in the number of
    draws and are within two standard errors, or 0.03 nats, of it, the one with most draws is chosen. A hundred data
    sets resolve gains of a few hundredths of a nat, but not less.

    Parameters
    ----------
    tried : sequence of Candidate
    spaces : sequence of Space
    u : array (N, D)
        Simulated points of the unit cube.
    log_weight : array (N,)
        Natural log weights, without the prior density.
    pseudo : array of int (M,)
        Simulations that are taken as data; those drawn twice count twice.
    log_density : callable
    prefer_first : bool
        Whether to keep the first candidate unless another one is better by a standard error.

    Returns
    -------
    Choice
    """
    x = to_normal(u)
    scores = np.full((len(tried), len(pseudo), len(_BANDWIDTHS)), -math.inf)
    squares = np.full((len(tried), len(pseudo), x.shape[1]), np.nan)
    alive = list(range(len(tried)))
    for m, j in enumerate(pseudo):
        for space in spaces:
            mine = [c for c in alive if tried[c].space == space.name]
            if not mine:
                continue
            near = _Near(space, m, int(j), log_weight, max(tried[c].draws for c in mine))
            for c in mine:
                moved, weight = _adjusted(tried[c], near, x, log_density)
                scores[c, m] = kernel_score(moved, weight, x[j], _BANDWIDTHS)
                if weight.any():
                    w = weight / weight.sum()
                    mean = w @ moved
                    variance = np.maximum(w @ (moved - mean) ** 2, 1e-300)
                    squares[c, m] = np.minimum((x[j] - mean) ** 2 / variance, _FAR**2)
        if m + 1 in _LOOKS:
            alive = _not_behind(scores[:, : m + 1], alive)
    best = _at_best_bandwidth(scores[alive])
    mean = best.mean(axis=1)
    # Regressions by mode are linear ones where there is one mode: of equal scores, take the simpler kind.
    top = int(np.flatnonzero(mean >= mean.max() - _TIE)[0])
    gain = best[top] - best[0]
    if prefer_first and not gain.mean() > _standard_error(gain):
        return Choice(tried[0], 0.0, _standard_error(gain), _calibration(squares[0]))
    top = _with_more_draws(best, [tried[c] for c in alive], top)
    gain, chosen = best[top] - best[0], alive[top]
    found = _calibration(squares[chosen])
    return Choice(tried[chosen], float(gain.mean()), _standard_error(gain), found)


def _standard_error(values: np.ndarray) -> float:
    return float(values.std() / math.sqrt(len(values)))


def _calibration(squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means (D,) of the known squares (M, D), and their standard errors (D,)."""
    known = squares[~np.isnan(squares).any(axis=1)]
    if not len(known):
        return np.ones(squares.shape[1]), np.full(squares.shape[1], np.inf)
    return known.mean(axis=0), known.std(axis=0) / math.sqrt(len(known))


def _with_more_draws(scores: np.ndarray, tried: Sequence[Candidate], top: int) -> int:
    """Return the candidate with most draws among those like the best one and not significantly worse."""
    for c in sorted(range(len(tried)), key=lambda c: -tried[c].draws):
        alike = tried[c][:2] == tried[top][:2]
        gap = scores[top] - scores[c]
        if alike and gap.mean() <= max(_ALIKE, _AS_GOOD * gap.std() / math.sqrt(len(gap))):
            return c
    return top


class _Near:
    """Simulations close to a pseudo-observed data set, which is left out, ordered by distance.

    They have `most` effective draws, if there are as many.
    """

    def __init__(self, space: Space, m: int, own: int, log_weight: np.ndarray, most: float):
        self.space, self.m = space, m
        distance = space.distance(m)
        some = np.isfinite(distance) & (log_weight > -math.inf)
        some[own] = False
        order = np.flatnonzero(some)
        distance, log = distance[order], log_weight[order]
        weight, n = np.exp(log - log.max()), math.ceil(most)
        while True:
            n = min(_MORE * n, len(order))
            # All of equal distance belong to the closest, as they do if all are sorted.
            near = np.flatnonzero(distance <= np.partition(distance, n - 1)[n - 1])
            near = near[np.argsort(distance[near], kind="stable")]
            self.reached = effective_of_first(weight[near])
            if len(near) == len(order) or self.reached[-1] >= most:
                break
        self.order, self.distance, self.weight = order[near], distance[near], weight[near]

    def closest(self, draws: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Return indices, weights and distances (n,) of the closest `draws` effective draws, and the tolerance."""
        enough = np.flatnonzero(self.reached >= draws)
        n = int(enough[0]) + 1 if len(enough) else len(self.order)
        return self.order[:n], self.weight[:n], self.distance[:n], float(self.distance[n - 1])


def _adjusted(
    candidate: Candidate, near: _Near, x: np.ndarray, log_density: LogDensity
) -> tuple[np.ndarray, np.ndarray]:
    """Return points (n, D), adjusted to a pseudo-observed data set, and their weights (n,)."""
    *closest, tolerance = near.closest(candidate.draws)
    thinned = slice(None, None, math.ceil(len(closest[0]) / _REGRESSED))
    index, weight, distance = (a[thinned] for a in closest)
    moved = x[index]
    if candidate.kind != "none":
        weight = weight * epanechnikov(distance, tolerance)
        moved = regress(moved, near.space.gaps(near.m, index), weight, candidate.kind).x
    log = log_density(from_normal(moved))
    return moved, weight if log is None else weight * relative(log)


def kernel_score(
    x: np.ndarray, weight: np.ndarray, at: np.ndarray, bandwidths: np.ndarray
) -> np.ndarray:
    r"""Return the log of a kernel density that preserves mean and covariance, at one point.

    The logarithm is natural and omits the constant of the normal density, :math:`-\tfrac D2 \log 2 \pi`.

    .. math:: (1 - \lambda) \sum_i w_i N\bigl(m + a (x_i - m), a^2 h^2 S\bigr) + \lambda N(0, I),
        \qquad a^2 (1 + h^2) = 1

    Parameters
    ----------
    x : array (n, D)
    weight : array (n,)
        Nonnegative.
    at : array (D,)
    bandwidths : array (B,)
        Bandwidths h.

    Returns
    -------
    array (B,)
    """
    d = x.shape[1]
    prior = math.log(_PRIOR_SHARE) - 0.5 * at @ at
    total = weight.sum()
    if not total > 0.0:
        return np.full(len(bandwidths), prior)
    w = weight / total
    mean = w @ x
    centred = x - mean
    covariance = (centred * w[:, None]).T @ centred
    ridge = 1e-6 * np.diag(covariance).mean() + 1e-12
    root = np.linalg.cholesky(covariance + ridge * np.eye(d))
    if len(x) > _POINTS:
        # Systematic sample of equal weights.
        at_levels = (np.arange(_POINTS) + 0.5) / _POINTS
        chosen = np.minimum(np.searchsorted(np.cumsum(w), at_levels), len(x) - 1)
        centred, w = centred[chosen], np.full(_POINTS, 1.0 / _POINTS)
    inverse = np.linalg.inv(root)
    z, z_at = centred @ inverse.T, inverse @ (at - mean)
    products, squares = z @ z_at, np.einsum("ij,ij->i", z, z)
    a = 1.0 / np.sqrt(1.0 + bandwidths**2)
    width = a * bandwidths
    gaps = z_at @ z_at - 2.0 * a * products[:, None] + a**2 * squares[:, None]
    log = -0.5 * gaps / width**2
    top = log.max(axis=0)
    with np.errstate(divide="ignore"):
        found = np.log(w @ np.exp(log - top)) + top - d * np.log(width)
    found -= np.log(np.diag(root)).sum()
    return np.logaddexp(math.log1p(-_PRIOR_SHARE) + found, prior)


def _at_best_bandwidth(scores: np.ndarray) -> np.ndarray:
    """Return scores (C, M) at each candidate's bandwidth with the best mean score."""
    best = scores.mean(axis=1).argmax(axis=1)
    return scores[np.arange(len(scores)), :, best]


def _not_behind(scores: np.ndarray, alive: Sequence[int]) -> list[int]:
    """Return the better half of the candidates, without those far behind the best one; the first is always kept."""
    best = _at_best_bandwidth(scores[alive])
    mean = best.mean(axis=1)
    gap = best[int(np.argmax(mean))] - best
    error = gap.std(axis=1) / math.sqrt(best.shape[1])
    out = (gap.mean(axis=1) > _BEHIND * error) | (mean < np.median(mean))
    return [c for c, far in zip(alive, out, strict=True) if c == 0 or not far]
