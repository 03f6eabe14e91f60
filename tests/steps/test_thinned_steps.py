"""Exact decisions of RacingMetropolis that read few rows: posteriors of all kinds of likelihoods, by quadrature."""

import numpy as np
import pymc as pm
import pytest

from grouped_runs import sample
from scipy.special import logsumexp

import amc_pymc as amc

from amc_pymc.tall.decisions import rates, residuals

SEED = 20260
N = 300
X = np.random.default_rng(SEED).normal(size=N)
ETA = 0.3 + 0.5 * X


def linear():
    """A linear predictor with two parameters."""
    return pm.Normal("a", 0.0, 2.0) + pm.Normal("b", 0.0, 2.0) * X


def censored_weibull(rng):
    y = np.minimum(np.exp(ETA) * rng.weibull(1.5, N), 3.0)
    weibull = pm.Weibull.dist(1.5, pm.math.exp(linear()))
    return pm.Censored("y", weibull, lower=None, upper=3.0, observed=y)


def ordered(rng):
    increasing = pm.distributions.transforms.ordered
    cuts = pm.Normal("cuts", 0.0, 2.0, shape=2, initval=[-1.0, 1.0], transform=increasing)
    y = np.digitize(rng.logistic(0.5 * X), [-0.5, 1.0])
    return pm.OrderedLogistic("y", eta=0.5 * X, cutpoints=cuts, observed=y)


def mixture(rng):
    y = np.where(rng.random(N) < 0.4, rng.normal(-1.5, 1.0, N), rng.normal(1.5, 1.0, N))
    means = pm.math.stack([pm.Normal("a", -1.0, 2.0), pm.Normal("b", 1.0, 2.0)])
    return pm.NormalMixture("y", [0.4, 0.6], means, 1.0, observed=y)


def zero_inflated(rng):
    y = rng.poisson(np.exp(ETA)) * (rng.random(N) < 0.7)
    psi = pm.Beta("psi", 2.0, 2.0)
    return pm.ZeroInflatedPoisson(
        "y", psi, pm.math.exp(pm.Normal("a", 0.0, 2.0) + 0.5 * X), observed=y
    )


#: Models with two parameters each.
MODELS = {
    "normal": lambda rng: pm.Normal("y", pm.Normal("a", 0.0, 2.0) + 0.5 * X, pm.HalfNormal("s", 2.0), observed=rng.normal(ETA, 1.3)),
    "student_t": lambda rng: pm.StudentT("y", nu=4.0, mu=linear(), sigma=0.8, observed=ETA + 0.8 * rng.standard_t(4, N)),
    "logistic": lambda rng: pm.Bernoulli("y", logit_p=linear(), observed=rng.logistic(ETA) > 0),
    "probit": lambda rng: pm.Bernoulli("y", p=pm.math.invprobit(linear()), observed=rng.normal(ETA) > 0),
    "poisson": lambda rng: pm.Poisson("y", pm.math.exp(linear()), observed=rng.poisson(np.exp(ETA))),
    "negative_binomial": lambda rng: pm.NegativeBinomial("y", mu=pm.math.exp(pm.Normal("a", 0.0, 2.0) + 0.5 * X), alpha=pm.Gamma("s", 2.0, 1.0), observed=rng.negative_binomial(2, 2 / (2 + np.exp(ETA)))),
    "gamma": lambda rng: pm.Gamma("y", 2.0, 2.0 / pm.math.exp(linear()), observed=rng.gamma(2.0, np.exp(ETA) / 2.0)),
    "beta": lambda rng: pm.Beta("y", mu=pm.math.sigmoid(linear()), nu=6.0, observed=rng.beta(3.0, 3.0, N)),
    "ordered": ordered,
    "censored_weibull": censored_weibull,
    "zero_inflated_poisson": zero_inflated,
    "mixture": mixture,
}  # fmt: skip


#: Tested in the fast tier.
FAST = {"normal", "logistic"}
SPEEDS = [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in MODELS]


def built(name):
    with pm.Model() as model:
        MODELS[name](np.random.default_rng([SEED, *name.encode()]))
    return model


def quadrature(model, prepared):
    """Means and standard deviations of the unconstrained parameters, on a grid of the whole posterior."""
    fit, layout = prepared.fit, prepared.densities.layout
    factor = np.linalg.cholesky(np.linalg.inv(fit.precision))
    z = np.linspace(-6.0, 6.0, 61)
    points = fit.mean + np.stack(np.meshgrid(z, z), -1).reshape(-1, 2) @ factor.T
    logp = model.compile_logp()
    log_p = np.array([float(logp(layout.unravel(x))) for x in points])
    p = np.exp(log_p - logsumexp(log_p))
    mean = p @ points
    return mean, np.sqrt(p @ np.square(points - mean))


