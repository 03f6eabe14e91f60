"""Settings of a pilot run: effort and thresholds."""

from __future__ import annotations

import math

from dataclasses import dataclass

#: Share of the prior in every fitted proposal; it bounds weights by ten times the largest likelihood.
DEFENSIVE_SHARE = 0.1


@dataclass(frozen=True)
class PilotSettings:
    """Settings of a pilot run: annealing from the prior, search for modes, fit and check of a mixture.

    Attributes
    ----------
    particles, moves : int
        Number of particles annealed from the prior, and moves of each at each temperature.
    few_particles, few_moves : int
        The same if chains are allowed and there are more than `most_fitted` dimensions.
    most_fitted : int
        Number of dimensions above which, if chains are allowed, the only mixture tried is the Laplace
        approximation.
    starts : int
        Searches from each source of starting points: twice as many from the prior, three times from particles.
    few_starts : int
        The same if chains are allowed and there are more than `most_fitted` dimensions.
    modes : int
        Maximum number of modes kept.
    search_share : float
        Cost limit of searches from prior draws, as a fraction of the gradients and evaluations of the annealing.
    search_cost : float
        Gradients per search in one dimension; the number grows with the square root of the dimension.
    most_searches : int
        Maximum number of searches from prior draws; inversely proportional to D above `cheap_dimensions`.
    cheap_dimensions : int
    prior_scanned : int
        Prior draws whose local maxima are starting points, in at most `prior_scanned_dimensions` dimensions.
    prior_scanned_dimensions : int
    neighbours : int
        Number of nearest neighbours per dimension that a local maximum must exceed.
    same : float
        Distance in standard deviations within which two searches count as ending at the same mode.
    scanned : int
        Number of points scattered around modes; proportional to D above `scanned_dimensions`.
    scanned_dimensions : int
    scan_scales : tuple of float
        Scales of the scattered points, as fractions of those of the modes.
    scan_block : int
        Number of scattered points evaluated at once.
    components : int
        Maximum number of components of a mixture.
    enough, laplace_enough : float
        Relative variance at which a mixture is good enough, and at which a Laplace mixture is not adapted.
    laplace_dofs : tuple of float
        Degrees of freedom tried for the Laplace mixture; many dimensions need many.
    unfit : float
        Relative variance of weights above which a mixture is not trusted on its own.
    thin : float
        Log ratio of posterior to proposal above which the proposal is too low.
    checked : int
        Number of prior draws used to check a mixture.
    covered : float
        Share of the posterior that a mixture may miss.
    attempts : int
        Maximum number of refits of a mixture that misses something.
    second : int
        Number of points scattered around the components in the second look; proportional to D above
        `scanned_dimensions`.
    second_scales : tuple of float
        Range of the scales of these points.
    second_prior : float
        Share of these points that are prior draws moved towards the components.
    weighed, weighed_least : int
        Draws used to estimate the mass of modes found by the second look: per dimension, and at least.
    """

    particles: int = 512
    moves: int = 3
    few_particles: int = 128
    few_moves: int = 1
    most_fitted: int = 40
    starts: int = 32
    few_starts: int = 4
    modes: int = 32
    search_share: float = 0.25
    search_cost: float = 10.0
    most_searches: int = 512
    cheap_dimensions: int = 8
    prior_scanned: int = 16_384
    prior_scanned_dimensions: int = 5
    neighbours: int = 4
    same: float = 0.05
    scanned: int = 24_576
    scanned_dimensions: int = 10
    scan_scales: tuple[float, ...] = (0.5, 0.35, 0.25, 0.18)
    scan_block: int = 16_384
    components: int = 40
    enough: float = 0.5
    laplace_enough: float = 0.3
    laplace_dofs: tuple[float, ...] = (20.0, 100.0, 300.0)
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


#: Default settings.
DEFAULTS = PilotSettings()
