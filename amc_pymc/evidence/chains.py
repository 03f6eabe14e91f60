"""Evidence from Markov chains of Hamiltonian Monte Carlo, for posteriors that no fitted mixture approximates well."""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from amc_pymc.evidence.bridge import Stage, bridge_draws, tension_of
from amc_pymc.evidence.mcmc import (
    HMC,
    Counted,
    Kernel,
    Particles,
    Path,
    Tuning,
    scale_of,
    start,
    tune,
)
from amc_pymc.evidence.pilot import Pilot

#: Factor by which the predicted length of chains may exceed the maximum before they are given up.
_MARGIN = 4.0
#: Largest acceptable R-hat of the chains, and factor by which chains that are below it may exceed the maximum length.
_R_HAT, _LONGER = 1.05, 4


@dataclass(frozen=True)
class ChainSettings:
    """Warm-up and length of the chains.

    Attributes
    ----------
    chains : int
        Number of chains C.
    warm_up : int
        Moves of each chain per warm-up round, after which scale and step size are updated.
    rounds : tuple of int
        Minimum and maximum number of warm-up rounds.
    draws : tuple of int
        Minimum and maximum number of draws kept per chain. Chains that mix may have four times as many.
    r_hat : float
        R-hat of the worst coordinate above which chains are extended.
    leapfrog : int
        Maximum number of leapfrog steps in a trajectory.
    dense : int
        Maximum number of dimensions with a dense mass matrix.
    drift : float
        Largest difference between the mean log densities of the last two warm-up rounds, in standard errors.
    """

    chains: int = 32
    warm_up: int = 12
    rounds: tuple[int, int] = (3, 12)
    draws: tuple[int, int] = (128, 2048)
    r_hat: float = 1.05
    leapfrog: int = 64
    dense: int = 400
    drift: float = 3.0


class Chains(NamedTuple):
    """Draws and diagnostics of the chains.

    Attributes
    ----------
    draws : array (C, N, D)
    r_hat : float
        Largest split R-hat of the coordinates and the log density.
    gradients : int
        Number of gradient evaluations.
    """

    draws: np.ndarray
    r_hat: float
    gradients: int


