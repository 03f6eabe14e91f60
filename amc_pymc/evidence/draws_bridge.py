"""Evidence from draws of the posterior: a Gaussian fitted to one half of them, a bridge to the other."""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from amc_pymc.annealing import WhitenedPath, anneal, anneal_back
from amc_pymc.evidence.bridge import Bridge, bridge
from amc_pymc.kernels import Kernel, Path, Tuning, scale_of, start, tune

__all__ = ["Half", "Stage", "bridge_draws", "bridge_stage", "halves_of", "tension_of"]

#: Annealing steps between the Gaussian and the posterior, one after the other.
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: Steps over those that an error seen asks for, and over the last ones if that cannot be believed.
_SPARE, _GROWTH = 1.2, 4
#: Draws of a half that are annealed, and draws from its Gaussian.
_ANNEALED = 256
#: Particles that step sizes are found with.
_TUNED = 128
#: Effective draws and overlap below which the error of a stage is not believed, and standard errors, and nats
#: beside them, by which its halves may differ.
_FEWEST, _OVERLAP, _ERRORS, _APART = 25.0, 0.02, 4.0, 0.1
#: Standard errors by which its ends may differ.
_TENSE = 5.0


class Half(NamedTuple):
    """One half of the draws, with the Gaussian fitted to the other half.

    Attributes
    ----------
    path : WhitenedPath
        From the Gaussian to the posterior.
    z : array (C, N, D)
        The draws, in coordinates of the path.
    other : array (M, D)
        Some draws of the other half, for tuning.
    copies : float
        Mean number of copies of a draw.
    works : array (C, N)
        Log density of the posterior, not normalised, less that of the Gaussian, at the draws.
    shared : float
        Share of the variance of the works that the error of the fit explains.
    """

    path: WhitenedPath
    z: np.ndarray
    other: np.ndarray
    copies: float
    works: np.ndarray
    shared: float


class Stage(NamedTuple):
    """Both halves bridged with the same number of annealing steps.

    Attributes
    ----------
    steps : int
        Annealing steps T; 1 for the bridge without moves.
    halves : tuple of Bridge
    draws : int
        Works from both ends of both halves.
    cost : int
        Evaluations of the posterior, a gradient counting for two.
    shared : float
        Correlation of the errors that the posterior draws bring into the two halves, between 0 and 1.
    """

    steps: int
    halves: tuple[Bridge, Bridge]
    draws: int
    cost: int
    shared: float

    @property
    def log_z(self) -> float:
        """Mean of the halves."""
        return 0.5 * (self.halves[0].log_z + self.halves[1].log_z)

    @property
    def mcse(self) -> float:
        """Standard error of `log_z`."""
        a, b = self.halves
        both = 2.0 * self.shared * math.sqrt(a.upper_variance * b.upper_variance)
        return 0.5 * math.sqrt(a.variance + b.variance + both)

    @property
    def overlap(self) -> float:
        """The smaller one."""
        return min(h.overlap for h in self.halves)

    @property
    def effective(self) -> float:
        """Effective draws of the half that has fewer."""
        return min(h.effective for h in self.halves)

    @property
    def apart(self) -> float:
        """Difference of the halves in nats."""
        a, b = self.halves
        return abs(a.log_z - b.log_z) if a.log_z > -math.inf < b.log_z else math.inf

    @property
    def agree(self) -> bool:
        """Whether the halves differ by no more than their errors explain."""
        return self.apart <= _ERRORS * 2.0 * self.mcse + _APART

    @property
    def carried(self) -> bool:
        """Whether enough draws carry the estimate for its error to mean something."""
        return self.effective >= _FEWEST and self.overlap >= _OVERLAP

    @property
    def believed(self) -> bool:
        """Whether the error can be believed."""
        return self.carried and self.agree

    @property
    def tension(self) -> tuple[float, float]:
        """Mean difference between the ends, and its standard error."""
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
    report: Callable[[int], None] | None = None,
) -> list[Stage]:
    r"""Bridge draws of the posterior, with as many annealing steps as the wanted error takes.

    The first half of every chain is bridged with a Gaussian fitted to the second half, and the other
    way round; the estimate of log Z is the mean of both. Fitted to the draws that are bridged, the Gaussian
    would be too close to them; halves that follow each other in time depend on each other less than
    interleaved ones. The first stage evaluates the density at all draws and as many of the Gaussian. If its
    error is too large, 256 draws of either end are moved along the path
    :math:`q^{1-\beta} p^{\beta}` in T = 2, 4, ..., 512 steps.

    Parameters
    ----------
    joint : Path
        From the prior to the posterior.
    draws : array (C, N, D)
        From the posterior, on the unconstrained scale: C chains in the order they were made.
    kernel : Kernel
        Reversible.
    rng : numpy.random.Generator
    target : float or None
        Standard error of log Z to stop at.
    budget : callable
        Asked before each stage but the first whether its cost can be afforded.
    report : callable, optional
        Told the steps of each stage before it begins.

    Returns
    -------
    list of Stage
        The last one is the answer.
    """
    halves = halves_of(joint, draws)
    stages: list[Stage] = []
    tunings: tuple[Tuning, Tuning] | None = None
    steps, spent = 1, 0
    while steps:
        if report is not None:
            report(steps)
        if stages and tunings is None:
            tunings, spent = _tuned(halves, kernel, rng)
        stage = bridge_stage(halves, steps, kernel, tunings, rng)
        stages.append(stage._replace(cost=stage.cost + spent))
        spent = 0
        if target is not None and stage.believed and stage.mcse <= target:
            break
        steps = _affordable(_next(stage, target, halves), stage.steps, halves, budget)
    return stages