def chain_means(step, draws, seed):
    """Draws (C, n, D) of unconstrained parameters."""
    kept = {"idata_kwargs": {"include_transformed": True}}
    idata = sample(step._model, step, draws, tune=300, seed=seed, **kept)
    layout = step.prepared.densities.layout
    group = idata["posterior"] if layout.names[0] in idata["posterior"] else None
    found = []
    for name in layout.names:
        source = group if group is not None and name in group else idata["unconstrained_posterior"]
        found.append(source[name].values.reshape(2, draws, -1))
    return np.concatenate(found, axis=2), idata


@pytest.mark.parametrize("name", SPEEDS)
def test_posteriors_are_those_of_quadrature(name):
    model = built(name)
    with model:
        step = amc.RacingMetropolis(race="exact", transitions_per_draw=3, progressbar=False)
    thinning = step.prepared.thinning
    assert thinning is not None and thinning.exact.size < N / 4
    mean, sd = quadrature(model, step.prepared)
    draws, idata = chain_means(step, 3_000, 7)
    blocks = draws.reshape(2 * 30, 100, 2)
    for power, expected in ((1, mean), (2, np.square(sd) + np.square(mean))):
        means = (blocks**power).mean(axis=1)
        error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
        assert (np.abs(means.mean(axis=0) - expected) < 4.0 * error).all()
    stats = idata["sample_stats"]
    assert (stats["race_rows"] < 3 * N).mean() > 0.9  # most decisions read few rows
    assert stats["race_delta"].max() == 0.0 and stats["race_audited"].sum() == 0


def check_bounds(prepared, seed=1):
    """Check changes of rows between random points against their bounds; return the largest ratio of both."""
    t, raced, fit = prepared.thinning, prepared.raced, prepared.fit
    own, units = np.random.default_rng(seed), np.setdiff1d(np.arange(raced.n_units), t.exact)
    factor = np.linalg.cholesky(np.linalg.inv(fit.precision))
    q, largest, seen = np.empty(t.totals.shape[1]), 0.0, set()
    for share in (0.1, 0.5, 1.0, 2.0):
        for step in (0.05, 1.0):
            for _ in range(10):
                z = share * own.normal(size=(2, fit.mean.size))
                z[1] = z[0] + step * (z[1] - z[0])
                points = t.centre + z @ factor.T
                k = rates(points, t, q)
                if k < 0:
                    continue
                seen.add(k)
                change = residuals(raced.rewards, points, t.centre, units)[1]
                bound = (q[0] * t.bounds[k, 0] + (q[t.numbers] * t.bounds[k, 1:]).sum(axis=0))[
                    units
                ]
                assert (np.abs(change) <= bound * (1 + 1e-6) + 1e-10).all()
                largest = max(largest, (np.abs(change) / (bound + 1e-12)).max())
    assert seen >= {0, min(1, len(t.radii) - 1)}
    return largest


@pytest.mark.parametrize("name", SPEEDS)
def test_changes_of_rows_are_within_their_bounds(name):
    """And the bounds are not loose beyond use: the largest ratio of a row is above 0.02."""
    with built(name):
        prepared = amc.RacingMetropolis(race="exact", progressbar=False).prepared
    assert check_bounds(prepared) > 0.02


#: Number of rows and levels of two factors of the models with levels.
LEVELS = 4_000, 30, 8


def levels_model(name):
    """A model with an intercept, a slope, two factors and, for one of them, slopes."""
    n, n_a, n_b = LEVELS
    rng = np.random.default_rng([SEED, *name.encode()])
    x, a, b = rng.normal(size=n), rng.integers(0, n_a, n), rng.integers(0, n_b, n)
    eta = 0.3 + 0.5 * x + 0.5 * rng.normal(size=n_a)[a] + 0.5 * rng.normal(size=n_b)[b]
    with pm.Model() as model:
        effect = pm.Normal("a", 0.0, 0.5, shape=n_a)[a] + pm.Normal("b", 0.0, 0.5, shape=n_b)[b]
        mean = pm.Normal("c", 0.0, 1.0) + pm.Normal("x", 0.0, 1.0) * x + effect
        if name == "slopes":
            mean = mean + pm.Normal("s", 0.0, 0.3, shape=n_a)[a] * x
        if name == "normal":
            pm.Normal("y", mean, pm.HalfNormal("sd", 1.0), observed=rng.normal(eta, 1.0))
        elif name == "pairs":  # two levels of the same factor in a row
            other = pm.math.stack([model["a"]])[0][(a + 1 + b) % n_a]
            pm.Bernoulli("y", logit_p=mean - other, observed=rng.logistic(eta) > 0)
        else:
            pm.Bernoulli("y", logit_p=mean, observed=rng.logistic(eta) > 0)
    return model


