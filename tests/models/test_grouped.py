"""Simulated data in groups: the models evaluate, and the truth is found again."""

import numpy as np
import pytest

from pytensor.compile.mode import Mode
from scipy.optimize import minimize
from scipy.special import expit

from models.grouped import (
    EXAMPLES,
    draw_outcomes,
    group_index,
    simulate_intercepts,
    simulate_latent_classes,
    simulate_separation,
    simulate_slopes,
    simulate_zero_inflation,
)
from models.grouped_references import FROZEN, NAMES, summarise

# Python code instead of compiled code, for graphs that are evaluated once.
PYTHON = Mode(linker="py", optimizer=None)


def rows_and_groups(name):
    return (40, 40) if name == "overdispersion" else (60, 12)


def log_density(model, point):
    return float(model.compile_logp(mode=PYTHON)(point))


# Graphs with a matrix product make PyTensor look for a BLAS, though the Python linker needs none.
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")
@pytest.mark.parametrize("name", EXAMPLES)
def test_log_density_is_finite_and_the_same_at_the_start_of_both_parameterisations(name):
    example = EXAMPLES[name]
    data = example.simulate(*rows_and_groups(name))
    centred, other = (example.build(data, centred) for centred in (True, False))
    # Effects are zero and standard deviations one there, so that the change of variables is void.
    start = log_density(centred, centred.initial_point())
    assert np.isfinite(start)
    if name not in ("slope", "gaussian_slope", "two_slopes"):
        assert log_density(other, other.initial_point()) == pytest.approx(start)
    else:
        assert np.isfinite(log_density(other, other.initial_point()))


@pytest.mark.parametrize("name", EXAMPLES)
def test_variables_are_what_the_table_says(name):
    example = EXAMPLES[name]
    data = example.simulate(*rows_and_groups(name))
    for centred in (True, False):
        model = example.build(data, centred)
        free = {rv.name for rv in model.free_RVs}
        suffix = "" if centred or example.discrete else "_z"
        assert free == {*example.population, *(f"{local}{suffix}" for local in example.local)}
        named = {v.name for v in (*model.free_RVs, *model.deterministics)}
        assert set(example.local) <= named
    assert set(example.population) <= set(data.truth)


@pytest.mark.parametrize("name", EXAMPLES)
def test_data_are_reproducible_and_shaped(name):
    example = EXAMPLES[name]
    n_rows, n_groups = rows_and_groups(name)
    data, same, other = (example.simulate(n_rows, n_groups, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(data.y, same.y)
    assert not np.array_equal(data.y, other.y)
    assert data.y.shape == (n_rows,) and data.X.shape[0] == n_rows
    for factor, index in data.groups.items():
        assert index.shape == (n_rows,)
        assert 0 <= index.min() and index.max() < data.n_groups[factor]
    for factor, size in data.n_groups.items():
        known = data.effects.get(factor, next(iter(data.effects.values())))
        assert len(known) == size


@pytest.mark.parametrize(
    "name", [n for n, e in EXAMPLES.items() if not e.discrete and "slope" not in n]
)
def test_centred_and_not_centred_are_one_density(name):
    """Log densities differ by the Jacobian G log sd of every factor, anywhere."""
    example = EXAMPLES[name]
    data = example.simulate(*rows_and_groups(name))
    centred, other = (example.build(data, centred) for centred in (True, False))
    rng = np.random.default_rng(5)
    z = {k: 0.3 * rng.standard_normal(np.shape(v)) for k, v in other.initial_point().items()}
    z |= {k: np.sort(v) for k, v in z.items() if k.startswith("cutpoints")}
    names = list(example.local)
    sds = {local: np.exp(z[f"sd_{local}_log__"]) for local in names}
    mean = dict.fromkeys(names, 0.0)
    point = {k: v for k, v in z.items() if not k.endswith("_z")}
    for local in names:  # the parent comes first
        if local == "class":
            mean[local] = point["school"][data.extra["parent"]]
        if "W" in data.extra:
            mean[local] = data.extra["W"] @ z["gamma"]
        point[local] = mean[local] + sds[local] * z[f"{local}_z"]
    jacobian = sum(data.n_groups[local] * np.log(sds[local]) for local in names)
    assert log_density(centred, point) + jacobian == pytest.approx(log_density(other, z))


# --- groups ---------------------------------------------------------------------------------------


def test_sizes_of_groups():
    rng = np.random.default_rng(1)
    counts = {
        sizes: np.bincount(group_index(rng, 1_000, 50, sizes), minlength=50)
        for sizes in ("balanced", "random", "unbalanced")
    }
    assert np.ptp(counts["balanced"]) == 0 and np.ptp(counts["random"]) > 0
    unbalanced = counts["unbalanced"]
    assert unbalanced[0] == 500
    assert (unbalanced == 1).sum() == 16 and (unbalanced == 0).sum() == 5
    assert all(values.sum() == 1_000 for values in counts.values())
    np.testing.assert_array_equal(np.sort(group_index(rng, 9, 9, "single")), np.arange(9))


@pytest.mark.parametrize(
    ("sizes", "n_rows", "message"),
    [("single", 8, "groups of one row"), ("unbalanced", 4, "too few"), ("equal", 9, "sizes")],
)
def test_sizes_that_cannot_be(sizes, n_rows, message):
    with pytest.raises(ValueError, match=message):
        group_index(np.random.default_rng(1), n_rows, 9, sizes)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="family must be one of"):
        simulate_intercepts("binomial")
    with pytest.raises(ValueError, match="2 or 3 effects"):
        simulate_slopes(n_effects=4)
    with pytest.raises(ValueError, match="ordered"):
        simulate_slopes("ordered")


def test_separated_groups():
    data = simulate_separation(200, 10)
    group = data.groups["group"]
    assert data.y[group == 0].all() and not data.y[group == 1].any()


# --- the truth is found again ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", ["gaussian", "logistic", "poisson", "negative_binomial", "exponential", "weibull"]
)
def test_outcomes_have_their_mean(family):
    eta, n = 0.4, 40_000
    y, truth, extra = draw_outcomes(family, np.full(n, eta), np.random.default_rng(2))
    if extra:  # survival: the mean of min(T, c) given c is the integral of the survivor function
        shape = truth.get("shape", 1.0)
        t = np.linspace(0.0, 4.0, 4_001)
        alive = np.clip((4.0 - t) / 3.0, 0.0, 1.0)  # the chance that the limit is beyond t
        mean = np.trapezoid(np.exp(-np.exp(eta) * t**shape) * alive, t)
        assert (y <= extra["limit"]).all() and 0.0 < (y == extra["limit"]).mean() < 0.5
    else:
        log_mean = family in ("poisson", "negative_binomial")
        mean = np.exp(eta) if log_mean else expit(eta) if family == "logistic" else eta
    assert abs(y.mean() - mean) < 4.0 * y.std() / np.sqrt(n)


