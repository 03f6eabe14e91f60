import importlib.util
import json
import math

from pathlib import Path

import numpy as np
import pytest

from scipy.special import ndtri

from benchmarks.abc import measures as measures
from benchmarks.abc import methods as methods
from benchmarks.abc import peers as bench

# --- measures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "classifier",
    [
        "trees",
        pytest.param("mlp", marks=pytest.mark.slow),
        pytest.param("published", marks=pytest.mark.slow),
    ],
)
def test_classifier_between_equal_and_disjoint(classifier):
    rng, n = np.random.default_rng(1), 2000
    x, same = rng.normal(size=(2, n, 2))
    found = measures.c2st(same, x, classifier=classifier)
    assert abs(found - 0.5) < 4.0 * 0.5 / math.sqrt(2 * n)
    assert measures.c2st(same + 6.0, x, classifier=classifier) > 0.99


def test_wasserstein_of_a_shift():
    rng = np.random.default_rng(5)
    x = 3.0 * rng.normal(size=(4000, 1))
    assert measures.sliced_wasserstein(x + 2.0, x, rng) == pytest.approx(2.0 / x.std())
    y = rng.normal(size=(1000, 2))
    shift, slices = np.array([0.6, 0.8]) * y.std(axis=0), 2000
    found = measures.sliced_wasserstein(y + shift, y, rng, slices)
    # abs(cos) of a uniform angle has mean 2 / pi and variance 1 / 2 - 4 / pi^2.
    error = math.sqrt((0.5 - 4.0 / math.pi**2) / slices)
    assert abs(found - 2.0 / math.pi) < 4.0 * error


def test_quantiles_with_importance_weights():
    rng, n = np.random.default_rng(8), 20_000
    x = 2.0 * rng.normal(size=(n, 1))
    weights = np.exp(-0.5 * x[:, 0] ** 2 * (1.0 - 0.25))
    levels = np.array([0.25, 0.5, 0.75])
    error = 0.5 / math.sqrt(measures.effective(weights)) / np.exp(-0.5 * ndtri(levels) ** 2) * 2.51
    assert (
        np.abs(measures.weighted_quantiles(x, weights, levels)[:, 0] - ndtri(levels)) < 4 * error
    ).all()


# --- rows and tables -----------------------------------------------------------------------------


@pytest.mark.slow
def test_quick_run_and_resumption(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    methods = ["tree", "rejection", "smc"] + ["pyabc"] * bool(importlib.util.find_spec("pyabc"))
    arguments = ["--quick", "--draws", "500", "--mlp-seeds", "0", "--out", str(path)]
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
