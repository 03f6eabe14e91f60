"""Adapters of other estimators of the evidence; libraries that are not installed are stubbed."""

import math
import sys

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.evidence import peers as bench
from models.beta_binomial import beta_binomial


def nautilus_stub(calls):
    """A module whose sampler averages the likelihood over the prior."""

    class Sampler:
        def __init__(self, prior, likelihood, n_dim, n_live, pass_dict, seed):
            calls.append((n_dim, n_live, pass_dict, seed))
            self.n_like = n_live
            u = (np.arange(n_live) + 0.5) / n_live
            self.logs = np.array([likelihood(prior(np.full(n_dim, v))) for v in u])

        def run(self, verbose):
            assert verbose is False
            self.log_z, self.n_eff = math.log(np.exp(self.logs).mean()), 400.0

    return SimpleNamespace(Sampler=Sampler)


def test_nautilus(monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "nautilus", nautilus_stub(calls))
    problem = beta_binomial()
    found = bench.prepare_nautilus(problem)("1000", 3)
    assert calls == [(1, 1000, False, 3)]
    assert found["log_evidence"] == pytest.approx(problem.log_evidence, abs=1e-3)
    assert (found["mcse"], found["evaluations"]) == (0.05, 1000)


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
