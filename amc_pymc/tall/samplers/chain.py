"""Settings shared by the chains of a sampler, the state of one chain, its log, audits and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.arguments import positive_int, positive_or_none
from amc_pymc.engine.jit import fill, njit, record
from amc_pymc.rng import as_generator
from amc_pymc.tall.decisions import Densities, Races, as_they_are, not_thinned, residuals
from amc_pymc.tall.mode import Moments
from amc_pymc.tall.racing import AutoRace, ExactRace, Race, RaceRule, make_population
from amc_pymc.tall.samplers.fit import Preparation
from amc_pymc.tall.surrogate import Surrogate, surrogate_at
from amc_pymc.tall.units import Raced

# --- logs of decisions ----------------------------------------------------------------------------


@record
class Log(NamedTuple):
    """A uniform sample of C of the decisions made since the last audit (reservoir sampling).

    Attributes
    ----------
    x : (C, D) array
        Points.
    other : (C, W) array
        Proposals, or the Gumbel noise of the states of the elements drawn.
    subject : (C,) array
        Log ratios without the units, minus their thresholds; or the elements drawn.
    outcome : (C,) array
        Whether proposals were accepted, or the positions of the states drawn.
    read : (C,) array
        Number of raced units read, or its mean over states.
    seen : (1,) int64 array
        Number of decisions, also of those that are not in the sample.
    """

    x: np.ndarray
    other: np.ndarray
    subject: np.ndarray
    outcome: np.ndarray
    read: np.ndarray
    seen: np.ndarray


@njit(cache=True)
def log_decision(
    log: Log,
    x: np.ndarray,
    other: np.ndarray,
    subject: float,
    outcome: float,
    read: float,
    rng: np.random.Generator,
) -> None:
    """Log a decision, unless the log has no room (C = 0)."""
    size = log.x.shape[0]
    if size == 0:
        return
    slot = log.seen[0]
    log.seen[0] += 1
    if slot >= size:
        slot = np.int64(rng.random() * (slot + 1))
    if slot < size:
        fill(log.x[slot], x)
        fill(log.other[slot], other)
        log.subject[slot] = subject
        log.outcome[slot] = outcome
        log.read[slot] = read


# --- audits ----------------------------------------------------------------------------------------
# The choice of decisions must not depend on the outcome of their races, or the measured error rate
# would be biased. They are a uniform sample of each block's decisions, with room for audits that an earlier
# block could not afford.


_BLOCKS, _ROOM = 20, 4
#: Measured overhead of a draw in ``pm.sample`` and the step, and start-up cost of a chain, in
#: evaluations of one row.
_DRAW_COST = 3_000
_START_COST = 20_000_000


@dataclass(frozen=True)
class Audits:
    """Settings of audits: decisions repeated on all rows to measure the error rate.

    They are a uniform sample of a chain's decisions.

    Parameters
    ----------
    number : int
        Maximum number of audited decisions per chain.
    max_share : float or None
        Maximum share of time spent on audits, estimated from row counts so a seed reproduces a run;
        None for no limit.
    chains : int
        Number of chains that share the time spent on setup. ``pm.sample`` does not tell step methods how
        many chains it runs; give the number if it is not four. ``sample_product_space`` sets it.
    """

    number: int = 200
    max_share: float | None = 0.1
    chains: int = 4

    def __post_init__(self) -> None:
        positive_int("audits", self.number, 0)
        positive_or_none("max_share", self.max_share, 1.0, closed=True)
        positive_int("chains", self.chains)


class AuditTally(NamedTuple):
    """Numbers of audited decisions, of wrong ones, and of units read by the audits."""

    audited: int
    wrong: int
    units: int


class Auditor:
    """Collector of one chain's decisions, which audits them block by block.

    The budget is counted in row evaluations, not in seconds, so a seed reproduces a run.

    Parameters
    ----------
    sampler : Sampler
        Of which row evaluations during setup are shared by ``sampler.audits.chains`` chains.
    draws : int
        Draws of the chain; if 0, no decisions are collected.
    logged : int
        Number of values that are logged beside a point, such as those of a proposal.
    """

    def __init__(self, sampler: Sampler, draws: int, logged: int):
        raced, settings = sampler.prepared.raced, sampler.audits
        self.settings, self.n_units = settings, raced.n_units
        self.race_cost, self.audit_cost = raced.race_cost, raced.audit_cost
        self.blocks = max(1, min(_BLOCKS, draws))
        self.quota = -(-settings.number // self.blocks)
        #: Compiled loops write to it.
        capacity = _ROOM * self.quota if draws and settings.number else 0
        x, other = (np.zeros((capacity, size)) for size in (sampler.prepared.start.size, logged))
        subject, outcome, read = np.zeros((3, capacity))
        self.log = Log(x, other, subject, outcome, read, np.zeros(1, np.int64))
        #: The same without room, for tuning.
        self.no_log = self.log._replace(x=x[:0])
        self.block_length = max(1, draws // self.blocks)
        self.draws = draws
        self.draw = 0
        self.tally = AuditTally(0, 0, 0)
        self.spent = float(_START_COST + sampler.prepared.rows_spent / settings.chains)

    def spend(self, units: float) -> None:
        """Add the cost of one draw that read ``units`` units; the audit budget grows with it."""
        self.spent += _DRAW_COST + units * self.race_cost

    def until_due(self) -> int:
        """Return the draws until audits may be due, beyond which none must be made ahead."""
        if not self.draws:
            return 1
        block = self.block_length - self.draw % self.block_length
        return max(1, min(block, self.draws - self.draw))

    def due(self) -> bool:
        """Count a draw; return whether it ends a block with decisions to audit."""
        if not self.draws:
            return False
        self.draw += 1
        at_end = self.draw % self.block_length == 0 or self.draw == self.draws
        return at_end and self.log.seen[0] > 0 and self.tally.audited < self.settings.number

    def run(
        self, sampler: Sampler, surrogate: Surrogate | None, rng: np.random.Generator
    ) -> AuditTally:
        """Audit as many logged decisions as the budget allows; return the tally of this call."""
        if not self._affordable(self.n_units):
            return AuditTally(0, 0, 0)
        kept = int(min(self.log.seen[0], self.log.x.shape[0]))
        due = self.settings.number * self.draw // max(1, self.draws) - self.tally.audited
        chosen = rng.permutation(kept)[: max(0, due)]
        audited, wrong, units = 0, 0, 0
        n_raced = self.n_units - sampler.prepared.exact_rows.size
        for k in chosen:
            # A race that read every unit needs no repetition.
            cost = 0 if self.log.read[k] >= n_raced else self.n_units * sampler.passes(self.log, k)
            if cost and not self._affordable(units + cost):
                break
            units += cost
            audited += 1
            wrong += bool(cost) and not sampler.confirmed(self.log, k, surrogate)
        if audited or not chosen.size:
            self.log.seen[0] = 0
        added = AuditTally(audited, wrong, units)
        self.tally = AuditTally(*(a + b for a, b in zip(self.tally, added)))
        return added

    def _affordable(self, units: int) -> bool:
        share = self.settings.max_share
        cost = (self.tally.units + units) * self.audit_cost
        return share is None or cost <= share * self.spent


# --- chains ----------------------------------------------------------------------------------------


def add_counts(total: tuple[np.ndarray, ...], counts: tuple[np.ndarray, ...]) -> None:
    """Add counts to others of the same kind, in place."""
    for mine, new in zip(total, counts):
        mine += new


#: Share of the tuning at its start, one in so many draws, that moments leave out.
_LEFT_OUT = 5
#: Share of the units read per race above which a new expansion point is tried.
_RECENTRE_SHARE = 0.02
#: Half-width of a log ratio, in nats, above which only a lead of several half-widths is accepted.
_SAFE = 5.0
#: Share of a coordinate's variance between tenths of the draws above which a chain is called slow, and
#: the same if it is as large in the second half of tuning, which chance seldom makes happen twice.
_DRIFTS, _DRIFTS_TWICE = 0.4, 0.3
_NOT_THINNED = not_thinned()
#: Successive pieces of a chain whose means are compared, and the fewest points that are judged.
_PIECES, FEWEST = 10, 100


@dataclass
class Pieces:
    """Means of ten successive pieces of a chain of ``number`` points (D,), and the variance of all."""

    number: int
    count: int = 0

    def add(self, x: np.ndarray) -> None:
        """Add one point."""
        if not self.count:
            self.length = max(1, self.number // _PIECES)
            self.first, self.squares = x.copy(), np.zeros(x.size)
            self.sums = np.zeros((_PIECES, x.size))
        piece = self.count // self.length
        if piece < _PIECES:
            shift = x - self.first
            self.sums[piece] += shift
            self.squares += shift * shift
        self.count += 1

    def between(self) -> np.ndarray | None:
        """Return the share (D,) of each coordinate's variance that lies between pieces.

        A chain whose draws are worth E independent ones has 10 / E if E is large, and about 0.4 if
        E is 20. A coordinate that has never moved has 1. None unless it is complete, and if
        there are too few points to judge.
        """
        if self.number < FEWEST or self.count != self.number:
            return None
        means = self.sums / self.length
        variance = self.squares / (_PIECES * self.length) - means.mean(axis=0) ** 2
        moved = variance > 0.0
        return np.where(moved, means.var(axis=0) / np.where(moved, variance, 1.0), 1.0)


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
        return {k: v for k, v in self.__dict__.items() if k not in ("races", "_entry")}

    @cached_property
    def races(self) -> Races:
        """Arguments of the decisions of a new chain."""
        prepared, cut, thinning = self.prepared, self.prepared.cut, _NOT_THINNED
        population = make_population(prepared.densities.n_units, prepared.exact_rows)
        rewards, rule = self.rewards_and_rule(population.n_raced)
        parameters = as_they_are if cut is None else cut.native
        densities = Densities(rewards, prepared.densities.rest, parameters, prepared.raced.reads)
        if prepared.thinning is not None and isinstance(self.race, ExactRace | AutoRace):
            thinning = prepared.thinning
        return Races(densities, prepared.surrogate, population, rule, thinning)

    def rewards_and_rule(self, n_raced: int) -> tuple[Any, RaceRule]:
        """Return the first-class function that races call for their units, and the rule of races."""
        rule = self.race.rule(n_raced, 2, zero_sd_decides=self.prepared.rounding_only)
        return self.prepared.raced.rewards, rule._replace(safe_width=_SAFE / max(1, n_raced))

    def run(self, loop: Any, *args: Any) -> Any:
        """Run the sampler's compiled loop."""
        entry = self.__dict__.get("_entry")
        if entry is None:
            # The entry point for these types skips their look-up, which takes longer than a transition.
            kinds = tuple(loop.typeof_pyval(a) for a in args)
            loop.compile(kinds)
            entry = self.__dict__["_entry"] = loop.overloads[kinds].entry_point
        return entry(*args)

    def passes(self, log: Log, k: int) -> int:
        """Return the number of passes over all units that repeat a logged decision."""
        return 1

    def confirmed(self, log: Log, k: int, surrogate: Surrogate | None) -> bool:
        """Whether a logged decision is that on all units."""
        raise NotImplementedError

    def begin(self, rng: np.random.Generator, tune: int, draws: int, logged: int) -> dict[str, Any]:
        """Return arguments of :class:`Chain` for a new chain, which logs ``logged`` values beside a point."""
        prepared = self.prepared
        return {
            "surrogate": prepared.surrogate,
            "auditor": Auditor(self, draws, logged),
            "audit_rng": rng.spawn(1)[0],
            "tune_draws": tune,
            "visited": Moments(),
            "pieces": Pieces(tune - tune // 2),
        }


@dataclass(kw_only=True)
class Chain:
    """State of one running chain.

    ``visited`` are the moments of the parameters eta without the start of tuning. ``totals`` are the
    counts since the last adaptation. ``pieces`` are those of the second half of tuning, then of the
    draws; ``between`` (D,) are the shares of variances between those that were last complete, ``drift``
    is the largest, and ``slow`` a coordinate that is too large, or -1.
    """

    surrogate: Surrogate
    auditor: Auditor
    audit_rng: np.random.Generator
    tune_draws: int
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
    if prepared.no_proxy or visited.count < 20:
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
        variance += float(np.nanvar(residuals(raced.rewards, points, centre, units)[1]))
    return float(np.sqrt(variance))


# --- statistics of a draw -------------------------------------------------------------------------


def report(
    sampler: Sampler, chain: Chain, counts: Any, *, tuning: bool = False
) -> dict[str, float]:
    """Run audits due after a draw; return its statistics, named as in ``amc_pymc.results.tables``."""
    delta = float(sampler.race.delta)
    stats = {"race_exact": float(delta == 0.0)} | counts.stats() | chain.stats()
    stats["race_delta"] = 0.0 if stats["race_exact"] else delta
    auditor, added = chain.auditor, AuditTally(0, 0, 0)
    auditor.spend(stats["race_rows"])
    if not tuning and auditor.due():
        added = auditor.run(sampler, chain.surrogate, chain.audit_rng)
    counted = zip(("race_audited", "race_wrong", "race_audit_rows"), map(float, added))
    return stats | dict(counted)
