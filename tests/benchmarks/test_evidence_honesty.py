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


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"off": 0.39}, False),
        ({"off": -0.41}, True),
        ({"off": 0.41, "reference": 0.1}, False),
        ({"off": 0.0009, "mcse": 0.0}, False),
        ({"off": 0.0011, "mcse": 0.0}, True),
        ({"off": math.nan}, True),
        ({"off": -math.inf}, True),
        ({"off": 0.1, "mcse": math.nan}, True),
    ],
)
def test_wrong(changes, wrong):
    assert bench.is_wrong(row(**changes)) is wrong


def test_covered():
    assert bench.is_covered(row(0.19)) and not bench.is_covered(row(0.21))
    assert bench.is_covered(row(0.21, reference=0.1))
    assert bench.is_covered(row(0.4, lower=-3.1, upper=-2.0))  # an interval of its own
    assert not bench.is_covered(row(math.nan))


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


def test_tables():
    rows = [row(1.0, seed=7), row(seed=8, status="stopped after 9 CPU s")]
    text = bench.honesty_table(rows)
    assert "| p | m | 3 | 1 | 1 | 0.1 | 0 % | 100 % |" in text
    assert text.endswith("wrong without a flag: p (m): 7.")
    assert "| p | m | 1 | stopped after 9 CPU s |" in bench.unfinished_table(rows)
    assert bench.unfinished_table(rows[:1]) == ""