def run_chains(
    path: Path,
    x: np.ndarray,
    rng: np.random.Generator,
    settings: ChainSettings | None = None,
    budget: Callable[[float], bool] = lambda cost: True,
    report: Callable[[str], None] = lambda text: None,
) -> Chains:
    """Run chains at the end of a path, started from rough draws.

    Trajectories are long enough to cross a Gaussian with the scale of the last warm-up round. The length of the
    chains is doubled while R-hat is too large.

    Parameters
    ----------
    path : Path
        Path whose end, at inverse temperature one, is sampled.
    x : array (P, D)
        Rough draws with positive density.
    rng : numpy.random.Generator
    settings : ChainSettings, optional
    budget : callable, optional
        Function that returns whether the cost of a further part is affordable. The first round of warm-up and an
        eighth of the minimum number of draws always are.
    report : callable, optional
        Function called with a text before each part.

    Returns
    -------
    Chains
    """
    settings = settings or ChainSettings()
    chosen = rng.choice(len(x), settings.chains, replace=len(x) < settings.chains)
    path = Counted(path)
    particles = start(path, x[chosen], with_gradient=True)
    seen, last, kernel, size = x, (math.nan, 0.0), HMC(n_leapfrog=4), None
    first = settings.draws[0]
    for number in range(settings.rounds[1]):
        before = path.cost
        report(f"round {number + 1} of warm-up")
        kernel, tuning, particles = _tuned(path, particles, seen, kernel, size, settings, rng)
        size = tuning.size
        moved, heights, particles = _moved(path, particles, kernel, tuning, settings.warm_up, rng)
        seen = moved[:, settings.warm_up // 3 :].reshape(-1, path.n_dim)
        now = _mean(heights[:, settings.warm_up // 3 :])
        settled = abs(now[0] - last[0]) < settings.drift * math.hypot(now[1], last[1])
        last = now
        if number + 1 >= settings.rounds[0] and settled:
            break
        ahead = 2.0 * first * settings.chains * (kernel.n_leapfrog + 1)
        if not budget(path.cost - before + ahead):
            break
    kernel, tuning, particles = _tuned(path, particles, seen, kernel, size, settings, rng)
    price = 2.0 * settings.chains * (kernel.n_leapfrog + 2)  # of a draw of each chain, and a bridge
    n = next((k for k in (first, first // 2, first // 4) if budget(k * price)), first // 8)
    report(f"{n:,} draws")
    draws, heights, particles = _moved(path, particles, kernel, tuning, n, rng)
    while True:
        r_hat = split_r_hat(np.concatenate([draws, heights[:, :, None]], axis=2))
        n = draws.shape[1]
        # The square of R-hat is one plus the autocorrelation time over n, if chains mix at all.
        wanted = n * (r_hat**2 - 1.0) / (settings.r_hat**2 - 1.0)
        longest = settings.draws[1] * (_LONGER if r_hat <= _R_HAT else 1)
        hopeless = 2 * n > longest or wanted > _MARGIN * longest
        if r_hat <= settings.r_hat or hopeless or not budget(n * price):
            return Chains(draws, r_hat, int(path.spent[1]))
        report(f"{2 * n:,} draws")
        more, above, particles = _moved(path, particles, kernel, tuning, n, rng)
        draws = np.concatenate([draws, more], axis=1)
        heights = np.concatenate([heights, above], axis=1)


def split_r_hat(draws: np.ndarray) -> float:
    """Return the largest split R-hat of chains (C, N, D) over the coordinates; inf if a coordinate never moves.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.chains import split_r_hat
    >>> from amc_pymc.rng import as_generator
    >>> x = as_generator(1).standard_normal((8, 500, 3))
    >>> bool(split_r_hat(x) < 1.02), bool(split_r_hat(x + np.arange(8.0)[:, None, None]) > 1.5)
    (True, True)
    """
    n = draws.shape[1] // 2
    halves = np.concatenate([draws[:, :n], draws[:, n : 2 * n]])
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    if not (within > 0.0).all():
        return math.inf
    return float(np.sqrt((n - 1) / n + between / within).max())


def _tuned(
    path: Path,
    particles: Particles,
    seen: np.ndarray,
    kernel: HMC,
    size: float | None,
    settings: ChainSettings,
    rng: np.random.Generator,
) -> tuple[HMC, Tuning, Particles]:
    """Tune the trajectory length and step size of HMC on the scale of some draws; also return the particles."""
    scale = scale_of(seen, dense=path.n_dim <= settings.dense)
    for _ in range(3):
        tuning, particles = tune(
            kernel, path, particles, 1.0, rng, scale=scale, size=size, n_moves=4
        )
        size = tuning.size
        wanted = min(max(math.ceil(0.5 * math.pi / size), 2), settings.leapfrog)
        if abs(wanted - kernel.n_leapfrog) <= 0.25 * kernel.n_leapfrog:
            break
        kernel = HMC(n_leapfrog=wanted, jitter=kernel.jitter)
    return kernel, Tuning(min(tuning.size, kernel.max_size), scale), particles


def _moved(
    path: Path, particles: Particles, kernel: HMC, tuning: Tuning, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, Particles]:
    """Draw (C, n, D); also return the log densities (C, n) and the last particles."""
    draws = np.empty((len(particles.x), n, path.n_dim))
    heights = np.empty(draws.shape[:2])
    for i in range(n):
        particles, _ = kernel.step(path, particles, 1.0, tuning, rng)
        draws[:, i], heights[:, i] = particles.x, particles.terms.sum(axis=0)
    return draws, heights, particles


def _mean(heights: np.ndarray) -> tuple[float, float]:
    """Return the mean of independent chains (C, N) and its standard error."""
    means = heights.mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1)) / math.sqrt(len(means))


#: Fractions of the target error allotted to disagreement of chains and to the bridge; their squares sum to one.
_OF_TARGET = (0.6, 0.8)


class BridgedChains(NamedTuple):
    """Chains, and the bridge between them and a Gaussian.

    Attributes
    ----------
    chains : Chains
    stages : list of Stage
        Stages of the bridge; the last one is the final estimate.
    """

    chains: Chains
    stages: list[Stage]

    @property
    def log_z(self) -> float:
        """Natural logarithm of the evidence."""
        return self.stages[-1].log_z

    @property
    def mcse(self) -> float:
        """Standard error of `log_z`, including a term for disagreement between chains."""
        return math.hypot(self.stages[-1].mcse, max(self.chains.r_hat - 1.0, 0.0))

    @property
    def mixed(self) -> bool:
        """Whether the chains agree."""
        return self.chains.r_hat <= _R_HAT

    @property
    def believed(self) -> bool:
        """Whether the chains have mixed and the bridge is reliable."""
        return self.mixed and self.stages[-1].believed and tension_of(self.stages) == 0.0

    def answers(self, target: float | None, pilot: Pilot) -> bool:
        """Whether the result is reliable, meets the target, and is not below the estimate of the pilot run."""
        good = self.believed and (target is None or self.mcse <= target)
        return good and pilot.exceeds(self.log_z, self.mcse) == 0.0


def bridge_chains(
    path: Path,
    pilot: Pilot,
    kernel: Kernel,
    rng: np.random.Generator,
    *,
    target: float | None,
    budget: Callable[[float], bool],
    report: Callable[[str], None] = lambda text: None,
) -> BridgedChains:
    """Run chains from the particles of a pilot run, and bridge their draws with a Gaussian.

    Parameters
    ----------
    path : Path
        Path from the prior to the posterior.
    pilot : Pilot
    kernel : Kernel
        Reversible kernel for annealing between Gaussian and posterior.
    rng : numpy.random.Generator
    target : float or None
        Standard error of log Z at which to stop.
    budget : callable
        Function that returns whether the cost of a further part of the chains, or an annealing stage, is affordable.
    report : callable, optional
        Function called with a text before each part.

    Returns
    -------
    BridgedChains
    """
    settings = ChainSettings()
    if target is not None:
        settings = replace(settings, r_hat=min(settings.r_hat, 1.0 + _OF_TARGET[0] * target))
        target = _OF_TARGET[1] * target
    chains = run_chains(path, pilot.ladder.particles.x, rng, settings, budget, report)
    *_, stages = bridge_draws(
        path, chains.draws, kernel, rng, target=target, budget=budget,
        report=lambda steps: report(f"bridge of {steps} steps"),
    )  # fmt: skip
    return BridgedChains(chains, stages)
