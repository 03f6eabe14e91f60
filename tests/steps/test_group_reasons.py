"""Why effects of groups are not integrated out: errors, the log and the forecast name the reason."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from grouped_runs import racing

import amc_pymc as amc

from amc_pymc.reading.groups import find_factors
from amc_pymc.steps import grouping, racing_metropolis
from amc_pymc.steps.grouping import chosen_turns
from amc_pymc.steps.settings import Options

N_ROWS, N_GROUPS = 120, 70  # more levels than are taken case by case
_rng = np.random.default_rng(1)
GROUP, AWAY = _rng.integers(0, N_GROUPS, (2, N_ROWS))
X, Y = _rng.normal(size=(2, N_ROWS))
ordered = pm.distributions.transforms.ordered


def build(effects, mean):
    with pm.Model() as model:
        b, sd = pm.Normal("b"), pm.HalfNormal("sd", 1.0)
        pm.Normal("obs", b * X + mean(effects(sd)), 1.0, observed=Y)
    return model


def normal(sd):
    return pm.Normal("player", 0.0, sd, shape=N_GROUPS)


def positive(sd):
    return pm.Gamma("player", 2.0, sd, shape=N_GROUPS)


#: Effects, what rows make of them, and the reason.
REFUSED = {
    "mean": (normal, lambda u: u[GROUP] - u.mean(), r"in two ways.*player\[i\] alone"),
    "sum": (positive, lambda u: u[GROUP] / u.sum(), r"in two ways.*player\[i\] alone"),
    "two indices": (normal, lambda u: u[GROUP] - u[AWAY], r"two levels .* as player\[i\] - player"),
    "two of positive ones": (positive, lambda u: u[GROUP] - u[AWAY], "rows of obs read two levels"),
    "a matrix": (
        normal,
        lambda u: pt.dot(np.eye(N_GROUPS), u)[GROUP],
        "cannot be written as a loop",
    ),
    "zero-sum": (
        lambda sd: pm.ZeroSumNormal("player", sd, shape=N_GROUPS),
        lambda u: u[GROUP],
        "not a product over levels, which add up to zero .*Normal prior in the place",
    ),
    "ordered": (
        lambda sd: pm.Normal(
            "player", 0, sd, shape=N_GROUPS, transform=ordered, initval=np.arange(N_GROUPS)
        ),
        lambda u: u[GROUP],
        "not a product over levels, which are ordered",
    ),
    "an operation": (
        normal,
        lambda u: pt.gammaincc(pt.exp(u[GROUP]), 1.0),
        r"cannot be written as a loop over numbers \(obs: GammaIncC has no scalar form\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_reasons_name_what_the_user_named(name, caplog):
    effects, mean, says = REFUSED[name]
    model = build(effects, mean)
    (factor,) = find_factors(model)
    assert factor.label == "player" and factor.n_levels == N_GROUPS
    with pytest.raises(ValueError, match=f"names player, which cannot .* out: .*{says}") as error:
        racing(model, marginalize=["player"])
    (said,) = message(caplog, model, [v.name for v in model.value_vars])
    assert said == f"Not integrating player out: {factor.reason}."
    assert "__" not in str(error.value) + said


def two_outcomes(other):
    """Prices and, for fewer rows, ratings of the same shops."""
    some = slice(0, 50)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0)
        u = pm.LogNormal("shop", 0.0, sd, shape=N_GROUPS)
        pm.Normal("price", u[GROUP], 1.0, observed=Y)
        pm.Normal("rating", other(u, some), 1.0, observed=X[some])
    return model


@pytest.mark.parametrize("other", [lambda u, s: u[GROUP[s]], lambda u, s: 0.3 * pt.log(u)[AWAY[s]]])
def test_outcomes_of_different_lengths(other):
    model = two_outcomes(other)
    advice = r"rating depends on it too; pass observed_vars=\['price', 'rating'\]"
    with pytest.raises(ValueError, match=advice):
        racing(model, marginalize=["shop"])
    (factor,) = find_factors(model, ["price", "rating"])
    assert not factor.reason and [a.size for a in factor.levels] == [N_ROWS, 50]


def test_an_outcome_that_reads_no_effect():
    model = two_outcomes(lambda u, s: np.zeros(50))
    assert not find_factors(model)[0].reason
    advice = r"rows of rating do not belong to a level; pass observed_vars=\['price'\]"
    with pytest.raises(ValueError, match=advice):
        racing(model, marginalize=["shop"], observed_vars=["price", "rating"])


def plain():
    return build(positive, lambda u: u[GROUP])


def message(caplog, model, names, options=None):
    caplog.clear()
    with caplog.at_level(logging.INFO, "amc_pymc"):
        (turn,) = chosen_turns(model, names, options or Options(marginalize="auto"))
        assert turn.factor is None
    return [record.getMessage() for record in caplog.records]


def test_the_log_says_why_nothing_is_integrated_out(caplog, monkeypatch):
    model = plain()
    names = [v.name for v in model.value_vars]
    (said,) = message(caplog, model, [n for n in names if n != "player_log__"])
    assert said == "Not integrating player out: vars leaves out player."
    (said,) = message(caplog, model, ["player_log__"])
    assert said == "Not integrating player out: vars names nothing besides."
    monkeypatch.setattr(grouping, "_FEW_ROWS", 100)
    (said,) = message(caplog, model, names)
    assert "over 70 groups of 2 rows each would read most" in said
    assert "(marginalize=['player'] insists)" in said


@pytest.mark.parametrize(
    ("groups", "rows", "integrated"),
    [(8, 240, True), (8, 250, False), (49, 250, False), (50, 250, True), (100, 250, False)],
)
def test_few_groups_of_many_rows_are_not_integrated_out(groups, rows, integrated):
    group = np.repeat(np.arange(groups), rows)
    with pm.Model() as model:
        u = pm.Normal("u", pm.Normal("m"), pm.HalfNormal("s"), shape=groups)
        pm.Normal("obs", u[group], 1.0, observed=np.zeros(group.size))
    names = [v.name for v in model.value_vars]
    (turn,) = chosen_turns(model, names, Options(marginalize="auto"))
    assert (turn.factor is not None) == integrated


def test_the_log_has_one_line_for_all_factors(caplog):
    with pm.Model() as model:
        u, v = (pm.Normal(n, shape=N_GROUPS) for n in "uv")
        pm.Normal("obs", u[GROUP] - u.mean() + v[AWAY], 1.0, observed=Y)
    (said,) = message(caplog, model, ["u"])
    assert said.startswith("Not integrating ") and "; nor " in said
    assert "u out: rows of obs" in said and "v out: vars leaves out v" in said


def test_nothing_is_said_where_there_are_no_groups(caplog):
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        scale = pm.HalfNormal("scale", shape=2)
        pm.Normal("obs", np.stack([X] * 3, axis=1) @ b[[0, 2, 1]], scale.sum(), observed=Y)
    assert message(caplog, model, ["b", "scale_log__"]) == []
    assert message(caplog, plain(), [], Options(marginalize=None)) == []


def test_the_forecast_shows_reasons():
    model = build(normal, lambda u: u[GROUP] - u[AWAY])
    forecast = amc.racing_forecast(model=model, progressbar=False)
    assert forecast.marginalized == () and forecast.n_groups == 0
    (reason,) = forecast.not_marginalized
    assert reason.startswith("player: rows of obs read two levels of it at once")
    assert f"not integrated out is {reason}\n" in str(forecast)


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
    (update,) = step._make_progressbar_update_functions()
    read = {"accept": 0.5, "race_rows": 0.1 * group.size * number}
    assert update(read)["share"] == pytest.approx(0.1)
