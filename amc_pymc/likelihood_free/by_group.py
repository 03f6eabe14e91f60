"""Effects of groups, drawn given the other parameters and the summary statistics of their own group."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from scipy.spatial import cKDTree
from scipy.special import ndtr

from amc_pymc.likelihood_free.adjust import epanechnikov, weighted_inverse
from amc_pymc.likelihood_free.learned import exchangeable_features
from amc_pymc.likelihood_free.proposal import Parametrisation
from amc_pymc.logweights import relative

#: Number of rows of a local regression relative to the root of the number of all; maximum number of all, and minimum
#: number of simulations they are from.
_ROWS, _MOST_ROWS, _FEWEST = 10.0, 500_000, 100
#: Distance between groups that do not learn from each other.
_APART = 1e9
#: Number of residuals that effects are drawn from.
_RESIDUALS = 1000
#: Fraction of the residual variance that is added to squared residuals, and maximum change of a natural log scale.
_FLOOR, _MOST = 1e-3, 1.5


class Groups(NamedTuple):
    """Which parameters and which summary statistics belong to which of J groups.

    Attributes
    ----------
    effects : array of int (J, k)
        Coordinates of the effects of each group.
    summaries : array of int (J, q)
        Summary statistics of each group.
    """

    effects: np.ndarray
    summaries: np.ndarray

    def features(self, data: np.ndarray) -> np.ndarray:
        """Return features (n, F) of summary statistics (n, S) that do not depend on the order of groups."""
        own = exchangeable_features(self.summaries.shape)(data[:, self.summaries])
        return np.concatenate([own, np.delete(data, self.summaries, axis=1)], axis=1)


class Simulations(NamedTuple):
    """Simulations that statistics are learned from, M of which are taken as data.

    Attributes
    ----------
    summaries : array (N, S)
    log_weight, distance : arrays (N,)
    pseudo : array of int (M,)
        Simulations that are taken as data.
    data : array (M + 1, S)
        Their summary statistics, and those of the observed data.
    """

    summaries: np.ndarray
    log_weight: np.ndarray
    distance: np.ndarray
    pseudo: np.ndarray
    data: np.ndarray


class ByGroup:
    r"""Effects given the parameters that all groups share and the statistics of their own group.

    If the data of a group depend only on its effects :math:`\theta_g` and on shared parameters :math:`\phi`,

    .. math:: p(\phi, \theta \mid s) = p(\phi \mid s) \prod_g p(\theta_g \mid \phi, s_g).

    The conditional distribution is learned near the data by regressions of effects, and of the logarithms of their
    squared residuals, on :math:`(\phi, s_g)`. If groups are alike, all groups of all simulations are examples of it.

    Parameters
    ----------
    groups : Groups
    base : Parametrisation
        Coordinates in which all groups have the same scale.
    x : array (N, D)
        Parameters of simulations in these coordinates.
    found : Simulations
    phi : array (M + 1, p)
        Expected shared parameters of the data sets, near which regressions are.
    alike : bool
        Whether to learn from all groups, not only from the group itself.
    rng : numpy.random.Generator

    Attributes
    ----------
    x : array (N, p + J)
        Shared parameters, and standard normal variables by which residuals of effects are chosen.
    """

    def __init__(
        self,
        groups: Groups,
        base: Parametrisation,
        x: np.ndarray,
        found: Simulations,
        phi: np.ndarray,
        alike: bool,
        rng: np.random.Generator,
    ):
        self._groups, self._base, self._found, self._phi, self._rng = groups, base, found, phi, rng
        self._shared = np.setdiff1d(np.arange(x.shape[1]), groups.effects)
        n_groups = len(groups.effects)
        self.x = np.hstack([x[:, self._shared], rng.standard_normal((len(x), n_groups))])
        n = min(len(x), max(_FEWEST, _MOST_ROWS // n_groups))
        self._effects = x[:n, groups.effects].reshape(n * n_groups, -1)
        self._weight = np.repeat(relative(found.log_weight[:n]), n_groups)
        features = self._features(x[:n, self._shared], found.summaries[:n])
        self._units = self._distances(features)
        self._rows = math.ceil(_ROWS * math.sqrt(len(features) if alike else n))
        self._places = (0.0 if alike else _APART) * np.arange(n_groups)
        self._tree = cKDTree(self._placed(features))

    def _features(self, phi: np.ndarray, summaries: np.ndarray) -> np.ndarray:
        """Return shared parameters (n, p) beside statistics of each group, of all (n, S), as features (n J, F)."""
        own = summaries[:, self._groups.summaries].reshape(-1, self._groups.summaries.shape[1])
        return np.hstack([np.repeat(phi, len(self._groups.summaries), axis=0), own])

    def _distances(self, features: np.ndarray) -> np.ndarray:
        """Return changes (F,) of features that change expected effects by a residual standard deviation, or their spread."""
        spread = np.maximum(features.std(axis=0), 1e-300)
        z = (features - features.mean(axis=0)) / spread
        design = np.column_stack([np.ones(len(z)), z])
        found = weighted_inverse(design, self._weight / self._weight.sum()) @ self._effects
        residual = (self._effects - design @ found).std(axis=0)
        return spread * np.minimum(1.0, (residual / np.maximum(abs(found[1:]), 1e-300)).min(axis=1))

    def _placed(self, features: np.ndarray) -> np.ndarray:
        """Return features (n J, F) in their units, and places of groups, far apart if they are not alike."""
        places = np.resize(self._places, len(features))
        return np.column_stack([features / self._units, places])

    def conditional(self, m: int) -> Conditional:
        """Return the distribution of effects for data set m, learned from all simulations but that one."""
        points = self._placed(self._features(self._phi[[m]], self._found.data[[m]]))
        left_out = np.append(self._found.pseudo, -1)[m]
        found = self._tree.query(points, k=self._rows)
        fits = [
            self._regress(point, distance, near, left_out)
            for point, distance, near in zip(points, *found, strict=True)
        ]
        moments = (np.stack(part) for part in zip(*fits, strict=True))
        units = self._units[: len(self._shared)]
        return Conditional(self._groups.effects, self._shared, self._phi[m], units, *moments)

    def _regress(
        self, point: np.ndarray, distance: np.ndarray, near: np.ndarray, left_out: int
    ) -> tuple[np.ndarray, ...]:
        weight = self._weight[near] * epanechnikov(distance, distance[-1])
        weight[near // len(self._places) == left_out] = 0.0
        weight = weight / weight.sum() if weight.any() else np.full(len(near), 1.0 / len(near))
        gaps = (self._tree.data[near] - point)[:, :-1]
        inverse = weighted_inverse(np.column_stack([np.ones(len(gaps)), gaps]), weight)
        mean, slopes = np.split(inverse @ self._effects[near], [1])
        residuals = self._effects[near] - mean - gaps @ slopes
        variance = np.maximum(weight @ residuals**2, 1e-300)
        log_slopes = 0.5 * inverse[1:] @ np.log(residuals**2 / variance + _FLOOR)
        residuals *= np.exp(-np.clip(gaps @ log_slopes, -_MOST, _MOST))
        levels = (np.arange(_RESIDUALS) + 0.5) / _RESIDUALS
        drawn = np.searchsorted(np.cumsum(weight), levels).clip(0, len(near) - 1)
        p = len(self._shared)
        return mean[0], slopes[:p], log_slopes[:p], residuals[drawn]

    def at_data(self) -> Parametrisation:
        """Return coordinates by shared parameters (n, p), with normal variables beside them or drawn."""
        effects = self.conditional(-1)

        def back(x: np.ndarray) -> np.ndarray:
            if x.shape[1] == len(self._shared):
                x = np.hstack([x, self._rng.standard_normal((len(x), len(self._places)))])
            return self._base.back(effects.whole(x))

        return self._base._replace(
            name="by group", to=lambda u: self._base.to(u)[:, self._shared], back=back
        )


class Conditional(NamedTuple):
    """Distribution of effects given shared parameters, at the statistics of each group.

    Attributes
    ----------
    columns : array of int (J, k)
        Coordinates of effects.
    shared : array of int (p,)
        Coordinates of shared parameters.
    centre, units : arrays (p,)
        Shared parameters near which the distribution is known, and units of distances from them.
    mean : array (J, k)
        Means of effects there.
    slopes, log_slopes : arrays (J, p, k)
        Their slopes on shared parameters, and those of natural log scales.
    residuals : array (J, R, k)
        Equally likely differences from the means there.
    """

    columns: np.ndarray
    shared: np.ndarray
    centre: np.ndarray
    units: np.ndarray
    mean: np.ndarray
    slopes: np.ndarray
    log_slopes: np.ndarray
    residuals: np.ndarray

    def moments(self, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n, J, k) given shared parameters (n, p), and scales of residuals relative to the centre."""
        gaps = (phi - self.centre) / self.units
        log_scale = np.einsum("np,jpk->njk", gaps, self.log_slopes)
        mean = self.mean + np.einsum("np,jpk->njk", gaps, self.slopes)
        return mean, np.exp(np.clip(log_scale, -_MOST, _MOST))

    def whole(self, x: np.ndarray) -> np.ndarray:
        """Return parameters (n, D) given shared ones (n, p) and, beside them, normal variables (n, J) that choose residuals."""
        phi, z = np.split(x, [len(self.shared)], axis=1)
        mean, scale = self.moments(phi)
        chosen = (ndtr(z) * _RESIDUALS).astype(int).clip(0, _RESIDUALS - 1)
        out = np.empty((len(x), len(self.shared) + self.columns.size))
        out[:, self.shared] = phi
        out[:, self.columns] = mean + scale * self.residuals[np.arange(z.shape[1]), chosen]
        return out

    def log_density(self, x: np.ndarray) -> float:
        """Return the log density of the effects in x (D,) given the shared parameters in it, up to constants of normals.

        Residuals are taken as normal.
        """
        mean, scale = self.moments(x[None, self.shared])
        z = (x[self.columns] - mean[0]) / scale[0]
        covariance = np.einsum("jrk,jrl->jkl", self.residuals, self.residuals) / _RESIDUALS
        covariance += 1e-12 * np.eye(z.shape[1])
        squares = (z[:, None] @ np.linalg.solve(covariance, z[..., None])).sum()
        log = -0.5 * (squares + np.linalg.slogdet(covariance)[1].sum())
        return float(log - np.log(scale).sum())
