"""What `amc.RacingGibbs` refuses, and that it says what and why before any sampling."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import amc_pymc as amc

from amc_pymc.flags import flags_of_bits

Y = np.random.default_rng(5).normal(0.1, 1.0, size=300)


class Drawn(Exception):
    """A user's own exception."""


def model_of(build, **kwargs):
    """Rows around 0.1 times what ``build`` makes."""
    with pm.Model() as model:
        pm.Normal("obs", 0.1 * build(), 1, observed=Y, **kwargs)
    return model


@pytest.fixture(scope="module")
def poisson():
    return model_of(lambda: pm.Poisson("k", 1.5))


def row_logp(point, rows):
    return -0.5 * (Y[rows] - 0.1 * point["k"] - point.get("mu", 0.0)) ** 2


def quick(model, **kwargs):
    """Next to nothing to compile."""
    return amc.RacingGibbs(model=model, row_logp=row_logp, **kwargs)


def walk(step, model, number=30, point=None):
    step.setup_chain(np.random.default_rng(1), 0, number)
    point, out = point or model.initial_point(), []
    for _ in range(number):
        point, _ = step.step(point)
        out.append(int(point["k"]))
    return out


@pytest.mark.usefixtures("unprepared")
class TestArguments:
    @pytest.mark.parametrize("variance", ["pair", 1, True, ["marginal"]])
    def test_variance(self, categorical, variance):
        with pytest.raises(
            (ValueError, TypeError), match=rf"variance.*{re.escape(repr(variance))}"
        ):
            amc.RacingGibbs(model=categorical, variance=variance)

    @pytest.mark.parametrize(
        "number, error",
        [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), ("2", TypeError)],
    )
    def test_max_states(self, categorical, number, error):
        with pytest.raises(error, match=rf"max_states.*{re.escape(repr(number))}"):
            amc.RacingGibbs(model=categorical, max_states=number)

    def test_proposal_is_of_another_step(self, categorical):
        with pytest.raises(TypeError, match="proposal"):
            amc.RacingGibbs(model=categorical, proposal="auto")


@pytest.mark.usefixtures("unprepared")
class TestStates:
    def test_unbounded(self, poisson):
        with pytest.raises(ValueError, match=r"'k' has infinitely many states.*pm\.Metropolis"):
            amc.RacingGibbs(model=poisson)

    def test_too_many(self):
        model = model_of(lambda: pm.DiscreteUniform("k", 0, 5_000))
        message = r"'k' has 5,001 states \(0 to 5000\).*max_states=1,000.*Cut it into fewer"
        with pytest.raises(ValueError, match=message):
            amc.RacingGibbs(model=model)

    def test_of_other_variables(self, poisson):
        with pytest.raises(ValueError, match=r"states names \['j'\]; RacingGibbs draws \['k'\]"):
            amc.RacingGibbs(model=poisson, states={"j": range(3)})

    def test_of_a_variable_that_is_not_drawn(self):
        model = model_of(lambda: pm.Bernoulli("k", 0.5) + pm.Poisson("j", 1.0))
        with pytest.raises(ValueError, match=r"states names \['j'\]; RacingGibbs draws \['k'\]"):
            amc.RacingGibbs([model["k"]], model=model, states={"j": range(3)})

    @pytest.mark.parametrize("states", [[], [0.5], ["a"]])
    def test_no_integers(self, poisson, states):
        with pytest.raises(ValueError, match=r"states\['k'\] must be a sequence of integers"):
            amc.RacingGibbs(model=poisson, states={"k": states})

    def test_start_outside(self, poisson):
        with pytest.raises(ValueError, match=r"'k' starts at 1.*\(5 to 7\); give initval="):
            amc.RacingGibbs(model=poisson, states={"k": range(5, 8)})
        with pytest.raises(ValueError, match=r"'k' starts at 9.*\(0 to 4\)"):
            point = {"k": np.array(9)}
            amc.RacingGibbs(model=poisson, states={"k": range(5)}, initial_point=point)

    def test_bounds_by_another_variable(self):
        model = model_of(lambda: pm.Binomial("k", pm.DiscreteUniform("n", 1, 5), 0.3))
        with pytest.raises(ValueError, match=r"bounds of 'k' depend on n"):
            amc.RacingGibbs(model=model)


