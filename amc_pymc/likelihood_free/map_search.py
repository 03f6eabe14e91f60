"""Search for the mode of a posterior by simulating where its density is largest."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from amc_pymc.likelihood_free.partition import (
    Partition,
    cut_boxes,
    separation,
    shrunk_rates,
    whole_cube,
)
from amc_pymc.likelihood_free.problem import gaussian_kernel
from amc_pymc.logweights import relative

#: Default number of batches that a budget is split into.
_BATCHES = 20
#: Share of each batch that is drawn from the whole cube.
_SHARE = 0.05
#: Mean label in a batch that the tolerance is lowered to, and factor for the first batch, from the prior.
_LABEL, _FIRST = 0.1, 0.5
#: Batches at the same tolerance before it may be lowered by force, and minimum sum of labels afterwards.
_PATIENCE, _ENOUGH = 3, 100.0
#: Number of simulations that the rate of the parent box counts for, and minimum parameter of a Beta distribution.
_STRENGTH, _LEAST = 2.0, 1e-6
#: Draws to find a box other than the leading one; then the best other one of one more draw is taken.
_TRIES = 10
#: Number of bisection steps in the search for a tolerance.
_HALVINGS = 60
#: Smallest tolerance in units of the smallest nonzero distance, whose label is then e^-450.
_FINEST = 1.0 / 30.0
#: Maximum rounds of cuts after a batch.
_ROUNDS = 8
#: Minimum sum of labels for a box to be cut, unless their effective number is larger than the second.
_LABELS, _WORTH = 20.0, 100.0


class MapRound(NamedTuple):
    """One batch and the state of the search after it.

    Attributes
    ----------
    u : array (n, D)
    distance : array (n,)
        inf where the simulation failed, or the prior is zero.
    tolerance : float
        Tolerance h.
    boxes : int
    incumbent : array (D,)
        Centre of the box with the largest density, the prior density times the mean label.
    """

    u: np.ndarray
    distance: np.ndarray
    tolerance: float
    boxes: int
    incumbent: np.ndarray


@dataclass
class MapHistory:
    """All simulations so far, and estimated densities of boxes.

    Attributes
    ----------
    partition : Partition
        Boxes after the last batch.
    rounds : list of MapRound
    rate : array (K,)
        Mean kernel values in the boxes, shrunk towards those of the parent boxes.
    counts : array (K,)
        Number of simulations that each estimate is worth.
    log_prior : array (K,)
        Natural log prior density or mass at the centres of the boxes, on the scale of the parameters.
    """

    partition: Partition
    rounds: list[MapRound] = field(default_factory=list)
    rate: np.ndarray = field(default_factory=lambda: np.ones(1))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(1))
    log_prior: np.ndarray = field(default_factory=lambda: np.zeros(1))

    @property
    def u(self) -> np.ndarray:
        """Points (N, D) of the unit cube."""
        return np.concatenate([np.empty((0, self.partition.n_dim)), *(r.u for r in self.rounds)])

    @property
    def distance(self) -> np.ndarray:
        """Distances (N,)."""
        return np.concatenate([np.empty(0), *(r.distance for r in self.rounds)])

    @property
    def tolerance(self) -> float:
        """Tolerance of the last batch."""
        return self.rounds[-1].tolerance if self.rounds else math.inf

    @property
    def centres(self) -> np.ndarray:
        """Centres of the boxes (K, D)."""
        return 0.5 * (self.partition.lower + self.partition.upper)

    @property
    def prior(self) -> np.ndarray:
        """Prior density (K,) relative to the largest; 0 where it is not finite, unless it is finite nowhere."""
        possible = np.isfinite(self.log_prior)
        if not possible.any():
            return np.ones(len(possible))
        return relative(np.where(possible, self.log_prior, -np.inf))

    def choose(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Choose boxes (n,) for a batch one by one, without feedback in between, by top-two Thompson sampling.

        All densities are drawn, and the largest is taken with probability 1/2. Otherwise they are drawn until
        another box has the largest (Russo 2016, https://proceedings.mlr.press/v49/russo16.html).
        """
        prior = self.prior
        hits = self.rate * self.counts
        alpha, beta = (np.maximum(x, _LEAST) for x in (hits, self.counts - hits))
        leaders = (prior * rng.beta(alpha, beta, (n, alpha.size))).argmax(axis=1)
        if alpha.size == 1:
            return leaders
        chosen = leaders.copy()
        again = np.flatnonzero(rng.random(n) >= 0.5)
        for _ in range(_TRIES):
            values = prior * rng.beta(alpha, beta, (again.size, alpha.size))
            chosen[again] = values.argmax(axis=1)
            again = again[chosen[again] == leaders[again]]
        if again.size:
            values = prior * rng.beta(alpha, beta, (again.size, alpha.size))
            values[np.arange(again.size), leaders[again]] = -np.inf
            chosen[again] = values.argmax(axis=1)
        return chosen

    def add(
        self,
        u: np.ndarray,
        distance: np.ndarray,
        tolerance: float,
        log_prior: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        """Add a batch, and cut and judge boxes at its tolerance."""
        all_u, all_distances = np.concatenate([self.u, u]), np.append(self.distance, distance)
        labels = gaussian_kernel(all_distances, tolerance)
        self.partition = refine(self.partition, all_u, labels)
        k = self.partition.boxes
        self.log_prior = log_prior(self.centres)
        rate = shrunk_rates(self.partition, all_u, labels, strength=_STRENGTH)
        self.rate = np.clip(rate, 0.0, 1.0)
        self.counts = np.bincount(self.partition.find(all_u), minlength=k) + _STRENGTH
        # Boxes whose prior is zero at the centre are excluded, unless it is zero at all centres.
        value = np.where(np.isfinite(self.log_prior), self.prior * self.rate, -np.inf)
        self.rounds.append(MapRound(u, distance, tolerance, k, self.centres[value.argmax()]))


def map_rounds(
    simulate: Callable[[np.ndarray, int], np.ndarray],
    log_prior: Callable[[np.ndarray], np.ndarray],
    n_dim: int,
    sizes: Sequence[int],
    generators: Sequence[np.random.Generator],
    *,
    lowest: float = 0.0,
) -> Iterator[MapHistory]:
    r"""Search batch by batch for the box with the largest posterior density.

    The density of a box is the prior density at its centre, on the scale of the parameters, times the
    mean label :math:`\exp(-d^2 / 2 h^2)` of simulations in it. Where the prior is zero, the distance d
    counts as infinite. The boxes of a batch are chosen from earlier batches. After each batch the tolerance h is
    lowered, all labels are recomputed, and boxes whose parts differ are cut.

    Parameters
    ----------
    simulate : callable
        Maps points (n, D) of the unit cube and the batch number to distances (n,).
    log_prior : callable
        Maps points (n, D) to the natural log prior density or mass (n,) on the scale of the
        parameters.
    n_dim : int
    sizes : sequence of int
        Sizes of the batches.
    generators : sequence of numpy.random.Generator
        One for each batch.
    lowest : float, default 0
        Tolerance at which lowering ends.

    Yields
    ------
    MapHistory
        The same object each time, extended by one batch.
    """
    history = MapHistory(whole_cube(n_dim))
    for b, (size, rng) in enumerate(zip(sizes, generators, strict=True)):
        anywhere = size if b == 0 else min(size, max(1, round(_SHARE * size)))
        boxes = history.choose(size - anywhere, rng)
        u = np.concatenate([rng.random((anywhere, n_dim)), history.partition.draw(boxes, rng)])
        distance = np.where(np.isfinite(log_prior(u)), simulate(u, b), np.inf)
        wanted = _LABEL * (_FIRST if b == 0 else 1.0)
        tolerance = lowered(distance, history.tolerance, kernel_values=wanted, lowest=lowest)
        if tolerance == history.tolerance:
            tolerance = _unstuck(history, distance, lowest)
        history.add(u, distance, tolerance, log_prior)
        yield history


def refine(partition: Partition, u: np.ndarray, labels: np.ndarray) -> Partition:
    r"""Halve boxes repeatedly where their parts differ by more than three standard errors.

    A box whose parts do not differ significantly is not cut, however many simulations it contains, because the
    differences would be noise. The labels s (n,), from 0 to 1, of a box that is cut have a sum of at least 20, or
    an effective number :math:`(\sum s)^2 / \sum s^2` of at least 100: low but similar labels are informative, too.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free import whole_cube
    >>> from amc_pymc.likelihood_free.map_search import refine
    >>> u = (np.arange(1000.0)[:, None] + 0.5) / 1000.0
    >>> refine(whole_cube(1), u, (u[:, 0] < 0.25).astype(float)).volumes
    array([0.5 , 0.25, 0.25])
    """
    for _ in range(_ROUNDS):
        found, k = partition.find(u), partition.boxes
        mass, squares = (np.bincount(found, x, minlength=k) for x in (labels, labels**2))
        worth = mass**2 / np.where(squares > 0.0, squares, 1.0)
        score, along = separation(partition, u, labels)
        chosen = np.flatnonzero(((mass >= _LABELS) | (worth >= _WORTH)) & (score > 3.0))
        if not len(chosen):
            break
        partition = cut_boxes(partition, chosen, along[chosen])
    return partition


def map_batches(
    max_simulations: int, batch_size: int | None = None, done: Sequence[int] = ()
) -> list[int]:
    """Return batch sizes, fixed before any simulation; those that are `done` come first.

    Examples
    --------
    >>> from amc_pymc.likelihood_free.map_search import map_batches
    >>> map_batches(10, 4), len(map_batches(1000))
    ([4, 4, 2], 20)
    """
    batch_size = batch_size or math.ceil(max_simulations / _BATCHES)
    full, rest = divmod(max(0, max_simulations - sum(done)), batch_size)
    return [*done, *[batch_size] * full, *([rest] if rest else [])]


def lowered(
    distance: np.ndarray, last: float, *, kernel_values: float, lowest: float = 0.0
) -> float:
    """Return the tolerance at which the mean label of a batch is `kernel_values`, but at most `last`.

    It is positive unless all distances are 0, even if more simulations than wanted match the data exactly.

    Examples
    --------
    >>> import math
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.map_search import lowered
    >>> round(lowered(np.array([1.0, 2.0, np.inf]), math.inf, kernel_values=0.1), 3)
    0.638
    """
    finite = distance[np.isfinite(distance)]
    if len(finite) == 0:
        return last
    wanted = kernel_values * len(distance)
    low, high = 0.0, min(last, 1e3 * float(finite.max()))
    if gaussian_kernel(finite, high).sum() <= wanted:
        return max(high, lowest)
    finest = _FINEST * float(finite[finite > 0.0].min(initial=math.inf))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if gaussian_kernel(finite, middle).sum() > wanted:
            high = middle
        else:
            low = middle
    return max(high, lowest, min(finest, last) if math.isfinite(finest) else 0.0)


def _unstuck(history: MapHistory, distance: np.ndarray, lowest: float) -> float:
    """Return a lower tolerance if few simulations of a batch come close, but enough of all still do.

    If prior and data disagree, the mode of the density may be far from where most simulations come close, especially
    at high tolerances.
    """
    last = history.tolerance
    recent = any(r.tolerance > last for r in history.rounds[-_PATIENCE:])
    close = gaussian_kernel(distance, last).mean() > 0.5 * _LABEL
    if not lowest < last < math.inf or recent or close:
        return last
    lower = max(last / math.sqrt(2.0), lowest)
    everything = np.append(history.distance, distance)
    return lower if gaussian_kernel(everything, lower).sum() >= _ENOUGH else last
