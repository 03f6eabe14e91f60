"""Modes at which control variates and Gaussian approximations are centred."""

from __future__ import annotations

import logging

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from amc_pymc.flags import Flag, flag
from amc_pymc.tall.proxies import Mode, find_mode
from amc_pymc.tall.samplers.preparation import Preparation
from amc_pymc.tall.samplers.raced import Raced, RacedModel

__all__ = ["likelihood_mode", "posterior_mode", "search_mode"]

_log = logging.getLogger("amc_pymc")


def posterior_mode(
    model: RacedModel,
    start: np.ndarray,
    continuous: np.ndarray,
    subsample: int,
    rng: np.random.Generator,
) -> tuple[Mode, tuple[Flag, ...]]:
    """Find the mode over continuous coordinates given the others; return also flags."""
    mode = search_mode(model, start, continuous, subsample, rng)
    if mode.converged:
        return mode, ()
    _log.debug("Mode search over all variables: %s", mode.message)
    given = search_mode(model, start, model.expand, subsample, rng)
    return replace(given, precision=None), (flag("mode_not_found", message=mode.message),)


def search_mode(
    model: RacedModel,
    start: np.ndarray,
    coordinates: np.ndarray,
    subsample: int,
    rng: np.random.Generator,
) -> Mode:
    """Find the mode over some coordinates given the others."""
    rest = model.rest_value_and_gradient, lambda x: model.rest_hessian(x, coordinates)
    return _maximise(model, *rest, start, coordinates, subsample, rng)


def likelihood_mode(prepared: Preparation, subsample: int, rng: np.random.Generator) -> np.ndarray:
    """Maximise the units' likelihood over eta (E,) under priors N(start, (10 max(1, |start|))^2)."""
    raced, start = prepared.raced, prepared.eta(prepared.start)
    width = 10.0 * np.maximum(1.0, np.abs(start[raced.expand]))
    curvature = np.zeros((start.size, start.size))
    curvature[raced.expand, raced.expand] = -1.0 / width**2

    def prior(eta: np.ndarray) -> tuple[float, np.ndarray]:
        z = (eta - start)[raced.expand] / width
        gradient = np.zeros(eta.size)
        gradient[raced.expand] = -z / width
        return -0.5 * float(z @ z), gradient

    mode = _maximise(raced, prior, lambda eta: curvature, start, raced.expand, subsample, rng)
    return mode.x if np.all(np.isfinite(mode.x)) else start


def _maximise(
    raced: Raced,
    rest: Callable[[np.ndarray], tuple[float, np.ndarray]],
    rest_hessian: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    coordinates: np.ndarray,
    subsample: int,
    rng: np.random.Generator,
) -> Mode:
    """Maximise the units' sum plus ``rest`` over some coordinates."""
    n_units = raced.n_units

    def value_and_gradient(x: np.ndarray, some: np.ndarray | None) -> tuple[float, np.ndarray]:
        scale = 1.0 if some is None else n_units / len(some)
        value, gradient = raced.value_and_gradient(x, some)
        other, other_gradient = rest(x)
        return scale * value + other, scale * gradient + other_gradient

    def hessian(x: np.ndarray, some: np.ndarray | None) -> np.ndarray:
        scale = 1.0 if some is None else n_units / len(some)
        return scale * raced.hessian(x, some) + rest_hessian(x)

    with np.errstate(all="ignore"):  # the search may step where units are impossible
        return find_mode(
            value_and_gradient, hessian, start, coordinates, n_units, rng, subsample=subsample
        )
