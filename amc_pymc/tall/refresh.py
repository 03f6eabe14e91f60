r"""Moves that leave prior times surrogate invariant, and read no rows.

For the density pi~ of :mod:`amc_pymc.tall.surrogate`, whose coordinates v are Gaussian given the hyperparameters phi,

1. Hamiltonian Monte Carlo moves phi to phi' on the marginal pi~(phi), or binary variables are drawn, one after
   another at random, from their distribution given everything else but v;
2. v' = v*(phi') + F(phi')^-T w', where w = F(phi)^T (v - v*(phi)) and w' = sqrt(1 - s^2) w + s z, z standard normal.

The expansion Q of rows has the tails of a Gaussian. If the posterior has heavier ones, a Student t takes its place: with Q
scaled to have its maximum at 0, lambda ~ Gamma(nu / 2 + V / 2, rate nu / 2 - Q(x)) is drawn, the steps above are made for
prior times exp(lambda Q), and lambda is forgotten. This is reversible for prior times (1 - 2 Q / nu)^-(nu + V) / 2
(Kamatani 2018, doi:10.3150/17-BEJ980).

F is a factor of the precision, K(phi) = F F'. In coordinates (phi, w) pi~ is a product, and each part is reversible
for its own factor, so the whole is reversible for pi~. Accepting x' with probability min(1, rho(x') / rho(x)), where
rho = pi / pi~, is reversible for pi (Liu 2001, section 9.4.3; Christen & Fox 2005, doi:10.1198/106186005X76983).
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from amc_pymc.engine.jit import fill, njit, record
from amc_pymc.tall.surrogate import (
    Conditional,
    Surface,
    backward_solve,
    conditional,
    expansion_at,
    gradient,
    log_determinant,
    transposed_product,
)

#: Largest number of binary variables that are drawn in one part of a move.
_MOST_SWITCHED = 50


@record
class Known(NamedTuple):
    """Gaussians of v given two points' hyperparameters.

    ``x`` (2, D) holds v* and everything that is not v, ``value`` (2,) log pi~(phi), NaN if there is none, ``log_det`` (2,) log det F,
    ``factor`` (2, V, V) and ``spikes`` (2, W, V), of which F is made, and ``gradient`` (2, F).
    """

    x: np.ndarray
    value: np.ndarray
    log_det: np.ndarray
    factor: np.ndarray
    spikes: np.ndarray
    gradient: np.ndarray


@record
class Refresh(NamedTuple):
    """Arguments of the moves.

    Attributes
    ----------
    surface : Surface
    v, phi : (V,), (F,) int64 arrays
        Coordinates of x.
    mass : (F, F) array
        Factor M of an approximate covariance of phi; phi = M q in trajectories of q.
    step : (1,) array
        Size of a leapfrog step.
    leaps : (1,) int64 array
        Largest number of leapfrog steps.
    binary : (B,) int64 array
        Coordinates of x that are 0 or 1.
    repeats : (1,) int64 array
        Number of times that the first part is made.
    freedom : (1,) array
        Degrees of freedom nu of the Student t; infinite for a Gaussian.
    known : Known
    scaled : Surface
        The surface with room for a slope and a curvature of its own.
    """

    surface: Surface
    v: np.ndarray
    phi: np.ndarray
    mass: np.ndarray
    step: np.ndarray
    leaps: np.ndarray
    binary: np.ndarray
    repeats: np.ndarray
    freedom: np.ndarray
    known: Known
    scaled: Surface


@njit(cache=True)
def _look_up(x: np.ndarray, refresh: Refresh) -> int:
    """Return the slot that holds the Gaussian given everything in x but v, or -1."""
    inner, known = refresh.surface.inner, refresh.known
    for slot in range(2):
        same = not math.isnan(known.value[slot])
        for d in range(x.size):
            if inner[d] < 0 and known.x[slot, d] != x[d]:
                same = False
                break
        if same:
            return slot
    return -1


@njit(cache=True)
def _keep(found: Conditional, slope: np.ndarray, refresh: Refresh, slot: int) -> None:
    """Store a Gaussian and the gradient of log pi~(phi)."""
    known = refresh.known
    known.value[slot] = found.value
    known.log_det[slot] = log_determinant(found.factor, found.spikes)
    for r in range(len(found.spikes)):
        fill(known.spikes[slot, r], found.spikes[r])
    for i in range(refresh.v.size):
        fill(known.factor[slot, i], found.factor[i])
    fill(known.x[slot], found.x)
    fill(known.gradient[slot], slope)


@njit(cache=True)
def _slope_at(found: Conditional, refresh: Refresh, surface: Surface) -> np.ndarray:
    """Return the gradient by q."""
    if refresh.phi.size == 0:
        return np.empty(0)
    return refresh.mass.T @ gradient(found, surface)


@njit(cache=True)
def _trajectory(
    slot: int, refresh: Refresh, surface: Surface, rng: np.random.Generator
) -> tuple[int, float]:
    """Move phi by one trajectory from a known slot; return the slot of its end, which may be the same."""
    known, phi, mass, step = refresh.known, refresh.phi, refresh.mass, refresh.step[0]
    momentum = np.empty(phi.size)
    for a in range(phi.size):
        momentum[a] = rng.standard_normal()
    energy = known.value[slot] - 0.5 * np.dot(momentum, momentum)
    slope, there = known.gradient[slot].copy(), known.x[slot].copy()
    length = step * (0.8 + 0.4 * rng.random())
    leaps = 1 + int(rng.random() * refresh.leaps[0])
    u = rng.random()
    for _ in range(leaps):
        momentum += 0.5 * length * slope
        move = mass @ momentum
        for a in range(phi.size):
            there[phi[a]] += length * move[a]
        found = conditional(there, surface)
        if not found.possible:
            return slot, 0.0
        slope = _slope_at(found, refresh, surface)
        momentum += 0.5 * length * slope
        fill(there, found.x)
    change = found.value - 0.5 * np.dot(momentum, momentum) - energy
    if not math.log(1.0 - u) < change:
        return slot, math.exp(min(0.0, change))
    _keep(found, slope, refresh, 1 - slot)
    return 1 - slot, math.exp(min(0.0, change))


@njit(cache=True)
def _switch(slot: int, refresh: Refresh, surface: Surface, rng: np.random.Generator) -> int:
    """Draw binary variables at random given everything else but v; return the slot of the result."""
    known, binary, slope = refresh.known, refresh.binary, np.zeros(refresh.phi.size)
    for _ in range(min(binary.size, _MOST_SWITCHED)):
        other = known.x[slot].copy()
        at = binary[int(rng.random() * binary.size)]
        other[at] = 1.0 - other[at]
        found = conditional(other, surface)
        u = rng.random()
        if found.possible and u * (1.0 + math.exp(known.value[slot] - found.value)) < 1.0:
            slot = 1 - slot
            _keep(found, slope, refresh, slot)
    if refresh.phi.size:
        found = conditional(known.x[slot], surface)
        fill(known.gradient[slot], _slope_at(found, refresh, surface))
    return slot


@njit(cache=True)
def log_surface(x: np.ndarray, refresh: Refresh) -> float:
    """Return log pi~(x) up to a constant; minus infinity where it is not possible."""
    found = conditional(x, refresh.surface)
    if not found.possible:
        return -math.inf
    v = refresh.v
    w = transposed_product(found.factor, found.spikes, x[v] - found.x[v])
    return found.value + log_determinant(found.factor, found.spikes) - 0.5 * np.dot(w, w)


@njit(cache=True)
def propose_refresh(
    points: np.ndarray,
    scale: float,
    refresh: Refresh,
    surface: Surface,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Write x' to points[1] (points is (2, D)), by moves on a surface that is ``refresh.surface`` or like it.

    Returns log pi~(x) - log pi~(x'), minus infinity if no move is possible, and the acceptance rate of the trajectory.
    """
    known, v, x, new = refresh.known, refresh.v, points[0], points[1]
    fill(new, x)
    here = _look_up(x, refresh)
    if here < 0:
        found = conditional(x, surface)
        if not found.possible:
            return -math.inf, 0.0
        here = 0
        _keep(found, _slope_at(found, refresh, surface), refresh, here)
    w = transposed_product(known.factor[here], known.spikes[here], x[v] - known.x[here][v])
    ratio = known.value[here] + known.log_det[here]
    there, accepted = here, 1.0
    if refresh.phi.size or refresh.binary.size:
        accepted = 0.0
        for _ in range(refresh.repeats[0]):
            if refresh.binary.size and (refresh.phi.size == 0 or rng.random() < 0.5):
                there, part = _switch(there, refresh, surface, rng), 1.0
            else:
                there, part = _trajectory(there, refresh, surface, rng)
            accepted += part / refresh.repeats[0]
        for a in refresh.phi:
            new[a] = known.x[there, a]
        for a in refresh.binary:
            new[a] = known.x[there, a]
    ratio -= known.value[there] + known.log_det[there]
    keep = math.sqrt(max(0.0, 1.0 - scale * scale))
    for j in range(v.size):
        old = w[j]
        w[j] = keep * old + scale * rng.standard_normal()
        ratio += 0.5 * (w[j] * w[j] - old * old)
    backward_solve(known.factor[there], known.spikes[there], w)
    for j in range(v.size):
        new[v[j]] = known.x[there, v[j]] + w[j]
    return ratio, accepted


