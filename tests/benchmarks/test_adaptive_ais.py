"""The path and its counts, the bank, replays that do as policies and plain sums say; it runs."""

import csv
import math

import numpy as np
import pytest

from scipy.stats import norm

from amc_pymc.bandits import LCB
from amc_pymc.evidence.annealing import anneal, power_schedule
from amc_pymc.evidence.mcmc import HMC, Slice
from benchmarks.papers import adaptive_ais
from benchmarks.papers import adaptive_ais_bank as bank_module
from benchmarks.papers import adaptive_ais_live as live
from benchmarks.papers import adaptive_ais_replays as replays
from benchmarks.papers.adaptive_ais_bank import (
    Bank,
    Draws,
    LogisticPath,
    Problem,
    draw,
    fixed_ladder,
)
from benchmarks.papers.adaptive_ais_figure import named_apart
from benchmarks.papers.adaptive_ais_kernels import KERNELS, sizes_tried
from benchmarks.papers.adaptive_ais_replays import Law, choose, counts_at, replay, squared_errors
from models.logistic_regression import log_likelihoods, reference, simulate

V = bank_module.VARIANCE


def make_problem(rows=6, n_dim=3, scale=1.0, seed=1) -> Problem:
    X, y = simulate(rows, n_dim, seed=seed)
    found = reference(scale * X, y, np.full(n_dim, V**0.5))
    return Problem("standardised", rows, scale * X, y, *found)


def fake_bank(sizes=(400, 300, 200), sds=(0.4, 0.2, 0.1), seed=1) -> Bank:
    """Log-normal weights with costs 1, 4 and 16, give or take a twentieth."""
    rng = np.random.default_rng(seed)
    draws = []
    for k, (n, s) in enumerate(zip(sizes, sds, strict=True)):
        costs = 4.0**k * rng.uniform(0.95, 1.05, (2, n))
        draws.append(Draws(rng.normal(-0.5 * s**2, s, n), *costs))
    return Bank(make_problem(), (5, 20, 80)[: len(sizes)], tuple(draws))


# --- path ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_path_is_prior_and_likelihood(scale):
    problem = make_problem(rows=40, scale=scale)
    rng = np.random.default_rng(2)
    theta = rng.normal(0.0, V**0.5, (500, 3))
    path = LogisticPath(problem, len(theta))
    values = path.values(np.column_stack([theta, np.arange(len(theta))]))
    np.testing.assert_allclose(values[0], norm.logpdf(theta, 0.0, V**0.5).sum(axis=1))
    np.testing.assert_allclose(
        values[1], log_likelihoods(theta, problem.X, problem.y), rtol=1e-9, atol=1e-9 * scale
    )


def test_gradients():
    problem = make_problem()
    x = np.column_stack([np.random.default_rng(3).normal(size=(5, 3)), np.arange(5)])
    path = LogisticPath(problem, 5)
    values, gradients = path.gradients(x)
    np.testing.assert_array_equal(values, path.values(x))
    for d in range(3):
        step = np.zeros(4)
        step[d] = 1e-5
        slope = (path.values(x + step) - path.values(x - step)) / 2e-5
        np.testing.assert_allclose(gradients[:, :, d], slope, rtol=1e-6, atol=1e-7)
    assert not gradients[:, :, 3].any()


def test_prior_draws():
    x = bank_module.prior_draws(make_problem(), 20_000, np.random.default_rng(1))
    squares = np.square(x[:, :-1]) / V
    assert abs(squares.mean() - 1.0) < 4.0 * math.sqrt(2.0 / squares.size)
    np.testing.assert_array_equal(x[:, -1], np.arange(20_000))


