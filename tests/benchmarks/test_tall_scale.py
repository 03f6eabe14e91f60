"""The benchmark of 1e4 ... 1e8 rows runs; what it measures is not judged here."""

import sys

import pytest

from benchmarks.harness.jobs import run_command
from benchmarks.tall.memory import MemoryWatch


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
