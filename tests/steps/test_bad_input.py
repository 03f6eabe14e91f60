"""What the racing steps refuse, and that they say what and why before any sampling."""

from __future__ import annotations

import re
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
import pytest
import scipy.sparse

import amc_pymc as amc

from amc_pymc.flags import flags_of_bits

Y = np.random.default_rng(5).normal(0.1, 1.0, size=300)
STEPS = METROPOLIS, GIBBS = [amc.RacingMetropolis, amc.RacingGibbs]


def model_of(build, observed=Y, scale=0.1):
    """Rows around 0.1 times what ``build`` makes."""
    with pm.Model() as model:
        pm.Normal("obs", scale * build(), 1, observed=observed)
    return model


def quick(model, **kwargs):
    """Little to prepare."""
    return amc.RacingGibbs(model=model, **kwargs)


def walk(step, model, number=30, point=None):
    step.setup_chain(np.random.default_rng(1), 0, number)
    point, out = point or model.initial_point(), []
    for _ in range(number):
        point, _ = step.step(point)
        out.append(int(point["k"]))
    return out


@pytest.fixture(scope="module")
def poisson():
    return model_of(lambda: pm.Truncated("k", pm.Poisson.dist(1.5), upper=7))


# --- arguments ------------------------------------------------------------------------------------

COUNTS = [0, -1, 1.5, True, "2", np.nan, np.inf]
#: Values that both steps refuse, by argument; the message names the argument and the value.
SHARED = {
    "delta": [0, 0.0, 0.5, 0.7, 1, -0.1, np.nan, np.inf, "x", True, [0.05], 0.05j],
    "batch_size": [*COUNTS, 1],
    "transitions_per_draw": [*COUNTS, None],
    "audits": [-1, 1.5, True, "many", None, [3]],
    "race": ["nrmal", 3, None, True, amc.NormalRace, ["normal"]],
}
#: The same for one of them.
OWN = {
    (amc.RacingGibbs, "max_states"): COUNTS,
}


@pytest.mark.usefixtures("unprepared")
@pytest.mark.parametrize(
    ("steps", "name", "values"),
    [
        *((STEPS, name, values) for name, values in SHARED.items()),
        *(([step], name, values) for (step, name), values in OWN.items()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_out_of_range(categorical, steps, name, values):
    for step in steps:
        for value in values:
            message = rf"{name}.*{re.escape(repr(value))}"
            with pytest.raises((ValueError, TypeError), match=message):
                step(model=categorical, **{name: value})


CONTRADICTIONS = [
    (
        STEPS,
        {"race": amc.NormalRace(0.2), "delta": 0.05},
        "delta=0.05 has no meaning for race=NormalR",
    ),
    (STEPS, {"race": "exact", "delta": 0.05}, "delta=0.05 has no meaning for race='exact'"),
    (STEPS, {"target_accept": 0.9}, "target_accept"),
    (STEPS, {"vars": ["nothing", "obs"]}, r"vars names nothing, obs; free variables.*"),
    (STEPS, {"detla": 0.1}, "detla"),
]


@pytest.mark.usefixtures("unprepared")
@pytest.mark.parametrize(("steps", "arguments", "message"), CONTRADICTIONS)
def test_arguments_that_do_not_go_together(categorical, steps, arguments, message):
    for step in steps:
        with pytest.raises((ValueError, TypeError), match=message):
            step(model=categorical, **arguments)


@pytest.mark.usefixtures("unprepared")
@pytest.mark.parametrize("step", STEPS)
def test_no_model_or_single_precision(step, categorical):
    with pytest.raises(TypeError, match="model is missing: pass model="):
        step()
    with pytensor.config.change_flags(floatX="float32"):
        with pytest.raises(ValueError, match=r"floatX is 'float32'.*floatX = 'float64'"):
            step(model=categorical)


@pytest.mark.usefixtures("unprepared")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pm.Poisson("k", 1.5), r"'k' has infinitely many states.*pm\.Metropolis"),
        (
            lambda: pm.Truncated("k", pm.Poisson.dist(1.5), upper=4, initval=9),
            r"'k' starts at 9.*\(0 to 4\); give initval=",
        ),
    ],
)
def test_states(build, message):
    with pytest.raises(ValueError, match=message):
        amc.RacingGibbs(model=model_of(build))


