"""The index of a Carlin-Chib product space as a discrete element of :mod:`~amc_pymc.tall.samplers.gibbs`.

A point x holds the number k of the current model, the log weights of all models and their parameters, one after another.
The parameters of the current model come from its posterior, those of the other models from their
pseudo-priors. Given all parameters, model k is drawn with probability proportional to

    pi_k p_k(theta_k) prod_n p_k(y_n | theta_k) / g_k(theta_k),

where g_k is its pseudo-prior (Carlin & Chib 1995). The states of the index are the models (Chen & Ghahramani 2016,
eq. 25). Races are over what the models' control variates leave of the rows; their sums are in the rest.
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from amc_pymc.engine.jit import FirstClassFunction, caller, fill, njit
from amc_pymc.tall.decisions import GRADIENT, LOGP, as_they_are, call_total
from amc_pymc.tall.mode import gaussian_factor
from amc_pymc.tall.racing import REWARDS, Race
from amc_pymc.tall.samplers import gibbs
from amc_pymc.tall.samplers.chain import Audits
from amc_pymc.tall.samplers.fit import Preparation
from amc_pymc.tall.samplers.metropolis import Metropolis
from amc_pymc.tall.surrogate import Surrogate, no_surrogate, surrogate_total

#: Compiled functions, and what holds them, which are not pickled.
_BUILT = ("_maps", "rest", "native", "state_rewards", "sampler")
_rewards, _parameters, _log_density = caller(REWARDS), caller(GRADIENT), caller(LOGP)


# --- pseudo-priors ---------------------------------------------------------------------------------


class PseudoPrior(NamedTuple):
    """Gaussian with a mean (D,), a lower factor (D, D) of the covariance, its inverse, and log density at the mean."""

    mean: np.ndarray
    factor: np.ndarray
    inverse: np.ndarray
    highest: float

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return a draw (D,)."""
        return self.mean + self.factor @ rng.standard_normal(self.mean.size)


def laplace(prepared: Preparation) -> tuple[PseudoPrior, float]:
    """Return the Laplace approximation of a model, and that of its log evidence."""
    fit, densities = prepared.fit, prepared.densities
    assert fit is not None
    factor = gaussian_factor(fit.precision)[0]
    highest = -0.5 * fit.mean.size * np.log(2.0 * np.pi) - np.log(np.diag(factor)).sum()
    prior = PseudoPrior(fit.mean, factor, np.linalg.inv(factor), float(highest))
    rows = densities.value_and_gradient(fit.mean)[0]
    rest = densities.rest_value_and_gradient(fit.mean)[0]
    return prior, rows + rest - prior.highest


# --- functions of all models ------------------------------------------------------------------------


