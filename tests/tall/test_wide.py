"""Terms that read many coordinates."""

import numpy as np
import pymc as pm
import pytest

from amc_pymc.reading.densities import RestDensities
from amc_pymc.reading.graphs import log_densities
from amc_pymc.reading.particles.prior import layout_of

SIZE = 12


def zero_sum():
    pm.ZeroSumNormal("u", sigma=pm.HalfNormal("sd", 1.0), shape=SIZE)


def zero_sum_table():
    pm.ZeroSumNormal("u", sigma=pm.HalfNormal("sd", 1.0), n_zerosum_axes=2, shape=(3, 4))


def correlated():
    root = np.random.default_rng(1).normal(size=(SIZE, SIZE))
    pm.MvNormal("u", np.zeros(SIZE), root @ root.T + np.eye(SIZE))


def icar():
    near = np.diag(np.ones(SIZE - 1), 1)
    pm.ICAR("u", W=near + near.T, sigma=pm.HalfNormal("sd", 1.0), zero_sum_stdev=0.1)


def simplex():
    pm.Dirichlet("u", np.linspace(0.5, 2.0, SIZE))


def shares():
    sd, phi = pm.HalfNormal("sd", 1.0), pm.Dirichlet("phi", np.ones(SIZE))
    pm.Normal("u", 0.0, sd * pm.math.sqrt(phi), shape=SIZE)


def penalty():
    u = pm.Normal("u", 0.0, pm.HalfNormal("sd", 1.0), shape=SIZE)
    pm.Potential("mean", -50.0 * (u.sum() - 0.3) ** 2)
    pm.Potential("smooth", -0.5 * pm.math.sum((u[2:] - 2.0 * u[1:-1] + u[:-2]) ** 2))


def log_sum_exp():
    u = pm.Normal("u", 0.0, 1.0, shape=SIZE)
    pm.Potential("partition", -pm.math.logsumexp(u))


#: Priors, and the largest numbers of combinations and functions of which they are written.
PRIORS = {
    zero_sum: (SIZE, 0),
    zero_sum_table: (SIZE, 0),
    correlated: (SIZE, 0),
    icar: (2 * SIZE, 0),
    simplex: (0, 5),
    shares: (1, 5),
    penalty: (2 * SIZE, 0),
    log_sum_exp: (0, 2),
}


@pytest.mark.parametrize("build", PRIORS, ids=lambda build: build.__name__)
def test_terms_add_up_to_the_prior_and_read_few_numbers(build):
    with pm.Model() as model:
        build()
    layout, rng = layout_of(model), np.random.default_rng(1)
    size = layout.size
    rest = log_densities(model, [*model.free_RVs, *model.potentials])
    terms = RestDensities(rest, model.value_vars, layout).prior_terms
    (graph, found, functions), combinations = terms.written, terms.sums
    assert len(combinations) <= PRIORS[build][0] and len(functions) <= PRIORS[build][1]
    assert max(len(graph.leaves([f.expression], "entry")) for f in found) <= 6
    log_p = model.compile_logp()
    for _ in range(3):
        x = rng.normal(size=size)
        by_functions = [graph.evaluate([f.expression], eta=x)[0] for f in functions]
        read = np.concatenate([x, by_functions, combinations @ x])
        total = sum(
            np.sum(np.broadcast_to(v, len(f.table)))
            for f in found
            for v in graph.evaluate([f.expression], row=f.table.T, eta=read)
        )
        np.testing.assert_allclose(total, log_p(layout.unravel(x)), rtol=1e-10)
