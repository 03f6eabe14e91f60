r"""Choice of an adjustment and a tolerance by predictive scores at simulations close to the data."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from scipy.optimize import nnls

from amc_pymc.likelihood_free.accepted import Accepted, closest_first, effective
from amc_pymc.likelihood_free.adjust import (
    AdjustedDraws,
    Kind,
    LogDensity,
    adjusted_accepted,
    coefficients,
    epanechnikov,
    regress,
)
from amc_pymc.likelihood_free.by_group import ByGroup, Simulations
from amc_pymc.likelihood_free.by_observation import ROUNDS, Likelihood, locate
from amc_pymc.likelihood_free.history import AbcRun
from amc_pymc.likelihood_free.learned import learn_and_apply
from amc_pymc.likelihood_free.model_problem import ModelProblem
from amc_pymc.likelihood_free.problem import lengths
from amc_pymc.likelihood_free.proposal import NONCENTRED, Parametrisation
from amc_pymc.logweights import effective_of_first, relative, systematic
from amc_pymc.mixtures import StudentTMixture, fit_student_t_mixture
from amc_pymc.progress import progress

AdjustName = Literal["none", "regression", "learned", "auto"]

#: Number of pseudo-observed data sets, and multiple of the tolerance within which they are drawn.
_PSEUDO, _WIDER = 100, 1.5
#: Effective draws per coefficient of the regression that says where variables are that others depend on.
_PER_FIRST = 30.0
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
_KINDS_LEARNED: tuple[Kind, ...] = (
    "none", "linear", "heteroscedastic", "marginal", "marginal heteroscedastic",
)  # fmt: skip
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
#: Difference of mean scores, in nats, and relative difference of effective draws that are rounding.
_TIE, _ROUNDING = 1e-9, 1e-9
#: Ratio of the numbers of effective draws at successive candidate tolerances.
_STEP = 3.0
#: Minimum effective draws per regression coefficient.
_PER_COEFFICIENT = 2.0


def adjust_run(
    run: AbcRun, plain: Accepted, adjust: AdjustName
) -> tuple[AdjustedDraws | None, np.ndarray, Choice]:
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
    draws : AdjustedDraws or None
        None if the prior's density is zero at all adjusted points.
    distance : array (N,)
        Distances by which simulations were accepted.
    choice : Choice
    """
    at, found, tilt, tried = _offered(run, plain, adjust)
    pseudo, distance, log_weight = found.pseudo, found.distance, found.log_weight
    density = None if run.history.rounds[0].log_density is None else run.problem.log_density
    with progress("Comparing adjustments", len(pseudo), enabled=run.progressbar) as bar:
        first = tried[0].kind == "none" and adjust == "auto"
        choice = best_candidate(
            tried, log_weight, pseudo, density, tilt, prefer_first=first, each=bar.advance
        )
    space, kind, wanted = choice.candidate
    tolerance = plain.tolerance
    if space.name != "raw":
        distance = space.distance(-1)  # the data are the last target
    if space.name != "raw" or wanted > plain.effective:
        order, weight = closest_first(distance, log_weight)
        tolerance = float(distance[order[_enough(effective_of_first(weight), wanted) - 1]])
    draws = adjusted_accepted(
        space.moved, space.gaps(-1), distance, log_weight, tolerance, kind, density,
        space.coordinates if space.by_group is None else space.by_group.at_data(),
    )  # fmt: skip
    out = np.full(len(run.history), math.inf)
    out[at] = distance
    if draws is not None:
        accepted = draws.accepted
        draws = draws._replace(accepted=accepted._replace(index=at[accepted.index]))
    return draws, out, choice


