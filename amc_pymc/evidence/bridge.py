"""Bridge sampling between posterior draws and a Gaussian fitted to the other half of the draws, and its error."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from scipy.optimize import brentq
from scipy.special import log_expit, logsumexp

from amc_pymc.evidence.annealing import anneal
from amc_pymc.evidence.mcmc import Counted, Kernel, Path, Tuning, scale_of, start, tune
from amc_pymc.evidence.paths import ReferencePath
from amc_pymc.mixtures import StudentTMixture

#: Nats by which the bridge is tilted towards each end to test whether the ends agree.
_TILT = 2.0


class Bridge(NamedTuple):
    """Estimate of the normalising constant Z of the upper end of a path, from draws of both ends.

    Attributes
    ----------
    log_z : float
        Natural logarithm of Z; -inf if all works of the lower end are.
    variance : float
        Variance of `log_z`, including the autocorrelation of the draws.
    upper_variance : float
        Part of the variance that is due to the draws of the upper end.
    overlap : float
        Between 0 (the two densities are disjoint) and 1 (they are equal).
    effective : float
        Smaller effective sample size of the two ends.
    time : float
        Integrated autocorrelation time of the draws of the upper end, at least one.
    tension : float
        Difference in nats between estimates tilted towards the lower and the upper end. Its expectation is zero
        if the draws of the upper end have the correct distribution.
    tension_error : float
        Standard error of `tension`.
    """

    log_z: float
    variance: float
    upper_variance: float
    overlap: float
    effective: float
    time: float
    tension: float
    tension_error: float


def bridge(forward: np.ndarray, backward: np.ndarray, *, copies: float = 1.0) -> Bridge:
    r"""Estimate log Z by the optimal bridge between two ends, or by Bennett's acceptance ratio along a path.

    With works :math:`l = \log p(x) - \log q(x)` at :math:`n_q` draws from q and :math:`n_p` from p, the
    estimate solves

    .. math::
        \hat Z = \frac{\frac{1}{n_q} \sum_{x \sim q} e^{l} / (s_p e^{l} + s_q \hat Z)}
                      {\frac{1}{n_p} \sum_{x \sim p} 1 / (s_p e^{l} + s_q \hat Z)},
        \qquad s_p = \frac{n_p / \tau}{n_p / \tau + n_q}, \quad s_q = 1 - s_p,

    which is the bridge with the smallest error (Meng & Wong 1996). For annealing runs between q and p, the works
    are sums along the path, and the same equation holds if the upward and the downward kernels are each other's
    reversal (Bennett 1976; Crooks 2000). With the summands :math:`h_q` and :math:`h_p`, the variance of
    :math:`\log \hat Z` is, to first order,

    .. math:: \frac{\operatorname{var}_q(h_q)}{n_q \operatorname{E}_q(h_q)^2}
        + \tau \frac{\operatorname{var}_p(h_p)}{n_p \operatorname{E}_p(h_p)^2}

    with the integrated autocorrelation time :math:`\tau` of :math:`h_p` (Frühwirth-Schnatter 2004).

    Parameters
    ----------
    forward : array (n,)
        Works of independent runs from the lower end, whose density is normalised; -inf where p is zero.
    backward : array (C, N)
        Works of runs from draws of the upper end, in chains; finite, with the sign of the upward path.
    copies : float, default 1
        Minimum autocorrelation time: the mean number of copies of each draw, for draws in random order.

    Returns
    -------
    Bridge

    References
    ----------
    Meng & Wong (1996), Simulating ratios of normalizing constants via a simple identity, Statistica Sinica
    6:831-860.
    Bennett (1976), Efficient estimation of free energy differences from Monte Carlo data,
    doi:10.1016/0021-9991(76)90078-4.
    Crooks (2000), Path-ensemble averages in systems driven far from equilibrium,
    doi:10.1103/PhysRevE.61.2361.
    Frühwirth-Schnatter (2004), Estimating marginal likelihoods for mixture and Markov switching models using
    bridge sampling techniques, doi:10.1111/j.1368-423X.2004.00125.x.

    Examples
    --------
    Between a standard normal density and exp(-(x - 1)^2 / 2), whose integral is the root of 2 pi:

    >>> import numpy as np
    >>> from amc_pymc.evidence.bridge import bridge
    >>> from amc_pymc.rng import as_generator
    >>> work = lambda x: x - 0.5 + 0.5 * np.log(2.0 * np.pi)
    >>> rng = as_generator(1)
    >>> found = bridge(work(rng.normal(0.0, 1.0, 2000)), work(rng.normal(1.0, 1.0, (4, 500))))
    >>> (
    ...     bool(abs(found.log_z - 0.9189) < 3.0 * found.variance**0.5),
    ...     bool(found.variance**0.5 < 0.04),
    ... )
    (True, True)
    """
    if forward.max(initial=-math.inf) == -math.inf:
        return Bridge(-math.inf, math.inf, math.inf, 0.0, 0.0, 1.0, math.nan, math.inf)
    time = max(copies, 1.0)
    for _ in range(2):
        share = backward.size / time / (backward.size / time + forward.size)
        log_z = acceptance_ratio(forward, backward, share)
        level = log_z + math.log((1.0 - share) / share)
        time = max(variance_of_mean(_summands(backward, level, -1.0))[1], copies)
    ahead, behind = _summands(forward, level, 1.0), _summands(backward, level, -1.0)
    tension, tension_error = _tension(forward, backward, level, time)
    effective = min(_effective(ahead), _effective(behind) / time)
    overlap = min(float(np.exp(_log_mean(log_expit(forward - level)))) / share, 1.0)
    upper = _variance(behind, time)
    variance = float(ahead.var(ddof=1)) / ahead.size + upper
    return Bridge(log_z, variance, upper, overlap, effective, time, tension, tension_error)


def acceptance_ratio(forward: np.ndarray, backward: np.ndarray, share: float) -> float:
    """Solve for log Z from works of both ends; `share` is s_p, the weight of the upper end, between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.bridge import acceptance_ratio
    >>> round(acceptance_ratio(np.array([2.0, 2.0]), np.array([2.0]), 0.5), 6)
    2.0
    """
    odds = math.log((1.0 - share) / share)

    def excess(log_z: float) -> float:
        up = _log_mean(log_expit(forward - log_z - odds))
        down = _log_mean(log_expit(log_z + odds - backward))
        return up - down + odds

    works = np.concatenate([forward[forward > -np.inf], backward.ravel()])
    reach = 50.0 + abs(odds)
    return float(brentq(excess, float(works.min()) - reach, float(works.max()) + reach, xtol=1e-10))


def variance_of_mean(series: np.ndarray) -> tuple[float, float]:
    r"""Estimate the variance of the mean of chains (C, N), and their integrated autocorrelation time.

    .. math:: \operatorname{var}(\bar h) = \tau\,\frac{\hat\sigma^2}{C N}, \qquad
        \tau = 1 + 2 \sum_t \rho_t

    by the initial monotone sequence of pairs of autocorrelations (Geyer 1992, doi:10.1214/ss/1177011137),
    including the variance between chains (Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021,
    doi:10.1214/20-BA1221). A time below one, from antithetic chains, is set to one.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.bridge import variance_of_mean
    >>> from amc_pymc.rng import as_generator
    >>> x = np.repeat(as_generator(1).standard_normal((4, 1000)), 3, axis=1)
    >>> bool(2.5 < variance_of_mean(x)[1] < 3.6)
    True
    """
    chains, n = series.shape
    centred = series - series.mean(axis=1, keepdims=True)
    size = 2 ** (2 * n - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centred, size, axis=1)) ** 2
    covariances = np.fft.irfft(spectrum, size, axis=1)[:, :n].mean(axis=0) / n
    between = float(series.mean(axis=1).var(ddof=1)) if chains > 1 else 0.0
    total = float(covariances[0]) + between
    if total <= 0.0 or n < 4:
        return float(series.var(ddof=1)) / series.size, 1.0
    within = covariances[0] * n / (n - 1)
    correlations = 1.0 - (within - covariances) / total
    correlations[0] = 1.0
    pairs = correlations[: n - n % 2].reshape(-1, 2).sum(axis=1)
    pairs = pairs[: int(np.argmax(pairs <= 0.0)) if (pairs <= 0.0).any() else len(pairs)]
    time = max(2.0 * float(np.minimum.accumulate(pairs).sum()) - 1.0, 1.0) if pairs.size else 1.0
    return time * total / series.size, time


def _summands(works: np.ndarray, level: float, sign: float) -> np.ndarray:
    """Return the summands of one end over their mean; the sign is 1 for the lower end and -1 for the upper."""
    logs = log_expit(sign * (works - level))
    return np.exp(logs - _log_mean(logs))


def _log_mean(logs: np.ndarray) -> float:
    return float(logsumexp(logs)) - math.log(logs.size)


def _effective(weights: np.ndarray) -> float:
    return float(weights.sum() ** 2 / np.square(weights).sum())


def _variance(behind: np.ndarray, time: float) -> float:
    """Return the variance of the mean of chains with an autocorrelation time of at least `time`."""
    found, own = variance_of_mean(behind)
    return found * max(time / own, 1.0)


def _tension(
    forward: np.ndarray, backward: np.ndarray, level: float, time: float
) -> tuple[float, float]:
    """Return the estimate tilted towards the lower end less that tilted towards the upper end, and its error.

    Any level k gives an estimate, log k + log E_q expit(l - log k) - log E_p expit(log k - l).
    """
    difference, ahead, behind = 0.0, np.zeros(forward.shape), np.zeros(backward.shape)
    for side in (1.0, -1.0):
        tilted = level + side * _TILT
        up, down = log_expit(forward - tilted), log_expit(tilted - backward)
        difference += side * (tilted + _log_mean(up) - _log_mean(down))
        ahead += side * _summands(forward, tilted, 1.0)
        behind += side * _summands(backward, tilted, -1.0)
    variance = np.var(ahead, ddof=1) / forward.size + _variance(behind, time)
    return difference, math.sqrt(variance)


#: Possible numbers of annealing steps between the Gaussian and the posterior.
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: Safety factor for the number of steps predicted from the last error, and the factor by which the number grows
#: if that error is unreliable.
_SPARE, _GROWTH = 1.2, 4
#: Number of draws of each half, and of draws from its Gaussian, that are annealed.
_ANNEALED = 256
#: Number of particles used to tune step sizes.
_TUNED = 128
#: Minimum effective sample size and overlap for a reliable error of a stage, and the largest difference between
#: its halves in standard errors, plus nats.
_FEWEST, _OVERLAP, _ERRORS, _APART = 25.0, 0.02, 4.0, 0.1
#: Largest difference between the two ends in standard errors.
_TENSE = 5.0


class Half(NamedTuple):
    """One half of the draws, with the Gaussian fitted to the other half.

    Attributes
    ----------
    path : ReferencePath
        Path from the Gaussian, a mixture of one component, to the posterior.
    x : array (C, N, D)
        The draws.
    other : array (M, D)
        Some draws of the other half, for tuning.
    copies : float
        Mean number of copies of each draw.
    works : array (C, N)
        Unnormalised log posterior less the log density of the Gaussian, at the draws.
    shared : float
        Share of the variance of the works explained by the error of the fit.
    """

    path: ReferencePath
    x: np.ndarray
    other: np.ndarray
    copies: float
    works: np.ndarray
    shared: float


class Stage(NamedTuple):
    """Bridge estimates of both halves with the same number of annealing steps.

    Attributes
    ----------
    steps : int
        Annealing steps T; 1 for the bridge without moves.
    halves : tuple of Bridge
    draws : int
        Number of works from both ends of both halves.
    cost : int
        Evaluations of the posterior; a gradient counts as two.
    shared : float
        Correlation, between 0 and 1, of the errors of the two halves that come from the posterior draws.
    """

    steps: int
    halves: tuple[Bridge, Bridge]
    draws: int
    cost: int
    shared: float

    @property
    def log_z(self) -> float:
        """Mean log Z of the two halves."""
        return 0.5 * (self.halves[0].log_z + self.halves[1].log_z)

    @property
    def mcse(self) -> float:
        """Standard error of `log_z`."""
        a, b = self.halves
        both = 2.0 * self.shared * math.sqrt(a.upper_variance * b.upper_variance)
        return 0.5 * math.sqrt(a.variance + b.variance + both)

    @property
    def overlap(self) -> float:
        """Smaller overlap of the two halves."""
        return min(h.overlap for h in self.halves)

    @property
    def effective(self) -> float:
        """Smaller effective sample size of the two halves."""
        return min(h.effective for h in self.halves)

    @property
    def apart(self) -> float:
        """Difference between the halves in nats."""
        a, b = self.halves
        return abs(a.log_z - b.log_z) if a.log_z > -math.inf < b.log_z else math.inf

    @property
    def agree(self) -> bool:
        """Whether the halves agree within their errors."""
        return self.apart <= _ERRORS * 2.0 * self.mcse + _APART

    @property
    def carried(self) -> bool:
        """Whether overlap and effective sample size are large enough for a reliable error."""
        return self.effective >= _FEWEST and self.overlap >= _OVERLAP

    @property
    def believed(self) -> bool:
        """Whether the error is reliable."""
        return self.carried and self.agree

    @property
    def tension(self) -> tuple[float, float]:
        """Mean difference between the two ends, and its standard error."""
        a, b = self.halves
        return 0.5 * (a.tension + b.tension), 0.5 * math.hypot(a.tension_error, b.tension_error)


def bridge_draws(
    joint: Path,
    draws: np.ndarray,
    kernel: Kernel,
    rng: np.random.Generator,
    *,
    target: float | None,
    budget: Callable[[float], bool],
    report: Callable[[int], None] = lambda steps: None,
) -> Iterator[list[Stage]]:
    r"""Bridge posterior draws, with as many annealing steps as the target error requires.

    The first half of every chain is bridged with a Gaussian fitted to the second half, and vice versa; the
    estimate of log Z is the mean of both. A Gaussian fitted to the same draws would be too close to them, and
    consecutive halves depend on each other less than interleaved ones. The first stage evaluates the density
    at all draws and at as many draws from the Gaussian. If its error is too large, 256 draws from each end
    are moved along the path :math:`q^{1-\beta} p^{\beta}` in T = 2, 4, ..., 512 steps.

    Parameters
    ----------
    joint : Path
        Path from the prior to the posterior.
    draws : array (C, N, D)
        Posterior draws of C chains on the unconstrained scale, in their original order.
    kernel : Kernel
        Reversible kernel.
    rng : numpy.random.Generator
    target : float or None
        Standard error of log Z at which to stop.
    budget : callable
        Function that returns whether a cost is affordable; called before each stage but the first.
    report : callable, optional
        Function called with the number of steps before each stage.

    Yields
    ------
    list of Stage
        The stages so far; the last one is the estimate.
    """
    halves = halves_of(joint, draws)
    stages: list[Stage] = []
    tunings: tuple[Tuning, Tuning] | None = None
    steps, spent = 1, 0
    while steps:
        report(steps)
        if stages and tunings is None:
            tunings, spent = _tuned(halves, kernel, rng)
        stage = bridge_stage(halves, steps, kernel, tunings, rng)
        stages = [*stages, stage._replace(cost=stage.cost + spent)]
        yield stages
        spent = 0
        if target is not None and stage.believed and stage.mcse <= target:
            break
        steps = _next(stage, target, halves, budget)


def tension_of(stages: list[Stage], nats: float = _APART) -> float:
    """Return the most significant difference in nats between the two ends over all stages; 0 if within its error.

    The error is five standard errors, at least `nats`.

    Estimates tilted towards the draws and towards the Gaussian have the same expectation if the draws are from the
    posterior.
    """
    known = [s.tension for s in stages if 0.0 < s.tension[1] < math.inf]
    gap, error = max(known, key=lambda t: abs(t[0]) / t[1], default=(0.0, math.inf))
    return gap if abs(gap) > max(_TENSE * error, nats) else 0.0


def halves_of(joint: Path, draws: np.ndarray) -> tuple[Half, Half]:
    """Split every chain (C, N, D) into halves, each with the Gaussian fitted to the other half."""
    middle, n_dim = draws.shape[1] // 2, draws.shape[2]
    parts = draws[:, :middle], draws[:, middle:]
    flat = draws.reshape(-1, n_dim)
    copies = len(flat) / len(np.unique(flat, axis=0))
    fits = [_fitted(part.reshape(-1, n_dim)) for part in parts]
    found = []
    for k in (0, 1):
        x, path = parts[k].reshape(-1, n_dim), ReferencePath(joint, fits[1 - k])
        works = path.values(x)[1]
        shared = _explained(works, fits[0].log_density(x) - fits[1].log_density(x))
        few, shape = _thinned(parts[1 - k], _TUNED).reshape(-1, n_dim), parts[k].shape[:2]
        half = Half(path, parts[k], few, copies, works.reshape(shape), shared)
        found.append(half)
    return found[0], found[1]


def _fitted(x: np.ndarray) -> StudentTMixture:
    """Return the Gaussian with the mean and the shrunk covariance of points (P, D)."""
    mean, root = x.mean(axis=0), scale_of(x, dense=True)
    return StudentTMixture(np.ones(1), mean[None], root[None], math.inf)


def _explained(works: np.ndarray, apart: np.ndarray) -> float:
    """Return the share of the variance of works due to errors of the fits, whose log densities differ by `apart`."""
    noise, variance = 0.5 * float(np.var(apart)), float(np.var(works))
    return min(noise / variance, 1.0) if variance > 0.0 else 1.0


def bridge_stage(
    halves: tuple[Half, Half],
    steps: int,
    kernel: Kernel,
    tunings: tuple[Tuning, Tuning] | None,
    rng: np.random.Generator,
) -> Stage:
    r"""Bridge both halves with the same number of annealing steps; `tunings` are needed for more than one.

    The draws of a half enter its own bridge and, through the fitted Gaussian, that of the other. If the posterior
    is close to Gaussian, works vary only because of the errors of the two fits, the estimates are
    bilinear in the errors of both halves, and their errors are equal. If works vary for other reasons, the errors
    are independent. The correlation is therefore estimated as the share of the variance of the works explained
    by the error of a fit, which is half the variance of the difference between the two fitted log densities.
    """
    found, shares, n, cost = [], [], 0, 0
    for k, half in enumerate(halves):
        if tunings is None or steps == 1:
            forward, backward, spent = _at_once(half, rng)
        else:
            forward, backward, spent = _moved(half, steps, kernel, tunings[k], rng)
        found.append(bridge(forward, backward, copies=half.copies))
        shares.append(half.shared)
        n += forward.size + backward.size
        cost += spent
    return Stage(steps, (found[0], found[1]), n, cost, 0.5 * sum(shares))


def _at_once(half: Half, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Compute the works of both ends without moves; also return the cost."""
    n = half.works.size
    return half.path.values(half.path.reference.sample(n, rng))[1], half.works, 2 * n


