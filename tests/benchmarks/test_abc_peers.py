import json
import math
import sys

from pathlib import Path

import numpy as np
import pytest

from scipy.special import ndtr, ndtri

import amc_pymc as amc

from amc_pymc.likelihood_free.model_problem import ModelProblem
from amc_pymc.rng import as_generator
from benchmarks.abc import measures as measures
from benchmarks.abc import methods as methods
from benchmarks.abc import peers as bench
from benchmarks.abc import tables as rows
from benchmarks.abc.methods import Enough, Job, Meter
from benchmarks.abc.network import Network
from benchmarks.harness.results import Book
from models.simulator_suite import EXAMPLES


def run_row(value=0.6, *, method="tree", observation=1, seed=1, **changes):
    """A finished run."""
    own = {"kind": "run", "problem": "p", "observation": observation, "budget": 1000}
    figures = {"simulations": 1000, "effective": 50.0, "tolerance": 0.1, "acceptance": 0.2}
    more = {"method": method, "seed": seed, "status": "finished", "c2st": value}
    return {**own, **figures, **more, **changes}


# --- measures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "classifier", ["trees", "mlp", pytest.param("published", marks=pytest.mark.slow)]
)
def test_classifier_between_equal_and_disjoint(classifier):
    rng, n = np.random.default_rng(1), 2000
    x, same = rng.normal(size=(2, n, 2))
    found = measures.c2st(same, x, classifier=classifier)
    assert abs(found - 0.5) < 4.0 * 0.5 / math.sqrt(2 * n)
    assert measures.c2st(same + 6.0, x, classifier=classifier) > 0.99


@pytest.mark.parametrize("classifier", ["trees", "mlp"])
def test_classifier_comes_near_the_best_accuracy(classifier):
    # Of N(0, 1) and N(1, 1) it is that of a cut in the middle.
    rng, n = np.random.default_rng(2), 4000
    x = rng.normal(size=(2, n, 1))
    found = measures.c2st(x[0] + 1.0, x[1], classifier=classifier)
    error = 4.0 * 0.5 / math.sqrt(2 * n)
    assert ndtr(0.5) - 0.02 - error < found < ndtr(0.5) + error


def test_compiled_network_is_that_of_scikit_learn():
    # Rounding differs, which a few epochs do not amplify.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(1050, 3)).astype(np.float32), rng.integers(2, size=1050)
    x[y == 1] += 0.5
    ours = Network(30, max_iter=6, seed=5).fit(x, y)
    with pytest.warns(ConvergenceWarning):
        peer = MLPClassifier((30, 30), max_iter=6, random_state=5).fit(x, y)
    np.testing.assert_allclose(ours.losses, peer.loss_curve_, rtol=1e-5)
    for mine, theirs in zip(ours.weights, peer.coefs_ + peer.intercepts_, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    np.testing.assert_array_equal(ours.predict(x), peer.predict(x))


def test_network_stops_when_the_loss_stops_to_fall():
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(400, 2)), np.repeat([0, 1], 200)
    x[y == 1] += 20.0
    network = Network(20, max_iter=1000, seed=1).fit(x, y)
    from sklearn.neural_network import MLPClassifier

    peer = MLPClassifier((20, 20), max_iter=1000, random_state=1).fit(x.astype(np.float32), y)
    assert abs(len(network.losses) - peer.n_iter_) <= 1 < len(network.losses) < 1000


def test_network_does_not_see_units():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(500, 2)), 1.5 * rng.normal(size=(500, 2))
    plain = measures.c2st(y, x, classifier="mlp")
    scaled = measures.c2st(1e6 * y + 1e7, 1e6 * x + 1e7, classifier="mlp")
    assert scaled == pytest.approx(plain, abs=0.01)


def test_classifier_is_fair_to_sizes():
    rng = np.random.default_rng(4)
    found = measures.c2st(rng.normal(size=(500, 2)), rng.normal(size=(5000, 2)))
    assert abs(found - 0.5) < 4.0 * 0.5 / math.sqrt(500)


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


