"""What `amc.RacingMetropolis` refuses, and that it says what and why before any sampling."""

from __future__ import annotations

import re

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse
import pytest
import scipy.sparse

import amc_pymc as amc


class Drawn(Exception):
    """A user's own exception."""


@pytest.fixture(scope="module")
def no_rows():
    """A model without data."""
    with pm.Model() as model:
        pm.Normal("mu")
        pm.Poisson("k", 2.0)
    return model


@pytest.fixture(scope="module")
def poisson():
    """The rows depend on a discrete variable, too."""
    with pm.Model() as model:
        k = pm.Poisson("k", 2.0)
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("obs", mu + k, 1, observed=np.random.default_rng(5).normal(size=500))
    return model


STEPS = [amc.RacingMetropolis, amc.RacingGibbs]
COUNTS = [
    (0, ValueError),
    (-1, ValueError),
    (1.5, TypeError),
    (True, TypeError),
    ("2", TypeError),
    (None, TypeError),
    (np.nan, TypeError),
    (np.inf, TypeError),
]


@pytest.mark.usefixtures("unprepared")
@pytest.mark.parametrize("step", STEPS)
class TestSharedArguments:
    """One set of options, checked once for all steps."""

    @staticmethod
    def refused(step, model, name, value, error=(ValueError, TypeError), **kwargs):
        with pytest.raises(error, match=rf"{name}.*{re.escape(repr(value))}"):
            step(model=model, **{name: value}, **kwargs)

    @pytest.mark.parametrize(
        "delta", [0, 0.0, 0.5, 0.7, 1, -0.1, np.nan, np.inf, "x", True, [0.05], 0.05j]
    )
    @pytest.mark.parametrize("race", ["normal", "exact"])
    def test_delta(self, step, categorical, delta, race):
        self.refused(step, categorical, "delta", delta, race=race)

    @pytest.mark.parametrize(
        ("size", "error"), [*(c for c in COUNTS if c[0] is not None), (1, ValueError)]
    )
    def test_batch_size(self, step, categorical, size, error):
        self.refused(step, categorical, "batch_size", size, error)

    @pytest.mark.parametrize(("number", "error"), COUNTS)
    def test_transitions_per_draw(self, step, categorical, number, error):
        self.refused(step, categorical, "transitions_per_draw", number, error)

    @pytest.mark.parametrize("audits", [-1, 1.5, True, "many", None, [3]])
    def test_audits(self, step, categorical, audits):
        self.refused(step, categorical, "audits", audits)

    @pytest.mark.parametrize("value", ["nrmal", 3, None, True, amc.NormalRace, ["normal"]])
    def test_race(self, step, categorical, value):
        self.refused(step, categorical, "race", value)

    @pytest.mark.parametrize("value", ["tylor", 3, True, False, amc.TaylorProxy, ["taylor"]])
    def test_proxy(self, step, categorical, value):
        self.refused(step, categorical, "proxy", value)

    @pytest.mark.parametrize("value", ["mu", 3, np.zeros(3)])
    def test_row_logp(self, step, categorical, value):
        with pytest.raises(TypeError, match=r"row_logp must be callable"):
            step(model=categorical, row_logp=value)

    def test_taylor_without_gradients(self, step, categorical, row_logp):
        with pytest.raises(ValueError, match=r"proxy='taylor'.*row_logp has no derivatives"):
            step(model=categorical, proxy="taylor", row_logp=row_logp)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"race": amc.NormalRace(0.2), "delta": 0.05}, "delta=0.05 contradicts race=NormalR"),
            ({"race": "exact", "delta": 0.05}, "delta=0.05 has no meaning for race='exact'"),
            ({"race": "lil_ucb", "batch_size": 50}, "batch_size=50 has no meaning .*='lil_ucb'"),
            ({"target_accept": 0.9}, r"target_accept, got 0.9.*SurrogateProposal\(target_accept"),
        ],
    )
    def test_contradictions(self, step, categorical, settings, message):
        with pytest.raises((ValueError, TypeError), match=message):
            step(model=categorical, **settings)

    def test_float32(self, step, categorical):
        with pytensor.config.change_flags(floatX="float32"):
            with pytest.raises(ValueError, match=r"floatX is 'float32'.*floatX = 'float64'"):
                step(model=categorical)

    def test_no_model(self, step, categorical):
        with pytest.raises(TypeError, match="model is missing: pass model="):
            step()

    def test_unknown_names(self, step, categorical):
        with pytest.raises(ValueError, match=r"vars names nothing, obs; free variables.*"):
            step(["nothing", "obs"], model=categorical)

    def test_unknown_argument(self, step, categorical):
        with pytest.raises(TypeError, match="detla"):
            step(model=categorical, detla=0.1)


