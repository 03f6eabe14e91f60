"""Evidence from draws that users have: answers, refusals, flags."""

import functools
import math
import re
import time
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import amc_pymc as amc

from amc_pymc.evidence.from_draws import affordable
from amc_pymc.evidence.model import TimeLimit
from amc_pymc.steps.stored_draws import draws_of
from tests.evidence.evidence_models import (
    Known,
    assert_same,
    by_quadrature,
    compile_before,
    compiled_once,  # noqa: F401
    error_of,
    flags_of,
    labels,
    normal_log,
    one,
)

CHAINS, DRAWS = 4, 500


def tree_of(**draws):
    """Draws (C * N, ...) as pm.sample would give them."""
    shaped = {k: v.reshape(CHAINS, -1, *v.shape[1:]) for k, v in draws.items()}
    return az.from_dict({"posterior": shaped})


def estimate(idata, known, *, seed=1, **settings):
    model = known.model if isinstance(known, Known) else known
    return amc.estimate_evidence(
        **{"idata": idata, "model": model, "random_seed": seed, "progressbar": False} | settings
    )


def assert_right(tree, known, *, errors=4.0, target=0.05):
    error, mcse = error_of(tree, known)
    assert 0.0 < mcse <= target
    assert abs(error) < errors * mcse


@functools.cache
def regression(n_dim):
    """Coefficients with a standard normal prior, and errors of variance one."""
    rng = np.random.default_rng(n_dim)
    X = rng.standard_normal((2 * n_dim, n_dim))
    y = X @ rng.standard_normal(n_dim) + rng.standard_normal(2 * n_dim)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=n_dim)
        pm.Normal("y", X @ beta, 1.0, observed=y)
    covariance = np.eye(len(y)) + X @ X.T
    log_det = np.linalg.slogdet(covariance)[1]
    quadratic = float(y @ np.linalg.solve(covariance, y))
    log_z = -0.5 * (len(y) * math.log(2.0 * math.pi) + log_det + quadratic)
    precision = np.eye(n_dim) + X.T @ X
    mean, root = np.linalg.solve(precision, X.T @ y), np.linalg.cholesky(np.linalg.inv(precision))

    def draws(seed):
        z = np.random.default_rng(seed).standard_normal((CHAINS * DRAWS, n_dim))
        return tree_of(beta=mean + z @ root.T)

    return Known(model, log_z), draws


@functools.cache
def binomial():
    """Seven of ten, with a uniform prior: 1 / 11."""
    with pm.Model() as model:
        p = pm.Beta("p", 1.0, 1.0)
        pm.Binomial("y", 10, p, observed=7)
    return Known(model, -math.log(11.0))


@functools.cache
def two_labels():
    """A mixture of two normals with equal weights, and exact draws; some chains have the labels swapped."""
    y = np.random.default_rng(3).normal([-2.0, 2.0], 1.0, (15, 2)).ravel()
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0, shape=2)
        pm.NormalMixture("y", [0.5, 0.5], mu, 1.0, observed=y)
    grid = np.linspace(-4.0, 4.0, 801)
    rows = np.logaddexp(normal_log(y, grid[:, None, None], 1.0), normal_log(y, grid[:, None], 1.0))
    logs = (rows - math.log(2.0)).sum(axis=2)
    logs += normal_log(grid, 0.0, 5.0) + normal_log(grid[:, None], 0.0, 5.0)
    weights = np.exp(logs - logs.max())
    log_z = math.log(weights.sum() * 0.01**2) + logs.max()

    def draws(seed, swapped):
        rng = np.random.default_rng(seed)
        at = rng.choice(weights.size, CHAINS * DRAWS, p=weights.ravel() / weights.sum())
        mu = grid[np.stack(np.unravel_index(at, weights.shape), axis=1)]
        mu = np.sort(mu + rng.uniform(-0.005, 0.005, mu.shape)).reshape(CHAINS, DRAWS, 2)
        mu[:swapped] = mu[:swapped, :, ::-1]
        return tree_of(mu=mu.reshape(-1, 2))

    return Known(model, log_z), draws


def binomial_draws(seed=1, a=8.0, b=4.0):
    return tree_of(p=np.random.default_rng(seed).beta(a, b, CHAINS * DRAWS))


def one_draws(seed=1, mean=1.5, sd=math.sqrt(0.5)):
    return tree_of(mu=np.random.default_rng(seed).normal(mean, sd, CHAINS * DRAWS))


