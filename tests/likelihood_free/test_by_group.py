"""Effects of groups, learned from all groups or from their own: against closed forms and quadrature."""

import math

from contextlib import contextmanager

import numpy as np
import pymc as pm
import pytest

from scipy import stats

import amc_pymc as amc

from amc_pymc.likelihood_free import learned
from amc_pymc.likelihood_free.by_group import ByGroup, Groups, Simulations
from amc_pymc.likelihood_free.model_problem import ModelProblem
from amc_pymc.likelihood_free.proposal import NONCENTRED

GROUPS, NOISE = 8, 0.5
#: Coordinates are mu, then the log of the variance ratio, then effects.
EFFECTS = Groups(2 + np.arange(GROUPS)[:, None], np.arange(GROUPS)[:, None])
DATA = np.array([-0.3, 0.1, 0.5, 0.8, 1.0, 1.3, 1.9, 2.4])


def normal_effects(rng, n, noise=NOISE):
    """Parameters (n, 2 + J) of effects with standard deviations exp(x_1) between groups, and noisy effects (n, J)."""
    phi = rng.normal(size=(n, 2)) * [1.0, 0.5]
    effects = phi[:, :1] + np.exp(phi[:, 1:]) * rng.normal(size=(n, GROUPS))
    return np.hstack([phi, effects]), effects + noise * rng.normal(size=(n, GROUPS))


def given_shared(mu, log_tau, data, noise=NOISE):
    """Means and standard deviations of effects given their data and the other parameters."""
    share = np.exp(2.0 * log_tau) / (np.exp(2.0 * log_tau) + noise**2)
    return share * data + (1.0 - share) * mu, np.sqrt(share) * noise


def fitted(x, summaries, data=DATA, phi=(0.2, 0.1), *, alike=True, pseudo=(), log_weight=None):
    """Distribution of effects for data sets, the last of which is `data`."""
    pseudo = np.array(pseudo, int)
    log_weight = np.zeros(len(x)) if log_weight is None else log_weight
    found = Simulations(
        summaries, log_weight, np.zeros(len(x)), pseudo, np.vstack([summaries[pseudo], data])
    )
    centre = np.vstack([x[pseudo, :2], phi])
    rng = np.random.default_rng(3)
    return ByGroup(EFFECTS, NONCENTRED, x, found, centre, alike, rng)


def drawn(given, phi, n=4000):
    """Effects (n, J) given shared parameters."""
    z = np.random.default_rng(4).normal(size=(n, GROUPS))
    return given.whole(np.hstack([np.broadcast_to(phi, (n, 2)), z]))[:, 2:]


@pytest.mark.parametrize("phi", [(0.2, 0.1), (-0.3, 0.1), (0.2, -0.25), (0.2, 0.4)])
def test_effects_given_shared_parameters(phi):
    x, summaries = normal_effects(np.random.default_rng(1), 20_000)
    draws = drawn(fitted(x, summaries).conditional(-1), phi)
    mean, sd = given_shared(*phi, DATA)
    # 4000 draws of 1000 residuals from some 2000 rows; regressions are linear, and the log scale is, too.
    assert (np.abs(draws.mean(axis=0) - mean) < 0.2 * sd).all()
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.15)
    assert len(np.unique(draws[:, 0])) > 700
    assert np.abs(np.corrcoef(draws.T)[np.triu_indices(GROUPS, 1)]).max() < 4.5 / math.sqrt(4000)


def test_shared_parameters_are_returned_as_they_are():
    x, summaries = normal_effects(np.random.default_rng(1), 1000)
    points = np.random.default_rng(2).normal(size=(5, 2 + GROUPS))
    whole = fitted(x, summaries).conditional(-1).whole(points)
    np.testing.assert_array_equal(whole[:, :2], points[:, :2])


@pytest.mark.parametrize("log_tau", [0.1, -0.4])
def test_density_of_effects(log_tau):
    x, summaries = normal_effects(np.random.default_rng(1), 20_000)
    phi = np.array([0.2, log_tau])
    mean, sd = given_shared(*phi, DATA)
    z = np.random.default_rng(5).normal(size=(50, GROUPS))
    given = fitted(x, summaries).conditional(-1)
    found = [given.log_density(np.append(phi, mean + sd * row)) for row in z]
    error = np.array(found) + 0.5 * (z**2).sum(axis=1) + GROUPS * np.log(sd)
    assert abs(error.mean()) < 0.25 and error.std() < 0.7 < np.std(found)


