import importlib.util
import json
import math

from pathlib import Path

import numpy as np
import pytest

from benchmarks.abc import measures as measures
from benchmarks.abc import methods as methods
from benchmarks.abc import peers as bench

# --- measures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_classifier_between_equal_and_disjoint(published):
    rng, n = np.random.default_rng(1), 2000
    x, same = rng.normal(size=(2, n, 2))
    found = measures.c2st(same, x, published=published)
    assert abs(found - 0.5) < 4.0 * 0.5 / math.sqrt(2 * n)
    assert measures.c2st(same + 6.0, x, published=published) > 0.99


# --- rows and tables -----------------------------------------------------------------------------


@pytest.mark.slow
def test_quick_run_and_resumption(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    methods = ["tree", "rejection", "smc"] + ["pyabc"] * bool(importlib.util.find_spec("pyabc"))
    arguments = ["--quick", "--draws", "500", "--out", str(path)]
    arguments += ["--methods", *methods]
    bench.main(arguments)
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert len(rows) == 2 + len(methods)  # ours with two seeds
    assert all(row["status"] == "finished" for row in rows)
    spent = {row["method"]: row["simulations"] for row in rows}
    # 126 of the budget are tests of the simulator
    assert spent["tree"] == spent["rejection"] == 1000 - 126
    assert 400 < spent.get("pyabc", 1000) < 2000
    assert 400 < spent["smc"] < 3000
    tolerance = {row["method"]: row["tolerance"] for row in rows if row["seed"] == 1}
    assert tolerance["tree"] < tolerance["rejection"]
    bench.main(arguments)
    assert len(Path(path).read_text().splitlines()) == len(rows)
    assert methods[-1] in capsys.readouterr().out