def test_wasserstein_of_a_scale():
    # Of s Z and Z it is abs(s - 1) E abs(Z).
    z = ndtri((np.arange(4000) + 0.5) / 4000)[:, None]
    found = measures.sliced_wasserstein(1.5 * z, z, np.random.default_rng(6), 1)
    assert found == pytest.approx(0.5 * math.sqrt(2.0 / math.pi), rel=2e-3)


def test_quantiles_with_equal_weights():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(37, 3))
    levels = np.array([0.1, 0.5, 0.9])
    found = measures.weighted_quantiles(x, np.full(37, 0.2), levels)
    np.testing.assert_allclose(found, np.quantile(x, levels, axis=0, method="hazen"))


def test_quantiles_with_importance_weights():
    rng, n = np.random.default_rng(8), 20_000
    x = 2.0 * rng.normal(size=(n, 1))
    weights = np.exp(-0.5 * x[:, 0] ** 2 * (1.0 - 0.25))
    levels = np.array([0.25, 0.5, 0.75])
    error = 0.5 / math.sqrt(measures.effective(weights)) / np.exp(-0.5 * ndtri(levels) ** 2) * 2.51
    assert (
        np.abs(measures.weighted_quantiles(x, weights, levels)[:, 0] - ndtri(levels)) < 4 * error
    ).all()


def test_quantile_errors_are_in_standard_deviations():
    x = np.random.default_rng(9).normal(size=(20_001, 2)) * [1.0, 5.0]
    found = measures.quantile_errors(x + 0.5 * x.std(axis=0), np.ones(len(x)), x)
    np.testing.assert_allclose(found, 0.5, atol=2e-3)


def test_equal_particles_count_once():
    theta = np.array([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0]])
    points, weights = measures.distinct(theta, np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(points, [[0.0, 0.0], [1.0, 2.0]])
    np.testing.assert_array_equal(weights, [2.0, 4.0])
    assert measures.effective(weights) == pytest.approx(36.0 / 20.0)
    assert measures.effective(np.ones(7)) == pytest.approx(7.0)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_back_to_the_cube(name):
    cube = methods.example(name, 1).cube
    u = np.random.default_rng(10).uniform(0.001, 0.999, (50, methods.example(name, 1).n_dim))
    np.testing.assert_allclose(measures.to_cube(cube, cube(u)), u, atol=1e-9)


def test_kernel_keeps_modes_and_their_shares():
    rng, n = np.random.default_rng(11), 20_000
    u = np.concatenate([rng.uniform(0.1, 0.2, (300, 2)), rng.uniform(0.8, 0.9, (100, 2))])
    weights = np.repeat([1.0, 9.0], [300, 100])
    out = measures.smoothed(u, weights, n, rng)
    assert ((out > 0.0) & (out < 1.0)).all()
    assert len(np.unique(out, axis=0)) == n
    upper = (out > 0.5).all(axis=1)
    assert upper.mean() == pytest.approx(0.75, abs=2.0 / n)
    assert ((out > 0.4) & (out < 0.6)).any(axis=1).mean() < 0.01
    np.testing.assert_allclose(out[upper].mean(axis=0), u[300:].mean(axis=0), atol=0.01)
    assert (out[upper].std(axis=0) > u[300:].std(axis=0)).all()


def test_kernel_is_narrow_where_particles_are_dense():
    rng = np.random.default_rng(14)
    dense, sparse = rng.normal(0.3, 0.001, (200, 2)), rng.uniform(0.6, 0.9, (200, 2))
    out = measures.smoothed(np.concatenate([dense, sparse]), np.ones(400), 4000, rng)
    assert (out[out[:, 0] < 0.45].std(axis=0) < 1.5 * dense.std(axis=0)).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_kernel_of_few_particles(n):
    u = np.random.default_rng(12).random((n, 3))
    out = measures.smoothed(u, np.ones(n), 10, as_generator(1))
    assert out.shape == (10, 3)
    assert np.isfinite(out).all()


# --- problems ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "two_moons",
        "two_scale_mixture",
        "gaussian_10",
        "ma2",
        "slcp",
        "gaussian_uniform_10",
        "ar_series",
        "group_means_9",
    ],
)
def test_observations_differ(name):
    data = [methods.example(name, k).observed for k in (1, 2, 3)]
    assert not np.array_equal(data[0], data[1])
    assert not np.array_equal(data[1], data[2])
    np.testing.assert_array_equal(data[0], EXAMPLES[name]().observed)
    assert methods.exact_draws(name, 2, 100).shape == (100, methods.example(name, 2).n_dim)


