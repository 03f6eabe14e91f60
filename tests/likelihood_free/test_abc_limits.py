"""Likelihood-free samplers: bad arguments, failed simulations, interruptions and limits."""

import math
import warnings

import numpy as np
import pymc as pm
import pytest

from scipy import stats

import amc_pymc as amc

from tests.likelihood_free.abc_runs import (
    BUDGET,
    DATA,
    PROBLEM,
    SD,
    grouped_model,
    interrupted,
    rejection,
    sample,
)

#: About 1.5 % of the budget are left as effective draws, which is close to where few are told of.
pytestmark = pytest.mark.filterwarnings("ignore:.*independent draws:UserWarning")


BAD = [
    ({"draws": 0}, "draws must be at least 1"),
    ({"draws": 1.5}, "draws must be an integer"),
    ({"max_simulations": 0}, "max_simulations must be at least 1"),
    ({"max_simulations": 1e4}, "max_simulations must be an integer, got 10000.0; write 10000"),
    (
        {"proposal": amc.TreeProposal(batch_size=9000)},
        "max_simulations=8000 is less than a batch, batch_size=9000",
    ),
    ({"proposal": "cart"}, r"proposal must be an amc_pymc\.TreeProposal, got 'cart'"),
    ({"proposal": None}, r"proposal must be an amc_pymc\.TreeProposal, got None"),
    ({"tolerance": 0.0}, "tolerance must be positive and finite, got 0.0"),
    ({"tolerance": math.nan}, "tolerance must be positive and finite, got nan"),
    ({"tolerance": "small"}, "tolerance must be a number or None"),
    ({"adjust": "cubic"}, "adjust must be one of 'none', .* got 'cubic'"),
    ({"exchangeable": 1, "adjust": "auto"}, "exchangeable must be .* got 1"),
    ({"exchangeable": True}, "exchangeable=True needs data of two observations"),
    ({"distance_scale": "learnt"}, "distance_scale must be one of 'mad', 'learned'"),
    ({"model": "model"}, "model must be a pm.Model, got str"),
    ({"batched": "no"}, "batched must be .* got 'no'"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(o) for o, _ in BAD])
