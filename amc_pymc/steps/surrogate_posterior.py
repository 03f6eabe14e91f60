"""Prior times the second-order expansion of a model's rows, as a density with a known normalising constant."""

from __future__ import annotations

import logging

from typing import cast

import numpy as np

from pymc import Model
from scipy import optimize

from amc_pymc.reading.densities import ModelDensities
from amc_pymc.reading.graphs import FlatLayout, initial_point_of
from amc_pymc.reading.rows import NotRowFactorised
from amc_pymc.steps.preparation import surface_alone
from amc_pymc.tall.refresh import log_surface, run_on_surface
from amc_pymc.tall.samplers.fit import SurfaceFit
from amc_pymc.tall.surrogate import marginals
from amc_pymc.tall.units import NoProxy

_log = logging.getLogger("amc_pymc")
#: Largest number of coefficients, whose covariance is factorised for every draw.
_MOST = 300
#: Number of rows on which modes are searched, and the depth below the best one, in nats, of modes that matter.
_ROWS, _DEPTH = 2_000, 10.0
#: Distance, in standard deviations of the subsample's posterior, within which searches end at the same mode.
_SAME = 3.0
#: Loss where the density is zero.
_IMPOSSIBLE = 1e300


class SurrogatePosterior:
    """Prior times surrogate of a model with continuous parameters.

    Given hyperparameters phi (F,), the other parameters v are Gaussian, so that the integral over v is known.

    Attributes
    ----------
    layout : FlatLayout
        Names and positions of the coordinates of x (D,).
    n_dim : int
        Number of hyperparameters, F, the dimension of the path.
    n_rows : int
    passes : float
        Passes over all rows that the fit took.
    """

    def __init__(self, densities: ModelDensities, fit: SurfaceFit):
        self._densities, self._fit = densities, fit
        self.layout: FlatLayout = densities.layout
        self._outer = np.argsort(fit.surface.outer)[np.sum(fit.surface.outer < 0) :]
        self.n_dim = self._outer.size
        self.n_rows = densities.n_units
        self.passes = densities.rows_evaluated / densities.n_units

    def values(self, phis: np.ndarray) -> np.ndarray:
        """Return zeros and the log density of phi (2, P), the integral over v, at points (P, F)."""
        found = marginals(phis, self._fit.draws[-1], self._fit.surface, np.empty((0, self.n_dim)))
        return np.stack([np.zeros(len(phis)), found])

    def gradients(self, phis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same and the gradients (2, P, F)."""
        slopes = np.zeros(phis.shape)
        found = marginals(phis, self._fit.draws[-1], self._fit.surface, slopes)
        return np.stack([np.zeros(len(phis)), found]), np.stack([np.zeros(phis.shape), slopes])

    def hyperparameters(self, x: np.ndarray) -> np.ndarray:
        """Return phi (..., F) of points (..., D)."""
        return x[..., self._outer]

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return the log density (P,) of points (P, D), which integrates to that of phi."""
        refresh = self._fit.moves()
        return np.array([log_surface(point, refresh) for point in x])

    def chains(self, number: int, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws (C, N, D) of chains that start at draws of an earlier one."""
        starts = self._fit.draws[rng.integers(len(self._fit.draws), size=number)]
        out = np.empty((number, draws, self._fit.draws.shape[1]))
        for start, chain in zip(starts, out, strict=True):
            run_on_surface(start, self._fit.moves(), 0.0, chain, rng)
        return out

    def has_other_modes(self, starts: np.ndarray, rng: np.random.Generator) -> bool:
        """Whether searches on a part of the rows, from points (S, D), end at modes far from the surrogate's.

        Only variables that rows read are moved, since the joint density of effects and their scale may be
        unbounded.
        """
        densities, at, mean = self._densities, self._densities.reads, self._fit.draws.mean(axis=0)
        number = min(_ROWS, densities.n_units)
        some = np.sort(rng.choice(densities.n_units, number, replace=False))

        def placed(v: np.ndarray) -> np.ndarray:
            x = mean.copy()
            x[at] = v
            return x

        def loss(v: np.ndarray) -> tuple[float, np.ndarray]:
            with np.errstate(all="ignore"):
                value, slope = densities.value_and_gradient(placed(v), some)
                rest, more = densities.rest_value_and_gradient(placed(v))
            if not np.isfinite(value + rest) or not np.all(np.isfinite(slope + more)):
                return _IMPOSSIBLE, np.zeros(v.size)
            return -(value + rest), -(slope + more)[at]

        def search(v: np.ndarray) -> tuple[float, np.ndarray]:
            found = optimize.minimize(loss, v, jac=True, method="L-BFGS-B")
            return float(found.fun), found.x

        lowest, mode = search(mean[at])
        with np.errstate(all="ignore"):
            rest = densities.rest_hessian(placed(mode), at)
            curvature = -(densities.hessian(placed(mode), some) + rest)[np.ix_(at, at)]
        for start in starts:
            depth, v = search(start[at])
            away = v - mode
            if depth < lowest + _DEPTH and not away @ curvature @ away < at.size * _SAME**2:
                _log.debug("Another mode of %d rows, %.1f nats below.", number, depth - lowest)
                return True
        return False


def surrogate_posterior(model: Model, progressbar: bool) -> SurrogatePosterior | None:
    """Fit prior times surrogate to a model; None if the model or its rows do not allow it."""
    try:
        found = surface_alone(model, initial_point_of(model), progressbar)
    except (NoProxy, NotRowFactorised, ValueError, NotImplementedError) as reason:
        _log.debug("Prior times surrogate is not used: %s", reason)
        return None
    if found is None or found.surface is None or found.kinked or found.forecast_flags:
        return None
    fit = found.surface
    if fit.binary.size or fit.surface.inner.max() >= _MOST:
        return None
    return SurrogatePosterior(cast(ModelDensities, found.densities), fit)
