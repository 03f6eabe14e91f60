"""One chain of a racing step: what changes while it runs, and what it learns while tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from amc_pymc.proxies import gaussian_factor
from amc_pymc.rng import as_generator
from amc_pymc.step_methods.adaptation import Moments, adapt_scale, proposal_weights
from amc_pymc.step_methods.auditing import Auditor
from amc_pymc.step_methods.metropolis_kernel import KINDS, Moves, Surrogate
from amc_pymc.step_methods.preparation import GaussianFit, Preparation, row_changes, surrogate_at
from amc_pymc.step_methods.settings import (
    Audits,
    GaussianProposal,
    LangevinProposal,
    Proposal,
    RandomWalkProposal,
)

__all__ = ["Chain", "begin_chain", "kinds_of", "learn", "near_mode", "tune_chain"]

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


@dataclass
class Chain:
    """Everything that changes while one chain runs.

    ``totals`` (4, 4) sums the transition statistics since tuning last learnt from them.
    """

    moves: Moves
    surrogate: Surrogate
    fit: GaussianFit | None
    moments: Moments
    auditor: Auditor
    audit_rng: np.random.Generator
    tune_draws: int
    draw: int = 0
    recentred: int = 0
    totals: np.ndarray = field(default_factory=lambda: np.zeros((4, 4)))


def kinds_of(proposals: Sequence[Proposal]) -> tuple[int, ...]:
    """Positions in ``KINDS`` of some proposal settings."""
    return tuple(_SETTINGS[type(p)] for p in proposals)


def begin_chain(
    prepared: Preparation,
    var_names: Sequence[str],
    proposals: Sequence[Proposal],
    audits: Audits,
    tune: int,
    draws: int,
    rng: np.random.Generator,
) -> Chain:
    """A chain that has not moved yet."""
    d = prepared.start.size
    surrogate = prepared.surrogate or Surrogate(prepared.start, np.zeros(d), np.zeros((d, d)))
    return Chain(
        moves=_first_moves(prepared, var_names, proposals),
        surrogate=surrogate,
        fit=prepared.fit,
        moments=Moments(d),
        auditor=Auditor(audits, prepared, draws, d),
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
    )


def near_mode(chain: Chain, prepared: Preparation, x: np.ndarray, rng) -> np.ndarray:
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


def tune_chain(
    chain: Chain,
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
    if chain.draw in {chain.tune_draws * k // 10 for k in (2, 3, 5, 7)}:
        learn(chain, prepared, proposals)


def learn(chain: Chain, prepared: Preparation, proposals: Sequence[Proposal]) -> None:
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
    if prepared.surrogate is not None:
        _recentre(chain, prepared)
    chain.totals[:] = 0.0


def _refit(chain: Chain, prepared: Preparation) -> None:
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


def _recentre(chain: Chain, prepared: Preparation) -> None:
    """Expand around the chain's mean instead, where races read much and that helps."""
    densities = prepared.densities
    decisions = max(chain.totals[:3, 0].sum(), 1.0)
    if chain.totals[3, 0] <= _RECENTRE_SHARE * densities.n_rows * decisions:
        return
    if chain.moments.count < 20:
        return
    centre = chain.surrogate.centre.copy()
    centre[densities.expand] = chain.moments.mean[densities.expand]
    here = _residual_sd(chain, densities, chain.surrogate.centre)
    if _residual_sd(chain, densities, centre) > 0.7 * here:
        return
    better = surrogate_at(densities, centre)
    if better is not None:
        chain.surrogate = better
        chain.recentred += 1


def _residual_sd(chain: Chain, densities, centre: np.ndarray) -> float:
    """Spread of residuals for moves of one standard deviation from the chain's mean."""
    rng = as_generator(chain.draw)
    rows = rng.integers(0, densities.n_rows, size=min(2000, densities.n_rows))
    spread = np.sqrt(np.diag(chain.moments.covariance()))
    variance = 0.0
    for _ in range(4):
        points = chain.moments.mean + spread * rng.standard_normal((2, spread.size))
        variance += float(np.nanvar(row_changes(densities.rewards, points, centre, rows)))
    return float(np.sqrt(variance))
