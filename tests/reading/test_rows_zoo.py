"""`extract_rows` against the full element-wise log-likelihood, on every model of the zoo."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors

from amc_pymc.reading import NotRowFactorised, RowLogp, extract_rows
from tests.model_zoo import ZOO, build, names
from tests.reading.zoo_rows import N_ROWS, RowCounter, zoo_model, zoo_rows

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS:UserWarning",
    "ignore:.*Numba will use object mode:UserWarning",
    "ignore:.*Cannot cache compiled function",
)

ORACLE_MODE = Mode(linker="py", optimizer=None)


class Oracle:
    """The whole log-likelihood, row by row, as PyMC gives it: ``oracle(point)`` has shape (N,)."""

    def __init__(self, model: pm.Model, observed: tuple[str, ...]):
        terms = model.logp(vars=[model[name] for name in observed], sum=False)
        terms = [getattr(term, "values", term) for term in terms]
        reached = set(ancestors(terms))
        self.value_vars = {v.name for v in model.value_vars if v in reached}
        self._fn = model.compile_fn(
            terms, inputs=model.value_vars, on_unused_input="ignore", mode=ORACLE_MODE
        )

    def __call__(self, point) -> np.ndarray:
        terms = self._fn(point)
        return sum(term.reshape(term.shape[0], -1).sum(axis=1) for term in terms)


@dataclass(frozen=True)
class Case:
    """A model, the oracle of its observed variables, and three points to compare at."""

    model: pm.Model
    oracle: Oracle
    points: tuple[dict[str, np.ndarray], ...]


def random_points(model, discrete=None, n_points=3):
    """Jitter the initial point in the unconstrained space; discrete variables only if told how."""
    rng = np.random.default_rng(5)
    points, start = [], model.initial_point()
    for _ in range(n_points):
        point = dict(start)
        for name, value in point.items():
            if name in (discrete or {}):
                point[name] = rng.integers(0, discrete[name], value.shape).astype(value.dtype)
            elif value.dtype.kind == "f":
                point[name] = value + 0.3 * rng.normal(size=value.shape)
        points.append(point)
    return tuple(points)


@cache
def case(name: str) -> Case:
    entry, model = ZOO[name], zoo_model(name)
    oracle = Oracle(model, entry.observed)
    return Case(model, oracle, random_points(model, entry.discrete))


def row_subsets(n_rows: int):
    """Few rows and all of them, in no order, with and without repetition, both ends."""
    rng = np.random.default_rng(6)
    for size in (1, 2, 50, n_rows):
        yield rng.integers(0, n_rows, size)
    yield np.array([n_rows - 1, 0, n_rows - 1])
    yield rng.permutation(n_rows)
    yield rng.permutation(n_rows)[: n_rows // 2 : 3]  # not contiguous in memory


def assert_rows_match(rows, oracle, points):
    for point in points:
        full = oracle(point)
        for idx in row_subsets(len(full)):
            got = rows(point, idx)
            assert isinstance(got, np.ndarray)
            assert got.dtype == np.float64
            assert got.shape == idx.shape
            np.testing.assert_allclose(got, full[idx], rtol=1e-10, atol=1e-12)


# The zoo itself.


@pytest.mark.parametrize("name", names("accepted"))
def test_zoo_rows_differ(name):
    """The comparison below would see rows that are mixed up, shifted or all alike."""
    oracle, points = case(name).oracle, case(name).points
    full = [oracle(point) for point in points]
    assert full[0].shape == (N_ROWS,)
    assert not np.isnan(full).any()
    assert all(len(np.unique(values)) > 1 for values in full)
    assert not np.allclose(full[0], full[1])


# Accepted models.


@pytest.mark.parametrize("name", names("accepted"))
def test_rows_equal_the_full_loglikelihood(name):
    assert_rows_match(zoo_rows(name), case(name).oracle, case(name).points)


@pytest.mark.parametrize("name", names("accepted"))
def test_names_and_number_of_rows(name):
    rows = zoo_rows(name)
    assert rows.n_rows == N_ROWS
    assert isinstance(rows.n_rows, int)
    assert rows.observed_vars == ZOO[name].observed
    assert isinstance(rows.value_vars, tuple)
    assert len(set(rows.value_vars)) == len(rows.value_vars)
    assert set(rows.value_vars) == case(name).oracle.value_vars


@pytest.mark.parametrize("name", names("either"))
def test_hidden_rows_are_right_or_refused(name):
    try:
        rows = zoo_rows(name)
    except NotRowFactorised as refusal:
        assert "y" in str(refusal)
        assert "row by row" in str(refusal)
        return
    assert_rows_match(rows, case(name).oracle, case(name).points)


# Refused models.


@pytest.mark.parametrize("name", names("refused"))
def test_refusal_names_the_variable_and_the_way_out(name):
    model = build(name, N_ROWS)
    with pytest.raises(NotRowFactorised) as refusal:
        extract_rows(model)
    assert ZOO[name].mentions in str(refusal.value)
    if model.observed_RVs and "initval" not in str(refusal.value):
        assert "row by row" in str(refusal.value)


# Which observed variables.


@pytest.mark.parametrize(
    ("name", "chosen", "found", "n_rows"),
    [
        ("two_observed", ["size"], ("size",), N_ROWS),
        ("two_observed", lambda model: [model["size"]], ("size",), N_ROWS),
        ("two_observed", ["size", "size"], ("size",), N_ROWS),
        ("two_observed", "count", ("count",), N_ROWS),
        ("unequal_lengths", ["short"], ("short",), 20),
    ],
    ids=["a name", "a variable", "twice", "a name on its own", "the shorter one"],
)
def test_some_of_the_observed(name, chosen, found, n_rows):
    model, points = case(name).model, case(name).points
    rows = extract_rows(model, chosen(model) if callable(chosen) else chosen)
    assert (rows.n_rows, rows.observed_vars) == (n_rows, found)
    oracle = Oracle(model, found)
    assert set(rows.value_vars) == oracle.value_vars
    assert_rows_match(rows, oracle, points)


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("unequal_lengths", ["short", "long"], "short|long"),
        ("logistic_data", ["nonesuch"], "nonesuch"),
        ("logistic_data", ["b"], "'b'"),
        ("logistic_data", lambda: [case("two_observed").model["size"]], "size"),
    ],
    ids=["of other lengths", "unknown", "free", "of another model"],
)
def test_not_these_observed(name, chosen, message):
    with pytest.raises(ValueError, match=message):
        extract_rows(case(name).model, chosen() if callable(chosen) else chosen)


# What a call takes and returns.


def test_point_in_any_order_with_more_in_it():
    rows, idx = zoo_rows("unequal_lengths"), np.arange(10)
    point = case("unequal_lengths").points[0]
    shuffled = {"unrelated": np.ones(3)} | dict(reversed(point.items()))
    np.testing.assert_array_equal(rows(shuffled, idx), rows(point, idx))


def test_results_are_not_overwritten_and_inputs_not_changed():
    rows, (first, second, _) = zoo_rows("mvnormal_lkj"), case("mvnormal_lkj").points
    idx = np.array([3, 1, 4, 1, 5])
    before = {name: value.copy() for name, value in first.items()}
    result = rows(first, idx)
    kept = result.copy()
    rows(second, idx)
    np.testing.assert_array_equal(result, kept)
    np.testing.assert_array_equal(idx, [3, 1, 4, 1, 5])
    for name, value in before.items():
        np.testing.assert_array_equal(first[name], value)


def test_no_rows_asked():
    result = zoo_rows("normal_mixture")(case("normal_mixture").points[0], np.array([], dtype=int))
    assert result.shape == (0,)
    assert result.dtype == np.float64


# The object.


@pytest.mark.parametrize(
    "name", ["logistic_data", "normal_mixture", "latent_per_row", "mvnormal_lkj", "xtensor_dims"]
)
def test_pickled_copy_gives_the_same_values(name):
    rows, point = zoo_rows(name), case(name).points[0]
    idx = np.random.default_rng(7).integers(0, N_ROWS, 20)
    copy = cloudpickle.loads(cloudpickle.dumps(rows))
    assert isinstance(copy, RowLogp)
    assert copy.n_rows == rows.n_rows
    assert copy.observed_vars == rows.observed_vars
    assert copy.value_vars == rows.value_vars
    np.testing.assert_array_equal(copy(point, idx), rows(point, idx))


def test_extraction_leaves_the_model_alone():
    model = build("hierarchy_nested", N_ROWS)
    before = (list(model.named_vars), list(model.value_vars), dict(model.rvs_to_values))
    data = model["group_idx"].get_value()
    with pm.Model():  # the surrounding context is not the model that was asked for
        rows = extract_rows(model)
    assert rows.n_rows == N_ROWS
    assert (list(model.named_vars), list(model.value_vars), dict(model.rvs_to_values)) == before
    np.testing.assert_array_equal(model["group_idx"].get_value(), data)


# The cost of m rows does not depend on N.


@pytest.mark.parametrize("as_data", [True, False], ids=["data", "constant"])
def test_only_the_rows_asked_are_computed(as_data):
    rng = np.random.default_rng(8)
    X, y = rng.normal(size=(N_ROWS, 2)), rng.normal(size=N_ROWS)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        eta = pt.dot(pm.Data("X", X) if as_data else X, b)
        pm.Normal("y", RowCounter()(eta), 1, observed=y)
    rows = extract_rows(model)
    RowCounter.seen.clear()
    rows(model.initial_point(), np.array([7, 250, 7, 0, 31]))
    assert set(RowCounter.seen) == {5}


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [1, 2, 3])
@pytest.mark.parametrize("name", ["logistic_data", "logistic_constants", "iid_normal"])
def test_very_few_rows_are_right_or_refused(name, n_rows):
    model = build(name, n_rows)
    try:
        rows = extract_rows(model)
    except NotRowFactorised:
        return
    assert rows.n_rows == n_rows
    assert_rows_match(rows, Oracle(model, ("y",)), random_points(model))
