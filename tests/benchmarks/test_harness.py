"""The harness: tables, rows on disk, options, intervals, and the tables of the documents."""

import json
import subprocess
import sys

from pathlib import Path

import numpy as np
import pytest

from benchmarks import tables as command
from benchmarks.harness import intervals, results
from benchmarks.harness.tables import cells, find_tables, markdown

ROOT = Path(__file__).resolve().parents[2]
TABLE = {"headers": ["method", "s"], "rows": [["1|h_sigma", "1 ± 2"], ["", "3,000"]]}


# --- tables --------------------------------------------------------------------------------------


def test_tables_are_read_as_they_are_written():
    text = markdown(TABLE["headers"], TABLE["rows"])
    assert text.splitlines()[-2] == "| 1\\|h_sigma | 1 ± 2 |"
    assert text.splitlines()[-1] == "| | 3,000 |"
    report = f"# All\n\n{text}\n\nWords | words.\n\n{text}\n\n## Costs: in s, on one core\n{text}\n"
    assert find_tables(report) == {"all": TABLE, "all_2": TABLE, "costs": TABLE}
    assert find_tables(text) == {"table": TABLE}
    assert cells("| a | b |") == ["a", "b"]


def test_committed_tables_are_those_of_the_documents():
    marked = 0
    for path in command.documents():
        text = path.read_text(encoding="utf-8")
        assert command.rewritten(text) == text, f"{path.name}: run python -m benchmarks.tables"
        assert text.count("<!-- table: ") == text.count("<!-- end -->")
        marked += text.count("<!-- table: ")
    assert marked >= 10


def test_every_committed_file_is_used_and_says_where_it_is_from():
    texts = "".join(path.read_text(encoding="utf-8") for path in command.documents())
    files = sorted(results.RECORDED.glob("*.json"))
    assert files
    for path in files:
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["command"].startswith("python -m benchmarks.")
        assert found.get("transcribed") or (found["date"] and found["versions"])
        assert results.dump(found) == path.read_text(encoding="utf-8")
        for name, table in found["tables"].items():
            if found.get("transcribed"):
                assert f"<!-- table: {path.stem}/{name} -->" in texts
            assert all(len(row) == len(table["headers"]) for row in table["rows"])


# --- intervals -----------------------------------------------------------------------------------


def test_bootstrap_is_as_wide_as_the_error_of_a_mean():
    x = np.random.default_rng(2).normal(3.0, 1.0, 400)
    found = intervals.bootstrap(lambda i: float(x[i].mean()), x.size)
    half = 1.96 * x.std() / 20.0
    assert found.value == pytest.approx(x.mean())
    assert found.high - found.low == pytest.approx(2.0 * half, rel=0.1)


# --- command lines -------------------------------------------------------------------------------


def test_scripts_run_as_modules_and_as_files():
    for how in (["-m", "benchmarks.evidence.modes"], ["benchmarks/evidence/modes.py"]):
        done = subprocess.run(
            [sys.executable, *how, "--help"], capture_output=True, text=True, check=True, cwd=ROOT
        )
        assert "--quick" in done.stdout
