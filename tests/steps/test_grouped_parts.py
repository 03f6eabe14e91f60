"""Parts of a grouped model against the model's own log density, away from the initial point."""

import functools

import numpy as np
import pymc as pm
import pytest

from grouped_runs import racing
from pytensor.compile.mode import Mode

PYTHON = Mode(linker="py", optimizer=None)
N_ROWS, N_GROUPS, N_REGIONS = 200, 40, 5
_rng = np.random.default_rng(1)
GROUP, REGION = _rng.integers(0, N_GROUPS, N_ROWS), _rng.integers(0, N_REGIONS, N_ROWS)
X, Y = _rng.normal(size=(2, N_ROWS))


@functools.cache
def built(centred):
    """Two effects of a group, in variables of different shapes, and another factor's."""
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 0.5, shape=2)
        sd_region = pm.HalfNormal("sd_region", 0.4)  # not one at the initial point
        level = pm.Normal("level", 0.0, sd[0], shape=N_GROUPS)
        slope = pm.Normal("slope", 0.0, sd[1], shape=(N_GROUPS, 1))
        if centred:
            region = pm.Normal("region", 0.0, sd_region, shape=N_REGIONS)
        else:
            region = sd_region * pm.Normal("region", shape=N_REGIONS)
        mean = level[GROUP] + slope[GROUP, 0] * X + region[REGION]
        pm.Normal("obs", mean, pm.HalfNormal("noise", 2.0), observed=Y)
    return model, racing(model)


def random_point(model, rng):
    return {n: v + 0.5 * rng.normal(size=v.shape) for n, v in model.initial_point().items()}


@pytest.mark.parametrize("centred", [True, False])
def test_parts_add_up_to_the_model(centred):
    """Up to the Jacobian of effects that stay and are moved in the place of standard normals."""
    model, step = built(centred)
    densities, logp = step.prepared.densities, model.compile_logp(mode=PYTHON)
    rng = np.random.default_rng(2)
    for _ in range(3):
        point = random_point(model, rng)
        x = densities.ravel(point)
        for name, value in densities.unravel(x).items():
            np.testing.assert_allclose(value, point[name], rtol=1e-12)
        found = densities.complete(x, densities.effects(point))
        found += densities.rest_value_and_gradient(x)[0]
        jacobian = 0.0 if centred else -N_REGIONS * point["sd_region_log__"]
        assert found == pytest.approx(float(logp(point)) + jacobian, rel=1e-10)
        assert densities.groups.centring.log_jacobian(x) == pytest.approx(jacobian)