@pytest.mark.parametrize("name", ["logistic", "normal", "slopes", "pairs"])
def test_bounds_of_rows_with_levels(name):
    with levels_model(name):
        prepared = amc.RacingMetropolis(race="exact", marginalize=None, progressbar=False).prepared
    assert prepared.thinning.blocks.levels.size >= sum(LEVELS[1:])
    assert prepared.thinning.expected < 0.1 * LEVELS[0]
    assert check_bounds(prepared) > 0.02


@pytest.mark.slow
def test_most_steps_read_no_row():
    own = np.random.default_rng(3)
    x, y = own.normal(size=(20_000, 3)), own.random(20_000) < 0.4
    with pm.Model():
        pm.Bernoulli("y", logit_p=x @ pm.Normal("b", 0, 1, shape=3), observed=y)
        step = amc.RacingMetropolis(race="exact", progressbar=False)
        runs = [
            sample(None, step, 400, tune=200, seed=2, cores=cores, mp_ctx=context)
            for cores, context in ((1, None), (2, "spawn"))
        ]
    assert (runs[0]["sample_stats"]["race_rows"] == 0).mean() > 0.5
    np.testing.assert_array_equal(runs[0]["posterior"]["b"], runs[1]["posterior"]["b"])


def test_auto_races_where_thinning_costs_more():
    """Few rows with heavy tails for as many coefficients have remainders that say little."""
    own = np.random.default_rng(4)
    x = own.normal(size=(2_000, 40))
    with pm.Model():
        eta = pm.math.dot(x, pm.Normal("b", 0, 1, shape=40))
        pm.Bernoulli("y", logit_p=eta, observed=own.random(2_000) < 0.4)
        assert amc.RacingMetropolis(progressbar=False).prepared.thinning is None
        assert amc.RacingMetropolis(race="exact", progressbar=False).prepared.thinning is not None


def test_draws_say_whether_they_are_exact():
    """Decisions beyond the radii are raced by default, and those with race="exact" read all rows."""
    own = np.random.default_rng(3)
    x, y = own.normal(size=(20_000, 3)), own.random(20_000) < 0.4
    with pm.Model():
        pm.Bernoulli("y", logit_p=x @ pm.Normal("b", 0, 1, shape=3), observed=y)
        step = amc.RacingMetropolis(progressbar=False)
        assert step.prepared.thinning is not None
        usual = sample(None, step, 300, tune=100, seed=2)
        t = step.prepared.thinning
        vars(step.prepared)["thinning"] = t._replace(radii=0.25 * t.radii)
        mixed, exact, raced = (
            sample(None, step.replace(race=race), 300, tune=100, seed=2)
            for race in (step.sampler.race, amc.ExactRace(), amc.NormalRace())
        )
    assert usual["sample_stats"]["race_exact"].min() == 1.0
    assert usual["sample_stats"]["race_audited"].sum() == 0
    assert amc.decision_error(usual)["exact"].all()
    stats = mixed["sample_stats"]
    assert 0.0 < stats["race_exact"].mean() < 1.0
    np.testing.assert_array_equal(stats["race_delta"], 0.05 * (1.0 - stats["race_exact"]))
    assert stats["race_audited"].sum() > 0
    stats = exact["sample_stats"]
    assert set(np.unique(stats["race_rows"])) > {0.0, 20_000.0} and stats["race_exact"].min() == 1.0
    assert raced["sample_stats"]["race_exact"].max() == 0.0


def test_a_broken_bound_is_an_error():
    with built("logistic"):
        step = amc.RacingMetropolis(race="exact", progressbar=False)
        t = step.prepared.thinning
        vars(step.prepared)["thinning"] = t._replace(bounds=t.bounds * np.float32(0.02))
        step = step.replace()
        with pytest.raises(RuntimeError, match=r"row \d+ changed more than its bound allows"):
            pm.sample(500, tune=100, step=step, chains=1, cores=1, progressbar=False, random_seed=1)
