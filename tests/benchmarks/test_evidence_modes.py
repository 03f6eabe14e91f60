"""Modes drawn at random: their closed form, the judgement of runs, and the tables."""

import json
import math

import numpy as np
import pytest

from scipy.stats import norm

from benchmarks.evidence import modes as bench

SOME = bench.Modes(
    np.array([[2.0, -1.0], [9.9, 0.5]]), np.array([0.5, 0.3]), np.log([0.4, 0.6]), True
)


@pytest.mark.parametrize("uniform", [True, False])
def test_closed_form(uniform):
    modes = SOME._replace(uniform=uniform)
    axis = 10.0 * ((2.0 * np.arange(1_000) + 1.0) / 1_000 - 1.0)
    if not uniform:
        axis *= 3.0  # six standard deviations
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    prior = 2.0 * math.log(1.0 / 20.0) if uniform else norm.logpdf(x, 0.0, 5.0).sum(axis=1)
    area = np.exp(modes.log_likelihood(x) + prior).sum() * (axis[1] - axis[0]) ** 2
    assert modes.log_evidence == pytest.approx(math.log(area), abs=1e-4)
    assert np.exp(modes.log_shares() - modes.log_evidence).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("uniform", [True, False])
def test_model(uniform):
    modes = SOME._replace(uniform=uniform)
    model = modes.build()
    x = np.array([1.5, -0.5])
    found = model.potentials[0].eval({model["x"]: x})
    assert found == pytest.approx(modes.log_likelihood(x[None])[0])
    law = model.free_RVs[0].owner.op.name
    assert law == ("uniform" if uniform else "normal")


def test_problems_are_drawn_from_seeds():
    drawn = [bench.draw_modes(seed) for seed in range(300)]
    k, d = np.array([m.centres.shape for m in drawn]).T
    assert (k.min(), k.max(), d.min(), d.max()) == (2, 10, 2, 12)
    sds = np.concatenate([m.sds for m in drawn])
    assert 0.1 < sds.min() < 0.12 and 0.9 < sds.max() < 1.0
    assert {m.uniform for m in drawn} == {True, False}
    assert all(np.exp(m.log_weights).sum() == pytest.approx(1.0) for m in drawn)
    again = bench.draw_modes(7)
    np.testing.assert_array_equal(again.centres, drawn[7].centres)


def estimate(off=0.0, mcse=0.02, flags=()):
    """A method that is off by so much."""

    def call(modes, seed, target):
        return {
            "log_evidence": modes.log_evidence + off, "mcse": mcse, "flags": list(flags),
            "cpu_s": 0.5, "setup_s": 0.0, "evaluations": 100, "gradients": 10,
        }  # fmt: skip

    return call


@pytest.mark.parametrize(
    ("off", "mcse", "found"),
    [(0.05, 0.02, True), (0.09, 0.02, False), (0.12, 0.05, False), (math.nan, 0.02, False)],
)
def test_found(off, mcse, found):
    assert bench.run(3, 0.05, 10.0, estimate(off, mcse))["found"] is found


def test_a_run_that_fails_has_found_nothing():
    def call(modes, seed, target):
        raise ValueError("no")

    row = bench.run(3, 0.05, 10.0, call)
    assert row["status"] == "failed: ValueError: no" and row["found"] is False


def test_tables():
    rows = [bench.run(1, 0.05, 10.0, estimate()), bench.run(2, 0.05, 10.0, estimate(1.0))]
    rows += [bench.run(3, 0.05, 10.0, estimate(1.0, flags=["a flag"]))]
    rows += [bench.run(4, 0.05, 10.0, estimate(flags=["a flag"]))]
    rows += [{**rows[0], "status": "stopped after 1 CPU s", "seed": 5, "found": False}]
    s = bench.summarise(rows)
    assert (s["runs"], s["found"], s["missed"], s["needless"]) == (5, 0.5, 0.25, 0.25)
    assert (s["unfinished"], s["seeds"], s["evaluations"]) == (1, [2], 100.0)
    text = bench.table(rows)
    assert "| 2-12 | 2-10 | 5 | 50 % | 25 % | 25 % | 1 | 100 | 10 | 0.5 |" in text
    assert text.endswith("Seeds of misses without a flag: 2.")


def test_runs_are_kept_and_gone_on_with(tmp_path, monkeypatch, capsys):
    calls = []

    def run(seed, target, cap):
        calls.append(seed)
        return {**row, "seed": seed}

    row = bench.run(1, 0.05, 10.0, estimate())
    monkeypatch.setattr(bench, "run", run)
    options = ["--runs", "2", "--out", str(tmp_path)]
    bench.main(bench.parser().parse_args(options))
    with (tmp_path / "evidence_modes.jsonl").open("a") as sink:
        sink.write('{"seed": 3, "cut o')
    bench.main(bench.parser().parse_args([*options, "--runs", "3", "--resume"]))
    assert calls == [1, 2, 3]
    assert len(json.loads((tmp_path / "evidence_modes.json").read_text())["rows"]) == 3
    assert "| 2-12 | 2-10 | 3 |" in capsys.readouterr().out
