"""Customers of several segments (BG/NBD), the effects of the segments integrated out."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from grouped_runs import assert_agree, frozen, racing, sample
from pytensor.compile.mode import Mode
from scipy import integrate, stats

from amc_pymc.reading.group_densities import GroupDensities
from amc_pymc.reading.groups import find_factors, take_groups
from models.customer_lifetime import customer_model, log_likelihood, simulate_customers

PYTHON = Mode(linker="py", optimizer="fast_compile")
#: By NUTS on the model that is not centred, 8,000 draws of 600 customers in 12 segments: mean,
#: standard deviation, effective sample size.
REFERENCE = {
    "log_r": (-0.52906, 0.0749, 4_700),
    "log_alpha": (1.13849, 0.25136, 1_290),
    "log_a": (-1.05582, 0.16196, 3_750),
    "log_b": (0.07921, 0.22639, 3_740),
    "sd_alpha": (0.74451, 0.19536, 1_650),
}


def test_segments_are_the_integrals_over_their_effects():
    data = simulate_customers(60, 4, seed=2)
    model = customer_model(data, varying=("alpha",))
    (factor,) = find_factors(model)
    assert factor.label == "segment_alpha" and not factor.reason
    groups = take_groups(model, factor)
    densities = GroupDensities(groups, 11)
    point = {n: np.full(np.shape(v), 0.2) for n, v in model.initial_point().items()}
    sd = np.exp(0.2)
    found = densities.all_values(groups.layout.ravel({n: point[n] for n in groups.layout.names}))
    u = pt.dscalar("u")
    for g in range(4):
        own = data.segment == g
        parameters = [np.exp(0.2), pt.exp(0.2 + u), np.exp(0.2), np.exp(0.2)]
        rows = log_likelihood(pt.as_tensor(data.history[own]), *parameters, data.age[own])
        likelihood = _function(u, rows.sum())
        grid = np.linspace(-6.0 * sd, 6.0 * sd, 1_001)
        logs = np.array([likelihood(k) for k in grid]) + stats.norm.logpdf(grid, 0.0, sd)
        top = logs.max()
        expected = top + np.log(integrate.simpson(np.exp(logs - top), x=grid))
        assert found[g] == pytest.approx(expected, abs=1e-5)


def _function(u, output):

    return pytensor.function([u], output, mode=PYTHON)


@pytest.mark.slow
def test_customers_agree_with_nuts():
    model = customer_model(simulate_customers(600, 12, seed=2), varying=("alpha",))
    step = racing(model)
    assert step.prepared.densities.unit == "group"
    idata = sample(model, step, 4_000, tune=1_000)
    assert_agree(idata, frozen(REFERENCE))
    assert idata.sample_stats["accept"].mean() > 0.4
