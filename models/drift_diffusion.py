"""Signed reaction times of a drift-diffusion model: simulator, and the density that inference must do without.

Evidence for one of two answers is a Brownian motion of unit variance with a drift, from a start between 0 and a bound. The
first passage, and a shift for all that is not decision, make a reaction time: positive at the bound, negative at 0
(Ratcliff 1978, doi:10.1037/0033-295X.85.2.59).
"""

from __future__ import annotations

import numpy as np

from scipy import stats

PRIORS = {
    "drift": stats.norm(0.0, 1.5),
    "bound": stats.uniform(0.5, 2.5),
    "start": stats.beta(5.0, 5.0),
    "shift": stats.uniform(0.1, 0.4),
}


def reaction_times(
    rng: np.random.Generator,
    drift: np.ndarray,
    bound: np.ndarray,
    start: np.ndarray,
    shift: np.ndarray,
    m: int = 200,
    step: float = 0.004,
) -> np.ndarray:
    """Simulate signed times (n, m), in seconds, for parameters (n,); the start is relative to the bound.

    A Brownian bridge decides whether the motion crossed between two steps.
    """
    n = len(drift)
    drift, bound, start, shift = (v[:, None] for v in (drift, bound, start, shift))
    x, out = np.broadcast_to(start * bound, (n, m)).copy(), np.zeros((n, m))
    drift, bound = (np.broadcast_to(v, (n, m)) for v in (drift, bound))
    active = np.ones((n, m), bool)
    for k in range(4000):
        at = np.nonzero(active)
        if not len(at[0]):
            break
        old, top = x[at], bound[at]
        new = old + drift[at] * step + np.sqrt(step) * rng.normal(size=len(old))
        u = rng.random(len(old))
        with np.errstate(over="ignore"):
            above = np.where(new >= top, 1.0, np.exp(-2.0 * (top - old) * (top - new) / step))
            below = np.where(new <= 0.0, 1.0, np.exp(-2.0 * old * new / step))
        side = np.where(u < above, 1.0, np.where(u < above + below, -1.0, 0.0))
        ended = side != 0.0
        rows, columns = at[0][ended], at[1][ended]
        out[rows, columns] = side[ended] * ((k + 0.5) * step + shift[rows, 0])
        active[rows, columns] = False
        x[at] = new
    out[active] = 16.0
    return out


def log_density(
    times: np.ndarray, drift: float, bound: float, start: float, shift: float
) -> np.ndarray:
    """Return the log density of signed times (m,), by the series for short ones.

    Navarro & Fuss (2009), doi:10.1016/j.jmp.2009.02.003. Times up to five bounds squared are exact to ten digits.
    """
    above = times > 0.0
    drift, start = np.where(above, -drift, drift), np.where(above, 1.0 - start, start)
    t = np.abs(times) - shift
    scaled = np.maximum(t, 1e-9) / bound**2
    place = start + 2.0 * np.arange(-15, 16)[:, None]
    series = (place * np.exp(-(place**2) / (2.0 * scaled))).sum(axis=0)
    series = np.where(
        t > 0.0, np.maximum(series, 1e-300) / np.sqrt(2.0 * np.pi * scaled**3), 1e-300
    )
    return np.log(series) - drift * bound * start - drift**2 * t / 2.0 - 2.0 * np.log(bound)
