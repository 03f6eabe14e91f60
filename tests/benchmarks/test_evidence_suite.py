import json
import logging
import math
import subprocess
import sys
import time
import warnings

from pathlib import Path

import numpy as np
import pymc as pm
import pytest

from scipy.stats import binomtest, norm

from amc_pymc.evidence.mcmc import Tuning
from benchmarks.evidence import methods, runs, suite, summaries, tables, worker
from benchmarks.evidence.by_hand import NumbaLogistic, NumpyLogistic, anneal_by_hand
from benchmarks.evidence.worker import Job, Wanted
from benchmarks.harness.intervals import clopper_pearson
from benchmarks.harness.smc import Stages, measured_kernel
from models.beta_binomial import beta_binomial
from models.logistic_regression import logistic_regression, simulate

ROOT = Path(__file__).resolve().parents[2]


def row(off=0.0, mcse=0.1, *, seed=1, method="estimate_evidence:0.01", problem="p", **changes):
    """A finished run that is off by so much."""
    about = {"n_dim": 2, "truth": -3.0, "reference_error": 0.0, "easy": True, "status": "finished"}
    found = {
        "log_evidence": -3.0 + off,
        "mcse": mcse,
        "lower": -3.0 + off - 1.96 * mcse,
        "upper": -3.0 + off + 1.96 * mcse,
        "cpu_s": 0.5,
        "setup_s": 0.25,
        "evaluations": 1000,
        "gradients": 100,
        "flags": [],
    }
    own = {"kind": "run", "problem": problem, "method": method, "seed": seed}
    return {**about, **found, **own, **changes}


# --- summaries -----------------------------------------------------------------------------------


def test_summary():
    offs, cpu = [0.3, -0.1, 0.2], [1.0, 2.0, 6.0]
    rows = [row(o, cpu_s=c, seed=i) for i, (o, c) in enumerate(zip(offs, cpu, strict=True))]
    found = summaries.summarise([*rows, row(seed=9, status="stopped after 1 CPU s")])
    assert (found["runs"], found["planned"]) == (3, 4)
    assert found["status"] == "stopped after 1 CPU s"
    assert found["bias"] == pytest.approx(np.mean(offs))
    assert found["bias_error"] == pytest.approx(np.std(offs, ddof=1) / math.sqrt(3))
    assert found["rmse"] == pytest.approx(math.sqrt(0.14 / 3))
    assert found["fom"] == pytest.approx(3.0 * 0.14 / 3)
    assert found["cpu_median_s"] == 2.0
    assert found["largest_z"] == pytest.approx(3.0)


def test_error_of_rmse():
    rng = np.random.default_rng(1)
    found = [
        summaries.summarise([row(o, seed=i) for i, o in enumerate(rng.normal(size=50))])
        for _ in range(300)
    ]
    spread = np.std([f["rmse"] for f in found])
    assert np.mean([f["rmse_error"] for f in found]) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "failures"),
    [
        ({"off": 0.49}, 0),
        ({"off": 0.51}, 1),
        ({"off": -0.51}, 1),
        ({"off": 0.51, "flags": ["estimators disagree"]}, 0),
        ({"off": 0.51, "reference_error": 0.05}, 0),
        ({"off": math.nan}, 1),
        ({"off": -math.inf, "flags": ["all weights are zero"]}, 0),
        ({"off": 0.1, "mcse": 0.0}, 1),
        ({"off": 0.0, "mcse": 0.0}, 0),
    ],
)
def test_unflagged_failures(changes, failures):
    assert summaries.summarise([row(**{"mcse": 0.1, **changes})])["failures"] == failures


def test_figure_of_merit_over_ours():
    rows = [
        row(0.1, method="estimate_evidence:0.05"),
        row(0.01, method="estimate_evidence:0.01"),
        row(0.1, method="sample_smc:1000", cpu_s=1.0),
        row(0.2, method="dynesty:500", problem="alone"),
    ]
    found = summaries.summaries(rows)
    assert found["p", "sample_smc:1000"]["ratio"] == pytest.approx(200.0)
    assert found["p", "estimate_evidence:0.05"]["ratio"] == pytest.approx(100.0)
    assert found["p", "estimate_evidence:0.01"]["ratio"] == 1.0
    assert "ratio" not in found["alone", "dynesty:500"]


