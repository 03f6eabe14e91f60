"""The benchmark of discrete variables runs from end to end; what it measures is not judged here."""

import json
import subprocess
import sys

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("psutil")

ROOT = Path(__file__).resolve().parents[2]


def test_tall_discrete(tmp_path):
    command = [sys.executable, "-m", "benchmarks.tall.discrete", "--quick"]
    options = ["--sizes", "2e3", "--cap", "5", "--problems", "indicators", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=True, cwd=ROOT
    )
    rows = json.loads((tmp_path / "tall_discrete.json").read_text())["rows"]
    assert [r["method"] for r in rows] == ["gibbs", "gibbs:exact", "pymc_gibbs"]
    for row in rows:
        assert not row["status"].startswith("failed")
        assert row["ess_bulk"] > 0
    racing, exact, _ = rows
    assert racing["rows_per_element"] < exact["rows_per_element"] == 2_000
    assert abs(racing["bias_mean"]) < 5 * racing["bias_mean_mcse"] + 0.05
    assert "## Against PyMC's Gibbs steps" in done.stdout
