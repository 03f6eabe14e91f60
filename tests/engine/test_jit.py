"""Machine code on disk is used only if it is the user's and what it was; first-class functions have their own arrays."""

import errno
import gc
import os
import subprocess
import sys
import time
import warnings

from pathlib import Path

import numpy as np
import pytest

from numba import njit, typeof, types
from numba.core import event
from numba.core.errors import TypingError

import amc_pymc

from amc_pymc.engine.jit import (
    WITHOUT_KERNELS,
    FirstClassFunction,
    cached_file,
    caller,
    first_class,
    prune,
    read_cached,
    write_cached,
)
from amc_pymc.engine.jit import njit as kernel_njit

FILES = {
    "__init__.py": "",
    "outer.py": """
from amc_pymc.engine.jit import njit
from .middle import twice

@njit(cache=True, fastmath={"contract", "nsz", "reassoc"})
def outer(x):
    return twice(x) + 1.0
""",
    "middle/__init__.py": "from .inner import twice\n",
    "middle/inner.py": """
from amc_pymc.engine.jit import njit

FACTOR = 2.0

@njit(cache=True)
def twice(x):
    return FACTOR * x
""",
    "closures.py": """
from amc_pymc.engine.jit import njit

def one_more(function):
    @njit(cache=True)
    def found(x):
        return function(x) + 1.0

    return found
""",
    "closed.py": """
from .closures import one_more
from .middle import twice

closed = one_more(twice)
""",
    "last.py": """
from amc_pymc.engine.jit import njit

@njit(cache=True)
def last(x, table):
    return x[-1] * table[-1, -1]
""",
    "unrelated.py": "",
}


@pytest.fixture
def root(tmp_path):
    """A package of kernels, one of which calls another in another file."""

    root = tmp_path / "kernels_of_tests"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def python(root, script, *arguments, **environment):
    """What a script prints in a new process, which finds the package, with folders of its own for all caches."""
    places = [str(root.parent), str(Path(amc_pymc.__file__).parents[1])]
    own = {"PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("AMC_PYMC_CACHE", "HOME", "TMPDIR"):
        own[name] = environment.get(name) or str(root.parent / name)
        Path(own[name]).exists() or Path(own[name]).mkdir()
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **own}
    )
    return done.stdout


def run(root, *names, **environment):
    """The values of functions of 3 in a new process, and whether they came from the disk."""
    script = "".join(
        f"from kernels_of_tests.{f} import {f}\nprint({f}(3.0), sum({f}.stats.cache_hits.values()))\n"
        for f in names or ("outer",)
    )
    found = [line.split() for line in python(root, script, **environment).splitlines()]
    return [(float(value), int(hits)) for value, hits in found]


@pytest.mark.slow
def test_a_change_in_another_file_is_noticed(root):
    """Numba alone looks at the file of the function only, and runs what is stale.

    A function with a closure is compiled in each process.
    """
    assert run(root, "outer", "closed") == [(7.0, 0), (7.0, 0)]
    assert run(root, "outer", "closed") == [(7.0, 1), (7.0, 0)]
    inner = root / "middle" / "inner.py"
    inner.write_text(inner.read_text().replace("2.0", "3.0"))
    assert run(root, "outer", "closed") == [(10.0, 0), (10.0, 0)]