@njit(cache=True)
def propose_with_tails(
    points: np.ndarray, scale: float, refresh: Refresh, rng: np.random.Generator
) -> tuple[float, float]:
    """Do the same as :func:`propose_refresh` for a Student t in the place of exp(Q), if ``freedom`` is finite."""
    nu, surface = refresh.freedom[0], refresh.surface
    below, mixing, shape, tails = 0.0, 1.0, 0.5 * (nu + refresh.v.size), math.isfinite(nu)
    if tails:
        below = expansion_at(points[0], surface)
        mixing = rng.standard_gamma(shape) / (0.5 * nu - below)
        surface = refresh.scaled
        for c in range(surface.slope.size):
            surface.slope[c] = mixing * refresh.surface.slope[c]
            for d in range(surface.slope.size):
                surface.curvature[c, d] = mixing * refresh.surface.curvature[c, d]
        refresh.known.value[0] = refresh.known.value[1] = np.nan
    ratio, accepted = propose_refresh(points, scale, refresh, surface, rng)
    if not tails or ratio == -math.inf:
        return ratio, accepted
    there = expansion_at(points[1], refresh.surface)
    ratio -= mixing * (below - there)
    ratio -= shape * (math.log1p(-2.0 * below / nu) - math.log1p(-2.0 * there / nu))
    return ratio, accepted


@njit(cache=True)
def run_on_surface(
    x: np.ndarray, refresh: Refresh, target: float, draws: np.ndarray, rng: np.random.Generator
) -> float:
    """Fill draws (K, D) with a chain for pi~ from x; return the mean acceptance rate of trajectories.

    If ``target`` is positive, the step size is adapted to this acceptance rate.
    """
    points, total = np.empty((2, x.size)), 0.0
    fill(points[0], x)
    for k in range(draws.shape[0]):
        ratio, accepted = propose_with_tails(points, 1.0, refresh, rng)
        if ratio > -math.inf:
            fill(points[0], points[1])
        if target > 0.0:
            refresh.step[0] *= math.exp((accepted - target) / (k + 1.0) ** 0.6)
            refresh.step[0] = min(refresh.step[0], 1.5)
        total += accepted
        fill(draws[k], points[0])
    return total / max(1, draws.shape[0])
