"""RacingGibbs against exact conditionals, and its draws against argmaxes in NumPy with the same noise."""

from __future__ import annotations

import functools
import itertools
import math

from dataclasses import replace
from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from compiled_calls import entry_point
from scipy import stats

import amc_pymc as amc

from amc_pymc.engine.jit import first_class
from amc_pymc.results import clopper_pearson
from amc_pymc.tall.decisions import GRADIENT, Races, residuals
from amc_pymc.tall.racing import DECIDED, REWARDS
from amc_pymc.tall.samplers import gibbs
from amc_pymc.tall.samplers.chain import AuditTally, report
from amc_pymc.tall.surrogate import surrogate_total
from models.variable_selection import (
    inclusion_probabilities,
    selection_model,
    sparse_data,
)

LEVEL = 1e-4
"""Of every test of a distribution."""


# --- one variable with five states ----------------------------------------------------------------

MEANS = np.array([0.0, 0.03, 0.06, 0.02, 0.05])
SDS = np.array([1.0, 1.02, 0.98, 1.01, 0.97])
PRIOR = np.array([0.3, 0.2, 0.1, 0.25, 0.15])
N_ROWS = 1_500


def one_element(sampler, name, states, raced):
    """The same sampler for one element only, and its place."""
    place = sampler.prepared.densities.layout.slices[name].start
    elements = gibbs.elements_of([place], [np.arange(states)], [raced])
    return replace(sampler, elements=elements), place


@functools.cache
def data():
    return np.random.default_rng(4).normal(0.03, 1.0, size=N_ROWS)


@functools.cache
def model():
    """The rows' mean and standard deviation depend on k."""
    with pm.Model() as out:
        k = pm.Categorical("k", p=PRIOR, initval=0)
        pm.Normal("y", pt.as_tensor(MEANS)[k], pt.as_tensor(SDS)[k], observed=data())
    return out


@functools.cache
def row_logps():
    """(K, N), in NumPy."""
    return stats.norm.logpdf(data(), MEANS[:, None], SDS[:, None])


@functools.cache
def log_weights():
    return np.log(PRIOR) + row_logps().sum(axis=1)


@functools.cache
def conditional():
    weights = np.exp(log_weights() - log_weights().max())
    return weights / weights.sum()


@functools.cache
def sampler_of(race):
    """With control variate for "normal", without for "exact"; with normal races in either case."""
    made = amc.RacingGibbs(model=model(), race=race, audits=0).sampler
    return replace(made, race=amc.NormalRace())


@pytest.fixture
def sampler(request):
    """Without or with control variate."""
    return sampler_of(request.param)


with_proxy = pytest.mark.parametrize("sampler", ["normal"], indirect=True, ids=["proxy"])
without_proxy = pytest.mark.parametrize("sampler", ["exact"], indirect=True, ids=["no proxy"])
both = pytest.mark.parametrize(
    "sampler", ["normal", "exact"], indirect=True, ids=["proxy", "no proxy"]
)


def walk(sampler, point, number, seed=1):
    """Points (number, D) after each draw of one chain without tuning, and its statistics."""
    x, rng = sampler.prepared.densities.layout.ravel(point), np.random.default_rng(seed)
    chain = gibbs.init(sampler, rng, draws=number)
    out, found = np.empty((number, x.size)), []
    for j in range(number):
        x, counts = gibbs.step(sampler, chain, x, rng)
        out[j] = x
        found.append(report(sampler, chain, counts))
    return out, {n: np.array([s[n] for s in found]) for n in found[0]}


def assert_frequencies(values, probabilities):
    """Chi-square test of independent draws of 0 .. K - 1."""
    counts = np.bincount(np.asarray(values, dtype=int), minlength=len(probabilities))
    possible = np.asarray(probabilities) > 0
    assert counts[~possible].sum() == 0
    expected = counts.sum() * np.asarray(probabilities)[possible]
    if possible.sum() == 1:
        return
    assert stats.chisquare(counts[possible], expected).pvalue > LEVEL, (counts, expected)


@with_proxy
@pytest.mark.parametrize(
    "race",
    [amc.NormalRace(), amc.ExactRace()],
    ids=["normal", "exact"],
)
def test_draws_come_from_the_exact_conditional(sampler, race):
    sampler = replace(sampler, race=race)
    values, found = walk(sampler, model().initial_point(), 4_000)
    assert_frequencies(values[:, 0], conditional())
    assert np.all(found["race_delta"] == race.delta)
    if isinstance(race, amc.ExactRace):
        assert np.all(found["race_rows"] == N_ROWS)
    else:
        assert found["race_rows"].mean() < 0.9 * N_ROWS