# --- variables ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "names", "message"),
    [
        (METROPOLIS, ["k", "mu"], r"vars .*discrete.*\(k\); RacingMetropolis.*a step of their own"),
        (GIBBS, ["k", "mu"], r"vars holds continuous variables \(mu\).*RacingMetropolis"),
        (METROPOLIS, ["obs"], "obs"),
        (GIBBS, ["obs"], "obs"),
        (METROPOLIS, [], "No free random variables"),
    ],
)
def test_vars(categorical, step, names, message):
    with pytest.raises(ValueError, match=message):
        step([categorical[n] for n in names], model=categorical)


def test_vars_of_another_model_or_kind(categorical, poisson, normal):
    for step, foreign in ((METROPOLIS, normal["mu"]), (GIBBS, poisson["k"])):
        with pytest.raises(ValueError, match=foreign.name):
            step([foreign], model=categorical)
    with pytest.raises(ValueError, match="no continuous free variable for RacingMetropolis"):
        METROPOLIS(model=poisson)
    with pytest.raises(ValueError, match="no discrete free variable for RacingGibbs"):
        GIBBS(model=normal)


def test_names_and_duplicates(normal, categorical):
    for vars in (["mu"], "mu"):
        step = amc.RacingMetropolis(vars, model=normal)
        assert step.vars == [normal.rvs_to_values[normal["mu"]]]
    step = quick(categorical, vars=[categorical["k"]] * 2)
    assert [v.name for v in step.vars] == ["k"]
    assert step.sampler.elements.coordinate.size == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_initial_point_not_finite(value):
    model = model_of(lambda: pm.Normal("mu", initval=value))
    with pytest.raises(ValueError, match="initial point"):
        amc.RacingMetropolis(model=model)


# --- models ---------------------------------------------------------------------------------------


def no_rows():
    pm.Normal("mu")
    pm.Bernoulli("k", 0.5)


def nothing_free():
    pm.Normal("obs", 0, 1, observed=Y)


def weights_of_a_potential():
    pm.Potential("y", 2.0 * pm.logp(pm.Normal.dist(pm.Normal("a", 0, 5), 2), Y))


def scalar():
    pm.Normal("obs", pm.Normal("mu"), 1, observed=0.5)


def empty():
    pm.Normal("obs", pm.Normal("mu"), 1, observed=np.empty(0))


def rows_that_depend_on_each_other():
    first = pm.Normal.dist()
    pm.AR("obs", [pm.Normal("rho")], 1.0, observed=np.zeros(300), init_dist=first)


def sparse():
    X = pytensor.sparse.as_sparse_variable(scipy.sparse.eye(300, 3, format="csr"))
    mu = pytensor.sparse.structured_dot(X, pm.Normal("b", shape=(3, 1)))[:, 0]
    pm.Normal("obs", mu, 1, observed=np.zeros(300))


def too_large():
    pm.Normal("obs", pm.Normal("mu"), 1, observed=np.full(300, 1e200))


def missing():
    pm.Normal("obs", pm.Normal("mu"), 1, observed=np.where(np.arange(300) == 7, np.nan, 0.0))


def different_lengths():
    mu = pm.Normal("mu")
    pm.Normal("one", mu, observed=np.zeros(300))
    pm.Normal("two", mu, observed=np.zeros(200))


def one_value_per_row():
    pm.Normal("obs", 0.3 * pm.Bernoulli("z", 0.5, shape=300), 1, observed=Y)


def impossible_start():
    k = pm.Categorical("k", p=np.ones(3) / 3, initval=0)
    pm.Uniform("obs", 0, pt.as_tensor(np.array([1.0, 5.0, 6.0]))[k], observed=np.abs(Y))


def change_point():
    when = pm.DiscreteUniform("when", 0, 300)
    mu = pt.switch(when > np.arange(300), pm.Normal("early"), pm.Normal("late"))
    pm.Normal("obs", mu, 1, observed=Y)


def many_coordinates():
    X = np.random.default_rng(1).normal(size=(300, 501))
    pm.Normal("obs", X @ pm.Normal("beta", size=501), 1, observed=np.zeros(300))


def bad_covariate():
    """NaN in pm.Data is refused by PyMC, in plain arrays it is not."""
    data = np.where(np.isin(np.arange(300), [7, 90]), np.nan, 1.0)
    pm.Normal("obs", pm.Normal("mu", initval=1.0) * data, 1, observed=np.zeros(300))


def impossible_rows():
    data = np.where(np.isin(np.arange(300), [7, 90]), 3.0, 0.0)
    pm.Uniform("obs", 0, pm.Uniform("top", 1, 2), observed=data)


def impossible_prior():
    mu = pm.Normal("mu")
    pm.Normal("obs", mu, 1, observed=np.zeros(300))
    pm.Potential("never", pm.math.switch(mu < 1, -np.inf, 0.0))


