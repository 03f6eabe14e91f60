"""Log prior and marginal log likelihood of a model at many points, with local effects integrated out.

A point is the flat unconstrained vector x (D,) of the remaining value variables, the population
parameters. For groups g with rows y_g and local effects u_g,

    log L(x) = sum_g log integral p(u_g | x) p(y_g | x, u_g) du_g,

plus the parts of the likelihood that do not depend on local effects.
"""

from __future__ import annotations

import numpy as np

from amc_pymc.reading.factors import Factor, effects_at
from amc_pymc.reading.graphs import interpreted_function, lowered, remembering
from amc_pymc.reading.group_densities import GroupTotals
from amc_pymc.reading.groups import take_groups
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.particles.densities import ParticleDensities, particles_of
from amc_pymc.reading.particles.model_terms import check_evidence_defined, without_checks
from amc_pymc.reading.particles.prior import PriorDraws

#: Number of prior draws at which groups are compared with the model, and number of draws searched for finite ones.
_CHECKED, _DRAWN = 3, 32
_SEED = 7


@remembering()
def extract_marginals(model, factor: Factor, observed_vars) -> ParticleDensities:
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
    ParticleDensities

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
    return rest.with_groups(totals.simplified(xs), logp)


def _verify(model, logp, totals: GroupTotals, layout: FlatLayout, rng) -> np.ndarray:
    """Compare groups with the model at prior draws; return the population parameters (P, D) of these."""
    whole = FlatLayout.from_model(model, model.initial_point())
    draws = PriorDraws.from_model(model, whole).draw(_DRAWN, rng)
    (graph,) = without_checks(lowered([logp]))
    fn = interpreted_function(model.value_vars, graph)
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