# --- the folder -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_everything_is_in_one_folder_and_flipped_bits_are_noticed(root):
    sources = set(root.rglob("*"))
    assert run(root) == [(7.0, 0)]
    folder = root.parent / "AMC_PYMC_CACHE" / "amc_pymc"
    assert set(root.rglob("*")) == sources
    assert not any(any((root.parent / name).iterdir()) for name in ("HOME", "TMPDIR"))
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in folder.iterdir():
        whole = bytearray(file.read_bytes())
        whole[len(whole) // 2] ^= 4
        file.write_bytes(whole)
    assert [run(root), run(root)] == [[(7.0, 0)], [(7.0, 1)]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AMC_PYMC_CACHE", str(tmp_path))
    file = cached_file("a")
    write_cached(file, b"some code")
    assert read_cached(file) == b"some code"
    return file.parent


@pytest.mark.skipif(os.name != "posix", reason="needs owners and modes")
@pytest.mark.parametrize("fault", ["group", "world", "owner"])
def test_a_folder_that_others_can_write_is_not_used(folder, fault, monkeypatch):
    if fault == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    else:
        folder.chmod(0o770 if fault == "group" else 0o702)
    with pytest.warns(UserWarning, match="kernel cache .* others can write") as found:
        assert read_cached(cached_file("a")) is None
        write_cached(cached_file("b"), b"other code")
    assert len(found) == 1 and len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    ("place", "name", "error"),
    [
        (os, "replace", OSError(errno.ENOSPC, "No space left on device")),
        (Path, "home", RuntimeError("Could not determine home directory.")),
    ],
)
def test_a_full_disk_or_a_missing_home_is_no_obstacle(folder, place, name, error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(place, name, fail)
    if name == "home":
        monkeypatch.delenv("AMC_PYMC_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with warnings.catch_warnings(action="error"):
        write_cached(cached_file("b"), b"other code")
        assert read_cached(cached_file("b")) is None
    assert len(list(folder.iterdir())) == 1


def test_what_was_not_used_for_longest_is_removed(folder):
    a, b, c, d = (cached_file(name) for name in "abcd")
    for file, age in ((b, 50.0), (c, 500.0), (d, 5_000.0)):
        write_cached(file, bytes(1_000))
        os.utime(file, (time.time() - age,) * 2)
    prune(folder)
    assert {*folder.iterdir()} == {a, b, c, d}
    assert read_cached(c) is not None  # it is now the one that was used last
    prune(folder, largest=1_500)
    assert {*folder.iterdir()} == {a, c}


@pytest.mark.parametrize("room", sorted(WITHOUT_KERNELS))
def test_rooms_whose_changes_leave_machine_code_as_it_is_have_no_kernels(room):
    files = sorted((Path(amc_pymc.__file__).parent / room).rglob("*.py"))
    assert files
    assert [f.name for f in files if "njit" in f.read_text(encoding="utf-8")] == []


@pytest.mark.slow
def test_names_of_machine_code_depend_on_all_source_beside_a_function(root):
    """That of its package, or beside its file, and that of this package, but nothing that was changed later."""
    names = set()
    script = (
        "from amc_pymc.engine.jit import cached_file; from kernels_of_tests.outer import outer; "
    )
    script += "print(cached_file('a', kernel=outer))"

    def changed(name, text):
        (root / name).write_text(text)
        names.add(python(root, script))
        return len(names)

    assert changed("unrelated.py", "") == 1
    assert changed("unrelated.py", "") == 1
    assert changed("middle/inner.py", FILES["middle/inner.py"].replace("2.0", "3.0")) == 2
    assert changed("unrelated.py", "a = 1\n") == 3
    assert "None\n" not in names
    late = f"from pathlib import Path; Path({str(root / 'unrelated.py')!r}).write_text('a = 2')\n"
    assert (
        python(root, f"import time, amc_pymc.engine.jit; time.sleep(0.1); {late}{script}")
        == "None\n"
    )


# --- first-class functions ---------------------------------------------------------------------------

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
from amc_pymc.engine.jit import FirstClassFunction
from kernels_of_tests.last import last

with event.install_recorder("numba:compile") as recorder:
    FirstClassFunction(last, types.float64(types.float64[::1]), [np.ones((SIZE, 2))]).address
print(len(recorder.buffer))
"""


@pytest.mark.slow
def test_nothing_is_compiled_in_a_second_process(root):
    """Whatever the sizes of its arrays."""
    events = [int(python(root, PROGRAM.replace("SIZE", str(size)))) for size in (3, 5)]
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