class TestVars:
    def test_continuous(self, categorical):
        message = r"vars holds continuous variables \(mu\).*RacingMetropolis"
        with pytest.raises(ValueError, match=message):
            amc.RacingGibbs([categorical["k"], categorical["mu"]], model=categorical)

    def test_nothing_discrete(self):
        model = model_of(lambda: pm.Normal("mu"))
        with pytest.raises(ValueError, match=r"no discrete free variable for RacingGibbs"):
            amc.RacingGibbs(model=model)

    def test_discrete_for_metropolis(self, categorical):
        with pytest.raises(ValueError, match=r"discrete variables \(k\); RacingMetropolis moves"):
            amc.RacingMetropolis([categorical["k"]], model=categorical)

    def test_nothing_continuous_for_metropolis(self, poisson):
        with pytest.raises(ValueError, match=r"no continuous free variable for RacingMetropolis"):
            amc.RacingMetropolis(model=poisson)

    @pytest.mark.parametrize("cls", [amc.RacingGibbs, amc.RacingMetropolis])
    def test_observed_and_foreign(self, categorical, poisson, cls):
        with pytest.raises(ValueError, match="obs"):
            cls([categorical["obs"]], model=categorical)
        with pytest.raises(ValueError, match="k"):
            cls([poisson["k"]], model=categorical)

    def test_duplicates(self, categorical):
        step = quick(categorical, vars=[categorical["k"]] * 2)
        assert [v.name for v in step.vars] == ["k"]
        assert step.sampler.elements.coordinate.size == 1

    @pytest.mark.parametrize("cls", [amc.RacingGibbs, amc.RacingMetropolis])
    def test_observed_vars(self, categorical, cls):
        with pytest.raises(ValueError, match=r"observed_vars .*'k'.*obs"):
            cls(model=categorical, observed_vars=["k"])
        with pytest.raises(ValueError, match=r"observed_vars is empty"):
            cls(model=categorical, observed_vars=[])


class TestModel:
    def test_no_observed_variable(self):
        with pm.Model() as model:
            pm.Bernoulli("k", 0.5)
            pm.Normal("mu")
        for cls in (amc.RacingGibbs, amc.RacingMetropolis):
            with pytest.raises(amc.NotRowFactorised, match="no observed variable"):
                cls(model=model)

    def test_nothing_free(self):
        with pm.Model() as model:
            pm.Normal("obs", 0, 1, observed=Y)
        with pytest.raises(ValueError, match="No free random variables"):
            amc.RacingGibbs(model=model)

    def test_one_value_per_row(self):
        with pm.Model() as model:
            z = pm.Bernoulli("z", 0.5, shape=300)
            pm.Normal("obs", 0.3 * z, 1, observed=Y)
        message = r"z has one value per row.*pm\.Mixture.*CategoricalGibbsMetropolis"
        with pytest.raises(ValueError, match=message):
            amc.RacingGibbs(model=model, proxy=None)

    def test_impossible_start(self):
        with pm.Model() as model:
            k = pm.Categorical("k", p=np.ones(3) / 3, initval=0)
            pm.Uniform("obs", 0, pt.as_tensor(np.array([1.0, 5.0, 6.0]))[k], observed=np.abs(Y))
        with pytest.raises(
            ValueError, match=r"obs is not finite at the initial point in \d+ of 300"
        ):
            amc.RacingGibbs(model=model)

    @pytest.mark.parametrize("value", [{}, {"k": np.zeros(2, int), "mu": np.array(0.0)}])
    def test_initial_point(self, categorical, value):
        with pytest.raises(ValueError, match=r"initial_point.*k"):
            amc.RacingGibbs(model=categorical, initial_point=value)

    def test_taylor_where_there_is_nothing_to_expand(self):
        with pm.Model() as model:
            when = pm.DiscreteUniform("when", 0, 300)
            pm.Normal("obs", pt.switch(when > np.arange(300), 0.0, 0.2), 1, observed=Y)
        with pytest.raises(ValueError, match=r"proxy='taylor'.*when as an index or a condition"):
            amc.RacingGibbs(model=model, proxy="taylor")


