"""Reference densities for priors whose quantiles are not known."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pytensor.tensor as pt

from scipy import special, stats

from amc_pymc.likelihood_free.problem import flat
from amc_pymc.reading.graphs import FlatLayout
from amc_pymc.reading.particles.prior import PriorDraws, layout_of

#: Number of prior draws to which references are fitted, factor by which references are wider, and
#: their degrees of freedom.
_FITTED, _WIDER, _TAIL = 4000, 1.2, 4.0
#: Factor by which correlations are shrunk, because references may otherwise be singular.
_KEPT_CORRELATION = 0.99
#: Smallest fraction of the draws that must be finite.
_LEAST_GOOD = 0.95


class References:
    """Densities on the unconstrained scale that resemble the priors of variables without quantiles."""

    def __init__(self, model):
        self._model = model
        self._inputs: dict = {}

    @cached_property
    def _prior(self) -> PriorDraws:
        names, layout = tuple(rv.name for rv in self._model.free_RVs), layout_of(self._model)
        return PriorDraws(self._model, FlatLayout(names, layout.shapes, layout.dtypes))

    @cached_property
    def _draws(self) -> np.ndarray:
        return self._prior.draw(_FITTED, np.random.Generator(np.random.PCG64(7)))

    @property
    def log_constant(self) -> float:
        """Term that normalises the log density of ordered variables; zero if no reference is used."""
        return self._prior.log_constant if self._inputs else 0.0

    def input(self, name: str):
        """Return the input that represents the unconstrained value of a variable."""
        if name not in self._inputs:
            layout = self._prior.layout
            i = layout.names.index(name)
            self._inputs[name] = pt.tensor(name, dtype=layout.dtypes[i], shape=layout.shapes[i])
        return self._inputs[name]

    def fit(self, name: str, dtype: str) -> Reference:
        """Fit a reference density to draws from the prior of a variable."""
        z = self._draws[:, self._prior.layout.slices[name]]
        good = np.isfinite(z).all(axis=1)
        if good.mean() < _LEAST_GOOD:
            raise ValueError(
                f"{name!r} has no quantile function, and many of its prior draws are not finite on the "
                "unconstrained scale: its transform cannot reach all values that its prior has. Use the "
                "transform that PyMC chooses, or pm.Truncated."
            )
        return Reference(name, z[good], whole=not dtype.startswith("float"))


class Reference:
    """Student's t distribution around the median of draws, with their correlation; rounded for integers.

    With independent coordinates t, z = centre + scale * L t.
    """

    def __init__(self, name: str, z: np.ndarray, *, whole: bool):
        lower, self._centre, upper = np.quantile(z, [0.25, 0.5, 0.75], axis=0)
        width = (upper - lower) / (2.0 * stats.t.ppf(0.75, _TAIL))
        width = np.where(width > 0.0, width, z.std(axis=0))
        if not np.all(width > 0.0):
            raise ValueError(
                f"{name!r} has no quantile function, and its prior draws do not vary. Leave it out, or "
                "give it a distribution with a density."
            )
        self._scale, self._whole = _WIDER * width, whole
        self._factor = np.eye(z.shape[1])
        if not whole and z.shape[1] > 1:
            scores = special.ndtri((stats.rankdata(z, axis=0) - 0.5) / len(z))
            correlation = _KEPT_CORRELATION * np.corrcoef(scores.T)
            np.fill_diagonal(correlation, 1.0)
            self._factor = np.linalg.cholesky(correlation)

    def quantiles(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return unconstrained values (n, *shape) at levels (n, *shape), and their log density (n,)."""
        t = special.stdtrit(_TAIL, flat([u]))
        z = self._centre + self._scale * (t @ self._factor.T)
        if self._whole:
            z = np.floor(z + 0.5)
            return z.astype(np.int64).reshape(u.shape), np.log(self._mass(z)).sum(axis=1)
        log = stats.t.logpdf(t, _TAIL).sum(axis=1)
        return z.reshape(u.shape), log - np.log(self._scale * np.diag(self._factor)).sum()

    def _mass(self, z: np.ndarray) -> np.ndarray:
        """Return the probability of the interval around each integer, computed in the lower tail."""
        away = np.abs(z - self._centre)
        near, far = ((away + side) / self._scale for side in (-0.5, 0.5))
        return special.stdtr(_TAIL, -near) - special.stdtr(_TAIL, -far)
