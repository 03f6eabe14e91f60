"""The benchmarks run from end to end; what they measure is not judged here."""

import json
import subprocess
import sys

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
# The extra "benchmarks" brings what they need beside the package.
pytest.importorskip("psutil")
pytest.importorskip("numpyro")

ROOT = Path(__file__).resolve().parents[2]


def run(script, out, *options):
    command = [sys.executable, "-m", f"benchmarks.tall.{script}", "--quick", "--out", str(out)]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=True, cwd=ROOT
    )
    found = json.loads((out / f"tall_{script}.json").read_text())
    return done.stdout, found["rows"]


def test_tall_logistic(tmp_path):
    text, rows = run(
        "logistic",
        tmp_path,
        *("--sizes", "2e3", "--cap", "5", "--reference-cap", "30"),
        *("--methods", "racing", "nuts", "metropolis"),
    )
    by_method = {row["method"]: row for row in rows}
    assert set(by_method) == {"racing", "nuts", "metropolis"}
    for row in rows:
        assert not row["status"].startswith("failed")
        assert row["peak_mb"] > 50
        assert row["ess_bulk"] > 0
        assert row["setup_s"] >= 0 and row["sample_s"] > 0
    racing = by_method["racing"]
    assert 0.8 < racing["sd_ratio_min"] <= racing["sd_ratio_max"] < 1.25
    assert 0.0 < racing["rows_share"] < 1.0
    assert racing["audited"] > 0
    assert "## Against NUTS" in text
    assert (tmp_path / "tall_logistic.csv").exists()


def test_tall_hard(tmp_path):
    text, rows = run(
        "hard",
        tmp_path,
        *("--rows", "2e3", "--cap", "5", "--reference-cap", "30"),
        *("--problems", "outliers", "--methods", "racing", "hmcecs"),
    )
    racing, skipped = rows
    assert racing["status"] == "finished" or racing["status"].startswith("stopped")
    assert abs(racing["bias_mean"]) < 1.0
    assert skipped["status"] == "-"
    assert "Student-t" in text