def test_meter_counts_rows_and_ends():
    meter = Meter(limit=10)
    call = meter.metered(lambda rng, size: np.zeros(size))
    call(None, size=(4,))
    assert meter.simulations == 1
    call(None, size=(9, 4))
    assert meter.simulations == 10
    assert meter.seconds >= 0.0
    with pytest.raises(Enough):
        call(None, size=(4,))


def test_model_with_another_tolerance_and_other_data():
    example = methods.example("two_scale_mixture", 1)
    u = np.full((5, 2), 0.7)

    def distance(**changes):
        meter = Meter()
        problem = ModelProblem.from_model(methods.metered_model(example, meter, **changes))
        found = problem.simulate(u, as_generator(1), batched=True).distance
        assert meter.simulations == 5
        return found

    plain = distance()
    summaries = example.simulate(as_generator(1), example.cube(u))
    np.testing.assert_allclose(plain, example.distance(summaries) / example.epsilon)
    np.testing.assert_allclose(distance(factor=0.5), 2.0 * plain)
    data = example.observed + np.array([0.0, 1.0])
    moved = distance(observed=data)
    gaps = summaries - data
    np.testing.assert_allclose(moved, np.linalg.norm(gaps, axis=1) / example.epsilon)


# --- methods -------------------------------------------------------------------------------------


def test_options_of_ours():
    found = methods.our_settings(["boxes", "cart", "adjust", "prior_share=0.1", "draws=20"])
    assert found == {
        "adjust": "regression", "draws": 20,
        "proposal": amc.TreeProposal(local=False, partition="cart", prior_share=0.1),
    }  # fmt: skip
    with pytest.raises(ValueError, match="unknown option 'turn'"):
        methods.our_settings(["turn"])


def test_ours_in_units_of_the_problem():
    example = methods.example("two_scale_mixture", 1)
    with methods.quiet():
        found = methods.run_ours(
            Job("two_scale_mixture", "rejection:tolerance=20", 1, 1000, 1), example
        )
    assert found.tolerance == pytest.approx(20.0 * example.epsilon)
    assert found.simulations == 1000 - 126  # of the trial before the run
    gap = np.linalg.norm(found.theta - example.observed, axis=1)
    # The noise has a standard deviation of 1 at most.
    assert 1.0 < gap.max() < 20.0 * example.epsilon + 5.0
    n, rate = found.simulations, math.pi * (20.0 * example.epsilon) ** 2 / 400.0
    assert abs(len(found.theta) / n - rate) < 0.3 * rate


def test_row_and_its_repetition():
    job = Job("two_moons", "tree", 1, 500, 1)
    first, again = (bench.measured(job, 500, networks=known) for known in ({"mlp": "mlp"}, {}))
    assert first["status"] == "finished"
    assert 0.4 < first["c2st"] <= 1.0
    assert {"c2st_mlp", "c2st_mlp_raw"} <= set(first)
    assert "c2st_mlp" not in again
    same = [k for k in again if k not in ("overhead_us", "setup_s")]
    assert {k: first[k] for k in same} == {k: again[k] for k in same}