def _offered(
    run: AbcRun, plain: Accepted, adjust: AdjustName
) -> tuple[np.ndarray, Simulations, Tilt | None, list[Candidate]]:
    """Return candidates for :func:`adjust_run`, and what they are compared on.

    Returns
    -------
    at : array of int (n,)
        Simulations with summary statistics and a distance.
    found : Simulations
        These, and which of them are taken as data.
    tilt : Tilt or None
        Factor by which these were selected.
    tried : list of Candidate
    """
    history, rng = run.history, run.rng.spawn(1)[0]
    assert history.summaries is not None
    distance = history.distance
    at = np.flatnonzero(np.isfinite(distance) & np.isfinite(history.summaries).all(axis=1))
    u, summaries, distance = history.u[at], history.summaries[at], distance[at]
    log_weight = history.log_weight_in_cube[at]
    total = min(_MOST, effective(log_weight))
    base = min(plain.effective, total)
    own = run.problem.centred(u) if isinstance(run.problem, ModelProblem) else None
    by = [NONCENTRED] if own is None else [NONCENTRED, own]
    x, *_ = positions = [c.to(u) for c in by]
    offers = adjust != "regression"  # whether learned statistics are candidates
    learns = len(at) >= _TO_LEARN and (offers or run.learned)
    weighted = history.log_weight[at] - history.log_weight[at].max()
    gaps = summaries - run.observed
    tilt = None if own is None else tilted(positions, gaps, distance, weighted)
    likelihood = None
    if run.cells is not None and own is None and learns:
        every, near = np.concatenate(run.counts), history.x[plain.index]
        counts = every[np.append(0, 1 + at)]
        with progress("Learning a likelihood", ROUNDS, enabled=run.progressbar) as bar:
            likelihood = locate(x, counts, run.cells.basis, near, plain.weight, bar.advance)
        if likelihood.misses_modes(near, every[1 + plain.index], counts[:1]):
            likelihood = None
        else:
            tilt = Tilt(np.arange(u.shape[1]), likelihood.posterior)
    pseudo = pseudo_observed(x, distance, weighted, base, tilt, rng)
    data = np.concatenate([summaries[pseudo], run.observed[None]])
    found = Simulations(summaries, log_weight, distance, pseudo, data)
    quick, spaces = likelihood is not None, []
    if learns:
        spaces = learned_spaces(run, found, by, positions, rng, grouped=offers, quick=quick)
    if likelihood is not None:
        spaces.append(observation_space(likelihood, x, counts, pseudo))
    fewest = min(base, max(_FEWEST, _CLOSER * base))
    tried = [c for s in spaces if offers for c in candidates(s, s.kinds, fewest, total)]
    if adjust != "learned" or not learns:
        units = distance_units(gaps, distance) if run.scale is None else run.scale.spread
        fold = np.zeros(len(at), int)
        raw = Space("raw", NONCENTRED, x, summaries, fold, data[None], units)
        if run.learned and learns:
            raw = spaces[0]._replace(name="raw", regression="")
        of_raw = [Candidate(raw, "none", base)] if offers else []
        of_raw += candidates(raw, _KINDS, base, total)
        tried = [*(of_raw or [Candidate(raw, "linear", total)]), *tried]
    return at, found, tilt, tried


def learned_spaces(
    run: AbcRun,
    found: Simulations,
    by: Sequence[Parametrisation],
    positions: Sequence[np.ndarray],
    rng: np.random.Generator,
    grouped: bool,
    quick: bool,
) -> list[Space]:
    """Return spaces of learned statistics for each parametrisation and its positions (N, D).

    If `grouped`, and effects and summary statistics belong to groups, there are also spaces in which only the other parameters are
    regressed: groups are alike, or each is learned by itself.
    """
    groups = run.problem.groups() if grouped and isinstance(run.problem, ModelProblem) else None
    each = list(zip(by, positions, strict=True))

    def learned(
        features: Callable[[np.ndarray], np.ndarray], x: np.ndarray, *, thorough: bool = True
    ) -> tuple[Space, np.ndarray]:
        """Return a space for parameters x (N, P), and expected parameters (M + 1, P)."""
        how, fold, statistics, of_data = learn_and_apply(
            features(found.summaries), x, features(found.data[-1:])[0], rng, thorough=thorough,
            near=found.pseudo, distance=found.distance, progressbar=run.progressbar,
        )  # fmt: skip
        of_pseudo = np.repeat(statistics[None, found.pseudo], len(of_data), axis=0)
        targets = np.concatenate([of_pseudo, of_data], axis=1)
        units = np.ones(len(how.sigma))
        expected = (targets.mean(axis=0) * how.sigma)[:, : x.shape[1]]
        return Space("", by[-1], x, statistics, fold, targets, units, how.name), expected

    space, _ = learned(np.asarray, positions[-1], thorough=groups is None and not quick)
    out = [space._replace(name=f"learned, {c.name}", coordinates=c, x=x) for c, x in each]
    if groups is None:
        return out
    shared = np.delete(positions[-1], groups.effects, axis=1)
    for alike, features in ((True, groups.features), (False, np.asarray)):
        space, phi = learned(features, shared)
        for c, x in each:
            by_group = ByGroup(groups, c, x, found, phi, alike, rng)
            name = f"by group, {c.name}, alike={alike}"
            out.append(space._replace(name=name, coordinates=c, x=x, by_group=by_group))
    return out