def test_starts():
    start = {"kind": "start", "problem": "p", "method": "sample_smc:1000", "status": "finished"}
    parts = {
        "import_s": 1.0,
        "build_s": 0.5,
        "first_s": 2.0,
        "first_cpu_s": 3.0,
        "start_cpu_s": 4.0,
    }
    rows = [
        row(0.1, method="sample_smc:1000"),
        {**start, **parts, "caches": "warm", "seed": 1},
        {**start, **parts, "caches": "warm", "seed": 2, "status": "failed (exit code 1)"},
        {**start, **parts, "caches": "filled", "seed": 3, "first_s": 99.0},
        {**start, **parts, "caches": "cold", "seed": 1, "first_s": 20.0, "first_cpu_s": 19.0},
    ]
    found = summaries.summaries(rows)["p", "sample_smc:1000"]
    assert (found["warm_start_s"], found["cold_start_s"]) == (3.5, 21.5)
    assert found["warm_start_cpu_s"] == 4.0
    assert (found["warm_compile_s"], found["cold_compile_s"]) == (2.25, 18.25)


# --- coverage ------------------------------------------------------------------------------------


def normal_rows(n, sd, mcse, seed=1, **changes):
    offs = np.random.default_rng(seed).normal(0.0, sd, n)
    return [row(o, mcse, seed=i, **changes) for i, o in enumerate(offs)]


def test_coverage():
    (found,) = summaries.coverage(normal_rows(2000, 0.02, 0.01))
    expected = 1.0 - 2.0 * norm.sf(0.98)
    assert found["low"] < expected < found["high"]
    assert found["sd_z"] == pytest.approx(2.0, rel=0.1)
    assert found["width"] == pytest.approx(0.5, rel=0.1)
    assert abs(found["mean"] - math.exp(0.02**2 / 2)) < 4.0 * found["mean_error"]
    assert found["mean_error"] == pytest.approx(0.02 / math.sqrt(2000), rel=0.1)


def test_clopper_pearson():
    ci = binomtest(8, 10).proportion_ci(0.95, method="exact")
    assert clopper_pearson(8, 10) == pytest.approx((ci.low, ci.high))
    assert clopper_pearson(10, 10)[1] == 1.0


def test_pooled():
    good = summaries.coverage(
        normal_rows(400, 0.01, 0.01) + normal_rows(400, 2.0, 2.0, 2, problem="q")
    )
    bad = summaries.coverage(normal_rows(400, 0.013, 0.01))
    vague = summaries.coverage(normal_rows(400, 5.0, 0.01, reference_error=0.0021))
    assert summaries.pooled(good)["p"] > 0.01 and summaries.pooled(good)["runs"] == 800
    assert summaries.pooled(bad)["p"] < 0.01
    assert summaries.pooled(vague) is None and "mean" not in vague[0]
    assert summaries.pooled([*good, *vague]) == summaries.pooled(good)


# --- tables --------------------------------------------------------------------------------------


def everything():
    speed = {"kind": "speed", "problem": "logistic", "seed": "values", "status": "finished"}
    return [
        *normal_rows(40, 0.01, 0.01, problem="two_modes_10", easy=False),
        row(0.3, method="sample_smc:1000", problem="two_modes_10", easy=False, flags=["odd"]),
        row(method="dynesty:500", status="not for discrete", problem="ising"),
        {**speed, "method": "pm.Model, compiled", "us": 3.0},
        {**speed, "method": "NumPy by hand", "us": 1.5},
    ]


def test_report():
    options = suite.parser().parse_args(["--compare", "--coverage", "--speed", "--aim"])
    text = tables.report(everything(), options)
    lines = {tuple(line.split(" | ")[:2]): line for line in text.splitlines()}
    assert "1 of 1" not in text and "0 of 1: not for discrete" in text
    assert lines["| logistic", "values"].endswith("| pm.Model, compiled | 3 | 1 |") or (
        "| NumPy by hand | 1.5 | 0.5 |" in text
    )
    assert "## Coverage" in text and "two-sided binomial test" in text
    assert "## Honesty" in text and "| wrong without a flag |" in text
    assert "| ising | dynesty:500 | 1 | not for discrete |" in text
    aim = text[text.index("## To an error of 0.01") :]
    assert f"| {0.5 * 0.3**2 / 1e-4:,.0f} | {0.3**2 / 1e-4:,.0f} |" in aim
    assert "nan" not in text