def _moved(
    half: Half, steps: int, kernel: Kernel, tuning: Tuning, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, int]:
    """Compute the works of annealing from both ends; also return the cost."""
    betas = np.linspace(0.0, 1.0, steps + 1)
    chosen = _thinned(half.x, _ANNEALED)
    x = chosen.reshape(-1, half.path.n_dim)
    path, from_gaussian = Counted(half.path), half.path.reference.sample(len(x), rng)
    # The same tuning along the whole path, because the Gaussian and the posterior have the same scale.
    up = anneal(path, from_gaussian, betas, kernel, lambda beta: tuning, rng)
    down = anneal(path, x, betas[::-1], kernel, lambda beta: tuning, rng)
    return up.log_weights, -down.log_weights.reshape(chosen.shape[:2]), path.cost


def _tuned(
    halves: tuple[Half, Half], kernel: Kernel, rng: np.random.Generator
) -> tuple[tuple[Tuning, Tuning], int]:
    """Tune step sizes at the posterior with draws that are not bridged; also return the cost."""
    found, cost = [], 0
    for half in halves:
        path = Counted(half.path)
        particles = start(path, half.other, with_gradient=kernel.needs_gradient)
        scale = half.path.reference.choleskys[0]
        tuning, _ = tune(kernel, path, particles, 1.0, rng, scale=scale, n_moves=8)
        found.append(tuning)
        cost += path.cost
    return (found[0], found[1]), cost


def _thinned(draws: np.ndarray, n: int) -> np.ndarray:
    """Thin chains (C, N, D) evenly to about n draws (C, n / C, D)."""
    chains, length = draws.shape[:2]
    kept = min(max(-(-n // chains), 1), length)
    return draws[:, np.linspace(0, length - 1, kept).round().astype(int)]


def _next(
    stage: Stage, target: float | None, halves: tuple[Half, Half], budget: Callable[[float], bool]
) -> int:
    """Return the number of steps of the next stage; 0 if none is affordable.

    It is predicted from the last error if that is reliable. A move is assumed to cost three gradients.
    """
    works = sum(2 * _thinned(h.x, _ANNEALED)[:, :, 0].size for h in halves)
    most = max(_GROWTH * stage.steps, 2 * _GROWTH)
    if target is not None and stage.believed:
        wanted = _SPARE * stage.steps * (stage.mcse / target) ** 2 * stage.draws / works
        most = next((s for s in STEPS if s > stage.steps and s >= wanted), STEPS[-1])
    more = [s for s in STEPS if stage.steps < s <= most]
    return next((s for s in reversed(more) if budget(6.0 * works * s)), 0)
