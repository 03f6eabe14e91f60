"""The benchmark of priors runs; what it measures is not judged here."""

import json
import subprocess
import sys

from pathlib import Path

import pytest

from benchmarks.tall.priors import PROBLEMS
from models.priors import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", EXAMPLES)
def test_models_have_the_variables_they_name(name):
    problem = PROBLEMS[name]
    model = problem.model(problem.make_data(400, 1))
    assert set(problem.variables) <= {v.name for v in model.unobserved_RVs}


@pytest.mark.slow
def test_tall_priors(tmp_path):
    pytest.importorskip("psutil")
    command = [sys.executable, "-m", "benchmarks.tall.priors", "--quick"]
    options = ["--rows", "2e3", "--cap", "10", "--problems", "spline", "spike_slab_30"]
    done = subprocess.run(
        [*command, *options, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    rows = json.loads((tmp_path / "tall_priors.json").read_text())["rows"]
    assert [(r["problem"], r["method"]) for r in rows] == [
        ("spline", "racing"),
        ("spline", "nuts"),
        ("spike_slab_30", "racing"),
    ]
    for row in rows:
        assert not row["status"].startswith("failed")
        assert row["ess_min"] > 0 and row["ess_per_cpu_s"] > 0
    assert "## Against NUTS" in done.stdout