@functools.cache
def banana():
    """A ridge along a parabola, and its exact draws."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.3, 1.0)
        z = pm.Normal("z", 0.0, 5.0)
        pm.Normal("y", z - 2.0 * x**2, 0.5, observed=0.0)
    log_z = by_quadrature(
        lambda x: normal_log(x, 0.3, 1.0) + normal_log(2.0 * x**2, 0.0, math.hypot(5.0, 0.5)), -9, 9
    )
    grid = np.linspace(-4.0, 4.0, 4001)
    weights = np.exp(
        normal_log(grid, 0.3, 1.0) + normal_log(2.0 * grid**2, 0.0, math.hypot(5, 0.5))
    )

    def draws(seed):
        rng = np.random.default_rng(seed)
        x = rng.choice(grid, CHAINS * DRAWS, p=weights / weights.sum())
        x += rng.uniform(-0.001, 0.001, x.shape)
        precision = 1.0 / 25.0 + 4.0
        z = rng.normal(4.0 * 2.0 * x**2 / precision, 1.0 / math.sqrt(precision))
        return tree_of(x=x, z=z)

    return Known(model, log_z), draws


# --- answers --------------------------------------------------------------------------------------


def test_regression():
    known, draws = regression(30)
    tree = estimate(draws(1), known)
    assert_right(tree, known)
    assert flags_of(tree) == ""


def test_transformed_variables():
    """Many seeds: a Jacobian that is missing, or there twice, is more than the error."""
    z = []
    for seed in range(10):
        error, mcse = error_of(estimate(binomial_draws(seed), binomial(), seed=seed), binomial())
        z.append(error / mcse)
    assert abs(np.mean(z)) < 4.0 / math.sqrt(10)
    assert np.std(z) < 2.0


def test_a_curved_posterior_takes_annealing():
    known, draws = banana()
    tree = estimate(draws(1), known, target_mcse=0.02)
    assert_right(tree, known, target=0.02)
    assert flags_of(tree) == ""
    arms = tree["arms"].to_dataset()
    assert len(arms["arm"]) > 1
    assert arms["log_evidence_mcse"].values[0] > 0.02
    np.testing.assert_array_equal(
        arms["weight"], np.arange(len(arms["arm"])) == len(arms["arm"]) - 1
    )


def test_draws_at_the_edge_of_the_support():
    with pytest.raises(ValueError, match="outside of its support or at its edge"):
        estimate(binomial_draws(a=1e9, b=1e-9), binomial())


GROUPS = {"g": ["b", "c", "a"], "h": ["s", "t", "r"]}


@functools.cache
def grouped():
    """Two observations of each of 3 x 3 means with standard normal priors, and their exact draws."""
    y = np.array([[-1.0, 0.5, 2.0], [0.0, 3.0, 1.0], [-2.0, 1.5, 0.2]])
    with pm.Model(coords=GROUPS) as model:
        u = pm.Normal("u", 0.0, 1.0, dims=("g", "h"))
        pm.Normal("y", u, 0.5, observed=[y, y])
    log_z = float(normal_log(y, 0.0, math.sqrt(1.125)).sum()) + 9.0 * float(
        normal_log(0.0, 0.0, 0.5**0.5)
    )
    z = np.random.default_rng(1).normal(size=(CHAINS, 1000, 3, 3)) / 3.0
    dims = {"u": ["g", "h"]}
    return Known(model, log_z), az.from_dict(
        {"posterior": {"u": y * 8.0 / 9.0 + z}}, coords=GROUPS, dims=dims
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.sortby("g"),
        lambda d: d.sortby("h").sortby("g", ascending=False),
        lambda d: d.transpose("h", "draw", "g", "chain"),
        lambda d: d.assign_coords(g=range(3), h=range(3)),
        lambda d: d.drop_vars(["g", "h"]),
    ],
)
def test_draws_are_read_by_their_labels(change):
    known, idata = grouped()
    changed = xr.DataTree.from_dict({"posterior": change(idata["posterior"].to_dataset())})
    values = draws_of(changed["posterior"].to_dataset(), "u", known.model)
    np.testing.assert_array_equal(values, idata["posterior"]["u"])


def test_the_evidence_does_not_depend_on_the_order_of_labels():
    known, idata = grouped()
    changed = xr.DataTree.from_dict({"posterior": idata["posterior"].to_dataset().sortby("g")})
    assert_same(estimate(changed, known)["evidence"], estimate(idata, known)["evidence"])
    changed["posterior"] = changed["posterior"].to_dataset().assign_coords(g=["a", "b", "d"])
    with pytest.raises(
        ValueError, match=r"'g' of 'u' .* \['a', 'b', 'd'\]..., .* \['b', 'c', 'a'\]"
    ):
        estimate(changed, known)


@pytest.mark.parametrize(
    ("length", "step", "flags"), [(200, 0.0, ""), (2000, 0.0, ""), (2000, 0.3, "chains_disagree")]
)
def test_one_chain_is_judged_by_its_halves(length, step, flags):
    mu = np.random.default_rng(2).normal(1.5, 0.5**0.5, (1, length))
    mu[:, length // 2 :] += step
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = estimate(az.from_dict({"posterior": {"mu": mu}}), one())
    assert (tree["evidence"].attrs["flag_names"] or "").split("; ")[0] == flags


def test_same_seed_same_numbers():
    known, draws = banana()
    compile_before(known.model)
    first, second, other = (estimate(draws(1), known, seed=s, target_mcse=0.02) for s in (1, 1, 2))
    assert_same(first, second)
    assert float(first["evidence"]["log_evidence"]) != float(other["evidence"]["log_evidence"])


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["pymc", "nutpie"])
def test_what_samplers_return(sampler):
    """Draws are those of the model, and of other data they are not."""
    if sampler == "nutpie":
        pytest.importorskip("nutpie")
    model, other = scaled(1.0), scaled(1.5)
    with model:
        idata = pm.sample(
            500, tune=500, chains=2, cores=1, random_seed=1, nuts_sampler=sampler, progressbar=False
        )
    assert flags_of(estimate(idata, model)) == ""
    flagged(idata, other, "not distributed as the model's density says")


def scaled(shift):
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        p = pm.Dirichlet("p", np.ones(3))
        pm.Normal("y", p[0], sigma, observed=shift * np.array([0.3, 1.2, -0.4, 2.0]))
    return model


# --- budgets --------------------------------------------------------------------------------------


def test_budget():
    known, draws = banana()
    with pytest.warns(UserWarning, match="n_steps=8, the most that max_cost"):
        tree = estimate(draws(1), known, target_mcse=1e-4, max_cost=100_000)
    found = tree["evidence"]
    assert int(found["n_likelihood"]) + int(found["n_gradient"]) < 1.2e5
    with pytest.warns(UserWarning, match="n_steps=1, the most that max_cost"):
        estimate(draws(1), known, target_mcse=1e-4, max_cost=1e-6)


def test_max_time():
    known, draws = banana()
    with pytest.warns(UserWarning, match="the most that max_cost and max_time allow"):
        tree = estimate(draws(1), known, target_mcse=1e-4, max_time=1e-6)
    assert tree["arms"]["n_steps"].values.tolist() == [1]
    limits = {"max_cost": 1e-6, "max_time": 1e-6}
    with pytest.warns(UserWarning, match="max_cost and max_time allow: .* raise max_cost or max_t"):
        estimate(draws(1), known, target_mcse=1e-4, **limits)


def test_ctrl_c_returns_the_last_complete_stage(monkeypatch):
    known, draws = banana()
    settings = {"target_mcse": 1e-4}
    with pytest.warns(UserWarning, match="the most that max_cost"):
        first = estimate(draws(1), known, **settings, max_cost=1e-6)

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("amc_pymc.evidence.bridge._tuned", interrupt)
    with pytest.warns(UserWarning, match="Model evidence: interrupted by the user: the estimate"):
        part = estimate(draws(1), known, **settings)
    assert part["evidence"].attrs["flag_names"] == "interrupted"
    assert part["arms"]["n_steps"].values.tolist() == [1]
    for name in ("log_evidence", "log_evidence_mcse"):
        assert float(part["evidence"][name]) == float(first["evidence"][name])
    monkeypatch.setattr("amc_pymc.evidence.bridge.halves_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        estimate(draws(1), known, **settings)


def test_a_stage_begins_if_it_is_expected_to_end_in_time():
    """A million evaluations at the present rate take far longer than an hour, one takes less."""
    now, cpu = time.monotonic(), time.process_time() - 10.0
    for max_time, wanted, allowed in [
        (3600.0, 1, True),
        (3600.0, 1_000_000, False),
        (None, 1_000_000, True),
    ]:
        limit = TimeLimit(max_time, now)
        assert affordable(wanted, 10.0, math.inf, limit, cpu) == allowed


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: {"mu": 1.0}, TypeError, "idata must be an xarray.DataTree .* got dict"),
        (lambda t: xr.DataTree(), ValueError, r"idata has no group 'posterior', only \[\]"),
        (lambda t: tree_of(nu=np.ones(200)), ValueError, "no draws of mu; its posterior has nu"),
        (
            lambda t: tree_of(mu=np.random.default_rng(1).normal(size=(200, 3))),
            ValueError,
            r"draws of 'mu' in idata have shape \(3,\), in the model it has \(\)",
        ),
        (lambda t: t.isel(draw=slice(5)), ValueError, "4 chains of 5 draws; at least 100 draws"),
        (lambda t: t.isel(draw=0), ValueError, "no dimension 'draw'"),
        (lambda t: tree_of(mu=np.r_[np.nan, np.ones(199)]), ValueError, "1 of 200 .*recover_marginals"),
        (lambda t: tree_of(mu=np.r_[np.inf, np.ones(199)]), ValueError, "'mu' in idata are not finite"),
        (lambda t: tree_of(mu=np.ones(200)), ValueError, "draws of mu in idata are all the same"),
    ],
)  # fmt: skip
def test_draws_that_cannot_be_used(change, error, message):
    with pytest.raises(error, match=message):
        estimate(change(one_draws()), one())


def test_models_that_cannot_be_used():
    with pytest.raises(ValueError, match="discrete free variables"):
        estimate(one_draws(), labels())
    with pm.Model() as model:
        pm.Normal("mu", 0.0, 1.0)
    with pytest.raises(ValueError, match="model has no likelihood"):
        estimate(one_draws(), model)
    with pytest.raises(TypeError, match="model is missing"):
        amc.estimate_evidence(idata=one_draws())


@pytest.mark.parametrize(
    ("name", "value"),
    [("arms", ["smc"]), ("draws", 10), ("chains", 4)],
)  # fmt: skip
def test_arguments_of_runs_without_draws(name, value):
    with pytest.raises(ValueError, match=f"{name}=.* is for runs without idata"):
        estimate(one_draws(), one(), **{name: value})


def test_draws_of_impossible_points():
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Uniform("y", 0.0, sigma, observed=[0.5])
    draws = np.abs(np.random.default_rng(1).normal(0.8, 0.4, 2000))
    with pytest.raises(ValueError, match="draws in idata have posterior density zero"):
        estimate(tree_of(sigma=draws), model)


# --- flags ----------------------------------------------------------------------------------------


def flagged(idata, known, *messages, **settings):
    with pytest.warns(UserWarning) as caught:
        tree = estimate(idata, known, **settings)
    text = "\n".join(str(w.message) for w in caught)
    for message in messages:
        assert message in text
        assert message in flags_of(tree)
    assert len(caught) == len(flags_of(tree).split("; "))
    return tree


def test_draws_of_other_data():
    """The two ends do not fit together."""
    flagged(one_draws(mean=0.7), one(), "not distributed as the model's density says")
    flagged(one_draws(sd=1.1), one(), "not distributed as the model's density says")
    half = one_draws()
    half["posterior"]["mu"] = abs(half["posterior"]["mu"] - 1.5) + 1.5
    flagged(half, one(), "not distributed as the model's density says")


def test_chains_that_disagree():
    idata = one_draws()
    idata["posterior"]["mu"][:2] += 1.0
    flagged(idata, one(), "the chains of idata do not agree (R-hat 1.")


def test_few_effective_draws():
    rng = np.random.default_rng(1)
    mu = np.empty((CHAINS, DRAWS))
    mu[:, 0] = rng.standard_normal(CHAINS)
    for t in range(1, DRAWS):
        mu[:, t] = 0.98 * mu[:, t - 1] + math.sqrt(1.0 - 0.98**2) * rng.standard_normal(CHAINS)
    idata = tree_of(mu=1.5 + math.sqrt(0.5) * mu.ravel())
    tree = flagged(idata, one(), "effective draws of a coordinate")
    error, mcse = error_of(tree, one())
    assert abs(error) < 4.0 * mcse


def test_divergences():
    idata = one_draws()
    diverging = np.arange(CHAINS * DRAWS).reshape(CHAINS, DRAWS) < 40
    idata["sample_stats"] = xr.DataTree(xr.Dataset({"diverging": (("chain", "draw"), diverging)}))
    tree = flagged(idata, one(), "40 of 2,000 transitions in idata diverged")
    assert int(tree["evidence"]["n_divergent"]) == 40


def test_particles(tmp_path):
    """What pm.sample_smc returns is known by its statistics, which are ragged."""
    idata = one_draws()
    ragged = np.empty(CHAINS, object)
    ragged[:] = [[0.0] * n for n in range(1, CHAINS + 1)]
    idata["sample_stats"] = xr.DataTree(xr.Dataset({"log_marginal_likelihood": ("chain", ragged)}))
    tree = flagged(idata, one(), "particles of sequential Monte Carlo")
    tree.to_netcdf(tmp_path / "found.nc")


def test_copies():
    """Weighted particles that were resampled: the error is that of the different ones."""
    rng = np.random.default_rng(1)
    mu = rng.permutation(np.repeat(rng.normal(1.5, math.sqrt(0.5), 200), 10))
    tree = flagged(tree_of(mu=mu), one(), "each draw of idata is there 10.0 times")
    plain = estimate(one_draws(), one())
    assert error_of(tree, one())[1] > 1.5 * error_of(plain, one())[1]


def test_a_fit_that_does_not_overlap():
    """Two modes far apart in ten dimensions: half of the Gaussian is nowhere near."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 10.0, shape=10)
        pm.Potential(
            "modes",
            pm.math.logaddexp(-50.0 * ((x - 5.0) ** 2).sum(), -50.0 * ((x + 4.0) ** 2).sum()),
        )
    rng = np.random.default_rng(1)
    side = np.where(rng.random(CHAINS * DRAWS) < 0.5, 5.0, -4.0)
    draws = side[:, None] + 0.1 * rng.standard_normal((CHAINS * DRAWS, 10))
    flagged(tree_of(x=draws), model, "hardly overlap", "raise max_cost", max_cost=20_000)