def test_ordered_outcomes_have_their_shares():
    n = 40_000
    y, truth, _ = draw_outcomes("ordered", np.full(n, 0.4), np.random.default_rng(2))
    share = np.diff(expit(truth["cutpoints"] - 0.4), prepend=0.0, append=1.0)
    found = np.bincount(y, minlength=4) / n
    np.testing.assert_array_less(np.abs(found - share), 4.0 * np.sqrt(share * (1.0 - share) / n))


def slopes_of(negative_log_likelihood, start):
    """Estimates and standard errors by maximum likelihood."""
    found = minimize(negative_log_likelihood, start, method="BFGS")
    return found.x, np.sqrt(np.diag(found.hess_inv))


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_coefficients_are_found_with_effects_known(family):
    data = simulate_intercepts(family, 4_000, 40, seed=6)
    offset = data.effects["group"][data.groups["group"]]

    def loss(beta):
        eta = data.X @ beta + offset
        total = np.logaddexp(0.0, eta) if family == "logistic" else np.exp(eta)
        return (total - data.y * eta).sum()

    beta, error = slopes_of(loss, np.zeros(3))
    np.testing.assert_array_less(np.abs(beta - data.truth["beta"]), 4.0 * error)


def test_effects_have_their_covariance():
    data = simulate_slopes("gaussian", 4_000, 2_000, n_effects=3, seed=2)
    u, chol = data.effects["group"], np.zeros((3, 3))
    chol[np.tril_indices(3)] = data.truth["chol"]
    truth = chol @ chol.T
    sd = np.sqrt(np.diag(truth))
    np.testing.assert_allclose(sd, [0.8, 0.5, 0.3])
    np.testing.assert_allclose(truth[0, 1:] / sd[0] / sd[1:], [-0.3, 0.3])
    error = np.sqrt((np.outer(sd, sd) ** 2 + truth**2) / len(u))
    np.testing.assert_array_less(np.abs(np.cov(u.T) - truth), 4.0 * error)


def test_idle_groups_have_no_counts_and_classes_their_shares():
    data = simulate_zero_inflation(2_000, 400)
    idle = data.effects["active"] == 0
    assert not data.y[idle[data.groups["group"]]].any()
    assert abs(idle.mean() - 0.3) < 4.0 * np.sqrt(0.3 * 0.7 / 400)
    kinds = simulate_latent_classes(2_000, 400)
    found = np.bincount(kinds.effects["kind"], minlength=3) / 400
    weights = kinds.truth["weights"]
    assert (np.abs(found - weights) < 4.0 * np.sqrt(weights * (1.0 - weights) / 400)).all()


# --- references -----------------------------------------------------------------------------------


def test_frozen_references_are_long_and_near_the_truth():
    assert set(FROZEN) == set(NAMES)
    for name, table in FROZEN.items():
        truth = EXAMPLES[name].simulate(50, 10).truth
        for label, (mean, sd, ess) in table.items():
            variable, _, k = label.partition("[")
            true = np.ravel(truth[variable])[int(k.rstrip("]")) if k else 0]
            assert abs(mean - true) < 4.0 * sd, (name, label)
            assert ess > 2_000, (name, label)


def test_summaries_of_draws():
    draws = np.random.default_rng(3).normal(1.0, 2.0, (4, 500, 2))
    table = summarise({"x": draws[..., 0], "v": draws})
    assert list(table) == ["x", "v[0]", "v[1]"]
    assert table["x"] == table["v[0]"]
    assert abs(table["x"]["mean"] - 1.0) < 4.0 * table["x"]["mcse_mean"]
    assert abs(table["x"]["sd"] - 2.0) < 4.0 * table["x"]["mcse_sd"]
    assert table["x"]["r_hat"] < 1.02
