"""What runs on problems of known evidence say about stated errors and flags."""

import math

import pytest

from benchmarks.evidence import honesty as bench


def row(off=0.0, mcse=0.1, *, flags=(), problem="p", method="m", seed=1, reference=0.0, **changes):
    found = {
        "kind": "run", "problem": problem, "method": method, "seed": seed, "status": "finished",
        "n_dim": 3, "truth": -3.0, "reference_error": reference, "log_evidence": -3.0 + off,
        "mcse": mcse, "flags": list(flags), "evaluations": 100, "gradients": 10, "cpu_s": 0.5,
    }  # fmt: skip
    return found | changes


def test_honesty():
    rows = [
        row(0.3), row(-0.1, seed=2, flags=["a flag"]), row(1.0, seed=3),
        row(1.0, seed=4, flags=["a flag"]), row(seed=5, status="failed: no"),
        row(0.0, problem="q", n_dim=9), row(0.0, method="other"),
    ]  # fmt: skip
    p, q, all_of_m, other, all_of_other = bench.honesty(rows)
    assert [r["problem"] for r in (p, q, all_of_m, other, all_of_other)] == [
        "p",
        "q",
        "all",
        "p",
        "all",
    ]
    assert p["rmse"] == pytest.approx(math.sqrt(2.1 / 4))
    assert (p["runs"], p["covered"], p["mcse"]) == (4, 0.25, pytest.approx(0.1))
    assert (p["missed"], p["needless"], p["noticed"]) == (0.25, 0.25, 0.25)
    assert p["seeds"] == [3] and q["n_dim"] == 9
    assert all_of_m["runs"] == 5 and all_of_m["missed"] == 0.2 and all_of_m["n_dim"] is None
