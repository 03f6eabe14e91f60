"""A small run of the benchmark of exact decisions."""

import json
import subprocess
import sys

import pytest

from benchmarks.harness.jobs import ROOT
from benchmarks.tall.exact import METHODS, MODELS, data_of, model_of


@pytest.mark.parametrize("kind", MODELS)
def test_data_and_models(kind):
    data = data_of(kind, 4, 500, 1)
    assert (data["X"][:, 0] == 1.0).all() and len(set(data["y"])) > 1
    model = model_of(kind, data)
    start = model.initial_point()
    assert abs(float(model.compile_logp()(start))) < 5_000.0
    assert sum(v.size for v in start.values()) == {"negative_binomial": 5, "ordered": 6}.get(
        kind, 4
    )


@pytest.mark.slow
def test_tall_exact(tmp_path):
    command = [sys.executable, "-m", "benchmarks.tall.exact", "--quick", "--out", str(tmp_path)]
    subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    rows = json.loads((tmp_path / "tall_exact.json").read_text())["rows"]
    assert [r["method"] for r in rows] == list(METHODS)
    assert all(r["status"] == "finished" and r["ess_per_cpu_s"] > 0 for r in rows)
    exact, raced = rows[:2]
    assert exact["rows_per_step"] < 10.0 < raced["rows_per_step"]