@pytest.mark.usefixtures("unprepared")
class TestProposal:
    @pytest.mark.parametrize(
        "value", ["walk", 3, None, True, amc.SurrogateProposal, ["surrogate"], amc.TaylorProxy()]
    )
    def test_proposal(self, normal, value):
        with pytest.raises((ValueError, TypeError), match=rf"proposal.*{re.escape(repr(value))}"):
            amc.RacingMetropolis(model=normal, proposal=value)

    def test_surrogate_without_proxy(self, normal):
        with pytest.raises(ValueError, match=r"proposal='surrogate'.*proxy=None"):
            amc.RacingMetropolis(model=normal, proposal="surrogate", proxy=None)

    def test_surrogate_without_gradients(self, normal, row_logp):
        with pytest.raises(ValueError, match=r"proposal='surrogate'.*row_logp"):
            amc.RacingMetropolis(model=normal, proposal="surrogate", row_logp=row_logp)


class TestVars:
    def test_discrete(self, poisson):
        with pytest.raises(ValueError, match=r"vars .*discrete.*\(k\).*a step of their own"):
            amc.RacingMetropolis([poisson["k"], poisson["mu"]], model=poisson)

    def test_nothing_continuous(self):
        with pm.Model() as model:
            pm.Normal("obs", pm.Poisson("k", 2.0), 1, observed=np.zeros(300))
        with pytest.raises(ValueError, match=r"no continuous"):
            amc.RacingMetropolis(model=model)

    def test_names(self, normal):
        for vars in (["mu"], "mu"):
            step = amc.RacingMetropolis(vars, model=normal)
            assert step.vars == [normal.rvs_to_values[normal["mu"]]]

    def test_observed(self, normal):
        with pytest.raises(ValueError, match="obs"):
            amc.RacingMetropolis([normal["obs"]], model=normal)

    def test_of_another_model(self, normal, poisson):
        with pytest.raises(ValueError, match="mu"):
            amc.RacingMetropolis([poisson["mu"]], model=normal)

    def test_none_of_them(self, normal):
        with pytest.raises(ValueError, match="No free random variables"):
            amc.RacingMetropolis([], model=normal)

    @pytest.mark.parametrize("name", ["mu", "nothing"])
    def test_observed_vars(self, normal, name):
        with pytest.raises(ValueError, match=rf"observed_vars .*'{name}'.*obs"):
            amc.RacingMetropolis(model=normal, observed_vars=[name])

    def test_no_observed_vars(self, normal):
        with pytest.raises(ValueError, match=r"observed_vars is empty"):
            amc.RacingMetropolis(model=normal, observed_vars=[])

    def test_observed_vars_of_different_lengths(self):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            pm.Normal("one", mu, observed=np.zeros(300))
            pm.Normal("two", mu, observed=np.zeros(200))
        with pytest.raises(ValueError, match=r"observed_vars .*one.*300.*two.*200"):
            amc.RacingMetropolis(model=model, observed_vars=["one", "two"])


