"""`extract_rows` against the full element-wise log-likelihood, on every model of the zoo."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pytensor.compile.executor import Function
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

import amc_pymc

from amc_pymc.reading import NotRowFactorised, RowLogp, extract_rows
from tests.model_zoo import ZOO, build, names
from tests.reading.zoo_rows import N_ROWS, zoo_model, zoo_rows

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS:UserWarning",
    "ignore:.*Numba will use object mode:UserWarning",
    "ignore:.*Cannot cache compiled function",
)

ORACLE_MODE = Mode(linker="py", optimizer=None)
BAD_INPUT = (ValueError, TypeError, IndexError, KeyError)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", names("accepted"))
def test_zoo_rows_are_reproducible(name):
    oracle, (point, *_) = case(name).oracle, case(name).points
    again = Oracle(build(name, N_ROWS), ZOO[name].observed)
    np.testing.assert_array_equal(again(point), oracle(point))


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
        assert "row_logp" in str(refusal)
        return
    assert_rows_match(rows, case(name).oracle, case(name).points)


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


# Refused models.


@pytest.mark.parametrize("name", names("refused"))
def test_refusal_names_the_variable_and_the_way_out(name):
    model = build(name, N_ROWS)
    with pytest.raises(NotRowFactorised) as refusal:
        extract_rows(model)
    assert ZOO[name].mentions in str(refusal.value)
    if model.observed_RVs and "initval" not in str(refusal.value):
        assert "row_logp" in str(refusal.value)


def test_refusal_is_a_value_error():
    assert issubclass(NotRowFactorised, ValueError)


# Which observed variables.


@pytest.mark.parametrize("as_variable", [False, True], ids=["name", "variable"])
def test_one_of_two_observed(as_variable):
    model, points = case("two_observed").model, case("two_observed").points
    rows = extract_rows(model, [model["size"] if as_variable else "size"])
    assert rows.observed_vars == ("size",)
    assert_rows_match(rows, Oracle(model, ("size",)), points)


def test_shorter_of_two_observed():
    model, points = case("unequal_lengths").model, case("unequal_lengths").points
    rows = extract_rows(model, ["short"])
    assert (rows.n_rows, rows.observed_vars) == (20, ("short",))
    assert set(rows.value_vars) == {"b", "sigma_log__"}
    assert_rows_match(rows, Oracle(model, ("short",)), points)


def test_a_name_on_its_own():
    rows = extract_rows(case("two_observed").model, "count")
    assert rows.observed_vars == ("count",)


def test_observed_of_unequal_length_together():
    with pytest.raises(ValueError, match=r"short|long"):
        extract_rows(case("unequal_lengths").model, ["short", "long"])


def test_the_same_observed_twice_is_not_counted_twice():
    try:
        rows = extract_rows(case("two_observed").model, ["size", "size"])
    except ValueError as error:
        assert "size" in str(error)
        return
    assert_rows_match(
        rows, Oracle(case("two_observed").model, ("size",)), case("two_observed").points
    )


@pytest.mark.parametrize("wrong", ["nonesuch", "b"], ids=["unknown", "free"])
def test_not_an_observed_variable(wrong):
    with pytest.raises((ValueError, KeyError), match=wrong):
        extract_rows(case("logistic_data").model, [wrong])


def test_variable_of_another_model():
    with pytest.raises((ValueError, KeyError), match="size"):
        extract_rows(case("logistic_data").model, [case("two_observed").model["size"]])


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


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "int8"])
def test_index_of_any_integer_type(dtype):
    rows, point = zoo_rows("logistic_data"), case("logistic_data").points[0]
    idx = np.array([3, 1, 100])
    np.testing.assert_array_equal(rows(point, idx.astype(dtype)), rows(point, idx))


def test_read_only_and_strided_arrays():
    rows, point = zoo_rows("random_slopes"), case("random_slopes").points[0]
    idx = np.array([3, 1, 100])
    awkward = {name: np.asfortranarray(value) for name, value in point.items()}
    awkward["B"] = np.repeat(point["B"], 2, axis=0)[::2]
    assert not awkward["B"].flags.c_contiguous
    frozen_idx = idx.copy()
    for array in (*awkward.values(), frozen_idx):
        array.flags.writeable = False
    np.testing.assert_allclose(rows(awkward, frozen_idx), rows(point, idx), rtol=1e-13)


def test_no_rows_asked():
    result = zoo_rows("normal_mixture")(case("normal_mixture").points[0], np.array([], dtype=int))
    assert result.shape == (0,)
    assert result.dtype == np.float64


@pytest.mark.parametrize(
    "idx",
    [
        np.array([0, N_ROWS]),
        np.array([10**9]),
        np.array([-N_ROWS - 1]),
        np.array([0.0, 1.0]),
        np.array([[0, 1]]),
        np.array(3),
        np.array(["0"]),
    ],
    ids=["one-too-far", "far", "far-negative", "float", "2d", "0d", "text"],
)
@pytest.mark.parametrize("name", ["logistic_data", "latent_per_row"])
def test_bad_index(name, idx):
    with pytest.raises((ValueError, TypeError, IndexError)) as error:
        zoo_rows(name)(case(name).points[0], idx)
    assert "idx" in str(error.value) or "index" in str(error.value).lower()


@pytest.mark.parametrize("name", ["logistic_data", "latent_per_row"])
def test_negative_index_is_not_a_silent_other_row(name):
    point = case(name).points[0]
    try:
        result = zoo_rows(name)(point, np.array([-1, 0]))
    except (ValueError, IndexError):
        return
    np.testing.assert_allclose(result, case(name).oracle(point)[[-1, 0]], rtol=1e-10)


def test_boolean_mask_is_not_a_silent_zero_or_one():
    point, mask = case("logistic_data").points[0], np.arange(N_ROWS) % 7 == 3
    try:
        result = zoo_rows("logistic_data")(point, mask)
    except (ValueError, TypeError, IndexError):
        return
    np.testing.assert_allclose(result, case("logistic_data").oracle(point)[mask], rtol=1e-10)


def test_point_without_a_variable():
    point = dict(case("hierarchy_data").points[0])
    del point["a"]
    with pytest.raises(BAD_INPUT, match=r"\ba\b"):
        zoo_rows("hierarchy_data")(point, np.arange(3))


@pytest.mark.parametrize(
    ("name", "variable", "wrong"),
    [
        ("hierarchy_data", "a", np.zeros(8)),  # one group too many: would gather without a murmur
        ("hierarchy_data", "a", np.zeros(())),
        ("hierarchy_data", "a", np.zeros((7, 1))),
        ("latent_per_row", "u", np.zeros(N_ROWS + 1)),
        ("latent_per_row", "u", np.zeros(5)),
        ("unequal_lengths", "b", np.zeros(3)),
    ],
)
def test_point_of_the_wrong_shape(name, variable, wrong):
    point = case(name).points[0] | {variable: wrong}
    with pytest.raises(BAD_INPUT, match=rf"\b{variable}\b"):
        zoo_rows(name)(point, np.arange(3))


@pytest.mark.parametrize(
    "value",
    [0.25, np.float64(0.25), np.array(0.25, dtype="float32"), np.array(1), 1],
    ids=["float", "np.float64", "float32", "int-array", "int"],
)
def test_point_of_another_type_is_converted_or_refused(value):
    point = dict(case("student_t_deterministic").points[0])
    idx = np.arange(5)
    try:
        result = zoo_rows("student_t_deterministic")(point | {"sigma_log__": value}, idx)
    except BAD_INPUT as error:
        assert "sigma_log__" in str(error)
        return
    same = point | {"sigma_log__": np.array(float(value))}
    expected = case("student_t_deterministic").oracle(same)[idx]
    np.testing.assert_allclose(result, expected, rtol=1e-10)


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


def test_pickled_copy_works_in_another_process(tmp_path):
    rows, point, idx = zoo_rows("hierarchy_data"), case("hierarchy_data").points[0], np.arange(9)
    (tmp_path / "job.pkl").write_bytes(cloudpickle.dumps((rows, point, idx)))
    program = (
        "import cloudpickle, numpy, sys\n"
        "with open(sys.argv[1], 'rb') as file: rows, point, idx = cloudpickle.load(file)\n"
        "numpy.save(sys.argv[2], rows(point, idx))\n"
    )
    package_root = str(Path(amc_pymc.__path__[0]).parent)
    path = os.pathsep.join([package_root, os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "job.pkl"), str(tmp_path / "rows.npy")],
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), rows(point, idx))


@pytest.mark.parametrize("attribute", ["n_rows", "observed_vars", "value_vars", "new"])
def test_frozen(attribute):
    with pytest.raises((AttributeError, TypeError)):
        setattr(zoo_rows("logistic_data"), attribute, 3)


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


class RowCounter(pytensor.graph.op.Op):
    """The identity, which notes the length of everything that passes through it."""

    __props__ = ()
    seen: list[int] = []

    def make_node(self, x):
        x = pt.as_tensor(x)
        return pytensor.graph.basic.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        RowCounter.seen.append(inputs[0].shape[0])
        outputs[0][0] = inputs[0].copy()


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


def compiled_functions(root, depth=6):
    """Every PyTensor function reachable through the attributes and containers of `root`."""
    found, seen, front = [], set(), [root]
    for _ in range(depth):
        children = []
        for item in front:
            if id(item) in seen:
                continue
            seen.add(id(item))
            if isinstance(item, Function):
                found.append(item)
            elif isinstance(item, dict):
                children += item.values()
            elif isinstance(item, list | tuple | set | frozenset):
                children += item
            elif not isinstance(item, np.ndarray | str | type | pm.Model):
                children += getattr(item, "__dict__", {}).values()
                children += [
                    cell.cell_contents for cell in getattr(item, "__closure__", None) or ()
                ]
                slots = [s for c in type(item).__mro__ for s in getattr(c, "__slots__", ())]
                children += [getattr(item, slot) for slot in slots if hasattr(item, slot)]
        front = children
    return found


@pytest.mark.parametrize(
    "name",
    ["logistic_constants", "hierarchy_constant", "student_t_lags_constants", "mvnormal_lkj"],
)
def test_no_constant_as_long_as_the_data_is_compiled_in(name):
    rows = zoo_rows(name)
    rows(case(name).points[0], np.arange(3))
    functions = compiled_functions(rows)
    assert functions
    for function in functions:
        for node in function.maker.fgraph.apply_nodes:
            for constant in (i for i in node.inputs if isinstance(i, Constant)):
                assert np.size(constant.data) < N_ROWS, f"{constant} of {node}"


@pytest.mark.parametrize("name", ["logistic_data", "transposed_in_graph"])
def test_fifty_rows_of_many_are_cheap(name):
    """A wide margin on a coarse clock: all the rows are 20,000 times as many."""
    n_rows = 1_000_000
    model = build(name, n_rows)
    rows, oracle, point = extract_rows(model), Oracle(model, ("y",)), random_points(model)[0]
    idx = np.random.default_rng(9).integers(0, n_rows, 50)
    np.testing.assert_allclose(rows(point, idx), oracle(point)[idx], rtol=1e-10)

    def best_of(function, repeats):
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return min(times)

    assert best_of(lambda: rows(point, idx), 20) < 0.1 * best_of(lambda: oracle(point), 5)
