"""The benchmark of first draws runs; what it measures is not judged here."""

import json
import subprocess
import sys

from pathlib import Path

import pytest

from benchmarks.tall import first_draw as bench

ROOT = Path(__file__).resolve().parents[2]


def run(out, *options):
    command = [sys.executable, "-m", "benchmarks.tall.first_draw", "--quick"]
    options = [*options, "--out", str(out), "--package-kernels", str(out / "kernels")]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout, json.loads((out / "first_draw.json").read_text())["rows"]


@pytest.mark.slow
def test_first_draw(tmp_path):
    kernels = tmp_path / "kernels"  # of the package: none, and so compiled in the cold run
    kernels.mkdir()
    (kernels / "source").write_text(bench.package_digest())
    shape = ["--shapes", "negative_binomial", "--methods", "racing", "nutpie", "--profile"]
    text, rows = run(tmp_path, *shape)
    for found in rows:
        assert found["status"] == "finished"
        assert found["cold_cpu_s"] > found["warm_cpu_s"] > found["warm_step_cpu_s"] > 0
        assert found["shared_cpu_s"] > 0
        assert found["warm_import_pymc_cpu_s"] > 0
    assert "cumulative" in text and "## Imports" in text
    assert (tmp_path / "profiles" / "negative_binomial-racing-warm.prof").exists()
    assert (tmp_path / "first_draw.csv").exists()
