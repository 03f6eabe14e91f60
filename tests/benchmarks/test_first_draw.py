"""The benchmark of first draws runs; what it measures is not judged here."""

import json
import subprocess
import sys

from pathlib import Path

import pytest

from benchmarks.tall import first_draw as bench

ROOT = Path(__file__).resolve().parents[2]


def row(method="racing", factor=1.0, **changes):
    """What has been measured of a shape."""
    seconds = dict(zip(bench.STATES, (4.0, 2.0, 3.0), strict=True))
    keys = ("cpu_s", "wall_s", "step_cpu_s")
    times = {f"{state}_{key}": factor * s for state, s in seconds.items() for key in keys}
    imports = {f"{s}_import_pymc_{k}": 0.5 for s in bench.STATES for k in ("cpu_s", "wall_s")}
    about = {"shape": "normal_mixture", "method": method, "status": "finished"}
    return {**about, **times, **imports, **changes}


def test_tables():
    failed = {"shape": "hsgp_regression", "method": "racing", "status": "cold: failed: why"}
    rows = [row(), row(factor=3.0), failed, row("pm.sample")]
    assert bench.line(rows[0])[2:] == ["4", "4", "2", "2", "3", "3", "4", "2", "3", "finished"]
    assert bench.line(failed)[2:] == ["-"] * 9 + ["cold: failed: why"]
    assert bench.line(rows[3])[8:11] == ["-"] * 3  # pm.sample makes its step itself
    _, lines = bench.by_method(rows)
    assert lines[0] == ["racing", "2", "8 (12)", "8 (12)", "4 (6)", "4 (6)", "6 (9)", "6 (9)"]
    headers, lines = bench.by_shape([*rows[1:3], row("pm.sample")])
    assert headers[1:4] == [f"racing, {state}" for state in bench.STATES] and len(headers) == 7
    assert [line[1:] for line in lines if line[0] == "hsgp_regression"] == [["-"] * 6]
    assert [line[1:] for line in lines if line[0] != "hsgp_regression"] == [
        ["12", "6", "9", "4", "2", "3"]
    ]
    assert bench.import_times(rows)[1] == [["import pymc", "0.5", "0.5"]]


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