class TestModel:
    def test_empty(self):
        with pytest.raises(ValueError, match="No free random variables"):
            amc.RacingMetropolis(model=pm.Model())

    def test_nothing_free(self):
        with pm.Model() as model:
            pm.Normal("obs", 0, 1, observed=np.zeros(300))
        with pytest.raises(ValueError, match="No free random variables"):
            amc.RacingMetropolis(model=model)

    def test_no_observed_variable(self, no_rows):
        with pytest.raises(amc.NotRowFactorised, match=r"no observed variable: .* subsample$"):
            amc.RacingMetropolis(model=no_rows)

    def test_weights(self):
        """Those of a Potential have no rows; those of a CustomDist are right."""
        rng = np.random.default_rng(7)
        y, w = rng.normal(1, 2, 500), rng.integers(1, 4, 500)
        with pm.Model() as potential:
            pm.Potential("y", w * pm.logp(pm.Normal.dist(pm.Normal("a", 0, 5), 2), y))
        with pytest.raises(amc.NotRowFactorised, match=r"Potential has no rows.*pm\.CustomDist"):
            amc.RacingMetropolis(model=potential)
        with pm.Model() as model:

            def logp(value, mu, w):
                return w * pm.logp(pm.Normal.dist(mu, 2), value)

            pm.CustomDist("y", pm.Normal("a", 0, 5), w, logp=logp, observed=y)
        step = amc.RacingMetropolis(model=model)
        exact = (w @ y / 4) / (w.sum() / 4 + 1 / 25)
        assert step.prepared.fit.mean == pytest.approx(exact, rel=1e-6)

    def test_no_observed_variable_with_row_logp(self, no_rows, row_logp):
        with pytest.raises(amc.NotRowFactorised, match="no observed variable"):
            amc.RacingMetropolis(model=no_rows, row_logp=row_logp)

    def test_scalar_observation(self):
        with pm.Model() as model:
            pm.Normal("obs", pm.Normal("mu"), 1, observed=0.5)
        with pytest.raises(amc.NotRowFactorised, match=r"'obs'.*scalar"):
            amc.RacingMetropolis(model=model)

    def test_no_rows(self):
        with pm.Model() as model:
            pm.Normal("obs", pm.Normal("mu"), 1, observed=np.empty(0))
        with pytest.raises(amc.NotRowFactorised, match=r"'obs'.*empty"):
            amc.RacingMetropolis(model=model)

    def test_rows_that_depend_on_each_other(self):
        first = pm.Normal.dist()
        with pm.Model() as model:
            pm.AR("obs", [pm.Normal("rho")], 1.0, observed=np.zeros(300), init_dist=first)
        with pytest.raises(amc.NotRowFactorised, match=r"'obs'.*row_logp="):
            amc.RacingMetropolis(model=model)

    def test_taylor_where_rows_are_chosen_by_a_discrete_variable(self):
        with pm.Model() as model:
            change = pm.DiscreteUniform("change", 0, 300)
            mu = pm.math.switch(change > np.arange(300), pm.Normal("early"), pm.Normal("late"))
            pm.Normal("obs", mu, 1, observed=np.zeros(300))
        with pytest.raises(ValueError, match=r"proxy='taylor'.*change as an index or a condition"):
            amc.RacingMetropolis(model=model, proxy="taylor")

    def test_too_many_coordinates_for_the_proxy(self, normal):
        with pm.Model() as model:
            beta = pm.Normal("beta", size=3)
            pm.Normal("obs", beta.sum(), 1, observed=np.zeros(300))
        with pytest.raises(ValueError, match=r"proxy='taylor'.*3 coordinates.*max_dim=2"):
            amc.RacingMetropolis(model=model, proxy=amc.TaylorProxy(max_dim=2))