def test_states_that_the_prior_excludes_are_never_drawn():
    """The race is among the others; its winner is a state, not a place in their list."""
    prior = np.array([0.0, 0.3, 0.0, 0.4, 0.3])
    with pm.Model() as out:
        k = pm.Categorical("k", p=prior, initval=1)
        pm.Normal("y", pt.as_tensor(MEANS)[k], pt.as_tensor(SDS)[k], observed=data())
    with np.errstate(divide="ignore"):
        log_weights = np.log(prior) + row_logps().sum(axis=1)
    weights = np.exp(log_weights - log_weights.max())
    sampler = amc.RacingGibbs(model=out, delta=0.01, audits=0).sampler
    values, _ = walk(sampler, out.initial_point(), 2_000)
    assert_frequencies(values[:, 0], weights / weights.sum())


@without_proxy
def test_draws_without_a_control_variate(sampler):
    sampler = replace(sampler, race=amc.ExactRace())
    values, _ = walk(sampler, model().initial_point(), 4_000)
    assert_frequencies(values[:, 0], conditional())


def gumbel_draws(number, seed, score):
    """States that the largest of score(x) + Gumbel noise chooses, with the sampler's own stream."""
    rng = np.random.default_rng(seed)
    out = np.empty(number, dtype=int)
    for j in range(number):
        noise = -np.log(-np.log(1.0 - rng.random(MEANS.size)))
        out[j] = np.argmax(score + noise)
    return out


