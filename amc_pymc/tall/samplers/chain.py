"""Settings shared by the chains of a sampler, the state of one chain, and its statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from amc_pymc.rng import as_generator
from amc_pymc.tall.racing import Population, Race, RaceRule, make_population
from amc_pymc.tall.samplers.adaptation import Moments, Pieces
from amc_pymc.tall.samplers.auditing import Auditor, AuditTally
from amc_pymc.tall.samplers.compiled import Densities, Races, entry_point, unit_changes
from amc_pymc.tall.samplers.preparation import Preparation
from amc_pymc.tall.samplers.raced import Raced
from amc_pymc.tall.samplers.records import without_room
from amc_pymc.tall.samplers.settings import Audits
from amc_pymc.tall.samplers.surrogate import Surrogate, surrogate_at
from amc_pymc.tall.thinning import Thinning, not_thinned

__all__ = ["Chain", "Sampler", "audited", "learns_now", "past_start", "recentre", "report", "see"]

#: Share of the tuning at its start, one in so many draws, that moments leave out.
_LEFT_OUT = 5
#: Share of the units read per race above which a new expansion point is tried.
_RECENTRE_SHARE = 0.02
#: Half-width of a log ratio, in nats, above which only a lead of several half-widths is accepted.
_SAFE = 5.0
#: Share of a coordinate's variance between tenths of the draws above which a chain is called slow, and
#: the same if it is as large in the second half of tuning, which chance seldom makes happen twice.
_DRIFTS, _DRIFTS_TWICE = 0.4, 0.3
_NO_AUDIT = AuditTally(0, 0, 0)
_NOT_THINNED = not_thinned(0)


class Counts(Protocol):
    """Counters of one draw."""

    def stats(self) -> dict[str, float]:
        """Return the statistics of the draw, named as in ``amc_pymc.results.tables``."""


@dataclass(kw_only=True, eq=False)
class Sampler:
    """Settings shared by all chains of a sampler.

    ``transitions`` is the number of transitions per draw, ``active`` (A,) are the continuous coordinates
    that are moved. Compiled functions are built on first use and not pickled.
    ``dataclasses.replace(sampler, race=...)`` is the same sampler with another race.
    """

    prepared: Preparation
    race: Race
    audits: Audits = field(default_factory=Audits)
    transitions: int = 1
    active: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("compiled", "_entry")}

    @cached_property
    def compiled(self) -> tuple[Densities, Population, RaceRule]:
        """Densities, population of units and decision rule of the races."""
        prepared = self.prepared
        population = make_population(prepared.densities.n_units, prepared.exact_rows)
        return self._densities(), population, self._rule(population.n_raced)

    def _densities(self) -> Densities:
        return self.prepared.compiled(self.prepared.residuals.rewards)

    def _rule(self, n_raced: int) -> RaceRule:
        rule = self.race.rule(n_raced, 2, zero_sd_decides=self.prepared.rounding_only)
        return rule._replace(safe_width=_SAFE / max(1, n_raced))

    def races(self, chain: Chain) -> Races:
        """Return the arguments of one chain's decisions."""
        densities, population, rule = self.compiled
        return Races(densities, chain.surrogate, population, rule, self.thinning)

    @property
    def thinning(self) -> Thinning:
        """Thinning of decisions; one without radii if they are races."""
        return _NOT_THINNED

    def run(self, loop: Any, *args: Any) -> Any:
        """Run the sampler's compiled loop."""
        entry = self.__dict__.get("_entry")
        if entry is None:
            entry = self.__dict__["_entry"] = entry_point(loop, args)
        return entry(*args)

    def rows_of_a_draw(self) -> float:
        """Return the rows read by a draw with exact decisions."""
        return float(self.prepared.densities.n_rows * self.transitions)

    def begin(
        self, rng: np.random.Generator, tune: int, draws: int, decisions: Callable[..., Any]
    ) -> dict[str, Any]:
        """Return arguments of :class:`Chain` for a new chain."""
        prepared, raced = self.prepared, self.prepared.raced
        costs = raced.race_cost, raced.audit_cost
        return {
            "surrogate": prepared.first_surrogate,
            "auditor": Auditor(
                self.audits, prepared.rows_spent, raced.n_units, costs, draws, decisions
            ),
            "audit_rng": rng.spawn(1)[0],
            "tune_draws": tune,
            "pieces": Pieces(tune - tune // 2, prepared.start.size),
        }


@dataclass(kw_only=True)
class Chain:
    """State of one running chain.

    ``moments`` are those of the points x, ``visited`` those of the parameters eta, both without the
    start of tuning. ``totals`` are the counts since the last adaptation. ``pieces`` are those of the
    second half of tuning, then of the draws; ``between`` (D,) are the shares of variances between those
    that were last complete, ``drift`` is the largest, and ``slow`` a coordinate that is too large, or -1.
    """

    surrogate: Surrogate
    auditor: Auditor
    audit_rng: np.random.Generator
    tune_draws: int
    moments: Moments
    visited: Moments
    totals: Any
    draw: int = 0
    recentred: int = 0
    pieces: Pieces
    between: np.ndarray | None = None
    drift: float = 0.0
    slow: int = -1

    def watch(self, x: np.ndarray, moved: np.ndarray) -> None:
        """Add a point x (D,) to the pieces, of whose coordinates those in ``moved`` are judged."""
        if self.draw <= self.tune_draws // 2:
            return
        self.pieces.add(x)
        share, before = self.pieces.between(), self.between
        if share is None or not moved.size:
            return
        self.between, self.drift = share, float(share[moved].max())
        excess = share / _DRIFTS
        if before is not None:
            excess = np.maximum(excess, np.minimum(share, before) / _DRIFTS_TWICE)
        worst = int(moved[excess[moved].argmax()])
        self.slow = worst if excess[worst] > 1.0 else -1

    def stats(self) -> dict[str, float]:
        """Return statistics of the chain's state."""
        return {"race_recentred": float(self.recentred), "race_drift": self.drift}

    def log(self, tuning: bool) -> Any:
        """Return the log of decisions, without room while tuning."""
        return without_room(self.auditor.log) if tuning else self.auditor.log


def moments_of(prepared: Preparation) -> dict[str, Any]:
    """Return empty moments of x and of eta, one shared object if eta is x."""
    moments = Moments(prepared.start.size)
    other = Moments(prepared.first_surrogate.centre.size)
    return {"moments": moments, "visited": moments if prepared.cut is None else other}


def see(chain: Chain, prepared: Preparation, x: np.ndarray) -> None:
    """Add the point x to the moments after the start of tuning."""
    if past_start(chain):
        chain.moments.add(x)
        if prepared.cut is not None:
            chain.visited.add(prepared.eta(x))


def past_start(chain: Chain) -> bool:
    """Whether the first fifth of the tuning is over, so that moments include the chain's points."""
    return chain.draw > chain.tune_draws // _LEFT_OUT


def learns_now(chain: Chain) -> bool:
    """Whether a chain that is being tuned adapts after this draw."""
    return chain.draw in {chain.tune_draws * k // 10 for k in (2, 3, 5, 7)}


def recentre(chain: Chain, prepared: Preparation, read: float, decisions: float) -> None:
    """Expand around the chain's mean if races read many units and the residuals become smaller.

    ``read`` is the number of units read in ``decisions`` races.
    """
    raced, visited = prepared.raced, chain.visited
    if prepared.surrogate is None or visited.count < 20:
        return
    if read <= _RECENTRE_SHARE * raced.n_units * max(decisions, 1.0):
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


def _residual_sd(chain: Chain, raced: Raced, centre: np.ndarray) -> float:
    """Estimate the standard deviation of residuals for moves near the chain's mean."""
    rng = as_generator(chain.draw)
    units = rng.integers(0, raced.n_units, size=min(2000, raced.n_units))
    spread = np.sqrt(np.diag(chain.visited.covariance()))
    variance = 0.0
    for _ in range(4):
        points = chain.visited.mean + spread * rng.standard_normal((2, spread.size))
        variance += float(np.nanvar(unit_changes(raced.rewards, points, centre, units)))
    return float(np.sqrt(variance))


# --- statistics of a draw -------------------------------------------------------------------------


def report(
    sampler: Sampler, chain: Chain, counts: Counts, *, tuning: bool = False
) -> dict[str, float]:
    """Run audits due after a draw; return its statistics, named as in ``amc_pymc.results.tables``."""
    delta = float(sampler.race.delta)
    stats = {"race_exact": float(delta == 0.0)} | counts.stats() | chain.stats()
    stats["race_delta"] = 0.0 if stats["race_exact"] else delta
    args = sampler.prepared, chain.surrogate, chain.audit_rng
    return stats | audited(chain.auditor, stats["race_rows"], *args, tuning=tuning)


def audited(
    auditor: Auditor,
    spent: float,
    prepared: Any,
    surrogate: Surrogate | None,
    rng: np.random.Generator,
    *,
    tuning: bool = False,
) -> dict[str, float]:
    """Add ``spent`` units to the budget and, unless tuning, run the audits that are due."""
    auditor.spend(spent)
    due = not tuning and auditor.due()
    added = auditor.run(prepared, surrogate, rng) if due else _NO_AUDIT
    return {
        "race_audited": float(added.audited),
        "race_wrong": float(added.wrong),
        "race_audit_rows": float(added.units),
    }
