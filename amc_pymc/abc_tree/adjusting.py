"""Adjusted draws from all simulations: learn summaries, choose an adjustment and apply it."""

from __future__ import annotations

import math

from typing import Literal, NamedTuple

import numpy as np

from scipy.optimize import nnls
from scipy.special import ndtri

from amc_pymc.abc_tree.accepted import Accepted, effective, effective_of_first
from amc_pymc.abc_tree.adjust import AdjustedDraws, Adjustment, LogDensity, adjusted_accepted
from amc_pymc.abc_tree.choose import Candidate, Choice, Space, best_candidate, candidates
from amc_pymc.abc_tree.features import Features, plain_features
from amc_pymc.abc_tree.learned import cross_fitted, learn_summaries
from amc_pymc.abc_tree.proximity import Shared, shared_leaves
from amc_pymc.logweights import systematic

__all__ = ["AdjustName", "AdjustedRun", "adjust_run", "distance_root"]

AdjustName = Literal["linear", "heteroscedastic", "quadratic", "modes", "learned", "forest", "auto"]

#: Number of pseudo-observed data sets, and maximum share of all effective draws that they are drawn from.
_PSEUDO, _NEAREST = 100, 0.2
#: Standard errors by which an adjustment must be better than no adjustment.
_BETTER = 1.0
#: Maximum effective draws to accept when a tolerance is chosen.
_MOST = 100_000.0
#: Minimum effective draws with learned summaries: fraction of the number without, and absolute.
_CLOSER, _FEWEST = 1.0 / 3.0, 30.0
#: Minimum simulations for learning summaries, and for a forest; maximum number that a forest is grown on.
_TO_LEARN, _TO_GROW, _GROWN = 100, 200, 20_000
#: Maximum number of simulations used to find the units of a distance.
_LOOKED_AT = 2000
_KINDS: tuple[Adjustment, ...] = ("linear", "heteroscedastic", "quadratic", "modes")
_KINDS_LEARNED: tuple[Adjustment, ...] = ("none", "linear", "heteroscedastic", "modes")
_KINDS_FOREST: tuple[Adjustment, ...] = ("linear", "heteroscedastic", "modes")


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
    skill : array (2D,)
        Cross-validated skill of the learned summaries; empty if none were learned.
    """

    draws: AdjustedDraws | None
    distance: np.ndarray
    choice: Choice
    regression: str
    skill: np.ndarray


def adjust_run(
    u: np.ndarray,
    summaries: np.ndarray,
    observed: np.ndarray,
    distance: np.ndarray,
    log_weight: np.ndarray,
    plain: Accepted,
    adjust: AdjustName,
    rng: np.random.Generator,
    *,
    features: Features | None = None,
    root: np.ndarray | None = None,
    distance_is_learned: bool = False,
    log_density: LogDensity | None = None,
) -> AdjustedRun:
    """Choose an adjustment and apply it to the simulations of a run.

    Parameters
    ----------
    u : array (N, D)
        All simulations.
    summaries : array (N, S)
    observed : array (S,)
    distance : array (N,)
        inf where a simulation failed.
    log_weight : array (N,)
        Natural log weights without the prior density.
    plain : Accepted
        Simulations accepted without adjustment. An adjustment on the raw summaries accepts at least as many
        effective draws.
    adjust : {"linear", "heteroscedastic", "quadratic", "modes", "learned", "forest", "auto"}
        "forest" is "linear" for fewer than 200 simulations.
    rng : numpy.random.Generator
    features : callable, optional
        Maps summaries (n, S) to features to regress on and to learn from.
    root : array (S, Z), optional
        Matrix by which gaps of summaries are multiplied for the distance; from :func:`distance_root` by default.
    distance_is_learned : bool
        Whether `distance` is a distance between learned summaries.
    log_density : callable, optional

    Returns
    -------
    AdjustedRun
    """
    features = features or plain_features
    usable = np.isfinite(distance) & np.isfinite(summaries).all(axis=1)
    at = np.flatnonzero(usable)
    n = len(u)
    u, summaries, log_weight = u[at], summaries[at], log_weight[at]
    own_distance = distance[at]
    if root is None and not distance_is_learned:
        root = distance_root(summaries, observed, own_distance)
    total = min(_MOST, effective(log_weight[log_weight > -math.inf]))
    base = min(plain.effective, total)
    pseudo = _pseudo_observed(own_distance, log_weight, u, base, log_density, rng)
    spaces, tried = [], []
    learned, regression, skill = None, "", np.empty(0)
    if len(at) >= _TO_LEARN and (adjust in ("learned", "auto") or distance_is_learned):
        learned, regression, skill = _learned_space(u, summaries, observed, features, pseudo, rng)
    if adjust == "forest" and len(at) >= _TO_GROW:
        forest = _forest_space(
            u, summaries, observed, features, pseudo, own_distance, log_weight, rng
        )
        tried += _forest_candidates(forest, log_weight)
        spaces.append(forest)
    if not tried and (adjust != "learned" or learned is None):
        raw = _raw_space(summaries, observed, features, pseudo, root)
        if learned is not None and distance_is_learned:
            raw = _with_regressors(learned, raw)
        spaces.append(raw)
        kinds: tuple[Adjustment, ...]
        if adjust == "auto" or adjust == "learned":
            kinds = _KINDS
        else:
            kinds = ("linear",) if adjust == "forest" else (adjust,)
        width = raw.gaps(0, slice(1)).shape[1]
        found = candidates("raw", width, kinds, base, total)
        if adjust == "auto" or adjust == "learned":
            tried.append(Candidate("raw", "none", base))
        elif not found:
            found = [Candidate("raw", kinds[0], total)]
        tried += found
    if learned is not None and adjust in ("learned", "auto"):
        spaces.append(learned)
        fewest = min(base, max(_FEWEST, _CLOSER * base))
        tried += candidates("learned", learned.statistics.shape[1], _KINDS_LEARNED, fewest, total)
    # The first candidate is preferred only if it is unadjusted.
    better = _BETTER if tried[0].kind == "none" and adjust == "auto" else 0.0
    choice = best_candidate(tried, spaces, u, log_weight, pseudo, log_density, better=better)
    space = next(s for s in spaces if s.name == choice.candidate.space)
    if space.name == "forest":
        # The pseudo-observed data sets, which are closest to the data, were not in the forest.
        none = pseudo[:0]
        space = _forest_space(u, summaries, observed, features, none, own_distance, log_weight, rng)
    # The observed data are the last target.
    chosen = own_distance if space.name == "raw" else space.distance(-1)
    tolerance = plain.tolerance
    if space.tolerance is not None:
        tolerance = space.tolerance
    elif not (space.name == "raw" and choice.candidate.draws == base):
        tolerance = _tolerance(chosen, log_weight, choice.candidate.draws)
    draws = adjusted_accepted(
        u, space.gaps(-1), chosen, log_weight, tolerance, choice.candidate.kind, log_density
    )
    everywhere = np.full(n, math.inf)
    everywhere[at] = chosen
    if draws is not None:
        accepted = draws.accepted
        draws = draws._replace(accepted=accepted._replace(index=at[accepted.index]))
    return AdjustedRun(draws, everywhere, choice, regression, skill)


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
    >>> from amc_pymc.abc_tree.adjusting import distance_root
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
    u: np.ndarray,
    base: float,
    log_density: LogDensity | None,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw simulations (M,) near the data in proportion to their weights."""
    log = log_weight
    density = None if log_density is None else log_density(u)
    if density is not None:
        log = log + density
    order = np.flatnonzero(log > -math.inf)
    if not len(order):
        order, log = np.arange(len(u)), np.zeros(len(u))
    order = order[np.argsort(distance[order], kind="stable")]
    weight = np.exp(log[order] - log[order].max())
    reached = effective_of_first(weight)
    wanted = min(max(base, float(_PSEUDO)), _NEAREST * float(reached[-1]))
    last = int(np.flatnonzero(reached >= wanted)[0]) + 1
    nearest, weight = order[:last], weight[:last]
    return rng.permutation(nearest[systematic(weight / weight.sum(), _PSEUDO, rng)])


