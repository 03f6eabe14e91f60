"""Every script runs at its smallest setting, and its figures are where they must lie."""

import json
import math
import subprocess
import sys

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from benchmarks.harness.jobs import ROOT
from benchmarks.papers.abc_tree import PARTS
from benchmarks.tall.exact import METHODS
from models.logistic_regression import simulate

pytestmark = pytest.mark.slow


def finished(rows):
    assert all(r["status"] == "finished" for r in rows)


def not_failed(rows):
    assert not any(r["status"].startswith("failed") for r in rows)


def logistic(rows, text):
    not_failed(rows)
    by_method = {row["method"]: row for row in rows}
    assert set(by_method) == {"racing", "nuts", "metropolis"}
    assert all(r["ess_bulk"] > 0 and r["peak_mb"] > 50 and r["sample_s"] > 0 for r in rows)
    racing = by_method["racing"]
    assert 0.8 < racing["sd_ratio_min"] <= racing["sd_ratio_max"] < 1.25
    assert 0.0 < racing["rows_share"] < 1.0 and racing["audited"] > 0


def hard(rows, text):
    racing, skipped = rows
    assert racing["status"] == "finished" or racing["status"].startswith("stopped")
    assert abs(racing["bias_mean"]) < 1.0 and skipped["status"] == "-"


def discrete(rows, text):
    not_failed(rows)
    assert [r["method"] for r in rows] == ["gibbs", "gibbs:exact", "pymc_gibbs"]
    racing, exact, _ = rows
    assert racing["rows_per_element"] < exact["rows_per_element"] == 2_000
    assert abs(racing["bias_mean"]) < 5 * racing["bias_mean_mcse"] + 0.05


def exact(rows, text):
    finished(rows)
    assert [r["method"] for r in rows] == list(METHODS)
    assert all(r["ess_per_cpu_s"] > 0 for r in rows)
    read = [r["rows_share"] * r["n_rows"] for r in rows]
    assert read[0] < 10.0 < read[1]


def grouped(rows, text):
    nuts, noncentred, advi, lme4 = rows
    not_failed((nuts, noncentred, advi))
    for row in (nuts, noncentred, advi):
        assert row["sample_cpu_s"] > 0 and 0.1 < row["hyper"]["sd_group"][0] < 3.0
    assert all(r["ess_min"] > 0 and np.isfinite(r["r_hat"]) for r in (nuts, noncentred))
    assert math.isnan(advi["ess_min"])
    assert lme4["status"] == "R is not installed" or "hyper" in lme4


def scale(rows, text):
    finished(rows)
    assert [r["method"] for r in rows] == ["hand", "racing", "stored", *["racing:fork"] * 2]
    for found in rows:
        assert found["steps_per_s"] > 0 and 0 < found["rows_per_step"] < found["n_rows"]
        assert found["peak_mb"] > found["anonymous_mb"] / found["chains"] / 1.5 > 0
    assert rows[2]["store_mb"] > 4e3 * 11 * 8 / 1e6 and rows[2]["pass_s"] > 0


def first_draw(rows, text):
    finished(rows)
    for found in rows:
        assert found["cold_cpu_s"] > found["warm_cpu_s"] > found["warm_step_cpu_s"] > 0


def discrete_synthetic(rows, text):
    assert len(rows) == 2 * (27 * 4 + 9)
    assert all(0.0 < r["share"] <= 1.0 and r["low"] <= r["error"] <= r["high"] for r in rows)


def coreference(rows, text):
    assert len(rows) == 4
    for row in rows:
        assert row["f1"] > 0.7
        assert row["method"] == "exact" or row["saving_near_convergence"] > 2.5
        assert row["error_low"] <= row["delta"] or not row["audited"]


def statements(least):
    def check(rows, text):
        assert len(rows) >= least and {r["holds"] for r in rows} <= {"yes", "no"}
        assert " nan" not in text

    return check


def abc_tree(rows, text):
    statements(50)(rows, text)
    assert all(f"{part} " in text.splitlines()[-1] for part in PARTS)


def suite(rows, text):
    runs = [r for r in rows if r["kind"] == "run"]
    finished(runs)
    assert len(runs) == 4 and "sample_smc:100" in text
    own = [r for r in runs if r["method"].startswith("estimate_evidence")]
    assert all(abs(r["log_evidence"] + math.log(11)) < 5.0 * r["mcse"] for r in own)


def functions(rows, text):
    *folders, whole = rows
    assert whole["functions"] == sum(r["functions"] for r in folders) <= 200
    assert whole["files"] == sum(r["files"] for r in folders) <= 25
    assert {"engine", "reading", "steps", "tall"} <= {r["folder"] for r in folders}


class Script(NamedTuple):
    """Options beside --quick and --out, and what rows and printed text must be."""

    options: str
    check: Callable
    needs: tuple[str, ...] = ()


SMALL = "--cap 5 --reference-cap 30"
SCRIPTS = {
    "tall.logistic": Script(
        f"--sizes 2e3 {SMALL} --methods racing nuts metropolis", logistic, ("psutil", "numpyro")
    ),
    "tall.hard": Script(
        f"--rows 2e3 {SMALL} --problems outliers --methods racing hmcecs",
        hard,
        ("psutil", "numpyro"),
    ),
    "tall.discrete": Script("--sizes 2e3 --cap 5 --problems indicators", discrete, ("psutil",)),
    "tall.exact": Script("", exact),
    "tall.grouped": Script(
        "--sizes 2e3 --cap 5 --problems intercepts --methods nuts nuts:noncentred advi lme4",
        grouped,
        ("psutil",),
    ),
    "tall.scale": Script(
        "--sizes 2e3 --stored 4e3 --memory-rows 2e3 --draws 500 --methods hand racing "
        "--scratch {out}",
        scale,
        ("pyarrow", "psutil"),
    ),
    "tall.first_draw": Script("--shapes negative_binomial --methods racing nutpie", first_draw),
    "tall.functions": Script("", functions),
    "papers.discrete_synthetic": Script("--arms 2 10", discrete_synthetic),
    "papers.coreference": Script("", coreference),
    "papers.bandits": Script("--steps 300", statements(30)),
    "papers.abc_tree": Script("", abc_tree),
    "papers.adaptive_ais": Script(
        "--data {out}/pima.csv --steps 4 16 64 --bank 80 60 40 --raw-bank 60 50 40 --runs 10 "
        "--kernel-draws 30 --budget 20",
        statements(28),
    ),
    "evidence.suite": Script(
        "--problems beta_binomial --seeds 2 --targets 0.05 "
        "--methods estimate_evidence sample_smc:100",
        suite,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name, tmp_path):
    script = SCRIPTS[name]
    for library in script.needs:
        pytest.importorskip(library)
    if name == "papers.adaptive_ais":
        X, y = simulate(768, 8)
        table = np.column_stack([1.0 + 2.0 * X, y])
        np.savetxt(tmp_path / "pima.csv", table, delimiter=",")
    quick = [] if name == "evidence.suite" else ["--quick"]
    options = script.options.format(out=tmp_path).split()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *quick, "--out", str(tmp_path), *options],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    (found,) = tmp_path.glob("*.json")
    script.check(json.loads(found.read_text())["rows"], done.stdout)
