"""What is wrong with a grouped model or its arguments is said: errors, the log and the forecast name the reason."""

import logging

import arviz as az
import numpy as np
import pymc as pm
import pytest

from grouped_runs import racing, sample

import amc_pymc as amc

from amc_pymc.reading.factors import find_factors
from amc_pymc.steps import racing_metropolis
from amc_pymc.steps.preparation import Options, chosen_factor

N_ROWS, N_GROUPS = 120, 70  # more levels than are taken case by case
_rng = np.random.default_rng(1)
GROUP, AWAY = _rng.integers(0, N_GROUPS, (2, N_ROWS))
X, Y = _rng.normal(size=(2, N_ROWS))


def build(effects=None, mean=None, extra=None, likelihood=None):
    """Rows with effects of their group; arguments replace parts of the model."""
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0)
        u = effects(sd) if effects else pm.Gamma("u", 2.0, sd, shape=N_GROUPS)
        mu = mean(u) if mean else u[GROUP]
        if likelihood is None:
            pm.Normal("obs", mu, 1.0, observed=Y)
        else:
            likelihood(mu)
        if extra:
            extra(u)
    return model


#: Parts of a model whose effects cannot be integrated out, and the reason.
REFUSED = {
    "a potential": ({"extra": lambda u: pm.Potential("soft", -(u.sum() ** 2))}, "soft depends on"),
    "flat": ({"effects": lambda sd: pm.Flat("u", shape=N_GROUPS)}, "is improper; give it a pro"),
    "kinks": (
        {
            "effects": lambda sd: pm.Normal("u", 0.0, sd, shape=N_GROUPS),
            "likelihood": lambda mu: pm.Laplace("obs", mu, 1.0, observed=Y),
        },
        "log-likelihoods of its rows have kinks",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_reasons_are_in_errors_and_the_log(name, caplog):
    parts, says = REFUSED[name]
    model = build(**parts)
    with pytest.raises(ValueError, match=f"names u, which cannot be integrated out: .*{says}") as e:
        racing(model, marginalize=["u"])
    (said,) = message(caplog, model, [v.name for v in model.value_vars])
    (factor,) = find_factors(model)
    assert said == f"Not integrated out: u: {factor.reason}."
    assert "__" not in str(e.value) + said


@pytest.mark.parametrize(
    "mean", [lambda u: u[GROUP] - u[AWAY], lambda u: u[GROUP] - u.mean()], ids=["two", "mean"]
)
def test_rows_that_read_several_effects_have_no_factor(mean):
    model = build(mean=mean)
    assert find_factors(model) == []
    with pytest.raises(ValueError, match=r"u, which is not one grouping factor .* factors: none"):
        racing(model, marginalize=["u"])


# --- arguments ------------------------------------------------------------------------------------

ARGUMENTS = [
    *((w, r"marginalize must be 'auto', None or variables .* got")
      for w in ([], 5, True, ["u", 3], 0.5)),
    (["x", "u", "z"], r"marginalize names x, z; free variables .*: sd, u$"),
    ("sd", r"sd, which is not one grouping .* read one .*factors: u"),
    (["u", "sd"], r"sd, u, which is not one grouping .* read one .*factors: u"),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "says"), ARGUMENTS)
def test_marginalize_of_another_kind(wanted, says):
    with pytest.raises(ValueError, match=says):
        racing(build(), marginalize=wanted)


def test_marginalize_names_what_is_not_sampled():
    model = build()
    for name, says in (("sd", "vars leaves out u"), ("u", "vars names nothing besides")):
        with pytest.raises(ValueError, match=f"marginalize names u, but {says}"):
            racing(model, [model[name]], marginalize=["u"])


def test_other_steps_need_the_effects():
    model = build()
    with model:
        pm.Normal("unrelated")
    with pytest.raises(
        ValueError, match=r"recover=False is for .* marginalize=None integrates none"
    ):
        racing(model, recover=False, marginalize=None)
    with pytest.raises(ValueError, match=r"recover=False leaves .* pass recover=True"):
        racing(model, [model["sd"], model["u"]], recover=False)


@pytest.mark.parametrize("marginalize", ["auto", ["u"]])
def test_an_index_out_of_range(marginalize):
    bad = np.where(np.arange(N_ROWS) == 3, N_GROUPS + 5, GROUP)
    with pytest.raises(ValueError, match=r"index in the data is out of range: .*75.*factorize"):
        racing(build(mean=lambda u: u[bad]), marginalize=marginalize)


def test_outcomes_that_are_impossible():
    counts = np.where(np.arange(N_ROWS) == 7, -1, 2)
    model = build(likelihood=lambda mu: pm.Poisson("obs", mu, observed=counts))
    with pytest.raises(
        ValueError, match=r"not finite at the initial point in 1 of \d+ groups \(group \d+: -inf"
    ):
        racing(model)


# --- several outcomes -----------------------------------------------------------------------------


def two_outcomes(other):
    """Prices and, for fewer rows, ratings of the same shops."""
    some = slice(0, 50)

    def outcomes(mu):
        pm.Normal("price", mu, 1.0, observed=Y)

    def rating(u):
        pm.Normal("rating", other(u, some), 1.0, observed=X[some])

    return build(extra=rating, likelihood=outcomes)


@pytest.mark.parametrize("other", [lambda u, s: u[GROUP[s]], lambda u, s: 0.3 * u[AWAY[s]]])
def test_outcomes_of_different_lengths(other):
    model = two_outcomes(other)
    with pytest.raises(ValueError, match=r"out: rating depends on it too$"):
        racing(model, marginalize=["u"])
    assert find_factors(model, ["price", "rating"]) == []


def test_an_outcome_that_reads_no_effect():
    model = two_outcomes(lambda u, s: np.zeros(50))
    assert not find_factors(model)[0].reason


# --- the log --------------------------------------------------------------------------------------


def message(caplog, model, names, options=None):
    caplog.clear()
    with caplog.at_level(logging.INFO, "amc_pymc"):
        assert chosen_factor(model, names, options or Options(marginalize="auto")) is None
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("groups", "rows", "integrated"),
    [
        (8, 240, True),
        (8, 250, False),
        (80, 250, False),
        (82, 240, True),
        (100, 240, False),
        (250, 250, True),
    ],
)
def test_few_groups_of_many_rows_are_not_integrated_out(groups, rows, integrated):
    group = np.repeat(np.arange(groups), rows)
    with pm.Model() as model:
        u = pm.Normal("u", pm.Normal("m"), pm.HalfNormal("s"), shape=groups)
        pm.Normal("obs", u[group], 1.0, observed=np.zeros(group.size))
    names = [v.name for v in model.value_vars]
    factor = chosen_factor(model, names, Options(marginalize="auto"))
    assert (factor is not None) == integrated