class TestRowLogp:
    def test_works(self, poisson):
        """The same exact conditional as with the graph of the model."""
        step = quick(poisson, states={"k": range(8)}, race="exact", audits=0)
        found = np.bincount(walk(step, poisson, 2_000), minlength=8) / 2_000
        k = np.arange(8)
        log_weight = np.array([row_logp({"k": j}, np.arange(300)).sum() for j in k])
        log_weight += k * np.log(1.5) - np.cumsum(np.log(np.maximum(k, 1)))
        truth = np.exp(log_weight - log_weight.max())
        truth /= truth.sum()
        assert np.all(np.abs(found - truth) < 4.5 * np.sqrt(truth * (1 - truth) / 2_000) + 1e-3)

    @pytest.mark.parametrize("calls", [0, 30])
    @pytest.mark.parametrize("cls", [amc.RacingGibbs, amc.RacingMetropolis])
    def test_exception_surfaces(self, categorical, cls, calls):
        """At once, or in the middle of a chain; the next chain is not confused by it."""
        left = [calls]

        def breaks(point, rows):
            left[0] -= 1
            if left[0] < 0:
                raise Drawn("no more")
            return row_logp(point, rows)

        with pytest.raises(Drawn, match="no more"):
            step = cls(model=categorical, row_logp=breaks)
            walk(step, categorical)
        if calls:
            left[0] = 10**9
            assert len(walk(step, categorical)) == 30

    @pytest.mark.parametrize(
        "wrong",
        [lambda point, rows: 0.0, lambda point, rows: np.zeros((len(rows), 1))],
        ids=["scalar", "column"],
    )
    def test_wrong_shape(self, categorical, wrong):
        with pytest.raises(ValueError, match=r"row_logp returned shape .* must return"):
            amc.RacingGibbs(model=categorical, row_logp=wrong)

    def test_impossible_rows_at_the_start_of_a_chain(self, categorical):
        def logp(point, rows):
            return np.where(point["mu"] > 3.0, -np.inf, row_logp(point, rows))

        step = amc.RacingGibbs(model=categorical, row_logp=logp)
        point = {**categorical.initial_point(), "mu": np.array(5.0)}
        with pytest.raises(ValueError, match=r"not finite at the start of the chain in 300 of 300"):
            walk(step, categorical, point=point)


class TestFewRows:
    @pytest.mark.parametrize("n_rows", [1, 20])
    def test_fewer_than_a_batch_is_exact(self, n_rows):
        with pm.Model() as model:
            k = pm.Categorical("k", p=np.ones(3) / 3)
            pm.Normal("obs", k, 1, observed=np.linspace(-1, 2, n_rows))

        def logp(point, rows):
            return -0.5 * (np.linspace(-1, 2, n_rows)[rows] - point["k"]) ** 2

        chains = []
        for race in ("normal", "exact"):
            step = amc.RacingGibbs(model=model, row_logp=logp, race=race)
            chains.append(walk(step, model, 100))
        assert chains[0] == chains[1]
        assert len(set(chains[0])) > 1


class TestReports:
    def test_without_a_control_variate_there_is_a_warning(self, categorical):
        with pytest.warns(UserWarning, match="no control variate .row_logp has no deriv") as told:
            step = quick(categorical)
        assert [w.filename for w in told] == [__file__]
        _, (stats,) = step.step(categorical.initial_point())
        assert flags_of_bits(stats["race_flags"]) == ["no_control_variate"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            quick(categorical, race="exact")
            quick(categorical, delta=0.01)  # as the warning advises
