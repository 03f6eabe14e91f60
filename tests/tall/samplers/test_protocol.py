"""Samplers know a model by its protocol only: here one without PyMC, whose units are groups."""

import copy
import dataclasses

import numpy as np
import pytest

from scipy import stats

from amc_pymc import ExactRace, NormalRace
from amc_pymc.engine.jit import first_class
from amc_pymc.reading import FlatLayout
from amc_pymc.rows import InMemory
from amc_pymc.tall.decisions import LOGP, call_total
from amc_pymc.tall.mode import fit_gaussian, posterior_mode
from amc_pymc.tall.racing import REWARDS
from amc_pymc.tall.samplers import metropolis
from amc_pymc.tall.samplers.chain import Audits, report
from amc_pymc.tall.samplers.fit import Preparation, gaussian_surface, with_forecast
from amc_pymc.tall.surrogate import surrogate_at

N = 600
Y = np.random.default_rng(1).normal(0.4, 1.0, size=N)
PRECISION = N + 4.0
POSTERIOR = stats.norm(Y.sum() / PRECISION, PRECISION**-0.5)


@first_class(LOGP)
def rest(x):
    return -2.0 * x[0] ** 2


@first_class(REWARDS)
def residuals(points, centre, units):
    out = np.zeros((points.shape[0], units.size))
    for k in range(points.shape[0]):
        for j in range(units.size):  # what a second-order expansion leaves, and a little more
            out[k, j] = 1e-3 * np.sin(units[j]) * points[k, 0] if centre[0] > -9.0 else np.nan
    return out - out[0]


class Groups:
    """Normal groups with one mean; their residuals are waves that nearly sum to zero."""

    unit, observed_vars, rows_evaluated = "group", ("y",), 0
    n_units, n_rows, race_cost, audit_cost = N, 3 * N, 12.0, 6.0
    expand = np.array([0])
    rows_read, approximation_error, settled = None, 0.0, True
    store = InMemory((0,), np.copy)
    reads = np.array([0])
    layout = FlatLayout(("mu",), ((),), ("float64",))
    rewards = state_rewards = residuals
    rest = rest

    def values(self, x, units):
        found = -0.5 * (Y[units] - x[0]) ** 2 + 1e-3 * np.sin(units) * x[0]
        return np.where(x[0] > 9.0, np.nan, found)

    def value_chunks(self, x):
        yield self.all_values(x)

    def all_values(self, x):
        return self.values(x, np.arange(N))

    def change(self, x, x_new, surrogate=None):
        return float(self.all_values(x_new).sum() - self.all_values(x).sum())

    def value_and_gradient(self, x, units=None):
        units = np.arange(N) if units is None else units
        return self.values(x, units).sum(), np.array([(Y[units] - x[0]).sum()])

    def hessian(self, x, units=None):
        return np.array([[-float(N if units is None else len(units))]])

    def expansion(self, x):
        return self.value_and_gradient(x)[1], self.hessian(x)

    def rest_value_and_gradient(self, x):
        return call_total(rest, x), -4.0 * x

    def rest_hessian(self, x, coordinates):
        return np.array([[-4.0]])


@pytest.fixture(scope="module")
def prepared():
    groups, start, rng, active = Groups(), np.zeros(1), np.random.default_rng(1), np.array([0])
    mode, flags = posterior_mode(groups, start, active, 20_000, rng)
    assert flags == () and mode.x == pytest.approx(POSTERIOR.mean(), abs=1e-4)
    surrogate = surrogate_at(groups, mode.x)
    fit = fit_gaussian(groups, surrogate.hessian, mode.x, active)
    draws = np.stack([fit.draw(rng) for _ in range(100)])
    surface = gaussian_surface(fit, active, draws)
    bare = Preparation(groups, groups, start, surrogate=surrogate, fit=fit, surface=surface)
    return dataclasses.replace(with_forecast(bare, NormalRace(), rng), exact_rows=np.arange(10))


def sampler_of(prepared, race):
    return metropolis.Metropolis(
        active=np.array([0]),
        prepared=prepared,
        race=race,
        audits=Audits(50, max_share=None),
        transitions=5,
    )


