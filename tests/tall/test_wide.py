"""Terms that read many coordinates."""

import numpy as np
import pymc as pm

from amc_pymc.extract.log_density import log_densities
from amc_pymc.extract.model_terms import layout_of
from amc_pymc.extract.prior_terms import prior_terms
from amc_pymc.tall.wide import taken_apart, with_combinations


def test_squares_of_zero_sum_effects_are_not_multiplied_out():
    with pm.Model() as model:
        pm.ZeroSumNormal("u", sigma=pm.HalfNormal("sd", 1.0), shape=20)
    layout = layout_of(model)
    parts = log_densities(model, model.free_RVs)
    graph, terms = prior_terms(parts, model.value_vars, layout)
    found, combinations = with_combinations(graph, taken_apart(graph, terms), layout.size)
    assert len(combinations) <= 21  # of one effect each, and their sum
    x = np.random.default_rng(1).normal(size=layout.size)
    with_u = np.concatenate([x, combinations @ x])
    total = sum(
        np.sum(np.broadcast_to(v, len(f.table)))
        for f in found
        for v in graph.evaluate([f.expression], row=f.table.T, eta=with_u)
    )
    expected = model.compile_logp()(layout.unravel(x))
    np.testing.assert_allclose(total, expected, rtol=1e-10)