@pytest.mark.parametrize("cls", [Slice, HMC])
def test_evaluations_are_counted_for_each_draw(cls):
    problem, n = make_problem(), 50
    path, rng = LogisticPath(problem, n), np.random.default_rng(4)
    kernel = bank_module.moves_all(cls, problem)
    x = bank_module.prior_draws(problem, n, rng)
    found = anneal(path, x, power_schedule("power", 8), kernel, fixed_ladder(1.0, 3), rng)
    assert path.evaluations.sum() == found.evaluations + found.gradients
    np.testing.assert_array_equal(found.x[:, -1], np.arange(n))
    assert path.evaluations.min() > 7 and (cls is HMC or path.evaluations.std() > 0.0)


# --- bank ----------------------------------------------------------------------------------------


def test_weights_are_unbiased_and_longer_runs_vary_less():
    problem, rng = make_problem(rows=30), np.random.default_rng(5)
    variances = []
    for steps in (3, 30):
        draws = draw(problem, steps, 1_000, rng)
        w = np.exp(draws.log_weights)
        assert abs(w.mean() - 1.0) < 4.0 * w.std() / math.sqrt(w.size) + 4.0 * problem.error
        variances.append(draws.relative_variance)
        assert draws.seconds.shape == (1_000,) and draws.seconds.min() > 0.0
    assert variances[0] > 4.0 * variances[1]


def test_kernels_give_the_same_evidence():
    problem = make_problem(rows=30)
    bank = Bank(problem, (10,), (draw(problem, 10, 10, np.random.default_rng(1)),))

    class options:
        kernel_draws = 400

    good = {"slice": "size 2", "random walk": "size 1", "Langevin": "size 1", "HMC": "size 0.5"}
    tried = sizes_tried(options, bank, np.random.default_rng(6))
    assert {t.kernel for t in tried} == set(KERNELS)
    for t in tried:
        if good[t.kernel] == t.tuning:
            w = np.exp(t.draws.log_weights)
            assert abs(w.mean() - 1.0) < 4.0 * w.std() / math.sqrt(w.size) + 4.0 * problem.error


def test_cautious_variance_is_not_fooled_by_one_weight():
    logs = np.random.default_rng(7).normal(0.0, 4.0, 100)
    draws = Draws(logs, np.ones(100), np.ones(100))
    assert draws.relative_variance < 100.0 < 1e4 < draws.cautious_variance
    assert draws.some(slice(0, 10)).seconds.shape == (10,)


def test_banks_are_saved_whole(tmp_path):
    banks = [fake_bank(), fake_bank((9, 8), (0.1, 0.2))]
    bank_module.save_banks(tmp_path / "bank.npz", banks)
    for bank, same in zip(banks, bank_module.load_banks(tmp_path / "bank.npz"), strict=True):
        assert same.steps == bank.steps and same.problem.log_evidence == bank.problem.log_evidence
        assert same.problem.covariates == "standardised" and same.problem.rows == 6
        np.testing.assert_array_equal(same.problem.X, bank.problem.X)
        for a, b in zip(same.draws, bank.draws, strict=True):
            np.testing.assert_array_equal(a, b)


def test_ratio_of_prices():
    bank = fake_bank()
    r = bank_module.price_ratio(bank.draws[0], bank.draws[2], "counted")
    truth = math.expm1(0.16) / math.expm1(0.01) / 16.0
    assert r.low < r.value < r.high and r.low < truth < r.high
    assert 1.2 < r.high / r.low < 3.0


# --- replays -------------------------------------------------------------------------------------


def test_law_has_mean_one():
    law = Law.of(fake_bank(), "counted")
    for x in law.values:
        assert x.mean() == pytest.approx(1.0, rel=1e-12)
    assert law.mean_costs[2] == pytest.approx(1.0, rel=1e-12)
    assert 15.0 < law.unit < 17.0
    np.testing.assert_allclose(law.variances, np.expm1([0.16, 0.04, 0.01]), rtol=0.3)


def test_first_entries_are_different():
    rng = np.random.default_rng(8)
    assert all(len(set(choose(40, 200, rng)[:30])) == 30 for _ in range(20))
    assert len(set(choose(40, 200, rng))) > 30
    assert sorted(choose(5, 5, rng)) == [0, 1, 2, 3, 4]
    counts = np.bincount(np.concatenate([choose(40, 100, rng) for _ in range(400)]), minlength=40)
    assert abs(counts - 1_000).max() < 5.0 * math.sqrt(1_000)