def test_weights_count():
    """Simulations weighted to another prior of effects give its posterior."""
    x, summaries = normal_effects(np.random.default_rng(1), 40_000)
    effects, scale = x[:, 2:], np.exp(x[:, 1])
    residual = (effects - x[:, :1]) / scale[:, None]
    log_weight = (0.5 * residual).sum(axis=1)  # shifts residuals by a half
    draws = drawn(fitted(x, summaries, log_weight=log_weight).conditional(-1), (0.2, 0.1))
    mean, sd = given_shared(0.2 + 0.5 * math.exp(0.1), 0.1, DATA)
    plain, _ = given_shared(0.2, 0.1, DATA)
    # Weights leave some 500 of 40,000 simulations.
    assert (np.abs(draws.mean(axis=0) - mean) < 0.35 * sd).all()
    assert (np.abs(draws.mean(axis=0) - mean) < np.abs(draws.mean(axis=0) - plain)).mean() > 0.8


def test_groups_that_are_not_alike():
    rng, noise = np.random.default_rng(6), np.geomspace(0.1, 2.0, GROUPS)
    x, summaries = normal_effects(rng, 20_000, noise)
    wide = {
        alike: drawn(fitted(x, summaries, alike=alike).conditional(-1), (0.2, 0.1)).std(axis=0)
        for alike in (True, False)
    }
    _, sd = given_shared(0.2, 0.1, DATA, noise)
    np.testing.assert_allclose(wide[False], sd, rtol=0.2)
    assert np.abs(np.log(wide[True] / sd)).max() > 1.0


def test_a_simulation_taken_as_data_is_left_out():
    x, summaries = normal_effects(np.random.default_rng(1), 2000)
    x[7, 2:] = 1e6
    own = fitted(x, summaries, pseudo=[7])
    other = fitted(x, summaries, data=summaries[7], phi=x[7, :2])
    assert np.abs(own.conditional(0).mean).max() < 10.0 < np.abs(other.conditional(-1).mean).max()


def test_features_do_not_depend_on_the_order_of_groups():
    groups = Groups(np.arange(6).reshape(3, 2), np.array([[0, 3], [1, 4], [2, 5]]))
    data = np.random.default_rng(1).normal(size=(4, 7))
    found = groups.features(data)
    np.testing.assert_array_equal(groups.features(data[:, [2, 0, 1, 5, 3, 4, 6]]), found)
    np.testing.assert_array_equal(found[:, -1], data[:, 6])
    assert np.abs(groups.features(data[:, [2, 0, 1, 3, 4, 5, 6]]) - found).max() > 0.1


# --- models ---


def simulate(rng, *parameters, size=None):
    """Normal data of the first parameter."""
    return rng.normal(parameters[0], NOISE, size=size)


def hyper():
    return pm.Normal("mu", 1.0, 1.0), pm.HalfNormal("tau", 1.0)


def plain():
    mu, tau = hyper()
    pm.Simulator("y", simulate, pm.Normal("a", mu, tau, shape=3), epsilon=0.1, observed=np.ones(3))


def noncentred():
    mu, tau = hyper()
    z = pm.Normal("a", 0.0, 1.0, shape=3)
    pm.Simulator("y", simulate, mu + tau * z, epsilon=0.1, observed=np.ones(3))


def several_effects_and_data():
    mu, tau = hyper()
    a = pm.Normal("a", mu, tau, shape=3)
    b = pm.Normal("b", 0.0, tau, shape=(3, 2))
    pm.Simulator("s", simulate, mu, epsilon=0.1, observed=1.0)
    pm.Simulator("y", simulate, a[:, None], epsilon=0.1, observed=np.ones((3, 2)))
    pm.Simulator("w", simulate, a + b.sum(axis=1), epsilon=0.1, observed=np.ones(3))


def other_length():
    mu, tau = hyper()
    a = pm.Normal("a", mu, tau, shape=4)
    pm.Simulator("y", simulate, a[:3], epsilon=0.1, observed=np.ones(3))


def nothing_shared():
    a = pm.Normal("a", 0.0, 1.0, shape=3)
    pm.Simulator("y", simulate, a, epsilon=0.1, observed=np.ones(3))


def whole_numbers():
    mu, _ = hyper()
    a = pm.Poisson("a", pm.math.exp(mu), shape=3)
    pm.Simulator("y", simulate, a, epsilon=0.1, observed=np.ones(3))


def two_groups():
    mu, tau = hyper()
    pm.Simulator("y", simulate, pm.Normal("a", mu, tau, shape=2), epsilon=0.1, observed=np.ones(2))


