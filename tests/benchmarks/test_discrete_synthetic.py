"""The benchmark of synthetic discrete variables runs; what it measures is not judged here."""

import csv
import subprocess
import sys

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def test_quick(tmp_path):
    command = [sys.executable, "-m", "benchmarks.papers.discrete_synthetic", "--quick"]
    done = subprocess.run(
        [*command, "--arms", "2", "10", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "## Statements" in done.stdout
    with (tmp_path / "discrete_synthetic.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * (27 * 5 + 9)
    assert all(0.0 < float(r["share"]) <= 1.0 for r in rows)
    assert all(float(r["low"]) <= float(r["error"]) <= float(r["high"]) for r in rows)
