"""The benchmark of tall data in groups runs; what it measures is not judged here."""

import json
import math
import subprocess
import sys

from pathlib import Path

import numpy as np
import pytest

from benchmarks.tall.grouped_problems import PROBLEMS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", [name for name in PROBLEMS if not name.startswith("flights")])
def test_problems_make_models_with_the_variables_they_name(name):
    problem = PROBLEMS[name]
    data = problem.make_data(400, 1)
    for options in [(), ("noncentred",)] if problem.parameterised else [()]:
        model = problem.model(data, options)
        assert set(problem.variables) <= {v.name for v in model.unobserved_RVs}
    batches = problem.batches(data, 50)
    assert {v.name for v in batches.free_RVs} == {v.name for v in problem.model(data).free_RVs}
    if problem.terms is not None:
        terms = problem.terms(data)
        assert terms.X.shape[0] == terms.y.size == 400
        assert all(terms.index[f].max() < size for f, size in terms.sizes.items())


@pytest.mark.slow
def test_tall_grouped(tmp_path):
    pytest.importorskip("psutil")
    command = [sys.executable, "-m", "benchmarks.tall.grouped", "--quick"]
    options = ["--sizes", "2e3", "--cap", "5", "--problems", "intercepts", "--out", str(tmp_path)]
    methods = ["--methods", "nuts", "nuts:noncentred", "advi", "lme4"]
    done = subprocess.run(
        [*command, *options, *methods], capture_output=True, text=True, check=True, cwd=ROOT
    )
    rows = json.loads((tmp_path / "tall_grouped.json").read_text())["rows"]
    nuts, noncentred, advi, lme4 = rows
    for row in (nuts, noncentred, advi):
        assert not row["status"].startswith("failed")
        assert row["peak_mb"] > 50 and row["sample_cpu_s"] > 0 and row["setup_cpu_s"] > 0
        assert 0.1 < row["hyper"]["sd_group"][0] < 3.0
    for row in (nuts, noncentred):
        assert row["ess_min"] > 0 and row["ess_per_cpu_s"] > 0 and row["ess_min_of"]
        assert np.isfinite(row["r_hat"])
    assert math.isnan(advi["ess_min"])
    assert lme4["status"] == "R is not installed" or "hyper" in lme4
    assert "## Against NUTS" in done.stdout
    assert (tmp_path / "tall_grouped.csv").exists()
