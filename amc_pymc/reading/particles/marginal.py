"""Log prior and marginal log likelihood of a model at many points, with local effects integrated out.

A point is the flat unconstrained vector x (D,) of the remaining value variables, the population
parameters. For groups g with rows y_g and local effects u_g,

    log L(x) = sum_g log integral p(u_g | x) p(y_g | x, u_g) du_g,

plus the parts of the likelihood that do not depend on local effects.
"""

from __future__ import annotations

import hashlib

from typing import Any
from uuid import uuid4

import cloudpickle
import numpy as np
import pytensor

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from amc_pymc.reading.factors import Factor, effects_at
from amc_pymc.reading.graphs import interpreted_mode, lowered, remembering
from amc_pymc.reading.group_densities import GroupTotals
from amc_pymc.reading.groups import take_groups
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.particles.densities import (
    Counts,
    ParticleDensities,
    once_per_process,
    particles_of,
)
from amc_pymc.reading.particles.model_terms import check_evidence_defined, without_checks
from amc_pymc.reading.particles.prior import PriorDraws

#: Number of prior draws at which groups are compared with the model, and number of draws searched for finite ones.
_CHECKED, _DRAWN = 3, 32
_SEED = 7


class MarginalDensities:
    """Log prior and marginal log likelihood of P points at once, with gradients.

    It has the interface of :class:`amc_pymc.reading.particles.densities.ParticleDensities`.

    Parameters
    ----------
    rest : ParticleDensities
        Prior of the population parameters, and parts of the likelihood without local effects.
    groups : GroupTotals
        Parts of the likelihood with local effects.
    data : list of shared variables
        ``pm.Data`` and other shared variables from which groups were made.

    Notes
    -----
    Densities are immutable: :meth:`refined` and :meth:`settled` return new ones.
    """

    def __init__(self, rest: ParticleDensities, groups: GroupTotals, data: list[SharedVariable]):
        self._rest, self._groups = rest, groups
        self._data = _values_of(data)
        self._token = uuid4().hex

    @property
    def factor(self) -> Factor:
        """Factor whose effects are integrated out."""
        return self._groups.groups.factor

    @property
    def rule(self) -> str:
        """Description of the quadrature rule."""
        return self._groups.rule

    @property
    def layout(self) -> FlatLayout:
        """Names and positions of the coordinates."""
        return self._rest.layout

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the free variables that x holds."""
        return self._rest.variables

    @property
    def discrete(self) -> np.ndarray:
        """Whether each coordinate is discrete, (D,) bool."""
        return self._rest.discrete

    @property
    def n_dim(self) -> int:
        """Number of coordinates D."""
        return self._rest.n_dim

    @property
    def n_observed(self) -> int:
        """Number of observed values."""
        return self._rest.n_observed

    @property
    def chunk(self) -> int:
        """Number of points evaluated at once."""
        return self._rest.chunk

    @property
    def fallback(self) -> str | None:
        """Why the prior is evaluated point by point; None if it is batched."""
        return self._rest.fallback

    @property
    def counts(self) -> Counts:
        """Evaluations so far in this process, including those of copies with other nodes."""
        return self._rest.counts

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return log prior and marginal log likelihood (2, P) at points (P, D)."""
        self._check_data()
        out = self._rest.values(x)
        possible = np.isfinite(out).all(axis=0)
        found = np.full(len(x), -np.inf)
        found[possible] = self._groups.values(np.asarray(x, float)[possible])
        self._add(out, found)
        return out

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log prior and marginal log likelihood (2, P), and their gradients (2, P, D).

        The gradient of a term is zero where the term is -inf, so that a trajectory that leaves the support
        moves on in a straight line and is rejected unless it comes back.
        """
        self._check_data()
        out, gradients = self._rest.gradients(x)
        possible = np.isfinite(out).all(axis=0)
        found = np.full(len(x), -np.inf)
        found[possible], slopes = self._groups.gradients(np.asarray(x, float)[possible])
        self._add(out, found)
        gradients[1, possible] += slopes
        gradients[out == -np.inf] = 0.0
        return out, gradients

    def _add(self, out: np.ndarray, found: np.ndarray) -> None:
        """Add the log likelihoods of groups; nan and +inf become -inf."""
        wrong = ~(found < np.inf)
        if wrong.any():
            self._rest.note_nan(int(wrong.sum()))
            found[wrong] = -np.inf
        out[1] += found

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw from the prior (n, D)."""
        return self._rest.draw_prior(n, rng)

    def constrain(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return population parameters, and deterministics of them alone, at points (P, D)."""
        return self._rest.constrain(x)

    def fingerprint(self) -> str:
        """Return a hash of the current values of pm.Data and other shared variables."""
        found = hashlib.blake2b(digest_size=16)
        for v, _ in self._data:
            found.update(cloudpickle.dumps(v.get_value(borrow=True)))
        return self._rest.fingerprint() + found.hexdigest()

    def refined(self, x: np.ndarray, tolerance: float) -> MarginalDensities:
        """Return densities with as many nodes as a tolerance in nats needs at posterior points (P, D)."""
        return self._with(self._groups.refined(x, tolerance))

    def settled(self, x: np.ndarray) -> MarginalDensities:
        """Return densities whose mode searches start at the modes of a point (D,)."""
        return self._with(self._groups.settled(x))

    def quadrature_error(self, x: np.ndarray) -> float:
        """Return the quadrature error of the log evidence, in nats, from posterior points (P, D)."""
        return self._groups.error(x)

    def _with(self, groups: GroupTotals) -> MarginalDensities:
        found = MarginalDensities.__new__(MarginalDensities)
        found.__dict__.update(self.__dict__, _groups=groups, _token=uuid4().hex)
        return found

    def _check_data(self) -> None:
        if any(v.get_value(borrow=True) is not value for v, value in self._data):
            raise ValueError(
                "pm.Data of the model have changed since its local effects were integrated out: call "
                "estimate_evidence again."
            )

    def __reduce__(self):
        self._check_data()
        return _load, ((self._token, "marginal"), cloudpickle.dumps(self.__dict__))


#: Densities from which evidence is estimated.
Densities = ParticleDensities | MarginalDensities


def _load(token: tuple, state: bytes) -> MarginalDensities:
    return once_per_process(token, lambda: _restored(state))


def _restored(state: bytes) -> MarginalDensities:
    found = MarginalDensities.__new__(MarginalDensities)
    found.__dict__.update(cloudpickle.loads(state))
    found._data = _values_of([v for v, _ in found._data])
    return found


def _values_of(shared: list[SharedVariable]) -> list[tuple[SharedVariable, Any]]:
    return [(v, v.get_value(borrow=True)) for v in shared]


@remembering()
def extract_marginals(model, factor: Factor, observed_vars) -> MarginalDensities:
    """Extract prior, marginal likelihood and prior draws of a model, for many particles at once.

    Parameters
    ----------
    model : pm.Model
    factor : Factor
        Factor from :func:`~amc_pymc.reading.groups.find_factors` with an empty ``reason``.
    observed_vars : sequence of str
        All observed variables that depend on the factor's effects.

    Returns
    -------
    MarginalDensities

    Raises
    ------
    ValueError
        As for :func:`~amc_pymc.reading.particles.densities.extract_particles`, and if the density of groups
        differs from that of the model.
    NotScalar, NotRowFactorised
        If a row or the prior of an effect cannot be written as one expression.
    """
    check_evidence_defined(model)
    groups = take_groups(model, factor, observed_vars, centring=False)
    inside = [v for v in model.value_vars if v.name in factor.names]
    local = [model.values_to_rvs[v] for v in inside]
    raced = [rv for rv in model.observed_RVs if rv.name in groups.observed_vars]
    population = [rv for rv in model.free_RVs if rv not in local]
    others = [v for v in [*model.observed_RVs, *model.potentials] if v not in raced]
    rest = particles_of(model, population, others)
    totals = GroupTotals(groups, rest.layout)
    logp = model.logp(vars=[*local, *raced], sum=True)
    rng = np.random.Generator(np.random.PCG64(_SEED))
    xs = _verify(model, logp, totals, rest.layout, rng)
    data = [
        v
        for v in ancestors([logp])
        if isinstance(v, SharedVariable) and not isinstance(v.type, RandomType)
    ]
    return MarginalDensities(rest, totals.simplified(xs), data)


def _verify(model, logp, totals: GroupTotals, layout: FlatLayout, rng) -> np.ndarray:
    """Compare groups with the model at prior draws; return the population parameters (P, D) of these."""
    whole = FlatLayout.from_model(model, model.initial_point())
    draws = PriorDraws.from_model(model, whole).draw(_DRAWN, rng)
    (graph,) = without_checks(lowered([logp]))
    fn = pytensor.function(
        model.value_vars, graph, mode=interpreted_mode(), on_unused_input="ignore"
    )
    kept = []
    for x in draws[np.isfinite(draws).all(axis=1)]:
        point = whole.unravel(x)
        wanted = float(fn(*(point[v.name] for v in model.value_vars)))
        if not np.isfinite(wanted):
            continue
        eta = layout.ravel(point)
        found = totals.complete(eta, effects_at(totals.groups.factor, point))
        if not np.isclose(found, wanted, rtol=1e-6, atol=1e-6):
            raise ValueError(
                f"the groups of {totals.groups.factor.label} have a log density of {found} where the model "
                f"has {wanted}: pass marginalize=None, and report this model as a bug of amc_pymc."
            )
        kept.append(eta)
        if len(kept) == _CHECKED:
            break
    return np.array(kept).reshape(-1, layout.size)