class TestData:
    @pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")
    def test_missing_observations(self):
        data = np.zeros(300)
        data[7] = np.nan
        with pm.Model() as model:
            pm.Normal("obs", pm.Normal("mu"), 1, observed=data)
        with pytest.raises(amc.NotRowFactorised, match=r"obs.*missing values"):
            amc.RacingMetropolis(model=model)

    def test_too_large(self):
        with pm.Model() as model:
            pm.Normal("obs", pm.Normal("mu"), 1, observed=np.full(300, 1e200))
        with pytest.raises(amc.NotRowFactorised, match=r"obs is not finite in any row.*rescale"):
            amc.RacingMetropolis(model=model)

    @pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])
    def test_one_number_of_another_size(self, groups):
        """Its log-likelihood, -5e19 at the mode, is rounded to 8,192 nats."""
        y = np.random.default_rng(1).normal(size=3_000)
        y[17] = 1e20
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 10)
            if groups:
                mu = mu + pm.Normal("u", 0, pm.HalfNormal("sd"), shape=300)[np.arange(3_000) // 10]
            pm.Normal("obs", mu, pm.HalfNormal("s"), observed=y)
        where = "group 1: " if groups else "row 17: "
        with pytest.raises(
            ValueError, match=rf"obs is too large.*in 1 of .*\({where}-.*Clean these"
        ):
            amc.RacingMetropolis(model=model)

    @pytest.mark.parametrize("start", [1.0, 1e9], ids=["far", "near"])
    def test_all_numbers_may_have_any_unit(self, start):
        """An amount in small coins and the logarithm of its sd: standard deviations differ by 1e9."""
        y = np.random.default_rng(1).normal(10.0, 1.0, 3_000) * 1e9
        with pm.Model():
            mu, s = pm.Normal("mu", 0, 1e11), pm.HalfCauchy("s", start)
            pm.Normal("obs", mu, s, observed=y)
            step = amc.RacingMetropolis()
            idata = pm.sample(500, tune=200, step=step, chains=1, cores=1, random_seed=1,
                              progressbar=False, compute_convergence_checks=False)  # fmt: skip
        assert idata["sample_stats"]["accept"].mean() > 0.8
        assert idata["sample_stats"]["race_flags"].max() == 0.0
        draws, error = idata["posterior"]["mu"].values, y.std() / np.sqrt(3_000)
        assert abs(draws.mean() - y.mean()) < 4 * error / np.sqrt(az.ess(draws))
        np.testing.assert_allclose(step.prepared.fit.moves(np.array([0]))[0], error, rtol=0.01)

    def test_sparse(self):
        X = pytensor.sparse.as_sparse_variable(scipy.sparse.eye(300, 3, format="csr"))
        with pm.Model() as model:
            mu = pytensor.sparse.structured_dot(X, pm.Normal("b", shape=(3, 1)))[:, 0]
            pm.Normal("obs", mu, 1, observed=np.zeros(300))
        with pytest.raises(amc.NotRowFactorised, match=r"sparse matrix; make it dense"):
            amc.RacingMetropolis(model=model)

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_bad_covariates(self, bad):
        """NaN in pm.Data is refused by PyMC, in plain arrays it is not."""
        data = np.ones(300)
        data[[7, 90]] = bad
        with pm.Model() as model:
            mu = pm.Normal("mu", initval=1.0)
            pm.Normal("obs", mu * data, 1, observed=np.zeros(300))
        with pytest.raises(ValueError, match=r"obs is not finite at the initial point in 2 of 300"):
            amc.RacingMetropolis(model=model)

    def test_names_the_rows(self):
        data = np.zeros(300)
        data[[7, 90]] = 3.0
        with pm.Model() as model:
            pm.Uniform("obs", 0, pm.Uniform("top", 1, 2), observed=data)
        with pytest.raises(ValueError, match=r"in 2 of 300 rows \(row 7: -inf, row 90: -inf\)"):
            amc.RacingMetropolis(model=model)

    def test_objects(self):
        """PyMC refuses text itself; numbers in an object array are numbers."""
        with pytest.raises((TypeError, ValueError)):
            with pm.Model() as model:
                pm.Normal("obs", pm.Normal("mu"), 1, observed=np.array(["a", "b"], dtype=object))
                amc.RacingMetropolis(model=model)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_initial_point_not_finite(self, normal, value):
        point = {"mu": np.array(value)}
        with pytest.raises(ValueError, match=rf"initial_point is not finite: mu = {value}"):
            amc.RacingMetropolis(model=normal, initial_point=point)

    @pytest.mark.parametrize(
        "point", [{}, {"nu": np.array(0.0)}, {"mu": np.zeros(2)}], ids=["empty", "other", "shape"]
    )
    def test_initial_point_of_another_model(self, normal, point):
        with pytest.raises(ValueError, match=r"initial_point.*mu"):
            amc.RacingMetropolis(model=normal, initial_point=point)

    def test_impossible_prior_at_the_start(self):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            pm.Normal("obs", mu, 1, observed=np.zeros(300))
            pm.Potential("never", pm.math.switch(mu < 1, -np.inf, 0.0))
        with pytest.raises(ValueError, match=r"logp is -inf at the initial point"):
            amc.RacingMetropolis(model=model)

    def test_impossible_rows_at_the_start_of_a_chain(self, run):
        """Here the initial point is fine, but not the one that pm.sample starts from."""
        data = np.random.default_rng(1).uniform(0, 0.5, size=300)

        def logp(point, rows):
            return np.where(data[rows] < 0.7 - point["mu"], 0.0, -np.inf)

        with pm.Model() as model:
            pm.Normal("obs", pm.Normal("mu"), 1, observed=data)
        step = amc.RacingMetropolis(model=model, row_logp=logp)
        with pytest.raises(ValueError, match=r"not finite at the start of the chain"):
            run(model, step, initvals={"mu": 5.0}, chains=1)


class TestRowLogp:
    @pytest.mark.parametrize(
        "wrong",
        [
            lambda point, rows: 0.0,
            lambda point, rows: np.zeros((len(rows), 1)),
            lambda point, rows: np.zeros(len(rows) + 1),
            lambda point, rows: np.zeros(500 if len(rows) == 500 else 1),
        ],
        ids=["scalar", "column", "longer", "one"],
    )
    def test_wrong_shape(self, run, normal, wrong):
        with pytest.raises(ValueError, match=r"row_logp returned shape .* must return"):
            step = amc.RacingMetropolis(model=normal, row_logp=wrong)
            run(normal, step, chains=1)

    @pytest.mark.parametrize(
        "wrong", [lambda point, rows: None, lambda point, rows: "x"], ids=["None", "text"]
    )
    def test_no_numbers(self, normal, wrong):
        with pytest.raises((ValueError, TypeError), match="row_logp"):
            amc.RacingMetropolis(model=normal, row_logp=wrong)

    def test_not_finite(self, normal):
        with pytest.raises(ValueError, match=r"obs is not finite .* 500 of 500 rows"):
            amc.RacingMetropolis(model=normal, row_logp=lambda p, rows: np.full(len(rows), np.nan))

    @pytest.mark.parametrize("calls", [0, 60])
    def test_exception_surfaces(self, run, normal, row_logp, calls):
        """At once, or in the middle of a chain; the next chain is not confused by it."""
        left = [calls]

        def breaks(point, rows):
            left[0] -= 1
            if left[0] < 0:
                raise Drawn("no more")
            return row_logp(point, rows)

        with pytest.raises(Drawn, match="no more"):
            step = amc.RacingMetropolis(model=normal, row_logp=breaks)
            run(normal, step, chains=1)
        if calls:
            left[0] = 10**9
            assert run(normal, step, chains=1).posterior.sizes["draw"] == 50

    def test_impossible_proposals_are_rejected(self, run, normal, row_logp):
        """Rows that are -inf or NaN where the chain would go."""
        for value in (-np.inf, np.nan):

            def logp(point, rows, value=value):
                return np.where(point["mu"] > 0.3, value, row_logp(point, rows))

            step = amc.RacingMetropolis(model=normal, row_logp=logp)
            idata = run(normal, step, initvals={"mu": 0.25}, draws=200)
            assert idata.posterior["mu"].max() <= 0.3
            assert np.ptp(idata.posterior["mu"].values) > 0


class TestFewRows:
    def model(self, n_rows):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 2)
            pm.StudentT("obs", nu=4, mu=mu, sigma=1, observed=np.linspace(-1, 2, n_rows))
        return model

    def test_fewer_than_a_batch_is_exact(self, run):
        model, n_rows = self.model(20), 20
        idatas = []
        step = amc.RacingMetropolis(race="normal", model=model)
        for race in (amc.NormalRace(), amc.ExactRace()):
            idatas.append(run(model, step.replace(race=race), draws=100))
        for idata in idatas:
            assert np.all(idata.sample_stats["race_rows"].isin([0.0, n_rows]))
            assert np.ptp(idata.posterior["mu"].values) > 0
            assert not idata.sample_stats["race_wrong"].any()
        np.testing.assert_array_equal(*(i.posterior["mu"].values for i in idatas))
        assert np.all(idatas[1].sample_stats["race_delta"] == 0.0)

    def test_one_row(self, run):
        model = self.model(1)
        idata = run(model, amc.RacingMetropolis(model=model, proxy=None), draws=100)
        assert np.all(idata.sample_stats["race_rows"].isin([0.0, 1.0]))
        assert np.ptp(idata.posterior["mu"].values) > 0
