"""Kernels with their arrays bound."""

import gc
import subprocess
import sys

import numpy as np
import pytest

from numba import njit, types

from amc_pymc.extract import bound
from amc_pymc.extract.bound import bound_function, printed_module

SIGNATURE = types.float64(types.float64[::1])
SOURCE = '''"""A kernel to bind."""

from numba import njit


@njit(cache=True)
def weighted(x, weights, table, place):
    out = 0.0
    for k in range(x.size):
        out += weights[k] * x[k]
    return out + table[place[0], 1] + table.shape[0]
'''
X = np.array([1.0, 10.0])


@njit
def call(function, x):
    return function(x)


def arrays(seed):
    """Weights (2,), a table (n, 2) and a place in it (1,)."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=2), rng.normal(size=(3 + seed, 2)), np.array([seed], np.int64)


def expected(weights, table, place):
    return weights @ X + table[place[0], 1] + len(table)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("AMC_PYMC_CACHE", str(tmp_path))
    return printed_module(SOURCE).weighted


def test_columns_may_lie_one_after_the_other(kernel):
    """An array in the order of Fortran, beside one of the same shape in that of C."""
    weights, table, place = arrays(2)
    for each in (table, np.asfortranarray(table)):
        function = bound_function(kernel, SIGNATURE, [weights, each, place])
        assert call(function, X) == pytest.approx(expected(weights, table, place), rel=1e-14)


def test_each_function_has_its_own_arrays(kernel):
    """Also when one of them has gone and a new one has taken its place."""
    data = [arrays(seed) for seed in range(4)]
    functions = [bound_function(kernel, SIGNATURE, list(each)) for each in data[:3]]
    for function, each in zip(functions, data):
        assert call(function, X) == pytest.approx(expected(*each), rel=1e-14)
    del functions[1]
    gc.collect()
    functions.insert(1, bound_function(kernel, SIGNATURE, list(data[3])))
    for function, each in zip(functions, [data[0], data[3], data[2]]):
        assert call(function, X) == pytest.approx(expected(*each), rel=1e-14)


def test_arrays_are_kept_alive(kernel):
    function = bound_function(kernel, SIGNATURE, list(arrays(1)))
    gc.collect()
    np.full(1_000, np.nan)
    assert call(function, X) == pytest.approx(expected(*arrays(1)), rel=1e-14)


def test_a_full_table(kernel, monkeypatch):
    monkeypatch.setattr(bound, "_LINES", 2)
    module = printed_module(SOURCE + "\nOTHER = True\n")
    kept = [bound_function(module.weighted, SIGNATURE, list(arrays(k))) for k in range(2)]
    with pytest.raises(RuntimeError, match="more than 2 models"):
        bound_function(module.weighted, SIGNATURE, list(arrays(2)))
    assert call(kept[0], X) == pytest.approx(expected(*arrays(0)), rel=1e-14)


PROGRAM = f"""
import numpy as np
from numba import types
from numba.core import event
from amc_pymc.extract.bound import bound_function, printed_module

kernel = printed_module({SOURCE!r}).weighted
arrays = np.ones(2), np.ones((SIZE, 2)), np.array([0])
with event.install_recorder("numba:compile") as recorder:
    function = bound_function(kernel, types.float64(types.float64[::1]), list(arrays))
print(len(recorder.buffer))
"""


def test_nothing_is_compiled_in_a_second_process(tmp_path, monkeypatch):
    """Whatever the sizes of its arrays."""
    monkeypatch.setenv("AMC_PYMC_CACHE", str(tmp_path))
    events = []
    for size in (3, 5):
        program = PROGRAM.replace("SIZE", str(size))
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        events.append(int(done.stdout.split()[0]))
    assert events[0] > 0 and events[1] == 0