@pytest.mark.parametrize("race", [NormalRace(), ExactRace()], ids=["normal", "exact"])
def test_groups_are_sampled_like_rows(prepared, race):
    sampler, rng, x = sampler_of(prepared, race), np.random.default_rng(2), np.zeros(1)
    draws, found = [], []
    chain = metropolis.init(sampler, rng, tune=200, draws=2_000)
    for t in range(2_200):
        x, counts = metropolis.step(sampler, chain, x, rng, tuning=t < 200)
        if t == 199:
            metropolis.learn(sampler, chain)
        if t >= 200:
            draws.append(x[0])
            found.append(report(sampler, chain, counts))
    lag = max(np.corrcoef(draws[1:], draws[:-1])[0, 1], 0.0)
    z = (np.mean(draws) - POSTERIOR.mean()) / POSTERIOR.std()
    assert abs(z) < 4 * np.sqrt((1 + lag) / (1 - lag) / 2_000) + 0.02
    assert stats.kstest(draws[:: 1 + int(10 * lag)], POSTERIOR.cdf).pvalue > 1e-4
    assert chain.auditor.tally.audited == sum(f["race_audited"] for f in found) == 50
    assert sum(f["race_wrong"] for f in found) <= (8 if race.delta else 0)


def test_a_group_that_is_not_finite_at_the_current_point_is_named(prepared):
    sampler = sampler_of(prepared, ExactRace())
    chain = metropolis.init(sampler, np.random.default_rng(1))
    chain.surrogate = chain.surrogate._replace(centre=np.array([-10.0]))
    with pytest.raises(ValueError, match=r"of y is nan in group \d+ at the current point"):
        metropolis.step(sampler, chain, np.array([10.0]), np.random.default_rng(1))


# --- draws made at one go -------------------------------------------------------------------------

TUNE, DRAWS = 60, 500


@pytest.fixture(scope="module")
def sampler(prepared):
    return metropolis.Metropolis(
        active=np.array([0]),
        prepared=prepared,
        race=NormalRace(),
        audits=Audits(30, max_share=0.02),
        transitions=2,
        ahead=4_000,
    )


def run(sampler, *, move=lambda t, x: x, at=None):
    """Draws, their statistics and the lengths of the stretches that were made at one go."""
    rng, x, draws, lengths = np.random.default_rng(2), np.zeros(1), [], []
    chain = metropolis.init(sampler, rng, tune=TUNE, draws=DRAWS)
    for t in range(TUNE + DRAWS):
        if t == TUNE:
            metropolis.learn(sampler, chain)
        if t == at:  # as a chain is saved and restored
            chain, rng = copy.deepcopy((chain, rng))
        x = move(t, x)
        x, counts = metropolis.step(sampler, chain, x, rng, tuning=t < TUNE)
        stats = report(sampler, chain, counts, tuning=t < TUNE)
        draws.append([*x, *stats.values()])
        if chain.made.handed_out == 1:
            lengths.append(len(chain.made.points))
    assert chain.auditor.draw == DRAWS and rng.bit_generator.state["bit_generator"] == "PCG64"
    return np.array(draws), lengths, chain


def test_draws_audits_and_counts_are_those_of_a_chain_that_makes_one_at_a_time(sampler):
    one_by_one, ones, chain = run(dataclasses.replace(sampler, ahead=0))
    assert ones == [1] * (TUNE + DRAWS)
    ahead, lengths, other = run(sampler)
    np.testing.assert_array_equal(ahead, one_by_one)
    assert chain.auditor.tally == other.auditor.tally and other.auditor.tally.audited > 0
    assert sum(lengths) == TUNE + DRAWS  # none is made beyond the last one
    assert lengths[:TUNE] == [1] * TUNE and max(lengths) > 8
    saved, *_ = run(sampler, at=TUNE + 100)
    np.testing.assert_array_equal(saved, one_by_one)


def test_a_chain_that_is_moved_goes_on_from_where_it_was_put(sampler, monkeypatch):
    monkeypatch.setattr(metropolis, "proposal_weights", lambda jumps: np.array([1.0, 0.0]))
    far = np.array([2.0])
    seen = []

    def move(t, x):
        if t == TUNE + 110:  # amid draws that have been made
            seen.append(x)
            return far
        return x

    draws, lengths, _ = run(sampler, move=move)
    walk = draws[:, 0]
    assert abs(seen[0] - far)[0] > 1.0
    assert abs(walk[TUNE + 110] - far[0]) < abs(walk[TUNE + 110] - walk[TUNE + 109])
    assert max(lengths[-10:]) > 8  # and runs ahead again


def test_a_chain_that_is_moved_after_every_draw_makes_no_draw_in_vain(sampler):
    def rounded(t, x):
        return x.astype(np.float32).astype(float)

    _, lengths, _ = run(dataclasses.replace(sampler, transitions=10), move=rounded)
    assert lengths == [1] * (TUNE + DRAWS)
