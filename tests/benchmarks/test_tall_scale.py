"""The benchmark of 1e4 ... 1e8 rows runs; what it measures is not judged here."""

import json
import subprocess
import sys

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.jobs import run_command
from benchmarks.tall import scale as bench
from benchmarks.tall.memory import MemoryWatch
from benchmarks.tall.problems import Job, logistic_chunks, tall_logistic_data
from benchmarks.tall.scale_worker import coefficients

ROOT = Path(__file__).resolve().parents[2]


def row(method="racing", steps=800.0, **changes):
    """What has been measured of a method."""
    about = {"problem": "logistic_10", "columns": 10, "n_rows": 1_000_000, "method": method}
    about |= {"family": method.split(":")[0], "chains": 1, "cores": 1, "status": "finished"}
    times = {"setup_s": 1.0, "setup_cpu_s": 2.0, "peak_mb": 900.0, "anonymous_mb": 500.0}
    found = {"steps_per_s": steps, "ess_per_cpu_s": 11_000.0, "rows_per_step": 130.0}
    return {**about, **times, **found, "parameters": {"mean": [1.5]}, **changes}


def test_data_in_chunks_are_those_in_one_piece():
    data = tall_logistic_data(250_000, 3)
    parts = list(logistic_chunks(250_000, 3, coefficients(10)))
    assert len(parts) == 2
    for key in ("X", "y"):
        np.testing.assert_array_equal(np.concatenate([p[key] for p in parts]), data[key])
    sizes = [np.sum(coefficients(d) ** 2) for d in (10, 50)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.2)


def test_jobs():
    jobs = list(
        bench.jobs(bench.arguments(["--stored", "1e8", "--columns", "10", "--memory", "spawn"]))
    )
    assert [j.n_rows for j in jobs if j.method == "racing"] == [10**4, 10**5, 10**6, 10**7]
    assert [j.n_rows for j in jobs if j.method == "stored"] == [10**8]
    assert [(j.method, j.chains) for j in jobs[-2:]] == [("racing:spawn", 1), ("racing:spawn", 4)]
    quick = bench.arguments(["--quick", "--columns", "3"])
    assert (quick.columns, quick.sizes, quick.memory) == ([3], ["1e4"], ["fork"])


def test_tables():
    hand = row("hand", 1_000.0, laplace={"mean": [1.0], "sd": [2.0]})
    one = row("racing:fork", cores=4, sampling_pss_mb=100.0, sampling_anonymous_mb=90.0)
    four = one | {"chains": 4, "sampling_pss_mb": 140.0}
    stored = row("stored", n_rows=10**8, seconds={"store": 3.0}, peak_mb=1_600.0)
    job = Job("logistic_10", "racing:10", 1_000_000, 1, 1.0)
    failed = bench.figures({**asdict(job), "status": "failed"})
    rows = [hand, row(), failed, stored, one, four]
    assert bench.line(rows[1], rows)[4] == "0.8" and bench.line(rows[1], rows)[11] == "0.25"
    assert bench.line(failed, rows)[3:5] == ["-", "-"]
    assert bench.memory_line(four, rows)[2:5] == ["4", "140", "1.4"]
    assert bench.stored_line(stored)[5] == "3"
    assert [met for _, _, met in bench.aims(rows)] == ["yes", "yes", "no", "no"]
    text = bench.report(rows, bench.arguments([]))
    assert "## Rows on disk" in text and "## Memory of chains" in text


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
