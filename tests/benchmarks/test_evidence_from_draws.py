import json
import math
import subprocess
import sys

from pathlib import Path

import numpy as np
import pytest

from scipy.special import expit
from scipy.stats import norm

from benchmarks.evidence import from_draws as bench

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_logistic_regression():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((20, 1)), (rng.random(20) < 0.5).astype(float)
    beta = np.linspace(-8.0, 8.0, 4001)
    p = expit(X * beta)
    likelihood = np.prod(np.where(y[:, None] > 0.0, p, 1.0 - p), axis=0)
    exact = math.log(np.sum(likelihood * norm.pdf(beta)) * (beta[1] - beta[0]))
    found, error = bench.logistic_log_evidence(X, y)
    assert 0.0 < error < 0.01
    assert abs(found - exact) < 4.0 * error


@pytest.mark.slow
def test_the_script_runs(tmp_path):
    pytest.importorskip("nutpie")
    options = ["--quick", "--problems", "regression_10", "--seeds", "2", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.evidence.from_draws", *options],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert "regression_10" in done.stdout
    rows = json.loads((tmp_path / "evidence_from_draws.json").read_text())["rows"]
    assert len(rows) == 2
    assert all(abs(r["error"]) < 5.0 * r["mcse"] for r in rows)