def tension_of(stages: list[Stage]) -> float:
    """Nats by which the ends differ, in the stage where it is clearest; 0 where errors explain it.

    An estimate that leans on the draws and one that leans on the Gaussian have the same expectation, unless the draws
    are not from the posterior.
    """
    known = [s.tension for s in stages if 0.0 < s.tension[1] < math.inf]
    gap, error = max(known, key=lambda t: abs(t[0]) / t[1], default=(0.0, math.inf))
    return gap if abs(gap) > _TENSE * error + _APART else 0.0


def halves_of(joint: Path, draws: np.ndarray) -> tuple[Half, Half]:
    """First and second half of every chain (C, N, D), each with the Gaussian fitted to the other."""
    middle, n_dim = draws.shape[1] // 2, draws.shape[2]
    parts = draws[:, :middle], draws[:, middle:]
    flat = draws.reshape(-1, n_dim)
    copies = len(flat) / len(np.unique(flat, axis=0))
    paths = [_fitted(joint, part.reshape(-1, n_dim)) for part in parts]
    found = []
    for k in (0, 1):
        path, part = paths[1 - k], parts[k]
        z = path.coordinates(part.reshape(-1, n_dim))
        works = path.values(z)[1]
        shared = _explained(works, z, paths[k].coordinates(path.points(z)))
        few = path.coordinates(_thinned(parts[1 - k], _TUNED).reshape(-1, n_dim))
        shape = part.shape[:2]
        found.append(Half(path, z.reshape(part.shape), few, copies, works.reshape(shape), shared))
    return found[0], found[1]


def _fitted(joint: Path, x: np.ndarray) -> WhitenedPath:
    """Path from the Gaussian with the mean and the shrunk covariance of points (P, D)."""
    return WhitenedPath(joint, x.mean(axis=0), scale_of(x, dense=True))


def _explained(works: np.ndarray, z: np.ndarray, w: np.ndarray) -> float:
    """Share of the variance of works at points with coordinates z, or w of the other fit."""
    noise = 0.5 * float(np.var(0.5 * (np.vecdot(z, z) - np.vecdot(w, w))))
    variance = float(np.var(works))
    return min(noise / variance, 1.0) if variance > 0.0 else 1.0