def test_published_network_compares_what_is_returned(monkeypatch):
    compared = []

    def c2st(draws, reference, *, classifier="trees", seed=1):
        compared.append((classifier, draws))
        return 0.5

    monkeypatch.setattr(bench, "c2st", c2st)
    job = Job("two_moons", "tree:draws=100", 1, 500, 1)
    row = bench.measured(job, 100, networks={"published": "published", "mlp": "mlp"})
    assert {"c2st_returned", "c2st_published", "c2st_mlp", "c2st_mlp_raw"} <= set(row)
    assert "c2st_published_raw" not in row
    (published,) = (draws for classifier, draws in compared if classifier == "published")
    with methods.quiet():
        posterior = methods.run_ours(job, methods.example("two_moons", 1)).posterior
    assert len(posterior) == 400 and len(published) == 100
    assert set(map(tuple, published)) <= set(map(tuple, posterior))
    np.testing.assert_array_equal(published[[0, -1]], posterior[[0, -1]])


def test_failure_is_a_row(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyabc", None)
    row = bench.measured(Job("two_moons", "pyabc", 1, 500, 1), 500, networks={})
    assert row["status"].startswith("failed: ImportError")
    assert "pip install pyabc" in row["status"]


# --- calibration ---------------------------------------------------------------------------------


def test_ranks():
    each = np.arange(100)
    assert rows.covered(each, 0.5) == 0.5
    assert rows.covered(each, 0.9) == 0.9
    assert rows.uniformity(each) == 1.0
    assert rows.uniformity(np.full(60, 50)) < 1e-10


def test_ranks_of_exact_draws_are_uniform():
    # Posterior N(y / 2, 1 / 2) of a standard normal mean with unit noise.
    rng, n = np.random.default_rng(13), 2000
    theta = rng.normal(size=n)
    y = theta + rng.normal(size=n)
    for factor, uniform in ((1.0, True), (2.0, False)):
        spread = math.sqrt(0.5) * factor * rng.normal(size=(rows.RANKS, n))
        ranks = (0.5 * y + spread < theta).sum(axis=0)
        assert (rows.uniformity(ranks) > 1e-3) is uniform


def test_rank_row():
    row = bench.calibrated(Job("two_moons", "rejection", 1, 300, 5))
    assert row["status"] == "finished"
    assert len(row["ranks"]) == 2
    assert all(0 <= r <= 99 for r in row["ranks"])


def test_stated_errors_of_a_row():
    row = bench.measured(Job("gaussian_10", "rejection", 1, 500, 2), 500, networks={})
    assert len(row["mean_errors"]) == len(row["stated_mcse"]) == 10
    assert "independent draws" in row["flags"]


def test_coverage_of_stated_errors():
    told = [
        run_row(mean_errors=[0.1, -0.3], stated_mcse=[0.1, 0.1], flags="", seed=k) for k in (1, 2)
    ]
    told += [
        run_row(
            mean_errors=[0.1, 0.1],
            stated_mcse=[0.1, 0.1],
            flags="the tolerance 1 may shift posterior means",
            seed=3,
        )
    ]
    np.testing.assert_array_equal(rows.within(told[0], ["mcse"]), [True, False])
    assert rows.within(told[0], ["error"]) is None
    twice = told[0] | {"stated_bias": [0.0, 0.2]}
    np.testing.assert_array_equal(rows.within(twice, ["mcse", "bias"]), [True, True])
    found = rows.error_table(told).splitlines()[-1]
    assert "0.67 ± 0.2" in found
    assert "33" in found.split("|")[-2]
    assert rows.error_table([run_row()]) == ""


# --- rows and tables -----------------------------------------------------------------------------


def test_error_is_that_within_observations():
    values = {1: np.array([0.0, 2.0]), 2: np.array([10.0, 12.0])}
    mean, error = rows.mean_and_error(values)
    assert mean == 6.0
    # Variance 2 within, of means of two it is 1, of their mean 1 / 2.
    assert error == pytest.approx(math.sqrt(0.5))
    assert rows.mean_and_error({1: np.array([3.0])})[0] == 3.0
    assert math.isnan(rows.mean_and_error({})[0])


def test_published_table_weighs_observations_alike():
    found = [run_row(observation=1, seed=1, c2st_published=0.6), run_row(observation=2)]
    found += [run_row(observation=2, seed=s, c2st_published=0.8) for s in (2, 3)]
    table = rows.published_table(found)
    assert table.splitlines()[-1] == "| p | 1,000 | tree | 2 | 1-2 | 0.70 | 0.60 - 0.80 |"
    assert rows.published_table([run_row()]) == ""


def test_difference_is_of_common_observations():
    mine = [run_row(0.7, observation=1), run_row(0.9, observation=2), run_row(0.0, observation=3)]
    others = [run_row(0.6, observation=1), run_row(0.5, observation=2)]
    assert rows.paired(mine, others, "c2st") == pytest.approx((0.1 + 0.4) / 2)
    assert math.isnan(rows.paired(mine[2:], others, "c2st"))


def test_book_keeps_the_last_and_skips_what_was_cut_off(tmp_path):
    book = Book(tmp_path / "new" / "rows.jsonl", rows.row_key)
    assert book.rows() == []
    book.add(run_row(0.6, status="failed: x"))
    book.add(run_row(0.7, seed=2, status="failed: x"))
    book.add(run_row(0.8))
    with book.path.open("a") as sink:
        sink.write('{"kind": "run", "prob')
    assert [r["c2st"] for r in book.rows()] == [0.8, 0.7]
    assert book.done() == {rows.row_key(run_row())}


def test_peers_have_fewer_seeds():
    options = bench.parser().parse_args(
        "--problems ma2 --budgets 1e3 --methods tree smc:0.3 --seeds 4 --peer-seeds 2 "
        "--observations 2".split()
    )
    found = list(bench.jobs(options))
    assert sum(j.method == "tree" for j in found) == 8
    assert sum(j.method == "smc:0.3" for j in found) == 4
    assert all(j.budget == 1000 for j in found)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--methods", "elfi"],
        ["--methods", "tree:turn"],
        ["--methods", "smc:small"],
        ["--budgets", "0"],
        ["--budgets", "1.5"],
        ["--problems", "none"],
        ["--table", "missing.jsonl"],
    ],
)
def test_bad_options_are_told(arguments, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert arguments[1] in capsys.readouterr().err


def test_tables_of_a_file(tmp_path, capsys):
    book = Book(tmp_path / "rows.jsonl", rows.row_key)
    for observation in (1, 2):
        book.add(run_row(0.6, observation=observation))
        book.add(run_row(0.75, method="rejection", observation=observation))
    book.add(run_row(0.6, method="pyabc", status="failed: no"))
    rank = {"kind": "rank", "ranks": [5, 50], "tolerance": 0.1, "effective": 30.0}
    for seed in range(1, 31):
        book.add({**run_row(seed=seed), **rank})
    bench.main(["--table", str(book.path)])
    text = capsys.readouterr().out
    assert "### p, 1,000 simulations" in text
    rejection = next(line for line in text.splitlines() if line.startswith("| rejection |"))
    assert "| 0.75 |" in rejection
    assert "| 0.15 |" in rejection
    assert "| 0/1 |" in next(line for line in text.splitlines() if line.startswith("| pyabc |"))
    assert "pyabc on p failed: no" in text
    assert "### Ranks of the truth" in text
    assert "| 30/30 |" in text


@pytest.mark.slow
def test_quick_run_and_resumption(tmp_path, capsys):
    pytest.importorskip("pyabc")
    path = tmp_path / "rows.jsonl"
    arguments = ["--quick", "--draws", "500", "--mlp-seeds", "0", "--out", str(path)]
    bench.main(arguments)
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert len(rows) == 8
    assert all(row["status"] == "finished" for row in rows)
    spent = {row["method"]: row["simulations"] for row in rows}
    assert spent["tree"] == spent["rejection"] == 1000
    assert 400 < spent["pyabc"] < 2000
    assert 400 < spent["smc"] < 3000
    tolerance = {row["method"]: row["tolerance"] for row in rows if row["seed"] == 1}
    assert tolerance["tree"] < tolerance["rejection"]
    bench.main(arguments)
    assert len(Path(path).read_text().splitlines()) == 8
    assert "pyabc" in capsys.readouterr().out