@pytest.mark.slow
def test_lcb_decides_as_the_policy():
    rng = np.random.default_rng(9)
    logs, costs = rng.normal(0.0, [[0.5], [1.0], [0.7]], (2, 3, 200)), rng.random((2, 3, 200))
    found = replays.run_lcb(LCB(3), logs, costs, 200, np.inf)
    for r in range(2):
        policy, counts = LCB(3), np.zeros(3, int)
        for t in range(200):
            pull = policy.ask(rng)
            i = counts[pull.arm]
            policy.tell(pull, logs[r, pull.arm, i], cost=costs[r, pull.arm, i])
            counts[pull.arm] += 1
            np.testing.assert_array_equal(found[r, t], counts)
    stopped = replays.run_lcb(LCB(3), logs, costs, 200, 10.0)
    spent = [
        [costs[r, k, : stopped[r, t, k]].sum() for k in range(3)] for r, t in ((0, -1), (1, -1))
    ]
    assert all(10.0 < sum(of) < 11.0 for of in spent)


def test_counts_at():
    rng = np.random.default_rng(10)
    arms = rng.integers(0, 2, (3, 40))
    counts = np.stack([np.cumsum(arms == k, axis=1) for k in range(2)], axis=-1)
    costs = rng.random((3, 2, 40))
    times = np.array([0.0, 0.5, 3.0, 7.0])
    found = counts_at(counts, replays.cumulated(costs), times)
    for r in range(3):
        clock, made, expected = 0.0, np.zeros(2, int), [np.zeros(2, int) for _ in times]
        for arm in arms[r]:
            clock += costs[r, arm, made[arm]]
            made[arm] += 1
            for j, t in enumerate(times):
                if clock <= t:
                    expected[j] = made.copy()
        np.testing.assert_array_equal(found[r], expected)


def test_squared_errors():
    rng = np.random.default_rng(11)
    x = 1.0 + rng.normal(size=(1, 3, 20)) * np.array([1.0, 2.0, 3.0])[:, None]
    counts = np.array([[[0, 0, 0], [3, 0, 0], [1, 1, 1], [5, 1, 7]]])
    sums, squares = replays.cumulated(x - 1.0), replays.cumulated((x - 1.0) ** 2)
    uniform, inverse = squared_errors(counts, sums, squares)
    assert uniform[0, 0] == inverse[0, 0] == 1.0  # no estimate, taken for zero
    drawn = [[x[0, k, : n[k]] for k in range(3)] for n in counts[0]]
    for j in (1, 2, 3):
        assert uniform[0, j] == pytest.approx((np.concatenate(drawn[j]).mean() - 1.0) ** 2)
    assert inverse[0, 1] == pytest.approx(uniform[0, 1])
    assert inverse[0, 2] == pytest.approx(uniform[0, 2])  # no variance is known
    a, c = drawn[3][0], drawn[3][2]
    w = np.array([a.size / a.var(ddof=1), c.size / c.var(ddof=1)])
    expected = w @ [a.mean(), c.mean()] / w.sum() - 1.0
    assert inverse[0, 3] == pytest.approx(expected**2)