def _raw_space(
    summaries: np.ndarray,
    observed: np.ndarray,
    features: Features,
    pseudo: np.ndarray,
    root: np.ndarray | None,
) -> Space:
    root = np.eye(summaries.shape[1]) if root is None else root
    data = np.concatenate([summaries[pseudo], observed[None]])
    fold = np.zeros(len(summaries), int)
    if features is plain_features:
        return Space("raw", summaries, fold, data[None], root)
    return Space(
        "raw", summaries, fold, data[None], root, features(summaries), features(data)[None]
    )


def _with_regressors(learned: Space, raw: Space) -> Space:
    """Combine the distances of one space with the regressors of another that has no folds."""
    own, targets = raw.regressors, raw.regressor_targets
    if own is None or targets is None:
        own, targets = raw.statistics, raw.targets
    folds = len(learned.targets)
    return learned._replace(
        name="raw", regressors=own, regressor_targets=np.repeat(targets, folds, axis=0)
    )


def _learned_space(
    u: np.ndarray,
    summaries: np.ndarray,
    observed: np.ndarray,
    features: Features,
    pseudo: np.ndarray,
    rng: np.random.Generator,
) -> tuple[Space, str, np.ndarray]:
    x = ndtri(u)
    train = np.ones(len(u), bool)
    train[pseudo] = False
    learned = learn_summaries(summaries[train], x[train], features, rng)
    data = np.concatenate([summaries[pseudo], observed[None]])
    fold, found, targets = cross_fitted(summaries, x, learned, train, data, rng)
    return (
        Space("learned", found, fold, targets, np.eye(found.shape[1])),
        learned.name,
        learned.skill,
    )