def test_report_says_what_was_asked_for():
    rows = everything()
    speed = tables.report(rows, suite.parser().parse_args(["--speed"]))
    assert "by hand" in speed and "Coverage" not in speed and "FoM" not in speed
    resumed = tables.report(rows, suite.parser().parse_args(["--speed", "--resume"]))
    assert "Coverage" in resumed and "FoM" in resumed


# --- the book and the plan -----------------------------------------------------------------------


def book(tmp_path, rows):
    kept = suite.book_of(tmp_path, resume=True)
    kept.add(*rows)
    return kept


def test_rows_on_disk(tmp_path):
    kept = book(tmp_path, [row(0.1), row(0.2), row(0.3, seed=2)])
    with kept.path.open("a") as sink:
        sink.write('{"kind": "run", "problem": "cut o')
    assert [r["log_evidence"] for r in kept.rows()] == [-2.8, -2.7]
    again = suite.book_of(tmp_path, resume=True)
    again.add(row(0.4, seed=3))
    assert [r["log_evidence"] for r in again.rows()] == [-2.8, -2.7, -2.6]
    suite.book_of(tmp_path, resume=False)
    kept.add(row())
    assert len(suite.book_of(tmp_path, resume=False).rows()) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "evidence_suite.1.jsonl",
        "evidence_suite.2.jsonl",
    ]


def test_what_is_left(tmp_path):
    method = "estimate_evidence:0.01"
    done = [row(seed=s) for s in (1, 2, 3, 5)] + [row(seed=4, status="failed: ValueError: no")]
    kept = book(tmp_path, done)
    left = worker.left(kept, "p", Wanted(method, 6, 2), 1)
    assert left == Wanted(method, 6, 6, (1, 2, 3, 5))
    assert worker.left(kept, "p", Wanted(method, 3, 3), 1) is None
    assert worker.left(kept, "q", Wanted(method, 6, 2), 1) == Wanted(method, 6, 2)


def test_what_is_left_of_dear_runs(tmp_path):
    method = "estimate_evidence:0.01"
    kept = book(tmp_path, [row(seed=s, cpu_s=3.0) for s in (1, 2, 3)])
    assert worker.left(kept, "p", Wanted(method, 500, 5), 1) == Wanted(method, 5, 5, (1, 2, 3))
    assert worker.left(kept, "p", Wanted(method, 500, 3), 1) is None


def test_what_is_left_where_all_take_too_long(tmp_path):
    late = {"kind": "run", "problem": "p", "method": "m", "status": "stopped after 9 CPU s"}
    kept = book(tmp_path, [{**late, "seed": s} for s in (1, 2, 3)])
    assert worker.left(kept, "p", Wanted("m", 500, 50), 1) is None
    none = {"kind": "run", "problem": "p", "method": "d", "seed": 1, "status": "not for discrete"}
    assert worker.left(book(tmp_path, [none]), "p", Wanted("d", 10, 10), 1) is None


def test_expand():
    found = methods.expand(["estimate_evidence", "dynesty:100", "sample_smc"], [0.05, 0.01])
    assert found == [
        "estimate_evidence:0.05",
        "estimate_evidence:0.01",
        "dynesty:100",
        "sample_smc:1000",
    ]


def test_plan():
    options = suite.parser().parse_args(["--coverage", "--compare", "--targets", "0.05"])
    tasks = {t.family: t for t in suite.plan(options, ["eggbox"])}
    assert tasks["estimate_evidence"].wanted == {"estimate_evidence:0.05": (500, 50)}
    assert tasks["sample_smc"].wanted == {"sample_smc:1000": (20, 20)}
    assert tasks["bridge"].wanted == {"bridge:0.05": (20, 20)}
    assert tasks["nautilus"].wanted == {"nautilus:1000": (10, 10)}
    options = suite.parser().parse_args(["--aim", "--seeds", "7", "--methods", "estimate_evidence"])
    tasks = suite.plan(options, ["eggbox"])
    assert [t.problem for t in tasks] == list(tables.AIM_PROBLEMS)
    assert all(t.wanted == {"estimate_evidence:0.01": (7, 7)} for t in tasks)


