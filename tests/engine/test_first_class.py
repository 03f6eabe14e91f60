"""Kernels with their arrays bound."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from numba import njit, typeof, types
from numba.core import event
from numba.core.errors import TypingError

from amc_pymc.engine.first_class import FirstClassFunction, caller, first_class
from amc_pymc.engine.jit import njit as kernel_njit

SIGNATURE = types.float64(types.float64[::1])
X = np.array([1.0, 10.0])


@kernel_njit(cache=True)
def weighted(x, weights, table, place):
    out = 0.0
    for k in range(x.size):
        out += weights[k] * x[k]
    return out + table[place[0], 1] + table.shape[0]


@njit
def call(function, x):
    return function(x)


def arrays(seed):
    """Weights (2,), a table (n, 2) and a place in it (1,)."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=2), rng.normal(size=(3 + seed, 2)), np.array([seed], np.int64)


def expected(weights, table, place):
    return weights @ X + table[place[0], 1] + len(table)


def test_arrays_of_any_order():
    """In the order of C and of Fortran, strided in several ways, unaligned and with swapped bytes."""
    weights, table, place = arrays(2)
    unaligned = np.zeros(table.nbytes + 1, np.uint8)[1:].view(float).reshape(table.shape)
    unaligned[:] = table
    orders = [
        table,
        np.asfortranarray(table),
        np.repeat(np.repeat(table, 2, 0), 3, 1)[::2, ::3],
        table[::-1, ::-1].copy()[::-1, ::-1],
        unaligned,
        table.astype(">f8"),
    ]
    for each in orders:
        for line in (weights, np.repeat(weights, 2)[::2], weights.astype(">f8")):
            function = FirstClassFunction(weighted, SIGNATURE, [line, each, place])
            assert call(function, X) == pytest.approx(expected(weights, table, place), rel=1e-14)


def test_kernels_are_bound_for_each_signature():
    """Those of one number of arguments and the same arrays."""
    bound = [np.array([2.0, 3.0]), np.ones((3, 2)), np.array([0])]
    function = FirstClassFunction(weighted, SIGNATURE, bound)
    single = types.float64(types.float32[::1])
    assert call(function, X) == 36.0
    assert call(FirstClassFunction(weighted, single, bound), X.astype(np.float32)) == 36.0


def test_each_function_has_its_own_arrays():
    """Also when one of them has gone and a new one has taken its place."""
    data = [arrays(seed) for seed in range(4)]
    functions = [FirstClassFunction(weighted, SIGNATURE, list(each)) for each in data[:3]]
    for function, each in zip(functions, data):
        assert call(function, X) == pytest.approx(expected(*each), rel=1e-14)
    del functions[1]
    gc.collect()
    functions.insert(1, FirstClassFunction(weighted, SIGNATURE, list(data[3])))
    for function, each in zip(functions, [data[0], data[3], data[2]]):
        assert call(function, X) == pytest.approx(expected(*each), rel=1e-14)


def test_arrays_are_kept_alive():
    function = FirstClassFunction(weighted, SIGNATURE, list(arrays(1)))
    gc.collect()
    np.full(1_000, np.nan)
    assert call(function, X) == pytest.approx(expected(*arrays(1)), rel=1e-14)


def test_further_functions_of_a_kernel_are_not_compiled():
    """However many live at the same time."""
    kept = [FirstClassFunction(weighted, SIGNATURE, list(arrays(0)))]
    assert kept[0].address
    with event.install_recorder("numba:compile") as recorder:
        kept += [FirstClassFunction(weighted, SIGNATURE, list(arrays(k))) for k in range(1, 5)]
        assert len({f.address for f in kept}) == 5
    assert not recorder.buffer
    for k, function in enumerate(kept):
        assert call(function, X) == pytest.approx(expected(*arrays(k)), rel=1e-14)


def test_functions_of_one_signature_are_one_type():
    """Loops are compiled once for all of them."""
    kept = [FirstClassFunction(weighted, SIGNATURE, list(arrays(k))) for k in range(2)]
    assert typeof(kept[0]) == typeof(kept[1]) == typeof(first_class(SIGNATURE)(lambda x: x[0]))


ASK = caller(SIGNATURE)


@njit
def ask_all(addresses, x):
    return [ASK(addresses[k], (x,)) for k in range(addresses.size)]


def test_calls_by_address():
    functions = [
        FirstClassFunction(weighted, SIGNATURE, list(arrays(2))),
        first_class(SIGNATURE)(lambda x: x[1]),
    ]
    found = ask_all(np.array([f.address for f in functions]), X)
    assert found == pytest.approx([expected(*arrays(2)), X[1]], rel=1e-14)


PROGRAM = """
import numpy as np
from numba import types
from numba.core import event
from numba.core.errors import TypingError
from amc_pymc.engine.first_class import FirstClassFunction
from a_kernel import last

arrays = np.ones((SIZE, 2)),
with event.install_recorder("numba:compile") as recorder:
    FirstClassFunction(last, types.float64(types.float64[::1]), list(arrays)).address
print(len(recorder.buffer))
"""
KERNEL = """
from amc_pymc.engine.jit import njit


@njit(cache=True)
def last(x, table):
    return x[-1] * table[-1, -1]
"""


@pytest.mark.slow
def test_nothing_is_compiled_in_a_second_process(tmp_path, monkeypatch):
    """Whatever the sizes of its arrays."""
    (tmp_path / "a_kernel.py").write_text(KERNEL)
    os.utime(tmp_path / "a_kernel.py", (1e9, 1e9))
    monkeypatch.setenv("AMC_PYMC_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    events = []
    for size in (3, 5):
        program = PROGRAM.replace("SIZE", str(size))
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        events.append(int(done.stdout.split()[0]))
    assert events[0] > 0 and events[1] == 0


def test_functions_are_arguments_in_tuples_and_constants():
    double, third = (first_class(SIGNATURE)(f) for f in (lambda x: 2.0 * x[0], lambda x: x[1]))

    @kernel_njit
    def ask(arguments):
        x, first, (_, second) = arguments
        return first(x), second(x), double(x)

    assert ask((X, third, (X, double))) == (X[1], 2.0 * X[0], 2.0 * X[0])
    assert ask((X, double, (X, third))) == (2.0 * X[0], X[1], 2.0 * X[0])


@kernel_njit
def ask_one(function, x):
    return function(x)


def test_functions_of_other_signatures_are_refused():
    other = types.float64(types.float64)
    assert typeof(first_class(other)(lambda x: x)) != typeof(first_class(SIGNATURE)(lambda x: x[0]))
    with pytest.raises(TypingError, match="does not take"):
        ask_one(first_class(other)(lambda x: x), X)