def _forest_space(
    u: np.ndarray,
    summaries: np.ndarray,
    observed: np.ndarray,
    features: Features,
    pseudo: np.ndarray,
    distance: np.ndarray,
    log_weight: np.ndarray,
    rng: np.random.Generator,
) -> Space:
    """Return a space with proximities of a forest that the pseudo-observed data sets are left out of."""
    allowed = log_weight > -math.inf
    allowed[pseudo] = False
    train = np.flatnonzero(allowed)
    train = np.sort(train[np.argsort(distance[train], kind="stable")[:_GROWN]])
    found = features(summaries)
    targets = np.concatenate([found[pseudo], features(observed[None])])
    shared = shared_leaves(found, ndtri(u), train, targets, rng)
    fold, root = np.zeros(len(u), int), np.eye(found.shape[1])
    return Space("forest", found, fold, targets[None], root, shared=shared)


def _forest_candidates(space: Space, log_weight: np.ndarray) -> list[Candidate]:
    """Return candidates that accept all simulations with a shared leaf, if these suffice for the coefficients."""
    assert space.shared is not None
    near: Shared = space.shared[-1]
    draws = effective(log_weight[near.index] + np.log(near.proximity))
    n, width = float(len(log_weight)), space.statistics.shape[1]
    found = candidates("forest", width, _KINDS_FOREST, draws, draws)
    return [c._replace(draws=n) for c in found]


def _tolerance(distance: np.ndarray, log_weight: np.ndarray, draws: float) -> float:
    order = np.flatnonzero(log_weight > -math.inf)
    order = order[np.argsort(distance[order], kind="stable")]
    weight = np.exp(log_weight[order] - log_weight[order].max())
    reached = effective_of_first(weight)
    enough = np.flatnonzero(reached >= draws - 1e-9)
    return float(distance[order[int(enough[0]) if len(enough) else -1]])
