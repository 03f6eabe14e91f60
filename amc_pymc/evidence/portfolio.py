"""Which estimators are worth trying, after a pilot run."""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amc_pymc.annealing import Ladder, ReferencePath, climb, make_schedule
from amc_pymc.evidence.arms import (
    GRADIENT_COST,
    AnnealingArm,
    ImportanceArm,
    QuasiArm,
    SequentialArm,
    known_cost,
)
from amc_pymc.evidence.pilot import Pilot, PriorPath
from amc_pymc.kernels import Kernel

__all__ = ["ARMS", "Portfolio", "make_portfolio"]

#: Names of all arms, the order of the default portfolio.
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
#: Relative variance of weights up to which no annealing from the reference is tried.
_GOOD = 3.0
#: An arm is left out if it is expected to need this many times the cost of the best one, or if three
#: of its draws would cost more than this share of the budget.
_HOPELESS, _AFFORDABLE = 10.0, 0.5
#: Draws that an arm is given at least before its variance is believed. Arms from the fitted reference are
#: kept for fewer: what is expected of it may be wrong.
_LEAST_DRAWS = 30.0
#: Relative variance of one weight beyond which importance sampling is not expected to work at all.
_WILD = 1e3
_SMC_MOVES, _SMC_PARTICLES = 3, (128, 1024)
#: Runs of sequential Monte Carlo that a target is expected to take: so many particles each has.
_RUNS = 20
#: Barrier crossed by one step of sequential Monte Carlo.
_SMC_STEP = 0.7


@dataclass
class Portfolio:
    """Arms to draw from, and what was said of those left out.

    Attributes
    ----------
    arms : dict of str to arm
    left_out : dict of str to str
        Names and reasons.
    evaluations, gradients : int
        Spent on pilot runs of paths from the reference.
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
        Of annealing arms.
    rng : numpy.random.Generator
        For pilot runs along paths from the reference.
    names : sequence of str, optional
        Arms to make, whatever the pilot says. By default all those that it does not show to be hopeless:
        the cost of an arm times the variance expected of it (of annealing: from the barrier of the
        path) to the target's precision, and at least thirty draws (three from a fitted reference), must
        not be ten times what the best one needs, nor three of its draws half of the budget.
    target : float, optional
        Error aimed at; tells how much there is to spend.
    budget : float
        Cost that may be spent.

    Returns
    -------
    Portfolio

    Raises
    ------
    ValueError
        If a name is unknown, or needs a fitted reference where there is none.
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


def _reference_path(path, pilot, kernel, rng, out, chosen, forced) -> tuple[Any, Ladder] | None:
    """The path from the fitted reference and a pilot run along it, where it may pay."""
    wanted = {"ais_reference", "smc_reference"} & set(chosen)
    if pilot.adapted is None or not wanted:
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
    name, path, pilot: Pilot, kernel, reference, target
) -> tuple[Any, tuple[float, float]] | None:
    """An arm, its expected cost times variance and the cost of one draw; None if it cannot be."""
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
    """Particles of a run: so many that the target takes a few runs."""
    least, most = _SMC_PARTICLES
    wanted = least if target is None else math.ceil(variance / (_RUNS * target**2))
    return min(max(wanted, least), most)


def _wild(variance: float) -> float:
    return variance if variance < _WILD else math.inf


def _betas(schedule, n_steps: int, ladder: Ladder) -> np.ndarray:
    return make_schedule(schedule, n_steps, barrier=(ladder.betas, ladder.heights))


def _per_particle(kernel: Kernel, ladder: Ladder, n_steps: int, n_moves: int) -> float:
    """Cost of a particle, from the pilot run where it is random."""
    known = known_cost(kernel, n_steps, n_moves)
    if known is not None:
        return known
    evaluations, gradients = ladder.per_move
    first = GRADIENT_COST if kernel.needs_gradient else 1.0
    return first + n_steps * n_moves * (evaluations + GRADIENT_COST * gradients)


def _screen(
    out: Portfolio, prices: dict[str, tuple[float, float]], target: float | None, budget: float
) -> None:
    """Take out arms that are not expected to be of any use."""
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