@pytest.mark.slow
def test_replays_are_what_the_numbers_of_draws_say():
    bank = fake_bank()
    found = replay(bank, 200, 15.0, np.random.default_rng(12))
    for of in found.values():
        law = of.law
        for k, name in enumerate(replays.arm_names(law)):
            n = of.counts[name][:, -1, k]
            assert abs(n.mean() * law.mean_costs[k] - 15.0) < 1.0
            np.testing.assert_allclose(of.by_pulls(name, "uniform")[:, -1], law.variances[k] / n)
            assert of.arm_losses()[k, -1] == pytest.approx(law.variances[k] * (1.0 / n).mean())
        for name in (*replays.arm_names(law), "in turn", "UCB1"):
            gap = of.uniform[name][:, -1] - of.by_pulls(name, "uniform")[:, -1]
            assert abs(gap.mean()) < 4.0 * gap.std() / math.sqrt(200)
        for name in replays.BANDITS:
            spent = of.counts[name][:, -1] @ law.mean_costs
            assert spent.min() > 11.0 and spent.max() < 16.0, name
        turns = of.counts["in turn"][:, -1]
        assert (np.ptp(turns, axis=1) <= 1).all()
        assert (np.diff(of.counts["TS"], axis=1) >= 0).all()
    assert 0.0 <= named_apart({5: found, 10: found}) <= 1.0


@pytest.mark.slow
def test_a_clearly_best_arm_is_found():
    bank = fake_bank(sds=(1.0, 0.5, 0.05))
    found = replay(bank, 20, 100.0, np.random.default_rng(13))["counted"]
    cost = found.counts["lcb"][:, -1] * found.law.mean_costs
    assert (cost[:, 2] / cost.sum(axis=1)).mean() > 0.8
    loss = {n: found.by_pulls(n, "uniform")[:, -1].mean() for n in ("lcb", "TS", "in turn")}
    assert max(loss["lcb"], loss["TS"]) < 0.5 * loss["in turn"]


# --- live runs -----------------------------------------------------------------------------------


def test_live_runs_draw_what_rounds_ask_for():
    problem, rng = make_problem(), np.random.default_rng(14)
    steps = (2, 8)
    bank = Bank(problem, steps, tuple(draw(problem, s, 50, rng) for s in steps))
    runs = [live.combination(bank, name, 12.0) for name in ("lcb", "thompson", "lcb")]
    drawn = live.live_runs(bank, runs, rng)
    found = [live.outcome(run) for run in runs]
    asked = sum(o.counts for o in found)
    assert [sum(d.seconds.size for d in parts) for parts in drawn] == asked.tolist()
    law = Law.of(bank, "counted")
    spent = sum(d.evaluations.sum() for parts in drawn for d in parts) / law.unit
    assert sum(o.spent for o in found) == pytest.approx(spent)
    assert all(8.0 < o.spent < 14.0 and abs(o.errors[0]) < 0.5 for o in found), found


# --- the script ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_quick(tmp_path, capsys):
    X, y = simulate(768, 8)
    np.savetxt(tmp_path / "pima.csv", np.column_stack([1.0 + 2.0 * X, y]), delimiter=",")
    command = ["--quick", "--data", str(tmp_path / "pima.csv"), "--out", str(tmp_path)]
    small = ["--steps", "4", "16", "64", "--bank", "80", "60", "40", "--raw-bank", "60", "50", "40"]
    fewer = ["--runs", "10", "--kernel-draws", "30", "--engine-runs", "4", "--budget", "20"]
    adaptive_ais.main([*command, *small, *fewer])
    out = capsys.readouterr().out
    assert "## Statements" in out and "nan" not in out
    for name in ("standardised", "standardised_loss", "raw", "raw_loss", "kernels"):
        assert (tmp_path / f"adaptive_ais_{name}.png").stat().st_size > 10_000
    with (tmp_path / "adaptive_ais.csv").open() as file:
        rows = list(csv.DictReader(file))
    of = [r for r in rows if r["figure"] == "statements"]
    assert len(of) == 2 * (10 + 5) + 1 and {r["holds"] for r in of} <= {"yes", "no"}
    assert all(r["cause"] for r in of if r["holds"] == "no")
    bank = ["--load", str(tmp_path / "adaptive_ais_bank.npz"), "--covariates", "raw"]
    adaptive_ais.main([*command, *fewer, *bank, "--parts", "figure", "--name", "again"])
    with (tmp_path / "again.csv").open() as file:
        again = list(csv.DictReader(file))
    assert {r["covariates"] for r in again if r["figure"] == "3"} == {"raw"}