def test_bad_arguments(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        sample(**options)


def test_no_simulator():
    with pm.Model() as plain:
        pm.Normal("x")
    with pytest.raises(ValueError, match=r"no pm\.Simulator"):
        sample(plain)


@pytest.mark.parametrize("sampler", [amc.sample_abc_tree, rejection])
def test_a_problem_is_no_number_of_draws(sampler):
    with pytest.raises(TypeError, match=r"draws must be an integer, got .*SimulatorProblem"):
        sampler(PROBLEM, max_simulations=1000)
    with pytest.raises(TypeError, match="draws must be an integer, got "):
        sampler(pm.Model(), max_simulations=1000)


def failing(rng, mu):
    if mu > 2.0:
        raise ValueError("no solution")
    return rng.normal(mu, SD) if mu > -3.0 else math.nan


def test_failures_are_counted_and_told():
    problem = amc.SimulatorProblem({"mu": stats.uniform(-5.0, 10.0)}, failing, DATA)
    with pytest.warns(UserWarning) as caught:
        found = sample(problem, batched=False)
    text = next(str(w.message) for w in caught if "failed" in str(w.message))
    assert "raised ('ValueError: no solution', first at mu=" in text and "returned nan" in text
    assert int(found["abc"]["n_failed"]) == int(found["abc"]["failed"].sum()) > 100
    assert float(found["weighted_posterior"]["mu"].max()) <= 2.0


@pytest.mark.parametrize(("data", "flagged"), [([8, 4, 8, 8, 10, 4], True), ([30], False)])
def test_probabilities_that_the_tolerance_changes_are_told(data, flagged):
    """All data are multiples of k. P(k = 2) is 0.98 by enumeration; at the tolerance it is about 0.3."""

    def simulator(rng, k, lam):
        return rng.poisson(lam[:, None], (len(lam), len(data))) * k[:, None]

    prior = {"k": stats.randint(1, 6), "lam": stats.gamma(2, scale=2)}
    problem = amc.SimulatorProblem(prior, simulator, data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sample(problem, max_simulations=10_000, tolerance=None if flagged else 0.5)
    assert ("uncertain_probabilities" in found["abc"].attrs["flag_names"]) == flagged
    table = found["probabilities"]["probability"]
    assert set(table["event"].values) <= {f"k={k}" for k in range(1, 6)}
    mean, error = (table.sel(statistic=s) for s in ("mean", "error"))
    np.testing.assert_allclose(mean.sum(), 1.0)
    # Poisson masses of the data over k, averaged over the prior of the rate
    exact = np.array([_mass(np.array(data), k) for k in range(1, 6)])
    exact = exact[[int(e[2:]) - 1 for e in table["event"].values]] / exact.sum()
    assert (abs(mean - exact) < 4.0 * error).all()


@pytest.mark.filterwarnings("ignore:Likelihood-free inference")
def test_probabilities_of_large_counts_are_those_of_the_most_probable():
    """The posterior of a Poisson mean of about 100: two thirds are within ten of it."""
    problem = amc.SimulatorProblem({"k": stats.randint(1, 200)}, lambda rng, k: rng.poisson(k), 100)
    found = sample(problem, max_simulations=20_000, tolerance=2.5, adjust="none")
    table = found["probabilities"]["probability"].values
    assert table.shape[1] == 20 and table[0].sum() > 0.5


def _mass(data, k):
    """Return the probability of the data given k, up to a factor."""
    rate = np.linspace(0.01, 60.0, 6000)
    masses = stats.poisson.logpmf(data[:, None] / k, rate).sum(axis=0)
    return np.exp(masses + stats.gamma(2, scale=2).logpdf(rate)).sum()


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("sampler", [amc.sample_abc_tree, rejection, amc.find_MAP_tree])
def test_a_budget_has_all_calls_of_the_simulator(sampler, batched):
    rows = []

    def simulator(rng, mu):
        rows.append(np.size(mu))
        return rng.normal(mu, SD)

    problem = amc.SimulatorProblem({"mu": stats.uniform(-5.0, 10.0)}, simulator, DATA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample(problem, sampler=sampler, max_simulations=300, batched=batched)
        assert sum(rows) == 300
    with pytest.raises(ValueError, match=r"max_simulations=5 is too small: \d+ of these"):
        sample(problem, sampler=sampler, max_simulations=5, batched=batched)


def test_ctrl_c_keeps_what_there_is():
    with pytest.warns(UserWarning) as caught:
        found = sample(interrupted(12))
    assert any("interrupted by the user" in str(w.message) for w in caught)
    done = found["posterior"].attrs["simulations"]
    assert 0 < done < BUDGET and done == int(found["abc"]["simulations"].sum())


def test_ctrl_c_before_anything_was_done():
    with pytest.raises(KeyboardInterrupt):
        sample(interrupted(2))


@pytest.mark.parametrize("name", ["distance", "round", "draw"])
def test_variables_that_are_called_as_results_are(name):
    problem = amc.SimulatorProblem(
        {name: stats.uniform(-5.0, 10.0)}, lambda rng, **given: rng.normal(given[name], SD), DATA
    )
    with pytest.raises(ValueError, match=f"a variable is called '{name}'"):
        sample(problem)


def test_all_fail():
    def broken(rng, mu):
        raise RuntimeError("out of order")

    problem = amc.SimulatorProblem({"mu": stats.norm()}, broken, DATA)
    with pytest.raises(ValueError, match="RuntimeError: out of order"):
        sample(problem, batched=False)


@pytest.mark.filterwarnings("ignore:Likelihood-free inference. (at )?the tolerance")
def test_few_effective_draws_are_told():
    with pytest.warns(UserWarning, match="independent draws"):
        sample(max_simulations=300)


def test_a_tolerance_out_of_reach_is_told():
    with pytest.warns(UserWarning, match="above 1 that is asked for"):
        sample(grouped_model(), sampler=rejection)