def test_effects_far_from_gaussian_take_several_transitions():
    """Forty groups of 300 rows with 2 % events, which stay among the parameters: half of the moves are accepted."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(40), 300)
    logit = np.log(0.02 / 0.98) + 0.5 * rng.normal(size=40)[group]
    y = (rng.random(group.size) < 1.0 / (1.0 + np.exp(-logit))).astype(int)
    with pm.Model() as model:
        u = pm.Normal("u", pm.Normal("m", 0.0, 3.0), pm.HalfNormal("s"), shape=40)
        pm.Bernoulli("y", logit_p=u[group], observed=y)
    step = amc.RacingMetropolis(model=model, progressbar=False)
    assert step.prepared.densities.factor is None and step.sampler.transitions > 1
    idata = sample(model, step, draws=1_000, tune=1_000)
    for values in idata.posterior.data_vars.values():
        assert np.max(az.rhat(values)) < 1.02


def test_the_log_says_how_many_transitions_a_draw_is(caplog, monkeypatch):
    """Rows read are summed over them; where drawing effects is dear there are several."""
    monkeypatch.setattr(racing_metropolis, "_DRAWING_COST", 500.0)
    group = np.repeat(np.arange(400), 5)
    with pm.Model() as model:
        u = pm.Normal("u", pm.Normal("mean"), pm.HalfNormal("sd"), shape=400)
        pm.Normal("obs", u[group], 1.0, observed=np.resize(Y, group.size))
    with caplog.at_level(logging.INFO, "amc_pymc"):
        step = amc.RacingMetropolis(model=model, progressbar=False)
    said = [record.getMessage() for record in caplog.records]
    number = step.sampler.transitions
    assert number > 1
    assert f"{number} transitions for every stored draw; race_rows is their sum." in said