def observation_space(
    learned: Likelihood, x: np.ndarray, counts: np.ndarray, pseudo: np.ndarray
) -> Space:
    """Return a space of estimates under the likelihood of an observation, for parameters (N, D) and counts (1 + N, B)."""
    targets = learned.modes(counts[np.append(1 + pseudo, 0)])[None]
    fold, units = np.zeros(len(x), int), np.ones(x.shape[1])
    statistics, name = learned.estimates(x, counts[1:]), "likelihood of observations"
    return Space("by observation", NONCENTRED, x, statistics, fold, targets, units, name)


def distance_units(gaps: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Return units (S,) of summaries in which the Euclidean distance approximates a given distance.

    Squared distances are regressed on squared gaps of summaries, with nonnegative coefficients. The result is exact
    for any weighted Euclidean distance; the unit is infinite where the weight is zero.

    Parameters
    ----------
    gaps : array (n, S)
        Summaries minus those of the data.
    distance : array (n,)

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.choose import distance_units
    >>> gaps = np.random.default_rng(1).normal(size=(100, 2))
    >>> distance_units(gaps, np.hypot(gaps[:, 0], 2.0 * gaps[:, 1])).round(3)
    array([1. , 0.5])
    """
    near = np.argsort(distance, kind="stable")[:_LOOKED_AT]
    squares = gaps[near] ** 2
    scale = squares.mean(axis=0)
    scale[scale == 0.0] = 1.0
    target = distance[near] ** 2
    # Relative errors are minimised because close simulations matter most.
    weight = 1.0 / np.maximum(target, np.median(target) + 1e-300)
    found, _ = nnls(squares / scale * weight[:, None], target * weight)
    if not found.any():
        found = np.ones(len(scale))
    with np.errstate(divide="ignore"):
        return np.sqrt(scale / found)


class Tilt(NamedTuple):
    """A factor of densities, a function of a few parameters: their posterior over their prior density.

    Attributes
    ----------
    columns : array of int
        Coordinates of these parameters, standard normal a priori.
    posterior : StudentTMixture
    """

    columns: np.ndarray
    posterior: StudentTMixture

    def log(self, x: np.ndarray) -> np.ndarray:
        """Return natural logarithms (n,) of the factor at parameters (n, D)."""
        z = np.ascontiguousarray(x[:, self.columns])
        return self.posterior.log_density(z) - NONCENTRED.log_prior(z)


def tilted(
    positions: Sequence[np.ndarray], gaps: np.ndarray, distance: np.ndarray, log_weight: np.ndarray
) -> Tilt | None:
    """Return the factor of variables that others depend on, from a linear regression on gaps (n, S).

    These are equal in both positions (n, D), of which only the second are centred. None with few simulations per
    coefficient.
    """
    x, centred = positions
    order, weight = closest_first(distance, log_weight)
    wanted, reached = coefficients(gaps.shape[1], "linear"), effective_of_first(weight)
    at = order[: _enough(reached, _PER_FIRST * wanted)]
    if effective(log_weight[at]) < _PER_COEFFICIENT * wanted:
        return None
    columns = np.flatnonzero(np.isclose(x, centred).all(axis=0))
    w = relative(log_weight[at]) * epanechnikov(distance[at], float(distance[at[-1]]))
    moved = regress(x[at], gaps[at], w, "linear").x[:, columns]
    return Tilt(columns, fit_student_t_mixture(moved, log_weight[at], n_components=1))


def pseudo_observed(
    x: np.ndarray,
    distance: np.ndarray,
    log_weight: np.ndarray,
    draws: float,
    tilt: Tilt | None,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw simulations (M,) within 1.5 times the distance of the closest `draws` effective ones.

    They are drawn by their weights times a factor of their parameters (N, D), because the closest simulations of a
    hierarchical model have a small variance between groups. Scores take account of the factor.
    """
    order, weight = closest_first(distance, log_weight)
    last = order[_enough(effective_of_first(weight), max(draws, _PSEUDO)) - 1]
    pool = order[: np.searchsorted(distance[order], _WIDER * distance[last], side="right")]
    share = relative(log_weight[pool] + (0.0 if tilt is None else tilt.log(x[pool])))
    return rng.permutation(pool[systematic(share / share.sum(), _PSEUDO, rng)])


def _enough(reached: np.ndarray, draws: float) -> int:
    """Return how many of the closest simulations have as many effective draws: `reached` (n,) by the first 1, 2, ..."""
    enough = reached >= draws * (1.0 - _ROUNDING)
    return int(np.argmax(enough)) + 1 if enough.any() else len(reached)


# --- scores ---


class Space(NamedTuple):
    """Statistics by which simulations are compared.

    Attributes
    ----------
    name : str
    coordinates : Parametrisation
    x : array (N, D)
        Parameters in these coordinates.
    statistics : array (N, S)
        Statistics of all simulations.
    fold : array of int (N,)
        Fold of each simulation, see :func:`amc_pymc.likelihood_free.learned.cross_fitted`.
    targets : array (folds, M, S)
        Statistics of the M pseudo-observed data sets, for each fold.
    units : array (S,)
        Units of the statistics in which the distance is Euclidean.
    regression : str
        Name of the regression that learned the statistics; "" if none were learned.
    by_group : ByGroup, optional
        Distribution of the effects of groups given the other parameters. Only these are regressed then.
    """

    name: str
    coordinates: Parametrisation
    x: np.ndarray
    statistics: np.ndarray
    fold: np.ndarray
    targets: np.ndarray
    units: np.ndarray
    regression: str = ""
    by_group: ByGroup | None = None

    @property
    def moved(self) -> np.ndarray:
        """Parameters (N, P) that are regressed."""
        return self.x if self.by_group is None else self.by_group.x

    @property
    def kinds(self) -> Sequence[Kind]:
        """Kinds of regressions on learned statistics; marginal ones of a single parameter are the joint ones."""
        pairs = self.statistics.shape[1] == 2 * self.x.shape[1] > 2
        return _KINDS_LEARNED if pairs else _KINDS_LEARNED[:3]

    def distance(self, m: int) -> np.ndarray:
        """Return distances (N,) from pseudo-observed data set m."""
        return lengths(self.gaps(m) / self.units)

    def gaps(self, m: int, index: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return gaps (n, S) of statistics between simulations and pseudo-observed data set m."""
        return self.statistics[index] - self.targets[self.fold[index], m]


class Candidate(NamedTuple):
    """A space, a kind of regression and the number of effective draws to accept."""

    space: Space
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


def candidates(space: Space, kinds: Sequence[Kind], fewest: float, most: float) -> list[Candidate]:
    """Return candidates with increasing numbers of draws that suffice for the regression coefficients."""
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
        if level >= _PER_COEFFICIENT * coefficients(space.statistics.shape[1], kind)
    ]


def best_candidate(
    tried: Sequence[Candidate],
    log_weight: np.ndarray,
    pseudo: np.ndarray,
    log_density: LogDensity | None,
    tilt: Tilt | None = None,
    *,
    prefer_first: bool,
    each: Callable[[], object] = lambda: None,
) -> Choice:
    r"""Return the candidate with the best mean log score at pseudo-observed data.

    Simulations close to the data are taken as data in turn. All others are adjusted to them, and a kernel density of
    the accepted ones is scored at the true parameters,

    .. math:: \log \hat p(x_j \mid s_j) - \log \pi(x_j).

    The prior density makes scores in different coordinates comparable. This score is proper: its expectation is highest
    for the posterior itself. It depends on location, spread and shape. If simulations were selected by a factor r of
    their parameters, the parameters are from the posterior times r, and draws are weighted by r, too. The bandwidth has
    the best mean score. Among candidates that differ from the best one only in the number of draws and are within two
    standard errors, or 0.03 nats, of it, the one with most draws is chosen. A hundred data sets resolve gains of a few
    hundredths of a nat, but not less.

    Parameters
    ----------
    tried : sequence of Candidate
    log_weight : array (N,)
        Natural log weights, without the prior density.
    pseudo : array of int (M,)
        Simulations that are taken as data; those drawn twice count twice.
    log_density : callable, optional
    tilt : Tilt, optional
        Factor by which pseudo-observations were selected, of all densities that are compared.
    prefer_first : bool
        Whether to keep the first candidate unless another one is better by a standard error.
    each : callable
        Called after each pseudo-observed data set.

    Returns
    -------
    Choice
    """
    spaces = list({c.space.name: c.space for c in tried}.values())
    scores = np.full((len(tried), len(pseudo), len(_BANDWIDTHS)), -math.inf)
    squares = np.full((len(tried), len(pseudo), spaces[0].x.shape[1]), np.nan)
    alive = list(range(len(tried)))
    for m, j in enumerate(pseudo):
        for space in spaces:
            mine = [c for c in alive if tried[c].space is space]
            if not mine:
                continue
            x, prior = space.x, float(space.coordinates.log_prior(space.x[[j]])[0])
            own: np.ndarray | slice = slice(None)
            near = _Near(space, m, int(j), log_weight)
            if near.effects is not None:
                # The density is that of shared parameters times those of the effects given them.
                own, prior = near.effects.shared, prior - near.effects.log_density(x[j])
            for c in mine:
                moved, weight = near.adjusted(tried[c], log_density, tilt)
                scores[c, m] = kernel_score(moved[:, own], weight, x[j, own], prior, _BANDWIDTHS)
                if weight.any():
                    w = weight / weight.sum()
                    mean = w @ moved
                    variance = np.maximum(w @ (moved - mean) ** 2, 1e-300)
                    squares[c, m] = np.minimum((x[j] - mean) ** 2 / variance, _FAR**2)
        if m + 1 in _LOOKS:
            alive = _not_behind(scores[:, : m + 1], alive)
        each()
    best = _at_best_bandwidth(scores[alive])
    mean = best.mean(axis=1)
    # Regressions by mode are linear ones where there is one mode: of equal scores, take the simpler kind.
    top = int(np.argmax(mean >= mean.max() - _TIE))
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
        alike = tried[c].space is tried[top].space and tried[c].kind == tried[top].kind
        gap = scores[top] - scores[c]
        if alike and gap.mean() <= max(_ALIKE, _AS_GOOD * _standard_error(gap)):
            return c
    return top


class _Near:
    """Simulations by their distance from a pseudo-observed data set, which is left out."""

    def __init__(self, space: Space, m: int, own: int, log_weight: np.ndarray):
        self.space, self.m = space, m
        self.effects = None if space.by_group is None else space.by_group.conditional(m)
        distance = space.distance(m)
        distance[own] = math.inf
        self.order, self.weight = closest_first(distance, log_weight)
        self.distance, self.reached = distance[self.order], effective_of_first(self.weight)

    def adjusted(
        self, candidate: Candidate, log_density: LogDensity | None, tilt: Tilt | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the closest points (n, D) of a candidate, adjusted to the data set, and their weights (n,)."""
        n = _enough(self.reached, candidate.draws)
        thinned = slice(0, n, math.ceil(n / _REGRESSED))
        index, weight = self.order[thinned], self.weight[thinned]
        moved = self.space.moved[index]
        if candidate.kind != "none":
            weight = weight * epanechnikov(self.distance[thinned], float(self.distance[n - 1]))
            moved = regress(moved, self.space.gaps(self.m, index), weight, candidate.kind).x
        if self.effects is not None:
            moved = self.effects.whole(moved)
        if tilt is not None:
            weight = weight * relative(tilt.log(moved))
        log = None if log_density is None else log_density(self.space.coordinates.back(moved))
        return moved, weight if log is None else weight * relative(log)


def kernel_score(
    x: np.ndarray, weight: np.ndarray, at: np.ndarray, log_prior: float, bandwidths: np.ndarray
) -> np.ndarray:
    r"""Return the log of a kernel density that preserves mean and covariance, relative to the prior at one point.

    .. math:: \log\Bigl[(1 - \lambda) \sum_i w_i N\bigl(m + a (x_i - m), a^2 h^2 S\bigr) / \pi + \lambda\Bigr],
        \qquad a^2 (1 + h^2) = 1

    Parameters
    ----------
    x : array (n, D)
    weight : array (n,)
        Nonnegative.
    at : array (D,)
    log_prior : float
        Natural log of the prior density there, without the constant of the normal density,
        :math:`-\tfrac D2 \log 2 \pi`.
    bandwidths : array (B,)
        Bandwidths h.

    Returns
    -------
    array (B,)
    """
    d = x.shape[1]
    prior = math.log(_PRIOR_SHARE)
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
    found -= np.log(np.diag(root)).sum() + log_prior
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