def bridge_stage(
    halves: tuple[Half, Half],
    steps: int,
    kernel: Kernel,
    tunings: tuple[Tuning, Tuning] | None,
    rng: np.random.Generator,
) -> Stage:
    r"""Bridge both halves with so many annealing steps; `tunings` are needed beyond one.

    The draws of a half enter its own bridge and, by the fitted Gaussian, that of the other. Where the posterior
    is close to Gaussian, works vary because of the errors of the two fits alone, the estimates are
    bilinear in the errors of both halves, and their errors are the same. Where works vary for other reasons they
    are independent. So the correlation is taken to be the share of the works' variance that the errors of a
    fit explain, half the variance of the difference between the two fitted log densities.
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
    """Works of both ends without moves, and what they cost."""
    n = half.works.size
    return half.path.values(rng.standard_normal((n, half.path.n_dim)))[1], half.works, 2 * n


def _moved(
    half: Half, steps: int, kernel: Kernel, tuning: Tuning, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, int]:
    """Works of annealing from both ends, and what they cost."""
    betas, n_dim = np.linspace(0.0, 1.0, steps + 1), half.path.n_dim
    chosen = _thinned(half.z, _ANNEALED)
    z = chosen.reshape(-1, n_dim)
    same = _Same(tuning)
    up = anneal(half.path, rng.standard_normal(z.shape), betas, kernel, same, rng)
    down = anneal_back(half.path, z, betas, kernel, same, rng)
    cost = up.evaluations + down.evaluations + 2 * (up.gradients + down.gradients)
    return up.log_weights, -down.log_weights.reshape(chosen.shape[:2]), cost


class _Same(NamedTuple):
    """One tuning for a whole path: the Gaussian and the posterior have the same scale."""

    tuning: Tuning

    def at(self, beta: float) -> Tuning:
        return self.tuning


def _tuned(
    halves: tuple[Half, Half], kernel: Kernel, rng: np.random.Generator
) -> tuple[tuple[Tuning, Tuning], int]:
    """Step sizes at the posterior, from draws that are not bridged, and what they cost."""
    found, cost = [], 0
    for half in halves:
        particles = start(half.path, half.other, with_gradient=kernel.needs_gradient)
        tuned = tune(
            kernel, half.path, particles, 1.0, rng, scale=np.ones(half.path.n_dim), n_moves=8
        )
        found.append(tuned.tuning)
        cost += (
            tuned.evaluations + 2 * tuned.gradients + (1 + kernel.needs_gradient) * len(particles.x)
        )
    return (found[0], found[1]), cost


def _thinned(draws: np.ndarray, n: int) -> np.ndarray:
    """About n draws (C, n / C, D), evenly spaced in all chains (C, N, D)."""
    chains, length = draws.shape[:2]
    kept = min(max(-(-n // chains), 1), length)
    return draws[:, np.linspace(0, length - 1, kept).round().astype(int)]


def _price(halves: tuple[Half, Half], steps: int) -> float:
    """What a stage costs, about, with three gradients in a move."""
    n = sum(2 * _thinned(h.z, _ANNEALED)[:, :, 0].size for h in halves)
    return 6.0 * n * steps


def _affordable(
    steps: int, done: int, halves: tuple[Half, Half], budget: Callable[[float], bool]
) -> int:
    """The most steps, more than were done and not more than are wanted, in the budget; 0 if there are none."""
    less = [s for s in STEPS if done < s <= steps]
    return next((s for s in reversed(less) if budget(_price(halves, s))), 0)


def _next(stage: Stage, target: float | None, halves: tuple[Half, Half]) -> int:
    """Steps of the next stage: those that the error seen asks for, if it can be believed."""
    if target is None or not stage.believed:
        return max(_GROWTH * stage.steps, 2 * _GROWTH)
    works = sum(2 * _thinned(h.z, _ANNEALED)[:, :, 0].size for h in halves)
    wanted = _SPARE * stage.steps * (stage.mcse / target) ** 2 * stage.draws / works
    return next((s for s in STEPS if s > stage.steps and s >= wanted), STEPS[-1])