def test_bad_names():
    with pytest.raises(SystemExit, match=r"--problems must be among .*eggbox.*got 'egg'"):
        suite.named(["egg"])
    with pytest.raises(SystemExit, match=r"--methods must be among .*got 'nuts'"):
        methods.installed(["nuts"])


def test_groups_of_problems():
    hard = suite.named(["hard", "eggbox", "unequal_modes_5"])
    assert hard[0] == "unequal_modes_5" and hard[-1] == "eggbox"
    assert len(hard) == len(set(hard)) and "gp_counts" in hard and "puromycin" not in hard
    assert len(suite.named(None)) > 50


def test_missing_library(monkeypatch, capsys):
    monkeypatch.setitem(methods.LIBRARIES, "dynesty", "no_such_library")
    assert methods.installed(["dynesty:100", "sample_smc"]) == ["sample_smc"]
    assert "pip install no_such_library" in capsys.readouterr().err
    monkeypatch.setitem(methods._PIP, "no_such_library", "its-name")
    assert methods.installed(["dynesty"]) == []
    assert "pip install its-name" in capsys.readouterr().err


# --- runs ----------------------------------------------------------------------------------------


def test_attempt_keeps_what_was_said():
    def call():
        warnings.warn("Model evidence: a flag.", UserWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
        warnings.warn("overflow", RuntimeWarning, stacklevel=1)
        logging.getLogger("pymc.stats").warning("few effective draws")
        logging.getLogger("pymc.stats").info("nothing")
        return {"flags": ["a flag"]}

    found = runs.attempt(call, 10.0)
    assert found["flags"] == ["a flag", "few effective draws", "something else"]
    assert found["status"] == "finished"


def test_attempt_reports_errors():
    def call():
        raise ValueError("no likelihood")

    assert runs.attempt(call, 10.0)["status"] == "failed: ValueError: no likelihood"


def test_attempt_stops():
    begin = time.process_time()

    def call():
        while time.process_time() - begin < 5.0:
            try:
                sum(range(1000))
            except Exception:
                pass

    found = runs.attempt(call, 0.2)
    assert found["status"] == "stopped after 0.2 CPU s"
    assert time.process_time() - begin < 1.0


@pytest.fixture
def counted(monkeypatch):
    """Make runs of ours cost nothing; the seeds and options of all calls."""
    calls = []

    def prepare(problem):
        def call(option, seed):
            calls.append((option, seed))
            if seed == 13:
                raise RuntimeError("unlucky")
            cpu = 2.0 if option == "0.01" else 0.1
            changes = {"log_evidence": problem.log_evidence + 0.01, "cpu_s": cpu}
            names = ("log_evidence", "mcse", "cpu_s", "setup_s", "evaluations", "gradients")
            return {k: v for k, v in row(**changes).items() if k in names}

        return call

    monkeypatch.setitem(methods.PREPARE, "estimate_evidence", prepare)
    monkeypatch.setattr(worker, "cache_files", set)  # other tests may fill the folder meanwhile
    return calls


def make_job(tmp_path, wanted, **changes):
    rows = str(tmp_path / "rows.jsonl")
    return Job("beta_binomial", "estimate_evidence", wanted, rows, 60.0, 10.0, **changes)


def lines(tmp_path):
    return [json.loads(s) for s in (tmp_path / "rows.jsonl").read_text().splitlines()]


def test_work(tmp_path, counted):
    methods = "estimate_evidence:0.05", "estimate_evidence:0.01"
    wanted = [(methods[0], 6, 4, (11, 12)), (methods[1], 9, 5, ())]
    assert worker.work(make_job(tmp_path, wanted, seed=11))["status"] == "finished"
    start, *runs = lines(tmp_path)
    assert counted[0] == ("0.05", 10)  # not counted
    assert start["kind"] == "start" and start["import_s"] >= 0.0 and start["caches"] == "warm"
    cheap = [r for r in runs if r["method"] == methods[0]]
    dear = [r for r in runs if r["method"] == methods[1]]
    assert [r["seed"] for r in cheap] == [13, 14, 15, 16]
    assert [r["status"] for r in cheap] == ["failed: RuntimeError: unlucky"] + ["finished"] * 3
    assert [r["seed"] for r in dear] == [11, 12, 13, 14, 15]
    assert all(r["truth"] == pytest.approx(-math.log(11)) for r in runs)


def test_a_start_alone(tmp_path, counted):
    worker.work(make_job(tmp_path, [("estimate_evidence:0.05", 0, 0, ())], caches="cold"))
    (start,) = lines(tmp_path)
    assert (start["kind"], start["caches"]) == ("start", "cold")


def test_dynesty_needs_continuous_variables(tmp_path):
    pytest.importorskip("dynesty")
    rows = str(tmp_path / "rows.jsonl")
    worker.work(Job("ising", "dynesty", [("dynesty:50", 3, 3, ())], rows, 60.0, 10.0))
    assert [r["status"] for r in lines(tmp_path)] == ["not for discrete"]


def test_dynesty():
    pytest.importorskip("dynesty")
    problem = beta_binomial()
    found = methods.prepare_dynesty(problem)("50", 1)
    assert abs(found["log_evidence"] - problem.log_evidence) < 4.0 * found["mcse"] < 1.5
    assert found["evaluations"] > 50


def test_ours():
    problem = beta_binomial()
    found = runs.attempt(lambda: methods.prepare_estimate_evidence(problem)("0.05", 1), 60.0)
    assert found["status"] == "finished"
    assert abs(found["log_evidence"] - problem.log_evidence) < 5.0 * found["mcse"]
    assert found["lower"] < found["log_evidence"] < found["upper"]
    assert found["evaluations"] > found["gradients"] > 0
    assert found["cpu_s"] > 0.0 and found["setup_s"] > 0.0


class _Counted:
    """A compiled function that counts its calls."""

    calls = 0

    def __init__(self, fn):
        self.fn = fn

    def __call__(self, x):
        _Counted.calls += 1
        return self.fn(x)

    def __getattr__(self, name):
        return getattr(self.fn, name)

    def copy(self, **changes):
        return _Counted(self.fn.copy(**changes))


class _CountedIMH(pm.smc.IMH):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.likelihood_logp_func = _Counted(self.likelihood_logp_func)


def test_sample_smc_is_measured_not_changed():
    record, plain, begin = Stages(), Stages(), time.process_time()
    with pm.Model():
        pm.Normal("y", pm.Normal("mu", 0.0, 1.0), 1.0, observed=[3.0])
        options = {"draws": 60, "chains": 2, "cores": 1, "random_seed": 1, "progressbar": False}
        quiet = {**options, "compute_convergence_checks": False}
        pm.sample_smc(kernel=measured_kernel(_CountedIMH, record), **quiet)
        found = pm.sample_smc(kernel=measured_kernel(pm.smc.IMH, plain), **quiet)
    assert record.evaluations == _Counted.calls == plain.evaluations
    assert record.log_evidences == plain.log_evidences
    last = [chain[-1] for chain in found["sample_stats"]["log_marginal_likelihood"].values]
    assert plain.log_evidences == last
    assert 0.0 < record.seconds + plain.seconds < time.process_time() - begin


# --- by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [NumpyLogistic, NumbaLogistic])
@pytest.mark.parametrize("n", [7, 1100])
def test_logistic_by_hand(made, n):
    X, y = simulate(n, 3)
    path, rng = made(X, y), np.random.default_rng(1)
    x = 2.0 * path.draw_prior(20, rng)
    x[0] = 0.0  # each row has probability a half, and all of them less than the smallest double
    prior = norm.logpdf(x, 0.0, 2.5).sum(axis=1)
    u = X @ x.T
    likelihood = (y[:, None] * u - np.logaddexp(0.0, u)).sum(axis=0)
    np.testing.assert_allclose(path.values(x), [prior, likelihood], rtol=1e-10)
    terms, gradients = path.gradients(x)
    np.testing.assert_allclose(terms, [prior, likelihood], rtol=1e-10)
    for j, e in enumerate(1e-5 * np.eye(3)):
        slopes = (path.values(x + e) - path.values(x - e)) / 2e-5
        np.testing.assert_allclose(gradients[:, :, j], slopes, rtol=1e-5, atol=1e-4)


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