@njit(cache=True)
def _theta(x: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the parameters of the current model."""
    k = np.int64(x[0])
    return x[ends[k] : ends[k + 1]].copy()


@njit(cache=True)
def _score(
    theta: np.ndarray,
    places: np.ndarray,
    mean: np.ndarray,
    inverse: np.ndarray,
    constant: np.ndarray,
    centre: np.ndarray,
    gradient: np.ndarray,
    hessian: np.ndarray,
) -> float:
    """Return the prior over the pseudo-prior of one model, and the sum of its control variates, as logarithms.

    What is not finite excludes the model for now.
    """
    z = inverse @ (theta - mean)
    out = _log_density(places[0], (theta,)) + 0.5 * np.dot(z, z) + constant[0]
    eta = _parameters(places[1], (theta,))
    out += surrogate_total(eta, Surrogate(centre, gradient, hessian))
    return out if math.isfinite(out) else -math.inf


@njit(cache=True)
def _rest(x: np.ndarray, places: np.ndarray, ends: np.ndarray) -> float:
    """Return the score of the current model plus its log weight."""
    k = np.int64(x[0])
    return x[1 + k] + _log_density(places[k], (_theta(x, ends),))


@njit(cache=True)
def _point(x: np.ndarray, places: np.ndarray, ends: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Return the number of the current model, and what its rows read (1 + E,)."""
    out = np.zeros(width[0])
    out[0] = x[0]
    fill(out[1:], _parameters(places[np.int64(x[0])], (_theta(x, ends),)))
    return out


@njit(cache=True)
def ask_rewards(
    points: np.ndarray,
    unused: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    ends: np.ndarray,
    centres: np.ndarray,
) -> np.ndarray:
    """Return rewards (K, m) of rows at points (K, 1 + E)."""
    out = np.empty((points.shape[0], rows.size))
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        eta = points[a : a + 1, 1 : 1 + ends[k + 1] - ends[k]].copy()
        centre = centres[ends[k] : ends[k + 1]].copy()
        out[a] = _rewards(places[k], (eta, centre, rows))[0]
    return out


def _addresses(functions: Sequence[Any]) -> np.ndarray:
    return np.array([f.address for f in functions], np.int64)


def _ends(first: int, sizes: Sequence[int]) -> np.ndarray:
    return np.cumsum([first, *sizes]).astype(np.int64)


# --- models ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class ModelSpace:
    """M models of the same rows as one: what :class:`~amc_pymc.tall.units.RacedModel` requires for the index.

    Parameters
    ----------
    samplers : sequence of Metropolis
        One per model, over all its coordinates, with a Gaussian approximation.
    race : Race
        Race for draws of the index.
    audits : Audits
    """

    samplers: Sequence[Metropolis]
    race: Race
    audits: Audits
    pseudo_priors: list[PseudoPrior] = field(init=False)
    laplace_log_evidence: np.ndarray = field(init=False)
    unit, reads = "row", np.empty(0, np.int64)

    def __post_init__(self) -> None:
        self.prepared = [s.prepared for s in self.samplers]
        found = [laplace(p) for p in self.prepared]
        self.pseudo_priors = [prior for prior, _ in found]
        self.laplace_log_evidence = np.array([evidence for _, evidence in found])
        raced = self.prepared[0].raced
        self.n_units = raced.n_units
        self.observed_vars = self.prepared[0].densities.observed_vars
        self.race_cost, self.audit_cost = raced.race_cost, raced.audit_cost
        self.ends = _ends(1 + len(self.samplers), [p.start.size for p in self.prepared])
        self._width = 1 + max(p.surrogate.centre.size for p in self.prepared)
        self._base = [p.raced.value_and_gradient(p.surrogate.centre)[0] for p in self.prepared]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in _BUILT}

    @cached_property
    def sampler(self) -> gibbs.Gibbs:
        """Sampler of the index."""
        model, m = cast(Any, self), len(self.samplers)
        prepared = Preparation(
            model,
            model,
            np.zeros(self.ends[-1]),
            model,
            surrogate=no_surrogate(np.zeros(self._width)),
            exact_rows=np.unique(np.concatenate([p.exact_rows for p in self.prepared])),
            rounding_only=all(p.rounding_only for p in self.prepared),
            rows_spent=sum(p.rows_spent for p in self.prepared),
        )
        elements = gibbs.elements_of([0], [np.arange(m)], [True])
        return gibbs.Gibbs(prepared=prepared, race=self.race, audits=self.audits, elements=elements)

    def log_weights(self, x: np.ndarray) -> np.ndarray:
        """Return a view of the models' log weights (M,)."""
        return x[1 : 1 + len(self.samplers)]

    def theta(self, x: np.ndarray) -> np.ndarray:
        """Return a view of the current model's parameters."""
        return x[slice(*self.ends[int(x[0]) :][:2])]

    def draw_others(self, x: np.ndarray, rng: np.random.Generator) -> None:
        """Draw the parameters of the other models from their pseudo-priors."""
        for k, prior in enumerate(self.pseudo_priors):
            if k != x[0]:
                x[self.ends[k] : self.ends[k + 1]] = prior.draw(rng)

    # --- as one model ---------------------------------------------------------------------------

    @cached_property
    def _maps(self) -> list[Any]:
        return [as_they_are if p.cut is None else p.cut.native for p in self.prepared]

    @cached_property
    def rest(self) -> Any:
        """First-class ``x -> log density`` without what is raced."""
        scores = []
        for p, prior, eta, base in zip(
            self.prepared, self.pseudo_priors, self._maps, self._base, strict=True
        ):
            functions, constant = (p.densities.rest, eta), np.full(1, base - prior.highest)
            gaussian = _addresses(functions), prior.mean, prior.inverse, constant
            arrays = *gaussian, *p.surrogate
            scores.append(FirstClassFunction(_score, LOGP, arrays, functions))
        return FirstClassFunction(_rest, LOGP, [_addresses(scores), self.ends], scores)

    @cached_property
    def native(self) -> Any:
        """First-class ``x -> (1 + E,)``: the current model, and what its rows read."""
        arrays = _addresses(self._maps), self.ends, np.array([self._width])
        return FirstClassFunction(_point, GRADIENT, arrays, self._maps)

    @cached_property
    def state_rewards(self) -> Any:
        """First-class ``(points (K, 1 + E), centre, rows (m,)) -> (K, m)``: residuals."""
        rewards = [p.raced.state_rewards for p in self.prepared]
        centres = [p.surrogate.centre for p in self.prepared]
        ends = _ends(0, [c.size for c in centres])
        arrays = _addresses(rewards), ends, np.concatenate(centres)
        return FirstClassFunction(ask_rewards, REWARDS, arrays, rewards)

    @property
    def layout(self) -> ModelSpace:
        """Names of coordinates."""
        return self

    def labels(self) -> list[str]:
        """Return the name of the first coordinate, the only one that is drawn here."""
        return ["model_index"]

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        """Return the current model, and what its rows read (1 + E,)."""
        out = np.zeros(self._width)
        eta = self.prepared[int(x[0])].eta(self.theta(x))
        out[0], out[1 : 1 + eta.size] = x[0], eta
        return out

    def rest_value_and_gradient(self, x: np.ndarray) -> tuple[float, None]:
        """Return the log density without what is raced, and no gradient."""
        return call_total(self.rest, x), None

    def change(self, x: np.ndarray, x_new: np.ndarray) -> float:
        """Return the change of the sum of what is raced."""
        return self._raced(x_new) - self._raced(x)

    def _raced(self, x: np.ndarray) -> float:
        k, theta = int(x[0]), self.theta(x)
        prepared = self.prepared[k]
        known = self._base[k] + surrogate_total(prepared.eta(theta), prepared.surrogate)
        return float(prepared.densities.all_values(theta).sum() - known)
