"""What is wrong with a grouped model or its arguments is said, with what to do."""

import functools

import numpy as np
import pymc as pm
import pytest

from grouped_runs import racing

import amc_pymc as amc

N_ROWS, N_GROUPS = 400, 40
_rng = np.random.default_rng(1)
GROUP = _rng.integers(0, N_GROUPS, N_ROWS)
Y = _rng.normal(_rng.normal(size=N_GROUPS)[GROUP], 1.0)


def build(effects=None, mean=None, index=GROUP, extra=None):
    """Rows with effects of their group; arguments replace parts of the model."""
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0)
        e = effects(sd) if effects else pm.Normal("e", 0.0, sd, shape=N_GROUPS)
        pm.Normal("obs", mean(e) if mean else e[index], 1.0, observed=Y)
        if extra:
            extra(e)
    return model


@functools.cache
def plain():
    return build()


@pytest.mark.parametrize("wanted", [[], 5, True, ["e", 3], 0.5])
def test_marginalize_of_another_kind(wanted):
    with pytest.raises(ValueError, match=r"marginalize must be 'auto', None or variables .* got"):
        racing(plain(), marginalize=wanted)


def test_marginalize_names_no_variable():
    with pytest.raises(ValueError, match=r"marginalize names x, z; free variables .*: sd, e$"):
        racing(plain(), marginalize=["x", "e", "z"])


@pytest.mark.parametrize("wanted", ["sd", ["e", "sd"]])
def test_marginalize_names_what_is_not_local(wanted):
    with pytest.raises(ValueError, match=r"sd, which is not one grouping .* read one .*factors: e"):
        racing(plain(), marginalize=wanted)


def test_marginalize_names_what_is_not_sampled():
    model = plain()
    with pytest.raises(ValueError, match="marginalize names e, but vars leaves out e"):
        racing(model, [model["sd"]], marginalize=["e"])
    with pytest.raises(ValueError, match="marginalize names e, and vars nothing besides"):
        racing(model, [model["e"]], marginalize=["e"])


@pytest.mark.parametrize(
    ("mean", "says"),
    [
        (lambda e: e[GROUP] + e[(GROUP + 1) % N_GROUPS], "rows of obs read two levels of it"),
        (lambda e: e[GROUP] - e.mean(), "rows of obs read it in two ways"),
    ],
)
def test_rows_that_read_several_effects(mean, says):
    with pytest.raises(ValueError, match=f"names e, which cannot be integrated out: {says}"):
        racing(build(mean=mean), marginalize=["e"])


def test_effects_that_something_else_depends_on():
    model = build(extra=lambda e: pm.Potential("soft", -(e.sum() ** 2)))
    with pytest.raises(ValueError, match="cannot be integrated out: soft depends on it too"):
        racing(model, marginalize=["e"])


@pytest.mark.parametrize("prior", [pm.Flat, pm.HalfFlat])
def test_improper_priors(prior):
    model = build(lambda sd: prior("e", shape=N_GROUPS))
    with pytest.raises(
        ValueError, match=r"cannot be integrated out: .* is improper; give it a pro"
    ):
        racing(model, marginalize=["e"])


def test_effects_that_depend_on_each_other():
    model = build(lambda sd: pm.GaussianRandomWalk(
        "e", sigma=sd, init_dist=pm.Normal.dist(0, 1), shape=N_GROUPS
    ))  # fmt: skip
    with pytest.raises(ValueError, match="cannot be integrated out: its prior is not a product"):
        racing(model, marginalize=["e"])


def test_too_many_effects_of_a_group():
    model = build(
        lambda sd: pm.Normal("e", 0.0, sd, shape=(N_GROUPS, 4)), mean=lambda e: e[GROUP].sum(axis=1)
    )
    with pytest.raises(ValueError, match="it has 4 effects a level, and at most 3 can be"):
        racing(model, marginalize=["e"])


@pytest.mark.parametrize("marginalize", ["auto", ["e"]])
def test_an_index_out_of_range(marginalize):
    bad = GROUP.copy()
    bad[3] = N_GROUPS + 5
    with pytest.raises(ValueError, match=r"index in the data is out of range: .*45.*factorize"):
        racing(build(index=bad), marginalize=marginalize)


@pytest.mark.parametrize(
    "settings", [{"row_logp": lambda point, rows: np.zeros(len(rows))}, {"proxy": "data"},
                 {"proxy": None}]
)  # fmt: skip
def test_marginalize_with_what_excludes_it(settings):
    with pytest.raises(ValueError, match="marginalize needs proxy='taylor' and no row_logp"):
        racing(plain(), marginalize=["e"], **settings)


def test_other_steps_need_the_effects():
    model = build()
    with model:
        pm.Normal("unrelated")
    with pytest.raises(
        ValueError, match=r"recover=False is for .* marginalize=None integrates none"
    ):
        racing(model, recover=False, marginalize=None)
    with pytest.raises(ValueError, match=r"recover=False leaves .* pass recover=True"):
        racing(model, [model["sd"], model["e"]], recover=False)


def test_outcomes_that_are_impossible():
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0)
        e = pm.Normal("e", 0.0, sd, shape=N_GROUPS)
        pm.Poisson("obs", pm.math.exp(e[GROUP]), observed=np.where(np.arange(N_ROWS) == 7, -1, 2))
    with pytest.raises(ValueError, match="logp is -inf at the initial point"):
        racing(model)


def test_data_that_change():
    with pm.Model() as model:
        y = pm.Data("y", Y)
        sd = pm.HalfNormal("sd", 1.0)
        e = pm.Normal("e", 0.0, sd, shape=N_GROUPS)
        pm.Normal("obs", e[pm.Data("index", GROUP)], 1.0, observed=y)
    step = racing(model)
    for name, values in (("y", Y + 1.0), ("index", GROUP[::-1].copy())):
        old = model[name].get_value()
        pm.set_data({name: values}, model=model)
        with pytest.raises(ValueError, match=rf"data .*{name}.* have changed.*Make a new one"):
            step.setup_chain(np.random.default_rng(1), 5, 5)
        pm.set_data({name: old}, model=model)
    step.setup_chain(np.random.default_rng(1), 5, 5)
    assert isinstance(step, amc.RacingMetropolis)