@pytest.mark.slow
def test_a_fit_that_is_impossible_under_the_model():
    """A ring so narrow that no draw of a Gaussian is on it."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=2)
        distance = pm.math.abs(pm.math.sqrt((x**2).sum()) - 3.0)
        pm.Potential("ring", pm.math.switch(distance < 1e-5, 0.0, -np.inf))
    rng = np.random.default_rng(1)
    n = CHAINS * DRAWS
    angle, radius = rng.uniform(0.0, 2.0 * np.pi, n), 3.0 + rng.uniform(-1e-5, 1e-5, n)
    draws = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    tree = flagged(tree_of(x=draws), model, "no draw of the fitted Gaussian is possible")
    assert tree["evidence"]["log_evidence"] == -np.inf
    assert tree["evidence"]["log_evidence_mcse"] == np.inf


def test_a_mode_that_the_draws_miss_is_missing():
    """The answer is the evidence of one mode, and a search for others says so."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 5.0)
        pm.Potential("modes", pm.math.logaddexp(-0.5 * (x - 8.0) ** 2, -0.5 * (x + 7.0) ** 2))
    one, other = (
        by_quadrature(lambda x: normal_log(x, 0.0, 5.0) - 0.5 * (x - at) ** 2, -30.0, 30.0)
        for at in (8.0, -7.0)
    )
    both = np.logaddexp(one, other)
    precision = 1.0 + 1.0 / 25.0
    rng = np.random.default_rng(1)
    draws = rng.normal(8.0 / precision, 1.0 / math.sqrt(precision), CHAINS * DRAWS)
    tree = flagged(
        tree_of(x=draws), Known(model, both), "found a mode that the draws have not visited"
    )
    assert abs(error_of(tree, Known(model, one))[0]) < 0.05
    told = float(re.search(r"evidence is about (-\d+\.\d+)", flags_of(tree))[1])
    assert abs(told - both) < 0.1
    left = rng.random(draws.size) < math.exp(other - both)
    draws[left] -= 15.0 / precision
    assert_right(estimate(tree_of(x=draws), Known(model, both)), Known(model, both))
    assert "modes that the draws miss stay missed" in tree["evidence"].attrs["unbiased"]


# --- copies of modes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [0, 2])
def test_draws_of_one_labelling_stand_for_all(swapped):
    # Without folding: half of the evidence, or R-hat above 20.
    known, draws = two_labels()
    tree = estimate(draws(1, swapped), known)
    assert_right(tree, known)
    assert not flags_of(tree)