@pytest.mark.parametrize(
    ("write", "effects", "summaries"),
    [
        (plain, [["a[0]"], ["a[1]"], ["a[2]"]], [[0], [1], [2]]),
        (noncentred, [["a[0]"], ["a[1]"], ["a[2]"]], [[0], [1], [2]]),
        (
            several_effects_and_data,
            [[f"a[{g}]", f"b[{g},0]", f"b[{g},1]"] for g in range(3)],
            [[1, 2, 7], [3, 4, 8], [5, 6, 9]],
        ),
        (other_length, None, None), (nothing_shared, None, None), (whole_numbers, None, None),
        (two_groups, None, None),
    ],
)  # fmt: skip
def test_groups_of_a_model(write, effects, summaries):
    with pm.Model() as model:
        write()
    problem = ModelProblem(model)
    found = problem.groups()
    if effects is None:
        assert found is None
        return
    assert [[problem.coordinates[i] for i in own] for own in found.effects] == effects
    assert found.summaries.tolist() == summaries


# --- posteriors ---


def exact(data, noise):
    """Means and standard deviations of mu, tau and effects of the hierarchical normal model, by quadrature."""
    tau = np.linspace(1e-3, 5.0, 4000)
    v = tau[:, None] ** 2 + noise**2
    precision = 1.0 + (1.0 / v).sum(axis=1)
    mu = (1.0 + (data / v).sum(axis=1)) / precision
    log = stats.norm.logpdf(data, 1.0, np.sqrt(v)).sum(axis=1)
    log += 0.5 * (precision * (mu - 1.0) ** 2) - 0.5 * np.log(precision)
    p = np.exp(log - log.max()) * stats.halfnorm.pdf(tau)
    p /= p.sum()
    share = tau[:, None] ** 2 / v
    mean = share * data + (1.0 - share) * mu[:, None]
    square = mean**2 + share * noise**2 + ((1.0 - share) ** 2) / precision[:, None]
    first = np.array([p @ mu, p @ tau, *(p @ mean)])
    second = np.array([p @ (mu**2 + 1.0 / precision), p @ tau**2, *(p @ square)])
    return first, np.sqrt(second - first**2)


def run(simulator, data, **options):
    with pm.Model(coords={"school": range(len(data))}):
        mu, tau = hyper()
        effect = pm.Normal("effect", mu, tau, dims="school")
        pm.Simulator("y", simulator, effect, epsilon=0.1, observed=data)
        with pytest.warns(UserWarning, match="Likelihood-free inference"):
            found = amc.sample_abc_tree(
                max_simulations=3000, batched=True, random_seed=2, progressbar=False, **options
            )
    p = found["posterior"]
    draws = np.column_stack(
        [
            p["mu"].values.ravel(),
            p["tau"].values.ravel(),
            *p["effect"].values.reshape(-1, len(data)).T,
        ]
    )
    return found, draws


@pytest.mark.parametrize("noise", [np.full(GROUPS, NOISE), np.geomspace(0.1, 1.5, GROUPS)])
def test_posteriors_of_hierarchical_models(noise):
    found, draws = run(lambda rng, a, size: rng.normal(a, noise, size=size), DATA)
    attrs = found["posterior"].attrs
    assert (attrs["parametrisation"], attrs["summaries"]) == ("by group", "learned")
    mean, sd = exact(DATA, noise)
    error = [
        np.ravel(found["estimates"][k].sel(statistic="error")) for k in ("mu", "tau", "effect")
    ]
    gaps = np.abs(draws.mean(axis=0) - mean)
    assert (gaps < 4.0 * np.concatenate(error)).all()
    assert (gaps < 0.6 * sd).all() and math.sqrt(((gaps / sd)[2:] ** 2).mean()) < 0.3
    wider = np.log(draws.std(axis=0) / sd)[2:]
    assert np.abs(wider).max() < math.log(1.7) and math.sqrt((wider**2).mean()) < math.log(1.3)


def test_groups_that_affect_each_other_are_not_learned_by_group():
    def chain(rng, a, size):
        return rng.normal(a + 0.9 * np.roll(a, 1, axis=-1), 0.2, size=size)

    found, _ = run(chain, DATA)
    assert found["posterior"].attrs["parametrisation"] != "by group"


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("near", [True, False])
def test_the_bar_of_learning_ends_at_its_end(thorough, near, monkeypatch):
    class Bar:
        done = 0

        def advance(self, n=1):
            self.done += n

    bars = []

    @contextmanager
    def progress(description, total, *, enabled):
        bars.append((Bar(), total))
        yield bars[-1][0]

    monkeypatch.setattr(learned, "progress", progress)
    rng = np.random.default_rng(1)
    x, summaries = normal_effects(rng, 300)
    learned.learn_and_apply(
        summaries, x[:, :2], DATA, rng, thorough=thorough, progressbar=True,
        distance=np.abs(summaries - DATA).sum(axis=1) if near else None,
    )  # fmt: skip
    ((bar, total),) = bars
    assert bar.done == total
