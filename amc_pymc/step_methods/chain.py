"""One chain of a racing step: what changes while it runs, and what it learns while tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from amc_pymc.proxies import gaussian_factor
from amc_pymc.rng import as_generator
from amc_pymc.step_methods.adaptation import Moments, adapt_scale, proposal_weights
from amc_pymc.step_methods.auditing import Auditor, PairDecisions
from amc_pymc.step_methods.compiled import Surrogate
from amc_pymc.step_methods.metropolis_kernel import KINDS, Moves
from amc_pymc.step_methods.preparation import GaussianFit, Preparation, row_changes, surrogate_at
from amc_pymc.step_methods.settings import (
    Audits,
    GaussianProposal,
    LangevinProposal,
    Proposal,
    RandomWalkProposal,
)

__all__ = [
    "Chain",
    "MetropolisChain",
    "begin_metropolis",
    "first_surrogate",
    "kinds_of",
    "learn_metropolis",
    "learns_now",
    "near_mode",
    "recentre",
    "tune_metropolis",
]

_SETTINGS = dict(zip((RandomWalkProposal, GaussianProposal, LangevinProposal), range(len(KINDS))))
_GAUSSIAN = KINDS.index("gaussian")
_LANGEVIN = KINDS.index("langevin")
#: A race that reads more than this share of the rows calls for a better centre.
_RECENTRE_SHARE = 0.02
#: Draws that the covariance before is worth when a new one is estimated.
_SHRINKAGE = 10.0
#: Chains that start further than this from the mode, in standard deviations per root coordinate,
#: begin their tuning near it instead.
_FAR = 5.0


@dataclass(kw_only=True)
class Chain:
    """What changes while one chain of a racing step runs.

    ``visited`` holds the moments of the parameters eta since tuning settled, ``raced`` (2,) the
    rows read by races and the number of races since tuning last learnt from them.
    """

    surrogate: Surrogate
    visited: Moments
    auditor: Auditor
    audit_rng: np.random.Generator
    tune_draws: int
    draw: int = 0
    recentred: int = 0
    raced: np.ndarray = field(default_factory=lambda: np.zeros(2))


@dataclass(kw_only=True)
class MetropolisChain(Chain):
    """A chain that proposes moves.

    ``moments`` are those of the points x, ``totals`` (4, 4) sums the transition statistics since
    tuning last learnt from them.
    """

    moves: Moves
    fit: GaussianFit | None
    moments: Moments
    totals: np.ndarray = field(default_factory=lambda: np.zeros((4, 4)))


def first_surrogate(prepared: Preparation) -> Surrogate:
    """The surrogate of a new chain; zero where there is no Taylor control variate."""
    if prepared.surrogate is not None:
        return prepared.surrogate
    return no_surrogate(prepared.eta(prepared.start))


def no_surrogate(centre: np.ndarray) -> Surrogate:
    """A surrogate that is zero everywhere."""
    return Surrogate(centre, np.zeros(centre.size), np.zeros((centre.size, centre.size)))


def kinds_of(proposals: Sequence[Proposal]) -> tuple[int, ...]:
    """Positions in ``KINDS`` of some proposal settings."""
    return tuple(_SETTINGS[type(p)] for p in proposals)


def begin_metropolis(
    prepared: Preparation,
    var_names: Sequence[str],
    proposals: Sequence[Proposal],
    audits: Audits,
    tune: int,
    draws: int,
    rng: np.random.Generator,
) -> MetropolisChain:
    """A chain that has not moved yet."""
    size = prepared.start.size
    surrogate, moments = first_surrogate(prepared), Moments(size)
    return MetropolisChain(
        moves=_first_moves(prepared, var_names, proposals),
        surrogate=surrogate,
        fit=prepared.fit,
        moments=moments,
        visited=moments if prepared.cut is None else Moments(surrogate.centre.size),
        auditor=Auditor(
            audits, prepared.rows_spent, draws, lambda capacity: PairDecisions(capacity, size)
        ),
        audit_rng=rng.spawn(1)[0],
        tune_draws=tune,
    )


def _first_moves(prepared, var_names, proposals) -> Moves:
    layout = prepared.densities.layout
    active = layout.indices(var_names)
    a, d = active.size, layout.size
    if prepared.fit is not None:
        factor, gain = prepared.fit.moves(active)
        mean = prepared.fit.mean
    else:
        factor = np.eye(a) / np.sqrt(prepared.densities.n_rows)
        gain, mean = np.zeros((a, d)), np.zeros(d)
    jumps = np.zeros(len(KINDS))
    jumps[_GAUSSIAN] = 1.0  # the best guess where there are several
    scales = np.array([2.38 / np.sqrt(a), 1.0, 1.2 / a ** (1 / 6)])
    rows = max((p.batch_size for p in proposals if isinstance(p, LangevinProposal)), default=0)
    return Moves(
        weights=proposal_weights(kinds_of(proposals), jumps),
        scales=scales,
        active=active,
        mean=mean,
        gain=gain,
        chol=factor,
        chol_inverse=np.linalg.inv(factor),
        walk_chol=factor.copy(),
        gradient_rows=rows,
        slope=prepared.slope or no_surrogate(prepared.start),
    )


def near_mode(chain: MetropolisChain, prepared: Preparation, x: np.ndarray, rng) -> np.ndarray:
    """The start x, or, if it is far out, a draw twice as wide as the Gaussian at the mode.

    From far out Gaussian moves would be rejected and races read everything.
    """
    fit, moves, densities = chain.fit, chain.moves, prepared.densities
    if fit is None:
        return x
    active = moves.active
    shift = x[active] - fit.mean[active] - moves.gain @ (x - fit.mean)
    if np.linalg.norm(moves.chol_inverse @ shift) <= _FAR * np.sqrt(active.size):
        return x
    start = x.copy()
    start[active] += -shift + 2.0 * moves.chol @ rng.standard_normal(active.size)
    rest = densities.rest_value_and_gradient(start)[0]
    possible = np.isfinite(rest) and np.all(np.isfinite(densities.all_values(start)))
    return start if possible else x


def tune_metropolis(
    chain: MetropolisChain,
    prepared: Preparation,
    proposals: Sequence[Proposal],
    stats: np.ndarray,
    x: np.ndarray,
) -> None:
    """Adapt after a draw that ended in x with transition statistics ``stats`` (4, 4)."""
    chain.totals += stats
    scales = chain.moves.scales
    for kind, setting in zip(kinds_of(proposals), proposals):
        tries = stats[kind, 0]
        if tries:
            most = 1.0 if kind == _GAUSSIAN else np.inf
            acceptance, past = stats[kind, 2] / tries, chain.totals[kind, 0]
            scales[kind] = adapt_scale(scales[kind], acceptance, setting.target_accept, past, most)
    if chain.draw > chain.tune_draws // 5:
        chain.moments.add(x)
        if prepared.cut is not None:
            chain.visited.add(prepared.eta(x))
    if learns_now(chain):
        learn_metropolis(chain, prepared, proposals)


def learns_now(chain: Chain) -> bool:
    """Whether a chain that is tuned learns from its past after this draw."""
    return chain.draw in {chain.tune_draws * k // 10 for k in (2, 3, 5, 7)}


def learn_metropolis(
    chain: MetropolisChain, prepared: Preparation, proposals: Sequence[Proposal]
) -> None:
    """Use what the chain has seen so far: covariance, proposal weights, centre."""
    kinds, moments, active = kinds_of(proposals), chain.moments, chain.moves.active
    if moments.count > 2 * active.size + 10:
        walk = moments.factor(active, chain.moves.chol, _SHRINKAGE + active.size)
        chain.moves = chain.moves._replace(walk_chol=walk)
    if {_GAUSSIAN, _LANGEVIN} & set(kinds):
        _refit(chain, prepared)
    tries = np.maximum(chain.totals[:3, 0], 1.0)
    weights = proposal_weights(kinds, chain.totals[:3, 3] / tries)
    chain.moves = chain.moves._replace(weights=weights)
    recentre(chain, prepared, chain.totals[3, 0], chain.totals[:3, 0].sum())
    chain.totals[:] = 0.0


def _refit(chain: MetropolisChain, prepared: Preparation) -> None:
    """Gaussian moves from the moments of the chain, where the fit at the mode does badly."""
    moves, moments = chain.moves, chain.moments
    does_well = chain.fit is not None and moves.scales[_GAUSSIAN] >= 0.5
    if does_well or moments.count <= 10 * moves.active.size + 50:
        return
    layout = prepared.densities.layout
    continuous = layout.indices([n for n in layout.names if layout.is_continuous(n)])
    inside = np.ix_(continuous, continuous)
    factor, definite = gaussian_factor(moments.covariance()[inside])
    if not definite:
        return
    precision = np.zeros((layout.size, layout.size))
    precision[inside] = factor @ factor.T
    chain.fit = GaussianFit(moments.mean.copy(), precision, continuous)
    chol, gain = chain.fit.moves(moves.active)
    moves.scales[_GAUSSIAN] = 1.0
    chain.moves = moves._replace(
        mean=chain.fit.mean, gain=gain, chol=chol, chol_inverse=np.linalg.inv(chol)
    )


def recentre(chain: Chain, prepared: Preparation, rows: float, decisions: float) -> None:
    """Expand around the chain's mean instead, where races read much and that helps.

    ``rows`` have been read in ``decisions`` races.
    """
    raced, visited = prepared.raced, chain.visited
    if prepared.surrogate is None or visited.count < 20:
        return
    if rows <= _RECENTRE_SHARE * raced.n_rows * max(decisions, 1.0):
        return
    centre = chain.surrogate.centre.copy()
    centre[raced.expand] = visited.mean[raced.expand]
    here = _residual_sd(chain, raced, chain.surrogate.centre)
    if _residual_sd(chain, raced, centre) > 0.7 * here:
        return
    better = surrogate_at(raced, centre)
    if better is not None:
        chain.surrogate = better
        chain.recentred += 1


def _residual_sd(chain: Chain, raced, centre: np.ndarray) -> float:
    """Spread of residuals for moves of one standard deviation from the chain's mean."""
    rng = as_generator(chain.draw)
    rows = rng.integers(0, raced.n_rows, size=min(2000, raced.n_rows))
    spread = np.sqrt(np.diag(chain.visited.covariance()))
    variance = 0.0
    for _ in range(4):
        points = chain.visited.mean + spread * rng.standard_normal((2, spread.size))
        variance += float(np.nanvar(row_changes(raced.rewards, points, centre, rows)))
    return float(np.sqrt(variance))
