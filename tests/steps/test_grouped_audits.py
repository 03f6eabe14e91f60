"""Audits of races over many groups take twice the nodes of the quadrature."""

import pymc as pm
import pytest

import amc_pymc as amc

from models.grouped import intercepts_model, simulate_intercepts

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")
#: Largest error of a decision by the quadrature, in nats.
TOLERANCE = 0.1


def test_decisions_are_audited_with_many_nodes():
    with intercepts_model(simulate_intercepts("logistic", 100_000, 2_500, seed=4), "logistic"):
        step = amc.RacingMetropolis(
            recover=False, audits=amc.Audits(50, max_share=None), progressbar=False
        )
        idata = pm.sample(
            200,
            tune=200,
            chains=2,
            cores=1,
            step=step,
            var_names=["beta", "sd_group"],
            random_seed=3,
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )
    found = amc.decision_error(idata).loc["all"]
    assert found["audited"] == 100 and found["ci_low"] < 0.05
    quadrature = idata.sample_stats["race_quadrature"]
    assert 0.0 < quadrature.max() < 2 * TOLERANCE
    assert (quadrature.diff("draw") >= 0.0).all()
    # Each chain looks for its own largest error.
    assert (quadrature.isel(draw=0) < quadrature.isel(draw=-1)).all()