@both
def test_exact_races_are_argmaxes_draw_for_draw(sampler):
    few = replace(sampler.prepared, exact_rows=np.arange(N_ROWS // 2))
    for prepared in (few, sampler.prepared):  # with and without rows that are always read
        exact = replace(sampler, race=amc.ExactRace(), prepared=prepared)
        values, found = walk(exact, model().initial_point(), 500, seed=8)
        np.testing.assert_array_equal(values[:, 0], gumbel_draws(500, 8, log_weights()))
    changed = np.diff(np.concatenate([[0], values[:, 0]])) != 0
    np.testing.assert_array_equal(found["race_moved"], changed)


# --- decisions of races against those of all rows, with the same noise ----------------------------


def disagreements(sampler, count, bound_factor=1.0, near=True, seed=3):
    """Races whose winner is not the state with the highest score on all rows.

    ``near`` puts all five states within one standard error of the first batch of each other.
    """
    densities, _, population, rules, _ = sampler.races
    rules = rules._replace(sd_factor=bound_factor * rules.sd_factor)
    surrogate = sampler.prepared.surrogate
    races = Races(densities, surrogate, population, rules)
    states = np.arange(float(MEANS.size))
    points = np.ascontiguousarray(sampler.prepared.eta(states[:, None]))
    rewards = residuals(densities.rewards, points, surrogate.centre, np.arange(N_ROWS))
    error = N_ROWS * np.std(rewards - rewards.mean(axis=0), axis=1).max() / math.sqrt(50)
    rng = np.random.default_rng(seed)
    wrong, x, run = 0, np.zeros(1), None
    for _ in range(count):
        if near:
            scores = rng.uniform(-1.0, 1.0, size=MEANS.size) * error - row_logps().sum(axis=1)
        else:
            scores = np.log(PRIOR) + rng.gumbel(size=MEANS.size)
        args = (x, 0, states, scores, races, rng)
        run = run or entry_point(gibbs.race_states, args)
        result = run(*args)
        assert result.status == DECIDED
        wrong += result.winner != np.argmax(scores + row_logps().sum(axis=1))
    return wrong


@both
def test_fewer_than_delta_of_the_races_are_wrong(sampler):
    near = disagreements(sampler, 4_000)
    assert near > 0
    assert clopper_pearson(near, 4_000)[1] <= 0.05
    natural = disagreements(sampler, 4_000, near=False)
    assert clopper_pearson(natural, 4_000)[1] <= 0.05


@both
def test_half_the_bound_breaks_the_promise(sampler):
    """The same measurement, so that it is known to see a broken bound."""
    near = disagreements(sampler, 4_000, bound_factor=0.5)
    assert clopper_pearson(near, 4_000)[0] > 0.05


# --- all kinds of distributions at once -----------------------------------------------------------

SLOPES = {"k": [0.03, -0.04], "b": 0.05, "t": -0.02, "g": 0.04, "fixed": 1.0, "free": 0.0}
STATES = {
    "k": [[0, 1], [2, 3, 4]],
    "b": [range(4)],
    "t": [range(5)],
    "g": [range(6)],
    "fixed": [range(3)],
    "free": [range(3)],
}
FREE = np.array([0.2, 0.3, 0.5])
N_MIXED = 800


@functools.cache
def mixed_model():
    """A sum of discrete variables, shifted by k; ``free`` is in no row, ``fixed`` cannot move."""
    with pm.Model() as out:
        k = pm.DiscreteUniform("k", lower=[0, 2], upper=[1, 4], initval=[0, 2])
        b = pm.Binomial("b", 3, 0.4)
        t = pm.Truncated("t", pm.Poisson.dist(2.0), upper=4)
        g = pm.Truncated("g", pm.Poisson.dist(1.5), upper=5)
        fixed = pm.Categorical("fixed", p=[0.0, 1.0, 0.0], initval=1)
        pm.Categorical("free", p=FREE, initval=0)
        mean = pt.dot(k, SLOPES["k"]) + 0.05 * b - 0.02 * t + 0.04 * g + fixed
        pm.Normal("y", mean, 1.0, observed=mixed_data())
    return out


@functools.cache
def mixed_data():
    return np.random.default_rng(6).normal(1.03, 1.0, size=N_MIXED)


@functools.cache
def mixed_sampler():
    return amc.RacingGibbs(model=mixed_model(), audits=0).sampler


@pytest.fixture
def mixed():
    return mixed_sampler()


def mixed_prior(name, j, state):
    return {
        "k": lambda: -math.log(len(STATES["k"][j])),
        "b": lambda: stats.binom.logpmf(state, 3, 0.4),
        "t": lambda: stats.poisson.logpmf(state, 2.0),
        "g": lambda: stats.poisson.logpmf(state, 1.5),
        "fixed": lambda: 0.0 if state == 1 else -np.inf,
        "free": lambda: np.log(FREE[int(state)]),
    }[name]()


def mixed_elements():
    """Name, index, states and slope of every coordinate."""
    return [
        (name, j, np.array(states), np.atleast_1d(SLOPES[name])[j])
        for name in STATES
        for j, states in enumerate(STATES[name])
    ]


def mixed_loglik(mean):
    y = mixed_data()
    return -0.5 * (N_MIXED * np.square(mean) - 2 * mean * y.sum())


def test_sweeps_are_argmaxes_in_random_order(mixed):
    """Every draw of 150 sweeps of exact races, repeated in NumPy from the same stream."""
    mixed = replace(mixed, race=amc.ExactRace())
    values, found = walk(mixed, mixed_model().initial_point(), 150, seed=3)
    layout = mixed.prepared.densities.layout
    elements = mixed_elements()
    places = [layout.slices[name].start + j for name, j, *_ in elements]
    slopes = np.zeros(layout.size)
    slopes[places] = [slope for *_, slope in elements]
    rng = np.random.default_rng(3)
    x = layout.ravel(mixed_model().initial_point())
    for sweep in range(150):
        order = np.arange(len(elements))
        for i in range(order.size - 1, 0, -1):
            j = int(rng.random() * (i + 1))
            order[[i, j]] = order[[j, i]]
        for e in order:
            name, j, states, slope = elements[e]
            noise = -np.log(-np.log(1.0 - rng.random(states.size)))
            prior = np.array([mixed_prior(name, j, s) for s in states])
            means = x @ slopes + slope * (states - x[places[e]])
            x[places[e]] = states[np.argmax(prior + mixed_loglik(means) + noise)]
        np.testing.assert_array_equal(values[sweep], x)
    # fixed and free read nothing
    assert np.all(found["race_rows"] == 5 * N_MIXED)


# --- rows that are impossible in some states ------------------------------------------------------


def custom_sampler(logp, y, n_states=4):
    """One variable k, and rows of a density of their own."""
    with pm.Model() as out:
        k = pm.Categorical("k", p=np.full(n_states, 1 / n_states), initval=0)
        pm.CustomDist("y", k, logp=logp, observed=y)
    made = amc.RacingGibbs(model=out, race="exact", audits=0).sampler  # without control variate
    return replace(made, race=amc.NormalRace()), out


@pytest.fixture
def uniform_rows():
    """Uniform on (0, top): at top 1.0 and 0.9 some rows are impossible."""
    y = np.random.default_rng(2).uniform(0, 1.45, size=300)
    top = np.array([1.5, 1.0, 1.505, 0.9])
    assert y.max() > 1.0
    weights = np.where(top > y.max(), top ** -float(y.size), 0.0)
    return y, top, weights / weights.sum()


def test_states_where_rows_are_impossible(uniform_rows):
    y, top, truth = uniform_rows

    def logp(y, k):
        high = pt.as_tensor(top)[k]
        return pt.switch(y < high, -pt.log(high), -np.inf)

    sampler, model = custom_sampler(logp, y)
    values, found = walk(sampler, model.initial_point(), 2_000)
    assert_frequencies(values[:, 0], truth)
    assert np.all(found["race_rows"] == 300)  # no spread decides nothing
    assert np.all(found["race_arms_left"] <= 4)


def test_rows_that_are_not_a_number_are_named():
    def logp(y, k):
        return pt.switch(pt.eq(y, 123) & pt.eq(k, 2), np.nan, 0.01 * k * (y % 7))

    sampler, model = custom_sampler(logp, np.arange(400.0))
    with pytest.raises(ValueError, match=r"y in row 123 is not finite in a state of k\."):
        walk(sampler, model.initial_point(), 100)


@first_class(REWARDS)
def impossible(points, centre, rows):
    return np.full((points.shape[0], rows.size), -np.inf)


def test_no_possible_state_is_an_error():
    sampler, model = custom_sampler(lambda y, k: 0.01 * k * y, np.arange(400.0))
    sampler.prepared.raced.state_rewards = impossible
    with pytest.raises(ValueError, match=r"No state of k has a positive density"):
        walk(sampler, model.initial_point(), 100)


def test_a_quantity_that_is_not_finite_in_one_state():
    """Rows are possible at rate 0, but cannot be expanded in its logarithm."""
    with pm.Model() as model:
        k = pm.DiscreteUniform("k", 0, 3, initval=1)
        x = np.linspace(-0.1, 0.1, 300)
        pm.Poisson("y", pt.exp(pt.log(k) + x - 7), observed=np.zeros(300, dtype=int))
    reason = amc.RacingGibbs(model=model).prepared.no_proxy
    assert reason == "what the rows make of k is not finite in some state"


@first_class(GRADIENT)
def nothing_finite(x):
    return np.full(1 + 2 * MEANS.size, np.nan)


@with_proxy
def test_a_state_where_the_control_variate_does_not_hold_stops_the_chain(sampler):
    """Found while running, where it could not be found before."""
    cut = SimpleNamespace(native=nothing_finite, evaluate=sampler.prepared.cut.evaluate)
    sampler = replace(sampler, prepared=replace(sampler.prepared, cut=cut))
    with pytest.raises(ValueError, match=r"control variate does not hold at k = \d.*race='exact'"):
        walk(sampler, model().initial_point(), 50)


# --- audits ---------------------------------------------------------------------------------------


@with_proxy
def test_flipped_decisions_are_found(sampler):
    """Draws with known noise, some of them said to have ended otherwise."""
    sampler = replace(sampler, audits=amc.Audits(40, max_share=None))
    for flipped in (0, 1, 13, 40):
        rng = np.random.default_rng(flipped)
        chain = gibbs.init(sampler, rng, draws=1)
        log = chain.auditor.log
        for k in range(40):
            noise = rng.gumbel(size=MEANS.size)
            best = np.argmax(log_weights() + noise)
            log.x[k], log.other[k] = rng.integers(0, 5), noise
            log.outcome[k] = (best + (k < flipped) * rng.integers(1, 5)) % 5
            log.read[k] = 50
        log.seen[0] = 40
        chain.auditor.draw = 1
        tally = chain.auditor.run(sampler, chain.surrogate, rng)
        assert tally == AuditTally(40, flipped, 40 * 5 * N_ROWS)


# --- posteriors by enumeration --------------------------------------------------------------------


QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False, "cores": 1}


@pytest.mark.slow
def test_inclusion_probabilities_with_metropolis_moving_the_coefficients():
    data = sparse_data(3_000, 4, 3, family="normal", rng=np.random.default_rng(2))
    model = selection_model(data.X, data.y, family="normal")
    exact = inclusion_probabilities(data.X, data.y)
    assert np.sum((exact.inclusion > 0.05) & (exact.inclusion < 0.95)) >= 2
    with model:
        steps = [
            amc.RacingGibbs([model["gamma"]], transitions_per_draw=2),
            amc.RacingMetropolis([model["beta"], model["intercept"]], transitions_per_draw=5),
        ]
        idata = pm.sample(3_000, tune=500, step=steps, chains=2, random_seed=5, **QUIET)
    gamma = idata.posterior["gamma"].values.astype(float)
    for j in range(4):
        error = float(az.mcse(gamma[:, :, j]))
        assert abs(gamma[:, :, j].mean() - exact.inclusion[j]) < 4 * error + 1e-3, (
            gamma.mean(axis=(0, 1)),
            exact.inclusion,
        )
    number = (gamma.astype(int) @ [8, 4, 2, 1]).astype(int)
    for m in np.flatnonzero(exact.probabilities > 0.02):
        hit = (number == m).astype(float)
        assert abs(hit.mean() - exact.probabilities[m]) < 4 * float(az.mcse(hit)) + 1e-3


@both
def test_residuals_and_surrogate_add_up_to_the_log_likelihood(sampler):
    prepared = sampler.prepared
    surrogate = prepared.surrogate
    points = np.ascontiguousarray(prepared.eta(np.arange(5.0)[:, None]))
    sums = residuals(prepared.raced.state_rewards, points, surrogate.centre, np.arange(N_ROWS)).sum(
        axis=1
    )
    sums += [surrogate_total(eta, surrogate) for eta in points]
    exact = row_logps().sum(axis=1)
    np.testing.assert_allclose(sums - sums[0], exact - exact[0], rtol=0, atol=1e-8)


@pytest.mark.slow
def test_mixed_marginals(mixed):
    values, found = walk(replace(mixed, transitions=15), mixed_model().initial_point(), 3_000)
    layout, elements = mixed.prepared.densities.layout, mixed_elements()
    joint = list(itertools.product(*(states for _, _, states, _ in elements)))
    weights = np.array(
        [
            sum(mixed_prior(name, j, s) for (name, j, *_), s in zip(elements, state))
            + mixed_loglik(sum(slope * s for (*_, slope), s in zip(elements, state)))
            for state in joint
        ]
    )
    weights = np.exp(weights - weights.max())
    joint = np.array(joint)
    for e, (name, j, states, _) in enumerate(elements):
        truth = np.bincount(joint[:, e], weights) / weights.sum()
        drawn = values[:, layout.slices[name].start + j]
        tail = truth < 0.003  # too rare for a chi-square
        keep = ~tail[drawn.astype(int)]
        assert abs((~keep).sum() - 3_000 * truth[tail].sum()) < 5 * math.sqrt(
            1 + 3_000 * truth[tail].sum()
        )
        truth = np.where(tail, 0.0, truth)
        assert_frequencies(drawn[keep], truth / truth.sum())
        assert set(drawn) <= set(states)
    # the control variate is exact: first batches decide
    assert found["race_rows"].mean() < 15 * 5 * 150


def test_a_variable_in_no_row_is_drawn_from_its_prior(mixed):
    sampler, place = one_element(mixed, "free", 3, False)
    values, found = walk(sampler, mixed_model().initial_point(), 4_000)
    assert_frequencies(values[:, place], FREE)
    assert np.all(np.delete(values, place, axis=1) == np.delete(values[0], place))
    assert not found["race_rows"].any()
    assert np.all(found["race_arms_left"] == 1.0)


@pytest.mark.slow
def test_a_likelihood_whose_support_depends_on_the_state(uniform_rows):
    y, top, truth = uniform_rows
    with pm.Model() as model:
        k = pm.Categorical("k", p=np.full(4, 0.25), initval=0)
        pm.Uniform("y", 0, pt.as_tensor(top)[k], observed=y)
    sampler = amc.RacingGibbs(model=model, audits=0).sampler
    reason = sampler.prepared.no_proxy
    assert "impossible" in reason or "finite" in reason
    values, _ = walk(sampler, model.initial_point(), 2_000)
    assert_frequencies(values[:, 0], truth)
