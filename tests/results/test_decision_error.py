import math

import arviz as az
import numpy as np
import pytest
import xarray as xr

from scipy.stats import binom, binomtest

from amc_pymc.results import clopper_pearson, decision_error

COLUMNS = [
    "delta", "audited", "wrong", "error", "ci_low", "ci_high", "exact", "rows", "audit_rows", "rows_low", "rows_high",
]  # fmt: skip


def test_exact_decisions_are_said_to_be_exact():
    """Without audits; a chain of which one draw was raced is not exact."""
    stats = race_stats([0, 0], [0, 0], delta=0.0)
    stats["race_delta"] = np.broadcast_to(stats["race_delta"], (2, 50)).copy()
    stats["race_delta"][1, 3] = 0.05
    table = decision_error(tree(sample_stats=stats))
    assert list(table["exact"]) == [True, False, False]
    np.testing.assert_array_equal(table["ci_high"], [0.0, 1.0, 1.0])
    np.testing.assert_array_equal(table["error"], [0.0, np.nan, np.nan])


def race_stats(audited, wrong, *, delta=0.05, rows=100, draws=50, dtype=np.int64):
    """One chain per count; the audits fall on the last draws, the errors on the very last."""
    late = np.arange(draws)[::-1]
    audited, wrong = np.array(audited)[:, None], np.array(wrong)[:, None]
    return {
        "race_delta": np.full((len(audited), draws), delta),
        "race_audited": (late < audited).astype(dtype),
        "race_wrong": (late < wrong).astype(dtype),
        "race_rows": np.full((len(audited), draws), rows),
        "race_audit_rows": (late < audited) * 1000,
    }


def tree(**groups):
    return az.from_dict(groups)


def test_one_row_per_chain_and_all():
    table = decision_error(tree(sample_stats=race_stats([10, 20, 0], [0, 1, 0])))
    assert list(table.columns) == COLUMNS
    assert table.index.name == "chain"
    assert list(table.index) == [0, 1, 2, "all"]
    assert list(table["audited"]) == [10, 20, 0, 30]
    assert list(table["wrong"]) == [0, 1, 0, 1]
    assert list(table["delta"]) == [0.05] * 4
    assert not table["exact"].any()
    assert table["audited"].dtype.kind == table["wrong"].dtype.kind == "i"
    np.testing.assert_allclose(table["error"], [0, 0.05, np.nan, 1 / 30])
    assert list(table["rows"]) == [100.0] * 4
    np.testing.assert_allclose(table["audit_rows"], [200, 400, 0, 200])


def test_steps_side_by_side_count_together():
    first, second = race_stats([10, 4], [1, 0]), race_stats([6, 2], [2, 0], delta=0.1, rows=30)
    stats = {name: np.stack([first[name], second[name]], axis=-1) for name in first}
    table = decision_error(tree(sample_stats=stats))
    assert list(table["audited"]) == [16, 6, 22]
    assert list(table["wrong"]) == [3, 0, 3]
    assert list(table["delta"]) == [0.1] * 3
    assert list(table["rows"]) == [130.0] * 3


def test_a_row_for_each_step():
    first, second = race_stats([10, 4], [1, 0]), race_stats([6, 2], [2, 0], delta=0.1, rows=30)
    stats = {name: np.stack([first[name], second[name]], axis=-1) for name in first}
    table = decision_error(tree(sample_stats=stats), by="step")
    assert table.index.name == "step"
    assert list(table.index) == [0, 1, "all"]
    assert list(table["audited"]) == [14, 8, 22]
    assert list(table["wrong"]) == [1, 2, 3]
    assert list(table["delta"]) == [0.05, 0.1, 0.1]
    assert list(table["rows"]) == [100.0, 30.0, 130.0]
    named = az.from_dict(
        {"sample_stats": stats}, dims={key: ["step"] for key in stats}, coords={"step": ["a", "b"]}
    )
    assert list(decision_error(named, by="step").index) == ["a", "b", "all"]
    single = decision_error(tree(sample_stats=first), by="step")
    assert list(single.index) == [0, "all"]
    assert list(single["audited"]) == [14, 14]
    with pytest.raises(ValueError, match="by must be 'chain' or 'step', got 'draw'"):
        decision_error(tree(sample_stats=first), by="draw")


def test_warm_up_and_other_statistics_do_not_count():
    stats = race_stats([10], [0]) | {"tree_depth": np.ones((1, 50)), "grad": np.ones((1, 50, 7))}
    warmup = race_stats([50], [50])
    idata = az.from_dict({"sample_stats": stats, "warmup_sample_stats": warmup}, save_warmup=True)
    assert idata.children.keys() == {"sample_stats", "warmup_sample_stats"}
    table = decision_error(idata)
    assert (table.loc["all", "audited"], table.loc["all", "wrong"]) == (10, 0)
    assert table.loc["all", "rows"] == 100.0


def test_no_sample_stats():
    with pytest.raises(ValueError, match=r"no group sample_stats, only \['posterior'\]"):
        decision_error(tree(posterior={"x": np.zeros((2, 5))}))


def test_no_racing_statistics():
    stats = {"tree_depth": np.ones((2, 5))}
    with pytest.raises(ValueError, match=r"no race_delta.*RacingMetropolis"):
        decision_error(tree(sample_stats=stats))
    stats = race_stats([1], [0])
    del stats["race_wrong"]
    with pytest.raises(ValueError, match=r"no race_wrong, which"):
        decision_error(tree(sample_stats=stats))


@pytest.mark.parametrize("idata", [{}, xr.Dataset(), [1], None])
def test_not_a_tree(idata):
    with pytest.raises(TypeError, match=rf"DataTree .*got {type(idata).__name__}"):
        decision_error(idata)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95, math.nan])
def test_bad_confidence(confidence):
    with pytest.raises(ValueError, match=f"confidence .*got {confidence!r}"):
        clopper_pearson(1, 2, confidence)
    with pytest.raises(ValueError, match=f"confidence .*got {confidence!r}"):
        decision_error(tree(sample_stats=race_stats([1], [0])), confidence=confidence)


@pytest.mark.parametrize(("wrong", "total"), [(0, 1), (1, 1), (3, 100), (1, 10**6)])
@pytest.mark.parametrize("confidence", [0.5, 0.999])
def test_clopper_pearson_is_scipys(wrong, total, confidence):
    expected = binomtest(wrong, total).proportion_ci(confidence, method="exact")
    low, high = clopper_pearson(wrong, total, confidence)
    assert (low, high) == pytest.approx(tuple(expected), rel=1e-8)
    tail = (1 - confidence) / 2
    assert wrong == 0 or binom.sf(wrong - 1, total, low) == pytest.approx(tail)
    assert wrong == total or binom.cdf(wrong, total, high) == pytest.approx(tail)


def test_intervals_known_by_hand():
    table = decision_error(tree(sample_stats=race_stats([10, 20, 0], [0, 20, 0])))
    high = 1 - 0.025 ** (1 / 10)  # no errors: (1 - p)^10 = 0.025
    low = 0.025 ** (1 / 20)  # errors only: p^20 = 0.025
    np.testing.assert_allclose(table["ci_low"][:3], [0, low, 0])
    np.testing.assert_allclose(table["ci_high"][:3], [high, 1, 1])
    expected = binomtest(20, 30).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(table.loc["all", ["ci_low", "ci_high"]].tolist(), list(expected))
