"""What a pilot run spends, and what it takes for enough."""

from __future__ import annotations

import math

from dataclasses import dataclass

__all__ = ["DEFENSIVE_SHARE", "PilotSettings"]

#: Share of the prior in every fitted proposal: it bounds weights by ten times the largest likelihood.
DEFENSIVE_SHARE = 0.1


@dataclass(frozen=True)
class PilotSettings:
    """Settings of a pilot run: the climb, the search for modes, the fit of a mixture and its check.

    Attributes
    ----------
    particles, moves : int
        Of the climb from the prior, and moves of each particle at each temperature.
    few_particles, few_moves : int
        The same where chains may give the answer and there are more than `most_fitted` dimensions.
    most_fitted : int
        Number of dimensions above which no mixture is fitted where chains may give the answer, unless
        Laplace's approximation will do.
    possible : float
        Share of the particles that must begin where the likelihood is positive.
    most_drawn : int
        How many times the number of particles may be drawn from the prior to find them.
    starts : int
        Searches from each source of starting points; from the prior twice, from particles three times as many.
    few_starts : int
        The same above `most_fitted` dimensions, where chains may give the answer.
    modes : int
        Most modes that are kept.
    search_share : float
        What searches from prior draws may take, as a part of the gradients and evaluations of the climb.
    search_cost : float
        Gradients that a search takes in one dimension; it grows with the root of their number.
    most_searches : int
        Most searches from prior draws, in up to `cheap_dimensions` dimensions; in inverse proportion to them in more.
    cheap_dimensions : int
    prior_scanned : int
        Prior draws whose local maxima are starts, in at most `prior_scanned_dimensions` dimensions.
    prior_scanned_dimensions : int
    neighbours : int
        Nearest neighbours in each dimension that a local maximum must be higher than.
    same : float
        Standard deviations within which two searches have ended at the same place.
    scanned : int
        Points scattered about modes, in up to `scanned_dimensions` dimensions; in proportion to them in more.
    scanned_dimensions : int
    scan_scales : tuple of float
        Fractions of the modes' scales on which they are scattered.
    scan_block : int
        Points of these looked at together.
    faint : float
        Residual in nats that is noise beside what attracts a search.
    larger_share : float
        Share of the prior that is tried beside a tenth.
    gain : float
        It is taken if the variance falls below this part.
    close : float
        Second moment of the likelihood over the prior below which a mixture need not cover every tail.
    components : int
        Most components of a mixture.
    enough, laplace_enough : float
        Relative variance at which a mixture is good enough, and at which Laplace's need not be adapted.
    laplace_dofs : tuple of float
        Degrees of freedom that Laplace's mixture is tried with: many dimensions need many.
    laplace_hopeless : float
        Relative variance at the first of these beyond which the others are not tried.
    rounds, fewer_rounds, many : int
        Rounds of adaptation, and of those where fits are dear because there are more than `many` dimensions.
    negligible : float
        Modes whose Laplace evidence is this many nats below the largest one are left out.
    wide_share, wider : float
        Share of the reference on a wider scale, which is 1 + `wider` over the root of D times as wide.
    unfit : float
        Relative variance of weights beyond which a mixture is not trusted on its own.
    thin : float
        Logarithm of posterior over proposal beyond which the proposal is too thin.
    checked : int
        Prior draws by which a mixture is checked.
    covered : float
        Share of the posterior that a mixture may miss.
    attempts : int
        How often a mixture is mended.
    second : int
        Points scattered about the components of the mixture in a second look, in up to `scanned_dimensions`
        dimensions.
    second_scales : tuple of float
        Range of their scales.
    second_prior : float
        Share of them that are prior draws moved towards the components.
    weighed, weighed_least : int
        Draws by which the mass of modes that a second look finds is estimated: for each dimension, and at least.
    """

    particles: int = 512
    moves: int = 3
    few_particles: int = 128
    few_moves: int = 1
    most_fitted: int = 40
    possible: float = 0.25
    most_drawn: int = 128
    starts: int = 32
    few_starts: int = 4
    modes: int = 32
    search_share: float = 0.25
    search_cost: float = 10.0
    most_searches: int = 512
    cheap_dimensions: int = 8
    prior_scanned: int = 8192
    prior_scanned_dimensions: int = 5
    neighbours: int = 2
    same: float = 0.05
    scanned: int = 24_576
    scanned_dimensions: int = 10
    scan_scales: tuple[float, ...] = (0.5, 0.35, 0.25, 0.18)
    scan_block: int = 16_384
    faint: float = 0.02
    larger_share: float = 0.5
    gain: float = 0.7
    close: float = 5.0
    components: int = 40
    enough: float = 0.5
    laplace_enough: float = 0.3
    laplace_dofs: tuple[float, ...] = (20.0, 100.0, 300.0)
    laplace_hopeless: float = 5.0
    rounds: int = 10
    fewer_rounds: int = 5
    many: int = 60
    negligible: float = 10.0
    wide_share: float = 0.15
    wider: float = 1.5
    unfit: float = 50.0
    thin: float = math.log(20.0)
    checked: int = 4096
    covered: float = 0.01
    attempts: int = 3
    second: int = 8192
    second_scales: tuple[float, float] = (0.1, 0.7)
    second_prior: float = 0.25
    weighed: int = 50
    weighed_least: int = 1000


#: The settings of all runs but those that say otherwise.
DEFAULTS = PilotSettings()
