"""Choice of estimators after a pilot run."""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amc_pymc.evidence.annealing import Ladder, ReferencePath, climb, make_schedule
from amc_pymc.evidence.annealing.schedules import Schedule
from amc_pymc.evidence.arms import (
    GRADIENT_COST,
    AnnealingArm,
    ImportanceArm,
    QuasiArm,
    SequentialArm,
    known_cost,
)
from amc_pymc.evidence.mcmc import Kernel
from amc_pymc.evidence.pilot import Pilot, PriorPath

__all__ = ["ARMS", "Portfolio", "make_portfolio"]

#: Names of all arms, in the order of the default portfolio.
ARMS = (
    "importance_rqmc",
    "importance",
    "ais_reference",
    "smc_reference",
    "smc",
    "ais_400",
    "ais_2000",
    "ais_8000",
)
_FITTED = {"importance_rqmc", "importance", "ais_reference", "smc_reference"}
#: Relative variance of weights below which annealing from the reference is not tried.
_GOOD = 3.0
#: An arm is left out if its expected cost is this many times that of the best one, or if three of its
#: draws cost more than this share of the budget.
_HOPELESS, _AFFORDABLE = 10.0, 0.5
#: Minimum number of draws for the expected cost of an arm. Arms that use the fitted reference need only three,
#: because their predicted variance may be wrong.
_LEAST_DRAWS = 30.0
#: Relative variance of a single weight above which importance sampling is not expected to work.
_WILD = 1e3
_SMC_MOVES, _SMC_PARTICLES = 3, (128, 1024)
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
    evaluations, gradients : int
        Cost of pilot runs along paths from the reference.
    """

    arms: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    evaluations: int = 0
    gradients: int = 0


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
        The expected cost is that of the draws needed for the target, given the expected variance (for
        annealing: from the barrier of the path), and of at least 30 draws (3 with a fitted reference).
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
        if name not in ARMS:
            raise ValueError(f"arms must be among {', '.join(ARMS)}, got {name!r}.")
        fitted = pilot.reference or (name == "importance" and pilot.discrete_proposal)
        if names is not None and not fitted and name in _FITTED:
            raise ValueError(
                f"arm {name!r} needs a reference fitted to continuous variables; use 'importance', 'smc' or "
                "'ais_400', 'ais_2000', 'ais_8000' for models with discrete ones."
            )
    reference = _reference_path(path, pilot, kernel, rng, out, chosen, forced=names is not None)
    prices: dict[str, tuple[float, float]] = {}
    for name in chosen:
        made = _arm(name, path, pilot, kernel, reference, target)
        if made is None:
            reason = "importance sampling from the reference is good enough"
            if pilot.reference is None:
                reason = "no reference: some variables are discrete"
                if pilot.unfit:
                    reason = "no fitted mixture is close to the posterior"
            out.left_out.setdefault(name, reason)
            continue
        out.arms[name], prices[name] = made
    if names is None:
        _screen(out, prices, target, budget)
    return out


def _reference_path(
    path: PriorPath,
    pilot: Pilot,
    kernel: Kernel,
    rng: np.random.Generator,
    out: Portfolio,
    chosen: Sequence[str],
    forced: bool,
) -> tuple[Any, Ladder] | None:
    """Return the path from the fitted reference and a pilot run along it, if annealing from it may be worthwhile."""
    wanted = {"ais_reference", "smc_reference"} & set(chosen)
    if pilot.adapted is None or pilot.reference is None or not wanted:
        return None
    if not forced and pilot.relative_variance < _GOOD:
        return None
    bridge = ReferencePath(path, pilot.reference)
    n = len(pilot.ladder.particles.x)
    try:
        ladder = climb(bridge, bridge.reference.sample(n, rng), kernel, rng)
    except ValueError as error:
        if forced:
            raise
        out.left_out |= dict.fromkeys(wanted, f"annealing from the reference: {error}")
        return None
    out.evaluations += ladder.evaluations
    out.gradients += ladder.gradients
    return bridge, ladder


def _arm(
    name: str,
    path: PriorPath,
    pilot: Pilot,
    kernel: Kernel,
    reference: tuple[Any, Ladder] | None,
    target: float | None,
) -> tuple[Any, tuple[float, float]] | None:
    """Make an arm; also return its expected cost times variance and the cost of a draw. None if not possible."""
    if name == "importance" and pilot.discrete_proposal is not None:
        alone = ImportanceArm(path, pilot.discrete_proposal, pilot.share)
        return alone, (_wild(pilot.relative_variance), alone.cost)
    if name in ("importance", "importance_rqmc"):
        if pilot.adapted is None or pilot.reference is None:
            return None
        kind = ImportanceArm if name == "importance" else QuasiArm
        made = kind(path, pilot.reference, pilot.share)
        return made, (_wild(pilot.relative_variance), made.cost)
    arm: SequentialArm | AnnealingArm
    if name in ("ais_reference", "smc_reference"):
        if reference is None:
            return None
        bridge, ladder = reference
        base = bridge.reference
    else:
        bridge, ladder, base = path, pilot.ladder, path
    if name.startswith("smc"):
        n_steps = max(3, math.ceil(ladder.barrier / _SMC_STEP))
        betas = _betas("adaptive", n_steps, ladder)
        one = _per_particle(kernel, ladder, n_steps - 1, _SMC_MOVES)
        variance = n_steps * math.expm1(_SMC_STEP**2) + 1.0 / ladder.possible - 1.0
        n = _particles(variance, target)
        arm = SequentialArm(bridge, base, betas, kernel, ladder, n_moves=_SMC_MOVES, n_particles=n)
        return arm, (one * variance, one * n)
    if name == "ais_reference":
        n_steps = max(10, math.ceil(2.0 * ladder.barrier**2))
        betas = _betas("adaptive", n_steps, ladder)
    else:
        n_steps = int(name.removeprefix("ais_"))
        betas = _betas(("power", 4.0), n_steps, ladder)
    arm = AnnealingArm(bridge, base, betas, kernel, ladder)
    cost = _per_particle(kernel, ladder, n_steps - 1, 1)
    s2 = 2.0 * ladder.barrier**2 / n_steps - math.log(ladder.possible)
    variance = math.expm1(s2) if s2 < 700.0 else math.inf
    return arm, (cost * variance, cost * arm.n_particles)


def _particles(variance: float, target: float | None) -> int:
    """Return the number of particles per run with which `_RUNS` runs reach the target."""
    least, most = _SMC_PARTICLES
    wanted = least if target is None else math.ceil(variance / (_RUNS * target**2))
    return min(max(wanted, least), most)


def _wild(variance: float) -> float:
    return variance if variance < _WILD else math.inf


def _betas(schedule: Schedule, n_steps: int, ladder: Ladder) -> np.ndarray:
    return make_schedule(schedule, n_steps, barrier=(ladder.betas, ladder.heights))


def _per_particle(kernel: Kernel, ladder: Ladder, n_steps: int, n_moves: int) -> float:
    """Return the cost of a particle, estimated from the pilot run if it is random."""
    known = known_cost(kernel, n_steps, n_moves)
    if known is not None:
        return known
    evaluations, gradients = ladder.per_move
    first = GRADIENT_COST if kernel.needs_gradient else 1.0
    return first + n_steps * n_moves * (evaluations + GRADIENT_COST * gradients)


def _screen(
    out: Portfolio, prices: dict[str, tuple[float, float]], target: float | None, budget: float
) -> None:
    """Remove arms with a hopeless expected cost."""
    precision = 0.0 if target is None else target**-2
    needs = {
        name: max(price * precision, (3.0 if name in _FITTED else _LEAST_DRAWS) * cost)
        for name, (price, cost) in prices.items()
    }
    if target is None:
        needs = {name: price for name, (price, _) in prices.items()}
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