def no_scalar_form():
    pm.Normal("obs", pt.sort(pm.Normal("b", shape=3))[0], 1, observed=Y)


NO_ROWS, EXACT = amc.NotRowFactorised, {"race": "exact"}
MODELS = [
    (METROPOLIS, nothing_free, {}, ValueError, "No free random variables"),
    (GIBBS, nothing_free, {}, ValueError, "No free random variables"),
    (METROPOLIS, no_rows, {}, NO_ROWS, "no observed variable: .* subsample$"),
    (GIBBS, no_rows, {}, NO_ROWS, "no observed variable"),
    (METROPOLIS, weights_of_a_potential, {}, NO_ROWS, r"Potential has no rows.*pm\.CustomDist"),
    (METROPOLIS, scalar, {}, NO_ROWS, "'obs'.*scalar"),
    (METROPOLIS, empty, {}, NO_ROWS, "'obs'.*empty"),
    (METROPOLIS, rows_that_depend_on_each_other, {}, NO_ROWS, "'obs'.*row by row"),
    (METROPOLIS, no_scalar_form, {}, NO_ROWS, r"obs have no scalar form: Sort.*Use NUTS, or write"),
    (METROPOLIS, sparse, {}, NO_ROWS, "sparse matrix; make it dense"),
    (METROPOLIS, too_large, {}, NO_ROWS, "obs is not finite in any row.*rescale"),
    (METROPOLIS, missing, {}, NO_ROWS, "obs.*missing values"),
    (
        METROPOLIS, different_lengths, {"observed_vars": ["one", "two"]}, ValueError,
        "observed_vars .*one.*300.*two.*200",
    ),
    (
        GIBBS, one_value_per_row, EXACT, ValueError,
        r"z has one value per row.*pm\.Mixture.*CategoricalGibbsMetropolis",
    ),
    (GIBBS, impossible_start, {}, ValueError, r"obs is not finite at the initial point in \d+ of 300"),
    (
        METROPOLIS, change_point, {}, ValueError,
        "no control variate: .*when as an index or a condition.*widen the posterior. Use NUTS",
    ),
    (METROPOLIS, change_point, EXACT, ValueError, "no control variate: .*when as an index"),
    (METROPOLIS, many_coordinates, {}, ValueError, "depend on 501 coordinates, more than 500. With"),
    (METROPOLIS, bad_covariate, {}, ValueError, "not finite at the initial point in 2 of 300"),
    (
        METROPOLIS, impossible_rows, {}, ValueError,
        r"in 2 of 300 rows \(row 7: -inf, row 90: -inf\)",
    ),
    (METROPOLIS, impossible_prior, {}, ValueError, "logp is -inf at the initial point"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")
@pytest.mark.parametrize(
    ("step", "build", "arguments", "error", "message"),
    MODELS,
    ids=[f"{m[0].__name__}-{m[1].__name__}" for m in MODELS],
)
def test_models(step, build, arguments, error, message):
    with pm.Model() as model:
        build()
    with pytest.raises(error, match=message):
        step(model=model, **arguments)


# --- data -----------------------------------------------------------------------------------------


def test_one_number_of_another_size():
    """Its log-likelihood, -5e19 at the mode, is rounded to 8,192 nats, and nearly all moves are rejected."""
    y = np.random.default_rng(1).normal(size=3_000)
    y[17] = 1e20
    with pm.Model() as model:
        pm.Normal("obs", pm.Normal("mu", 0, 10), pm.HalfNormal("s"), observed=y)
    with pytest.warns(UserWarning, match="only 0 of independent moves would be accepted"):
        amc.RacingMetropolis(model=model)


def test_all_numbers_may_have_any_unit(run):
    """An amount in small coins and the logarithm of its sd: standard deviations differ by 1e9."""
    y = np.random.default_rng(1).normal(10.0, 1.0, 3_000) * 1e9
    with pm.Model() as model:
        mu, s = pm.Normal("mu", 0, 1e11), pm.HalfCauchy("s", 1.0)
        pm.Normal("obs", mu, s, observed=y)
        step = amc.RacingMetropolis()
    idata = run(model, step, draws=500, tune=200, chains=1)
    assert idata["sample_stats"]["accept"].mean() > 0.8
    assert idata["sample_stats"]["race_flags"].max() == 0.0
    draws, error = idata["posterior"]["mu"].values, y.std() / np.sqrt(3_000)
    assert abs(draws.mean() - y.mean()) < 4 * error / np.sqrt(az.ess(draws))
    np.testing.assert_allclose(step.prepared.fit.factor(np.array([0])), error, rtol=0.01)


@pytest.mark.parametrize("step", STEPS)
def test_impossible_rows_at_the_start_of_a_chain(step):
    """The initial point is fine, but not the one that pm.sample starts from."""
    with pm.Model() as model:
        k, mu = pm.Categorical("k", p=np.ones(3) / 3), pm.Normal("mu")
        pm.Uniform("obs", mu - 1000.0 - k, 1000.0, observed=Y)
    made = step(model=model)
    point = {**model.initial_point(), "mu": np.array(1500.0)}
    with pytest.raises(ValueError, match="not finite at the start of the chain in 300 of 300"):
        walk(made, model, point=point)


def test_impossible_proposals_are_rejected(run):
    """Rows that are -inf or NaN where the chain would go."""
    for value in (-np.inf, np.nan):

        def logp(y, mu, value=value):
            return pt.switch(mu > 0.3, value, -0.5 * (y - mu) ** 2)

        with pm.Model() as model:
            pm.CustomDist("obs", pm.Normal("mu"), logp=logp, observed=Y)
        step = amc.RacingMetropolis(model=model)
        idata = run(model, step, initvals={"mu": 0.25}, draws=200)
        assert idata.posterior["mu"].max() <= 0.3
        assert np.ptp(idata.posterior["mu"].values) > 0


# --- few rows, and reports ------------------------------------------------------------------------


def few_rows(n_rows):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pm.StudentT("obs", nu=4, mu=mu, sigma=1, observed=np.linspace(-1, 2, n_rows))
    return model


def test_fewer_rows_than_a_batch_are_all_read(run):
    model, n_rows, idatas = few_rows(20), 20, []
    step = amc.RacingMetropolis(race="normal", model=model)
    for race in (amc.NormalRace(), amc.ExactRace()):
        idatas.append(run(model, step.replace(race=race), draws=100))
    for idata in idatas:
        assert np.all(idata.sample_stats["race_rows"].isin([0.0, n_rows]))
        assert np.ptp(idata.posterior["mu"].values) > 0
        assert not idata.sample_stats["race_wrong"].any()
    np.testing.assert_array_equal(*(i.posterior["mu"].values for i in idatas))
    assert np.all(idatas[1].sample_stats["race_delta"] == 0.0)
    model = few_rows(1)
    idata = run(model, amc.RacingMetropolis(model=model, race="normal"), draws=100)
    assert np.all(idata.sample_stats["race_rows"].isin([0.0, 1.0]))
    assert np.ptp(idata.posterior["mu"].values) > 0


def test_without_a_control_variate_races_of_states_warn():
    with pm.Model() as model:
        change_point()
    with pytest.warns(UserWarning, match="no control variate .*when as an index") as told:
        step = quick(model)
    assert [w.filename for w in told] == [__file__]
    _, (stats,) = step.step(model.initial_point())
    assert flags_of_bits(stats["race_flags"]) == ["no_control_variate"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick(model, race="exact")
        quick(model, delta=0.01)  # as the warning advises


@pytest.mark.parametrize("step", STEPS)
def test_observed_vars(categorical, step):
    for name in ("k", "nothing"):
        with pytest.raises(ValueError, match=rf"observed_vars .*'{name}'.*obs"):
            step(model=categorical, observed_vars=[name])
    with pytest.raises(ValueError, match="observed_vars is empty"):
        step(model=categorical, observed_vars=[])


def test_the_exact_conditional(poisson):
    step = quick(poisson, race="exact", audits=0)
    found = np.bincount(walk(step, poisson, 2_000), minlength=8) / 2_000
    k = np.arange(8)
    log_weight = np.array([-0.5 * ((Y - 0.1 * j) ** 2).sum() for j in k])
    log_weight += k * np.log(1.5) - np.cumsum(np.log(np.maximum(k, 1)))
    truth = np.exp(log_weight - log_weight.max())
    truth /= truth.sum()
    assert np.all(np.abs(found - truth) < 4.5 * np.sqrt(truth * (1 - truth) / 2_000) + 1e-3)


@pytest.mark.parametrize("n_rows", [1, 20])
def test_few_rows_of_a_discrete_variable(n_rows):
    y = np.linspace(-1, 2, n_rows)
    model = model_of(lambda: pm.Categorical("k", p=np.ones(3) / 3), y, 1.0)
    chains = [walk(quick(model, race=race), model, 100) for race in ("normal", "exact")]
    assert chains[0] == chains[1]
    assert len(set(chains[0])) > 1
