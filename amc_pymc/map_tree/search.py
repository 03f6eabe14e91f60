"""Search for the mode of a posterior by simulating where its density is largest."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from amc_pymc.abc_tree.partition import Partition, whole_cube
from amc_pymc.map_tree.boxes import refine
from amc_pymc.map_tree.choice import POLICIES, Beliefs, beliefs, choose_boxes
from amc_pymc.map_tree.hoo import OwnTree
from amc_pymc.map_tree.schedule import lowered
from amc_pymc.simulators.kernels import gaussian_kernel

__all__ = ["MapHistory", "MapRound", "MapSettings", "map_rounds"]

#: Target mean label in the first batch, from the prior, relative to later batches.
_FIRST = 0.5
#: Batches at the same tolerance before it may be lowered by force, and minimum sum of labels afterwards.
_PATIENCE, _ENOUGH = 3, 100.0


@dataclass(frozen=True)
class MapSettings:
    r"""Settings of a search for a mode.

    Attributes
    ----------
    policy : {"top_two", "thompson", "ucb", "hoo"}
    b : float
        For "top_two": share of draws in the box that seems best.
    share : float
        Share of each batch that is drawn from the whole cube.
    kernel_values : float
        Mean label :math:`\exp(-d^2 / 2 h^2)` in a batch that the tolerance h is lowered to.
    tolerance : float or None
        Tolerance at which lowering ends.
    least, significance : float
        Criteria for cutting boxes, see :func:`amc_pymc.map_tree.boxes.refine`.
    strength : float
        Number of simulations that the rate of the parent box counts for.

    Raises
    ------
    ValueError
    """

    policy: str = "top_two"
    b: float = 0.5
    share: float = 0.05
    kernel_values: float = 0.1
    tolerance: float | None = None
    least: float = 20.0
    significance: float = 3.0
    strength: float = 2.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            names = ", ".join(map(repr, POLICIES))
            raise ValueError(f"policy must be one of {names}, got {self.policy!r}.")
        for name in ("b", "share", "kernel_values"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)!r}.")
        for name in ("least", "significance", "strength"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be positive and finite, got {getattr(self, name)!r}."
                )
        if self.tolerance is not None and not 0.0 <= self.tolerance < math.inf:
            raise ValueError(f"tolerance must not be negative, and finite, got {self.tolerance!r}.")


class MapRound(NamedTuple):
    """One batch and the state of the search after it.

    Attributes
    ----------
    u : array (n, D)
    distance : array (n,)
        inf where the simulation failed, or the prior is zero.
    tolerance : float
        Tolerance h.
    accepts : int
        Number of simulations so far with a distance of at most h.
    boxes : int
    incumbent : array (D,)
        Centre of the box with the largest density.
    value : float
        Natural logarithm of that density, the prior density times the mean label.
    """

    u: np.ndarray
    distance: np.ndarray
    tolerance: float
    accepts: int
    boxes: int
    incumbent: np.ndarray
    value: float


@dataclass
class MapHistory:
    """All simulations so far.

    Attributes
    ----------
    rounds : list of MapRound
    partition : Partition
        Boxes after the last batch.
    believed : Beliefs or None
        Estimates for these boxes.
    log_prior : array (K,)
        Natural log prior density at the centres of the boxes.
    """

    partition: Partition
    rounds: list[MapRound] = field(default_factory=list)
    believed: Beliefs | None = None
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

    def best_box(self, *, errors: float = 0.0) -> int:
        """Return the box with the largest density minus `errors` standard deviations.

        Boxes whose prior is zero at the centre are excluded, unless it is zero at all centres.
        """
        assert self.believed is not None
        bound = self.believed.value - errors * self.believed.error
        return int(np.where(np.isfinite(self.log_prior), bound, -np.inf).argmax())

    def log_value(self, box: int) -> float:
        """Return the natural logarithm of prior density times mean label in a box."""
        assert self.believed is not None
        with np.errstate(divide="ignore"):
            return float(np.log(self.believed.rate[box]) + self.log_prior[box])


def map_rounds(
    simulate: Callable[[np.ndarray, int], np.ndarray],
    log_prior: Callable[[np.ndarray], np.ndarray],
    n_dim: int,
    sizes: Sequence[int],
    settings: MapSettings,
    generators: Sequence[np.random.Generator],
    start: np.ndarray | None = None,
) -> Iterator[MapHistory]:
    r"""Search batch by batch for the box with the largest posterior density.

    The density of a box is the prior density at its centre, on the scale of the parameters, times the
    mean label :math:`\exp(-d^2 / 2 h^2)` of simulations in it. Where the prior is zero, the distance d
    counts as infinite. The boxes of a batch are chosen by
    :func:`amc_pymc.map_tree.choice.choose_boxes` from earlier batches. After each batch the tolerance h is
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
    settings : MapSettings
    generators : sequence of numpy.random.Generator
        One for each batch.
    start : array (m, D), optional
        Points to simulate first.

    Yields
    ------
    MapHistory
        The same object each time, extended by one batch.
    """
    history, hoo = MapHistory(whole_cube(n_dim)), None
    for b, (size, rng) in enumerate(zip(sizes, generators, strict=True)):
        if b == 0:
            given = np.empty((0, n_dim)) if start is None else start[:size]
            u = np.concatenate([given, rng.random((size - len(given), n_dim))])
        elif settings.policy == "hoo":
            hoo = hoo or OwnTree(history.u, history.tolerance, log_prior, sum(sizes))
            u = hoo.ask(size, rng)
        else:
            u = _from_boxes(history, size, settings, rng)
        distance = np.where(np.isfinite(log_prior(u)), simulate(u, b), np.inf)
        tolerance = history.tolerance
        if hoo is None:
            wanted = settings.kernel_values * (_FIRST if b == 0 else 1.0)
            tolerance = lowered(
                distance, tolerance, kernel_values=wanted, lowest=settings.tolerance
            )
            if tolerance == history.tolerance:
                tolerance = _unstuck(history, distance, settings)
        else:
            hoo.tell(distance)
        _take_in(history, u, distance, tolerance, log_prior, settings)
        yield history


def _unstuck(history: MapHistory, distance: np.ndarray, settings: MapSettings) -> float:
    """Return a lower tolerance if few simulations of a batch come close, but enough of all still do.

    If prior and data disagree, the mode of the density may be far from where most simulations come close, especially
    at high tolerances.
    """
    last, lowest = history.tolerance, settings.tolerance or 0.0
    if not lowest < last < math.inf:
        return last
    if any(r.tolerance > last for r in history.rounds[-_PATIENCE:]):
        return last
    if gaussian_kernel(distance, last).mean() > 0.5 * settings.kernel_values:
        return last
    lower = max(last / math.sqrt(2.0), lowest)
    everything = np.concatenate([history.distance, distance])
    return lower if gaussian_kernel(everything, lower).sum() >= _ENOUGH else last


def _from_boxes(
    history: MapHistory, size: int, settings: MapSettings, rng: np.random.Generator
) -> np.ndarray:
    assert history.believed is not None
    anywhere = min(size, max(1, round(settings.share * size)))
    boxes = choose_boxes(
        history.believed, size - anywhere, rng, policy=settings.policy, b=settings.b
    )
    whole = rng.random((anywhere, history.partition.n_dim))
    return np.concatenate([whole, history.partition.draw(boxes, rng)])


def _take_in(
    history: MapHistory,
    u: np.ndarray,
    distance: np.ndarray,
    tolerance: float,
    log_prior: Callable[[np.ndarray], np.ndarray],
    settings: MapSettings,
) -> None:
    history.rounds.append(MapRound(u, distance, tolerance, 0, 0, u[0], 0.0))
    all_u, all_distances = history.u, history.distance
    labels = gaussian_kernel(all_distances, tolerance)
    history.partition = refine(
        history.partition, all_u, labels, least=settings.least, significance=settings.significance
    )
    history.log_prior = log_prior(history.centres)
    history.believed = beliefs(
        history.partition, all_u, labels, history.log_prior, strength=settings.strength
    )
    best = history.best_box()
    history.rounds[-1] = history.rounds[-1]._replace(
        accepts=int((all_distances <= min(tolerance, np.finfo(float).max)).sum()),
        boxes=history.partition.boxes,
        incumbent=history.centres[best],
        value=history.log_value(best),
    )
