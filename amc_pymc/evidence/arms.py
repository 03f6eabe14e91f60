"""Unbiased estimators of the evidence, as arms for combinations of estimators, and their choice after a pilot run.

Each has a method ``sample(n, rng)``, which returns the logarithms of n estimates and their costs in model
evaluations; a gradient counts as two.
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from scipy.stats import qmc

from amc_pymc.arguments import positive_int
from amc_pymc.evidence.annealing import Ladder, barrier_schedule, climb, sequential
from amc_pymc.evidence.mcmc import HMC, DiscreteMetropolis, Kernel, Mixed
from amc_pymc.evidence.paths import PriorPath, ReferencePath, importance_log_weights
from amc_pymc.evidence.pilot import WILD, Pilot
from amc_pymc.logweights import log_mean_exp
from amc_pymc.mixtures import DEFENSIVE_SHARE, StudentTMixture

#: Cost of a gradient in evaluations.
GRADIENT_COST = 2.0
#: Number of importance sampling estimates computed at once.
_BLOCK = 1024
#: Number of weights averaged in one importance sampling estimate.
_FEW = 64
#: Number of points in a randomised net.
_NET = 256


class ImportanceArm:
    r"""Importance sampling from a mixture of a reference and the prior.

    .. math:: w = \frac{p(x) L(x)}{(1 - s) q(x) + s\, p(x)}, \qquad x \sim (1 - s) q + s\, p

    (Hesterberg 1995, doi:10.1080/00401706.1995.10484303). No weight exceeds L / s. One estimate is the mean of
    64 weights, because single weights can be arbitrarily small even if their mean is not.

    Parameters
    ----------
    path : PriorPath
    reference : StudentTMixture
    share : float
        Share s of the prior.
    """

    scale: ClassVar[str] = "log"

    def __init__(self, path: PriorPath, reference: StudentTMixture, share: float = DEFENSIVE_SHARE):
        self.path, self.reference, self.share = path, reference, share
        self.cost = float(_FEW)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw the logarithms (n,) of mean weights, and their costs."""
        means = []
        for i in range(0, n, _BLOCK):
            log_w, _ = self.weigh(min(_BLOCK, n - i) * _FEW, rng)
            means.append(log_mean_exp(log_w.reshape(-1, _FEW), axis=1))
        return np.concatenate(means), np.full(n, self.cost)

    def weigh(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw log-weights (n,) and points (n, D), in random order."""
        k = int(rng.binomial(n, self.share))
        parts = []
        if k:
            parts.append(self.path.draw_prior(k, rng))
        if k < n:
            parts.append(self.reference.sample(n - k, rng))
        x = np.concatenate(parts)
        log_w = self.log_weights(x)
        order = rng.permutation(n)
        return log_w[order], x[order]

    def log_weights(self, x: np.ndarray) -> np.ndarray:
        """Return the log-weights (P,) of points, a share of which is from the prior."""
        terms = self.path.values(x)
        return importance_log_weights(self.reference.log_density(x), terms, self.share)


class QuasiArm(ImportanceArm):
    """Importance sampling at randomised quasi-Monte Carlo points of the reference.

    One estimate is the mean weight of a scrambled Sobol' net, transformed to the reference, and of a
    few prior draws, whose number is rounded.
    """

    draws_per_job: ClassVar[int] = 16

    def __init__(self, path: PriorPath, reference: StudentTMixture, share: float = DEFENSIVE_SHARE):
        self.beside = round(_NET * share / (1.0 - share))
        super().__init__(path, reference, self.beside / (_NET + self.beside))
        self.cost = float(_NET + self.beside)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw the logarithms (n,) of mean weights, and their costs."""
        return np.array([self._one(rng) for _ in range(n)]), np.full(n, self.cost)

    def _one(self, rng: np.random.Generator) -> float:
        u = scrambled_points(_NET, self.path.n_dim + 2, rng)
        beside = self.path.draw_prior(self.beside, rng)
        x = np.concatenate([beside, self.reference.from_uniforms(u)])
        return float(log_mean_exp(self.log_weights(x)))


class SequentialArm:
    """Sequential Monte Carlo on a fixed schedule; each estimate is a run of many particles.

    Parameters
    ----------
    path : PriorPath or ReferencePath
    betas : array (T + 1,)
    kernel : Kernel
    ladder : Ladder
        Frozen ladder.
    n_moves, n_particles : int
        Moves at each temperature, and particles.
    """

    scale: ClassVar[str] = "log"
    draws_per_job: ClassVar[int] = 1

    def __init__(self, path: PriorPath | ReferencePath, betas: np.ndarray, kernel: Kernel, ladder: Ladder, *,
                 n_moves: int = 3, n_particles: int = 512):  # fmt: skip
        self.path, self.betas, self.kernel, self.ladder = path, betas, kernel, ladder
        self.n_moves, self.n_particles = n_moves, n_particles
        self.of_particle = expected_cost(kernel, ladder, len(betas) - 2, n_moves)
        # The cost of other kernels is random.
        self.cost = self.of_particle * n_particles if isinstance(kernel, HMC) else None

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw the logarithms (n,) of estimates, and their costs."""
        values, costs = np.empty(n), np.empty(n)
        for i in range(n):
            x = draw_base(self.path, self.n_particles, rng)
            values[i], costs[i] = sequential(
                self.path, x, self.betas, self.kernel, self.ladder, rng, n_moves=self.n_moves
            )
        return values, costs


def draw_base(path: PriorPath | ReferencePath, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw points (n, D) from the base of a path: the prior, or a reference."""
    if isinstance(path, ReferencePath):
        return path.reference.sample(n, rng)
    return path.draw_prior(n, rng)


def climb_from_reference(
    path: PriorPath, pilot: Pilot, kernel: Kernel, rng: np.random.Generator
) -> tuple[ReferencePath, Ladder]:
    """Return the path from the fitted reference, and a pilot run along it."""
    assert pilot.reference is not None
    bridge = ReferencePath(path, pilot.reference)
    x = draw_base(bridge, len(pilot.ladder.particles.x), rng)
    return bridge, climb(bridge, x, kernel, rng)


def expected_cost(kernel: Kernel, ladder: Ladder, n_steps: int, n_moves: int) -> float:
    """Return the cost of a particle moved `n_moves` times at each of `n_steps` temperatures.

    It is estimated from the pilot run if it is random.
    """
    if isinstance(kernel, HMC):
        return GRADIENT_COST * (1 + n_steps * n_moves * kernel.n_leapfrog)
    first = GRADIENT_COST if kernel.needs_gradient else 1.0
    return first + n_steps * n_moves * ladder.per_move


#: Names of all arms, in the order of the default portfolio.
ARMS = ("importance_rqmc", "importance", "smc_reference", "smc")
_FITTED = {"importance_rqmc", "importance", "smc_reference"}
#: Relative variance of weights below which annealing from the reference is not tried.
_GOOD = 3.0
#: An arm is left out if its expected cost is this many times that of the best one, or if three of its
#: draws cost more than this share of the budget.
_HOPELESS, _AFFORDABLE = 10.0, 0.5
#: Minimum number of draws for the expected cost of an arm. Arms that use the fitted reference need only three,
#: because their predicted variance may be wrong.
_LEAST_DRAWS = 30.0
#: Moves of a particle at each temperature of sequential Monte Carlo, and where a move begins with a sweep over discrete
#: coordinates: three of these reduce the variance by less than they cost.
_SMC_MOVES, _SMC_SWEEPS = 3, 1
#: Smallest and largest number of particles.
_SMC_PARTICLES = 128, 1024
#: Number of sequential Monte Carlo runs planned to reach the target; sets the particles per run.
_RUNS = 20
#: Barrier crossed in one step of sequential Monte Carlo.
_SMC_STEP = 0.7


@dataclass
class Portfolio:
    """Arms to draw from, and the reasons why others were left out.

    Attributes
    ----------
    arms : dict of str to arm
    left_out : dict of str to str
        Reason for each arm left out.
    """

    arms: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def make_portfolio(
    path: PriorPath,
    pilot: Pilot,
    kernel: Kernel,
    rng: np.random.Generator,
    *,
    names: Sequence[str] | None = None,
    target: float | None = None,
    budget: float = math.inf,
) -> Portfolio:
    """Make arms from a pilot run.

    Parameters
    ----------
    path : PriorPath
    pilot : Pilot
    kernel : Kernel
        Kernel of annealing arms.
    rng : numpy.random.Generator
        Generator for pilot runs along paths from the reference.
    names : sequence of str, optional
        Arms to make regardless of the pilot run. By default, arms are left out if three draws cost more
        than half of the budget, or if their expected cost is more than ten times that of the best one.
        The expected cost is that of the draws needed for the target, given the expected variance, and of at least 30 draws (3 with a fitted reference).
    target : float, optional
        Target standard error of the log evidence.
    budget : float
        Maximum cost.

    Returns
    -------
    Portfolio

    Raises
    ------
    ValueError
        If a name is unknown, or an arm needs a fitted reference and there is none.
    """
    out = Portfolio()
    chosen = ARMS if names is None else tuple(names)
    for name in chosen:
        if names is not None and pilot.reference is None and name in _FITTED:
            raise ValueError(
                f"arm {name!r} needs a reference fitted to continuous variables; use 'smc' for models with "
                "discrete ones."
            )
    reference = _reference_path(path, pilot, kernel, rng, out, chosen, forced=names is not None)
    reason = "importance sampling from the reference is good enough"
    if pilot.reference is None:
        reason = "no reference: some variables are discrete"
        if pilot.unfit:
            reason = "no fitted mixture is close to the posterior"
    prices: dict[str, tuple[float, float]] = {}
    for name in chosen:
        made = _arm(name, path, pilot, kernel, reference, target)
        if made is None:
            out.left_out.setdefault(name, reason)
        else:
            out.arms[name], prices[name] = made
    if names is None:
        _screen(out, prices, target, budget)
    return out


def _reference_path(
    path: PriorPath, pilot: Pilot, kernel: Kernel, rng: np.random.Generator, out: Portfolio,
    chosen: Sequence[str], forced: bool,
) -> tuple[ReferencePath, Ladder] | None:  # fmt: skip
    """Return the path from the fitted reference and a pilot run along it, if annealing from it may be worthwhile."""
    idle = not forced and pilot.relative_variance < _GOOD
    if pilot.reference is None or "smc_reference" not in chosen or idle:
        return None
    try:
        return climb_from_reference(path, pilot, kernel, rng)
    except ValueError as error:
        if forced:
            raise
        out.left_out["smc_reference"] = f"annealing from the reference: {error}"
        return None


def _arm(
    name: str,
    path: PriorPath,
    pilot: Pilot,
    kernel: Kernel,
    reference: tuple[ReferencePath, Ladder] | None,
    target: float | None,
) -> tuple[Any, tuple[float, float]] | None:
    """Make an arm; also return its expected cost times variance and the cost of a draw. None if not possible."""
    if name in ("importance", "importance_rqmc"):
        if pilot.reference is None:
            return None
        kind = ImportanceArm if name == "importance" else QuasiArm
        made, variance = kind(path, pilot.reference, pilot.share), pilot.relative_variance
        return made, (variance if variance < WILD else math.inf, made.cost)
    annealed = (path, pilot.ladder) if name == "smc" else reference
    if annealed is None:
        return None
    bridge, ladder = annealed
    n_steps = max(3, math.ceil(ladder.barrier / _SMC_STEP))
    betas = barrier_schedule(n_steps, ladder)
    moves = _SMC_SWEEPS if isinstance(kernel, DiscreteMetropolis | Mixed) else _SMC_MOVES
    variance = n_steps * math.expm1(_SMC_STEP**2) + 1.0 / ladder.possible - 1.0
    least, most = _SMC_PARTICLES
    wanted = least if target is None else math.ceil(variance / (_RUNS * target**2))
    n = min(max(wanted, least), most)
    arm = SequentialArm(bridge, betas, kernel, ladder, n_moves=moves, n_particles=n)
    return arm, (arm.of_particle * variance, arm.of_particle * n)


def _screen(
    out: Portfolio, prices: dict[str, tuple[float, float]], target: float | None, budget: float
) -> None:
    """Remove arms with a hopeless expected cost."""
    needs = {}
    for name, (price, cost) in prices.items():
        least = (3.0 if name in _FITTED else _LEAST_DRAWS) * cost
        needs[name] = price if target is None else max(price * target**-2, least)
    best = min(needs, key=lambda name: needs[name])
    for name, (_, cost) in prices.items():
        if name == best:
            continue
        if needs[name] > _HOPELESS * needs[best]:
            factor = needs[name] / needs[best]
            reason = f"expected to need {factor:.3g} times the cost of {best!r}"
        elif 3.0 * cost > _AFFORDABLE * budget:
            reason = f"one draw costs {cost:,.0f} evaluations, too much for max_cost"
        else:
            continue
        del out.arms[name]
        out.left_out[name] = reason


#: Binary digits of the net, and of the random shift below them; 53 in all with the final half unit.
_DIGITS, _BELOW = 32, 20
_LARGEST = 2**30


@lru_cache(maxsize=64)
def _sobol_net(m: int, d: int) -> np.ndarray:
    """Return the first 2^m Sobol' points (2^m, d) as integers, in the order of their index."""
    index = np.arange(2**m)
    points = np.empty((2**m, d), np.uint32)
    # SciPy returns them in Gray code order.
    found = qmc.Sobol(d, scramble=False, bits=_DIGITS).random(2**m)
    points[index ^ (index >> 1)] = found * 2.0**_DIGITS
    return points


def scrambled_points(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Draw randomised quasi-Monte Carlo points, each uniform on the unit cube and jointly evenly spread.

    Averages over the points are unbiased. Estimate their error from independent calls, not from the
    points of a single call.

    Parameters
    ----------
    n : int
        Number of points, a power of two up to 2^30.
    d : int
        Dimension, up to 21201.
    rng : numpy.random.Generator

    Returns
    -------
    array (n, d)
        Points strictly between 0 and 1.

    Raises
    ------
    ValueError
        If n is not a power of two, because other numbers of points are not balanced.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.arms import scrambled_points
    >>> from amc_pymc.rng import as_generator
    >>> u = scrambled_points(64, 3, as_generator(1))
    >>> [sorted(np.floor(64 * column).astype(int).tolist()) == list(range(64)) for column in u.T]
    [True, True, True]
    """
    n, d = positive_int("n", n), positive_int("d", d)
    if n & (n - 1) or n > _LARGEST:
        raise ValueError(f"n must be a power of two up to 2^30, got {n}; Sobol' points need it.")
    if d > qmc.Sobol.MAXDIM:
        raise ValueError(f"d must be at most {qmc.Sobol.MAXDIM}, got {d}.")
    net = _sobol_net(n.bit_length() - 1, d)
    points = np.repeat(rng.integers(0, 2**_DIGITS, (1, d), np.uint32), n, axis=0)
    # All binary digits of a net of 2^m points are among the first m. A random lower triangular matrix with unit
    # diagonal maps each to itself plus random lower digits.
    digit = np.arange(n.bit_length() - 1, dtype=np.uint32)[:, None]
    place = np.uint32(_DIGITS - 1) - digit
    images = rng.integers(0, 2**_DIGITS, (len(digit), d), np.uint32) >> digit
    images |= np.uint32(1) << place
    for k, image in zip(place, images, strict=True):
        points ^= ((net >> k) & np.uint32(1)) * image
    below = (rng.integers(0, 2**_BELOW, d) + 0.5) * 2.0**-_BELOW
    u = points + below
    u *= 2.0**-_DIGITS
    return u
