import json
import math
import subprocess
import sys

from pathlib import Path

import numpy as np
import pytest

from amc_pymc.kernels import Tuning
from benchmarks.evidence import methods, suite
from benchmarks.evidence.by_hand import NumpyLogistic, anneal_by_hand
from models.beta_binomial import beta_binomial
from models.logistic_regression import logistic_regression, simulate

ROOT = Path(__file__).resolve().parents[2]


# --- the book and the plan -----------------------------------------------------------------------


def book(tmp_path, rows):
    kept = suite.book_of(tmp_path, resume=True)
    kept.add(*rows)
    return kept


# --- runs ----------------------------------------------------------------------------------------


def test_dynesty():
    pytest.importorskip("dynesty")
    problem = beta_binomial()
    found = methods.prepare_dynesty(problem)("50", 1)
    assert abs(found["log_evidence"] - problem.log_evidence) < 4.0 * found["mcse"] < 1.5
    assert found["evaluations"] > 50


# --- by hand -------------------------------------------------------------------------------------


def test_logistic_by_hand_is_that_of_the_suite():
    X, y = simulate(50, 8)
    theta = np.random.default_rng(2).normal(size=8)
    expected = logistic_regression().log_likelihood(theta)
    assert NumpyLogistic(X, y).values(theta[None])[1, 0] == pytest.approx(expected, rel=1e-12)


def test_annealing_by_hand():
    X, y = simulate(12, 1)
    path = NumpyLogistic(X, y)
    grid = np.linspace(-25.0, 25.0, 20_001)[:, None]
    truth = math.log(np.exp(path.values(grid).sum(axis=0)).sum() * 50.0 / 20_000)
    betas, rng = np.linspace(0.0, 1.0, 6) ** 2, np.random.default_rng(3)
    tunings = [Tuning(1.0, np.array([[1.2]]))] * 4
    x = path.draw_prior(20_000, rng)
    w = np.exp(anneal_by_hand(path, x, betas, tunings, rng) - truth)
    assert abs(w.mean() - 1.0) < 4.0 * w.std() / math.sqrt(w.size)
    assert w.std() < 0.7 * np.exp(path.values(x)[1] - truth).std()  # importance sampling


# --- end to end ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_script(tmp_path):
    pytest.importorskip("dynesty")
    script = [sys.executable, "-m", "benchmarks.evidence.suite", "--out", str(tmp_path)]
    chosen = ["--problems", "beta_binomial", "--seeds", "2", "--targets", "0.05", "--methods"]
    methods = ["estimate_evidence", "sample_smc:100", "dynesty:30"]

    def run(*options):
        done = subprocess.run(
            [*script, *options], capture_output=True, text=True, check=True, cwd=ROOT
        )
        return done.stdout, json.loads((tmp_path / "evidence_suite.json").read_text())["rows"]

    text, rows = run(*chosen, *methods, "--cold")
    runs = [r for r in rows if r["kind"] == "run"]
    assert len(runs) == 6 and all(r["status"] == "finished" for r in runs)
    assert {r["caches"] for r in rows if r["kind"] == "start"} >= {"warm", "cold"}
    assert "sample_smc:100" in text
    _, again = run(*chosen, *methods, "--coverage", "--seeds", "3", "--resume")
    assert len([r for r in again if r["kind"] == "run"]) == 7
    assert (tmp_path / "evidence_suite.csv").exists()
