"""The benchmark of 1e4 ... 1e8 rows runs; what it measures is not judged here."""

import json
import subprocess
import sys

from pathlib import Path

import pytest

from benchmarks.harness.jobs import run_command
from benchmarks.tall.memory import MemoryWatch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_memory_of_all_processes_of_a_session(tmp_path):
    child = "import sys, time, numpy; a = numpy.ones(6_000_000); time.sleep(2.0)"
    code = f"import subprocess, sys; c = [sys.executable, '-c', {child!r}]; "
    code += "p = [subprocess.Popen(c) for _ in range(2)]; [q.wait() for q in p]"
    watch = MemoryWatch(tmp_path / "sampling")
    seen = []

    def look(session):
        seen.append(session)
        if len(seen) == 3:
            watch.sampling.touch()
        watch(session)

    command = [sys.executable, "-c", code]
    status = run_command(command, {"PATH": ""}, tmp_path / "log", 60.0, look)
    assert status == "exit code 0" and len(set(seen)) == 1
    assert 96.0 < watch.peaks["anonymous_mb"] < 400.0
    assert watch.peaks["pss_mb"] <= watch.peaks["rss_mb"] + 1e-9
    assert 0.0 <= watch.peaks["sampling_rss_mb"] <= watch.peaks["rss_mb"]
    assert run_command(command, {"PATH": ""}, tmp_path / "log", 0.5, look).startswith("stopped")


@pytest.mark.slow
def test_tall_scale(tmp_path):
    pytest.importorskip("pyarrow")
    pytest.importorskip("psutil")  # of the extra "benchmarks"
    command = [sys.executable, "-m", "benchmarks.tall.scale", "--quick"]
    command += ["--sizes", "2e3", "--stored", "4e3", "--memory-rows", "2e3", "--draws", "500"]
    options = ["--methods", "hand", "racing", "--out", str(tmp_path), "--scratch", str(tmp_path)]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=True, cwd=ROOT
    )
    rows = json.loads((tmp_path / "tall_scale.json").read_text())["rows"]
    assert [r["method"] for r in rows] == ["hand", "racing", "stored", *["racing:fork"] * 2]
    for found in rows:
        assert found["status"] == "finished"
        assert found["steps_per_s"] > 0 and 0 < found["rows_per_step"] < found["n_rows"]
        assert found["peak_mb"] > found["anonymous_mb"] / found["chains"] / 1.5 > 0
    stored = rows[2]
    assert stored["store_mb"] > 4e3 * 11 * 8 / 1e6 and stored["pass_s"] > 0
    assert "## Rows on disk" in done.stdout
    assert {p.name for p in tmp_path.iterdir()} >= {"tall_scale.md", "tall_scale.csv", "caches"}
