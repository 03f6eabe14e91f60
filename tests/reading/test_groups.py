"""Which variables are local to groups, and what is left of a model without them."""

from functools import cache

import numpy as np
import pymc as pm
import pytest

from pytensor.compile.mode import Mode

from amc_pymc.reading.factors import find_factors
from amc_pymc.reading.graphs import initial_point_of, remembering
from amc_pymc.reading.groups import take_groups
from amc_pymc.reading.rows import may_read_levels
from amc_pymc.tall.groups import printed_groups
from models.grouped import EXAMPLES
from tests.reading.group_models import ACCEPTED, EITHER, REFUSED

PYTHON = Mode(linker="py", optimizer=None)
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")
#: Which examples have a factor that can be integrated out, by whether they are centred.
NESTED = ("nested", True)


def example(name, centred):
    settings = EXAMPLES[name]
    data = settings.simulate(40, 40) if name == "overdispersion" else settings.simulate(60, 12)
    return settings.build(data, centred)


@cache
@remembering()
def taken(build, *args):
    """A model, its first factor that can be integrated out, and its groups."""
    model = build(*args)
    factor = next(f for f in find_factors(model) if not f.reason)
    return model, factor, take_groups(model, factor)


def complete(groups, x, effects):
    """Log density of all rows and effects by NumPy."""
    program, levels = (
        groups.program,
        np.repeat(np.arange(groups.factor.n_levels), np.diff(groups.first)),
    )
    local = [effects[:, j] for j in range(effects.shape[1])]
    (rows,) = program.graph.evaluate(
        [program.row],
        row=[c[: groups.n_rows] for c in groups.rows.data],
        local=[u[levels] for u in local],
        eta=x,
    )
    (prior,) = program.graph.evaluate(
        [program.prior], group=list(groups.group_data.T), local=local, eta=x
    )
    size = groups.n_rows, groups.factor.n_levels
    return sum(np.broadcast_to(a, n).sum() for a, n in zip((rows, prior), size, strict=True))


def random_point(model, rng):
    """A point near the initial one."""
    point = {}
    for name, value in initial_point_of(model).items():
        value = value + 0.5 * rng.normal(size=value.shape)
        point[name] = np.sort(value) if "ordered" in str(name) else value
    return point


@remembering()
def assert_adds_up(model, factor, groups):
    """Rows, effects and the rest are the model's log density, at several points."""
    local = {model.values_to_rvs[v] for v in model.value_vars if v.name in factor.names}
    parts = [*model.basic_RVs, *model.potentials]
    left = [v for v in parts if v not in local and v.name not in groups.observed_vars]
    rest = model.compile_fn(
        model.logp(vars=left), inputs=model.value_vars, mode=PYTHON, on_unused_input="ignore"
    )
    whole = model.compile_logp(mode=PYTHON)
    rng = np.random.default_rng(4)
    for _ in range(3):
        point = random_point(model, rng)
        plain = groups.layout.ravel({n: point[n] for n in groups.layout.names})
        x = groups.centring.effects(plain)
        effects = np.concatenate(
            [point[n].reshape(groups.factor.n_levels, -1) for n in factor.names], axis=1
        )
        expected = float(whole(point))
        found = complete(groups, x, effects) + float(rest(point))
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert not np.isnan(expected)


# --- models that have groups ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ACCEPTED)
def test_tricky_models_add_up(name):
    build, levels, effects, names = ACCEPTED[name]
    model, factor, groups = taken(build)
    assert (factor.n_levels, factor.n_effects) == (levels, effects)
    assert names is None or factor.names == names
    assert_adds_up(model, factor, groups)


