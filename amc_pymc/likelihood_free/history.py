"""All simulations of a run and their weights, and the schedule of batches and tolerances."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.flags import Flag
from amc_pymc.likelihood_free.by_observation import Cells
from amc_pymc.likelihood_free.problem import Failure, Problem, Simulated, flat, values_at
from amc_pymc.likelihood_free.proposal import Proposal
from amc_pymc.likelihood_free.scale import SummaryScale
from amc_pymc.logweights import log_mean_exp, relative

#: First batch, from the prior: fraction of the budget, and minimum size. Later batches: fraction of all simulations
#: before them.
_FIRST, _LEAST, _GROWTH = 0.02, 100, 0.4
#: Maximum share of all simulations that a tolerance accepts.
_LARGEST_SHARE = 0.03
#: Number of simulations that may be accepted whatever their share.
_FEWEST = 30
#: Ratio of gains above which batches of small gain count less in learning.
_UNEVEN = 1000.0


class Round(NamedTuple):
    """One batch of simulations.

    Attributes
    ----------
    proposal : Proposal
    tolerance : float
        Tolerance that the proposal was made for; inf in the first batch.
    u : array (n, D)
    log_ratio : array (n,)
        Natural logarithm of prior over proposal density; -inf where the prior density is zero.
    log_density : array (n,) or None
        Natural log prior density in the cube, up to a constant; None if the prior is uniform.
    simulated : Simulated
    x : array (n, D)
        Points on the normal scale.
    """

    proposal: Proposal
    tolerance: float
    u: np.ndarray
    log_ratio: np.ndarray
    log_density: np.ndarray | None
    simulated: Simulated
    x: np.ndarray


@dataclass
class History:
    r"""All simulations so far.

    A simulation of batch b has the weight

    .. math:: w_i = G_b \frac{\pi(u_i)}{q_b(u_i)}

    with the gain G_b that was expected of the batch's proposal before the batch was drawn. Weighted sums over
    accepted simulations are therefore unbiased for any tolerance fixed in advance, apart from the division by
    the sum of weights.

    With Potentials, the prior density is known only up to a factor, which is the same for all weights. After
    each batch it is estimated from all batches by the condition :math:`\sum_i w_i = \sum_b G_b n_b`.

    Attributes
    ----------
    rounds : list of Round
    log_factor : float
        Natural logarithm of the factor that weights have been divided by so far.
    """

    rounds: list[Round] = field(default_factory=list)
    log_factor: float = 0.0

    def add(self, made: Round) -> None:
        """Add a batch."""
        self.rounds.append(made._replace(log_ratio=made.log_ratio - self.log_factor))
        if made.log_density is None:
            return
        gains = sum(r.proposal.gain * len(r.u) for r in self.rounds)
        more = float(log_mean_exp(self.log_weight)) - math.log(gains / len(self))
        if math.isfinite(more):
            self.rounds = [r._replace(log_ratio=r.log_ratio - more) for r in self.rounds]
            self.log_factor += more

    def score_again(self, distance: np.ndarray) -> None:
        """Replace the distances (N,) of all simulations."""
        parts = np.split(distance, np.cumsum([len(r.u) for r in self.rounds])[:-1])
        self.rounds = [
            r._replace(simulated=r.simulated._replace(distance=part))
            for r, part in zip(self.rounds, parts, strict=True)
        ]

    @property
    def u(self) -> np.ndarray:
        """Points (N, D) of the unit cube."""
        return self._each(lambda r: r.u)

    @property
    def x(self) -> np.ndarray:
        """Points (N, D) on the normal scale."""
        return self._each(lambda r: r.x)

    @property
    def distance(self) -> np.ndarray:
        """Distances (N,)."""
        return self._each(lambda r: r.simulated.distance)

    @property
    def summaries(self) -> np.ndarray | None:
        """Summary statistics (N, S); None if they were not kept."""
        found = [r.simulated.summaries for r in self.rounds]
        kept = [s for s in found if s is not None]
        return np.concatenate(kept) if len(kept) == len(found) else None

    @property
    def log_density(self) -> np.ndarray:
        """Natural log prior density in the cube (N,), up to a constant; 0 if the prior is uniform."""
        return self._each(lambda r: np.zeros(len(r.u)) if r.log_density is None else r.log_density)

    @property
    def density(self) -> np.ndarray:
        """Prior density in the cube (N,), relative to its maximum."""
        return relative(self.log_density)

    @property
    def log_ratio(self) -> np.ndarray:
        """Natural logarithms (N,) of prior over proposal density."""
        return self._each(lambda r: r.log_ratio)

    @property
    def log_weight(self) -> np.ndarray:
        """Natural log weights (N,)."""
        return self._each(lambda r: r.log_ratio + math.log(r.proposal.gain))

    @property
    def log_worth(self) -> np.ndarray:
        """Natural log weights (N,) for learning proposals: with the gains of batches only if these are very different."""
        return self.log_weight if self.uneven else self.log_ratio

    @property
    def uneven(self) -> bool:
        """Whether the gains of batches differ by more than a factor of a thousand."""
        gains = [r.proposal.gain for r in self.rounds]
        return max(gains) > _UNEVEN * min(gains)

    @property
    def log_weight_in_cube(self) -> np.ndarray:
        """Natural log weights (N,) for a prior that is uniform in the cube."""
        if all(r.log_density is None for r in self.rounds):
            return self.log_weight
        return self._each(lambda r: math.log(r.proposal.gain) - np.log(r.proposal.density(r.u)))

    @property
    def number(self) -> np.ndarray:
        """Batch number (N,) of each simulation."""
        return np.repeat(np.arange(len(self.rounds)), [len(r.u) for r in self.rounds])

    def _each(self, of: Callable[[Round], np.ndarray]) -> np.ndarray:
        return np.concatenate([of(r) for r in self.rounds])

    def __len__(self) -> int:
        return sum(len(r.u) for r in self.rounds)


@dataclass
class AbcRun:
    """A finished run.

    Attributes
    ----------
    problem : Problem
    model : pm.Model or None
    history : History
    observed : array (S,)
        Summary statistics of the data.
    rng : numpy.random.Generator
        Generator for draws after the run.
    seconds : list of float
        Simulation time of each batch; nan for batches from a checkpoint.
    failures : list of Failure
    flags : list of Flag
    scale : SummaryScale or None
        Scale of the distance if it comes from a pilot batch; None for the problem's own distance.
    learned : bool
        Whether the distance is between learned summaries.
    cells : Cells or None
        Cells in which exchangeable observations are counted, if their likelihood is learned.
    counts : list of array (n, B)
        Counts of the data, (1, B), and of each batch.
    progressbar : bool
    """

    problem: Problem
    model: Any
    history: History
    observed: np.ndarray = field(default_factory=lambda: np.empty(0))
    rng: np.random.Generator = None  # type: ignore[assignment]
    seconds: list[float] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    scale: SummaryScale | None = None
    learned: bool = False
    cells: Cells | None = None
    counts: list[np.ndarray] = field(default_factory=list)
    progressbar: bool = False

    def elements(self, u: np.ndarray) -> np.ndarray:
        """Return all elements (n, K) of all variables at points (n, D) of the cube."""
        return flat(values_at(self.problem, u).values())


def batch_sizes(
    max_simulations: int, batch_size: int | None = None, done: Sequence[int] = ()
) -> list[int]:
    """Return the sizes of the batches that spend a budget, fixed before any simulation.

    Parameters
    ----------
    max_simulations : int
    batch_size : int, optional
        By default, batches grow with the number of earlier simulations.
    done : sequence of int
        Sizes of batches that exist already, perhaps as part of a smaller budget.

    Examples
    --------
    >>> from amc_pymc.likelihood_free.history import batch_sizes
    >>> batch_sizes(1000), batch_sizes(1000, 300)
    ([100, 100, 100, 120, 168, 235, 177], [300, 300, 300, 100])
    """
    sizes, left = list(done), max_simulations - sum(done)
    first = min(max_simulations, max(_LEAST, math.ceil(_FIRST * max_simulations)))
    while left > 0:
        size = batch_size or max(first, int(_GROWTH * (max_simulations - left)))
        # A last batch that is not of the size asked for must not be smaller than half of its planned size.
        size = left if left < (1.0 if batch_size else 1.5) * size else size
        sizes.append(size)
        left -= size
    return sizes


def next_tolerance(
    distance: np.ndarray,
    last: float,
    *,
    accepts: int,
    lowest: float | None = None,
    log_density: np.ndarray | None = None,
) -> float:
    """Return the next tolerance, at most the last one and at least `lowest`.

    Parameters
    ----------
    distance : array (n,)
        Distances of all simulations so far.
    last : float
        Last tolerance; inf at first.
    accepts : int
        Number of simulations to accept, but at most 3 % of all, unless these are fewer than 30. The tolerance
        is the largest distance among this number of closest simulations. If that many are equally close, it
        stays at their distance.
    lowest : float, optional
    log_density : array (n,), optional
        Natural log prior density, up to a constant, if it is not uniform. Simulations then count in proportion
        to the density, and their total is the effective sample size, so close simulations of negligible prior
        density have no effect.

    Examples
    --------
    >>> import math
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.history import next_tolerance
    >>> d = np.arange(1000.0)
    >>> next_tolerance(d, math.inf, accepts=100), next_tolerance(d, 20.0, accepts=100)
    (29.0, 20.0)
    """
    weight = np.ones(len(distance)) if log_density is None else relative(log_density)
    if not weight.any():
        return last
    counts = weight * weight.sum() / (weight @ weight)
    n = min(accepts, max(_FEWEST, math.ceil(_LARGEST_SHARE * counts.sum())), len(distance))
    order = np.argsort(distance, kind="stable")
    reached = np.flatnonzero(np.cumsum(counts[order]) >= n - 1e-6)
    wanted = float(distance[order[reached[0]]]) if len(reached) else math.inf
    return max(min(wanted, last), 0.0 if lowest is None else lowest)
