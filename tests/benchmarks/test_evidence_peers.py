"""Adapters of other estimators of the evidence; libraries that are not installed are stubbed."""

import pytest

from benchmarks.evidence import peers as bench
from models.beta_binomial import beta_binomial


@pytest.fixture(scope="module")
def short():
    """Less of NUTS than a benchmark wants."""
    pytest.importorskip("nutpie")
    patch = pytest.MonkeyPatch()
    original = bench.nuts
    patch.setattr(
        bench, "nuts", lambda compiled, seed: original(compiled, seed, draws=200, tune=200)
    )
    yield
    patch.undo()


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_bridge():
    problem = beta_binomial()
    found = bench.prepare_bridge(problem)("0.05", 1)
    assert abs(found["log_evidence"] - problem.log_evidence) < 5.0 * found["mcse"] < 0.5
    assert found["lower"] < found["log_evidence"] < found["upper"]
    assert found["evaluations"] >= found["gradients"] > 4 * 400  # a gradient for each step of NUTS
    assert 0.0 < found["nuts_cpu_s"] < found["cpu_s"]