@pytest.mark.parametrize("centred", [True, False], ids=["centred", "not"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_add_up(name, centred):
    if (name, centred) == NESTED:
        factors = find_factors(example(name, centred))
        assert [f.names for f in factors] == [("class",)]
        if factors[0].reason:
            assert "school has a value for each level too" in factors[0].reason
            return
    model, factor, groups = taken(example, name, centred)
    assert factor.n_levels == (40 if name == "overdispersion" else 12)
    assert set(groups.layout.names).isdisjoint(factor.names)
    assert_adds_up(model, factor, groups)


@pytest.mark.parametrize("name", EITHER)
def test_others_are_right_or_refused(name):
    model = EITHER[name]()
    for factor in find_factors(model):
        if not factor.reason:
            assert_adds_up(model, factor, take_groups(model, factor))


def test_rows_are_sorted_by_group_and_groups_may_be_empty():
    model, factor, groups = taken(ACCEPTED["empty_groups_and_groups_of_one"][0])
    np.testing.assert_array_equal(np.diff(groups.first), [30, 1, 1, 1, 0, 7, 0, 0, 0])
    y = model.rvs_to_values[model["y"]].data[np.argsort(factor.levels, kind="stable")]
    assert any(np.array_equal(column[: y.size], y) for column in groups.rows.data)


def test_two_observed_variables_share_groups():
    _, factor, groups = taken(ACCEPTED["two_observed"][0])
    assert groups.observed_vars == ("count", "size")
    assert factor.levels.size == groups.n_rows == 40


def test_crossed_factors_leave_each_other_among_the_parameters():
    model = example("crossed", True)
    factors = find_factors(model)
    assert [f.names for f in factors] == [("user",), ("item",)]
    for factor in factors:
        groups = take_groups(model, factor)
        assert_adds_up(model, factor, groups)
        assert (set(groups.reads) & {"user", "item"}) == ({"user", "item"} - set(factor.names))


def test_one_hot_columns_are_codes():
    """Three columns that are left are one product and one entry; zeros and ones are not read."""
    _, _, groups = taken(ACCEPTED["dummies"][0])
    g = groups.program.graph
    assert groups.rows.data.shape[0] < 9
    chosen = g.leaves([groups.program.row], "entry")
    assert sum(bool(g.depends[n]) for n in chosen) == 2


def crossed(n_levels, n_items, n_parents):
    """Effects of a nested factor, of its parents and of items, in an unlucky order."""
    rng = np.random.default_rng(5)
    size = 3 * n_levels
    g, item = np.arange(size) % n_levels, rng.integers(0, n_items, size)
    with pm.Model() as m:
        items = pm.Normal("items", 0, 1, shape=(2, n_items))
        school = pm.Normal("school", 0, 1, shape=n_parents)
        sd, b = pm.HalfNormal("sd", 1), pm.Normal("b", 0, 1, shape=2)
        parent = np.arange(n_levels) % n_parents
        u = pm.Normal("u", school[parent], sd, shape=n_levels)
        x = rng.normal(size=size)
        pm.Normal("y", b[0] + b[1] * x + items[0, item] + items[1, item] * x + u[g], 1, observed=x)
    return m


def test_kernels_do_not_depend_on_the_number_of_levels():
    """Nor on the number of rows: a data set more compiles nothing anew."""
    sources = []
    for sizes in ((12, 4, 3), (20, 7, 5)):
        model = crossed(*sizes)
        factor = next(f for f in find_factors(model) if f.variables == ("u",))
        groups = take_groups(model, factor)
        assert_adds_up(model, factor, groups)
        sources.append(printed_groups(groups.program))
    assert sources[0] == sources[1]


def test_reads_are_the_variables_that_groups_depend_on():
    _, _, groups = taken(ACCEPTED["gamma_frailty"][0])
    assert groups.reads == ("b", "k_log__")
    _, _, groups = taken(ACCEPTED["dims_and_data"][0])
    assert groups.reads == ("sd_log__",)


# --- models that have none ------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_refused_models(name):
    build, mentions = REFUSED[name]
    model = build()
    factors = find_factors(model)
    assert all(f.reason for f in factors)
    if mentions:
        assert any(mentions in f.reason for f in factors)
    for factor in factors:
        with pytest.raises(ValueError, match="cannot be integrated out"):
            take_groups(model, factor)


def test_an_index_out_of_range_is_an_error():
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, shape=3)
        pm.Normal("y", u[np.array([0, 1, 3])], 1, observed=np.zeros(3))
    with pytest.raises(ValueError, match="index in the data is out of range"):
        find_factors(model)


@pytest.mark.parametrize(
    ("size", "mean", "may"),
    [
        (3, lambda u: np.ones((50, 3)) @ u, False),
        (3, lambda u: u[np.arange(50) % 3], True),
        (50, lambda u: u, True),
    ],
    ids=["regression", "groups", "one for each row"],
)
def test_rows_of_a_model_without_groups_are_not_extracted(monkeypatch, size, mean, may):
    """That takes several passes over the data, before every preparation."""
    with pm.Model() as model:
        u = pm.Normal("u", shape=size)
        pm.Normal("y", mean(u), 1.0, observed=np.zeros(50))
    assert len(find_factors(model)) == may
    monkeypatch.setattr("amc_pymc.reading.rows.extract_rows", None)
    assert may_read_levels(model) == may
