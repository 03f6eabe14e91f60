"""Machine code on disk is used only if all the source that went into it is what it was."""

import os
import subprocess
import sys

from pathlib import Path

import pytest

import amc_pymc

from amc_pymc.jit import source_digest, source_files

FILES = {
    "__init__.py": "",
    "outer.py": """
from {decorator} import njit
from kernels_of_tests.middle import twice

@njit(cache=True)
def outer(x):
    return twice(x) + 1.0
""",
    "middle/__init__.py": "from kernels_of_tests.middle.inner import twice\n",
    "middle/inner.py": """
from {decorator} import njit

FACTOR = 2.0

@njit(cache=True)
def twice(x):
    return FACTOR * x
""",
    "closures.py": """
from {decorator} import njit

def one_more(function):
    @njit(cache=True)
    def found(x):
        return function(x) + 1.0

    return found
""",
    "closed.py": """
from kernels_of_tests.closures import one_more
from kernels_of_tests.middle import twice

closed = one_more(twice)
""",
    "unrelated.py": "",
}


@pytest.fixture
def package(tmp_path):
    """A package of kernels, one of which calls another in another file."""

    def write(decorator):
        root = tmp_path / "kernels_of_tests"
        for name, text in FILES.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.format(decorator=decorator))
        return root

    return write


def run(root, *names):
    """The values of functions of 3 in a new process, and whether they came from the disk."""
    script = "".join(
        f"from kernels_of_tests.{f} import {f}\nprint({f}(3.0), sum({f}.stats.cache_hits.values()))\n"
        for f in names or ("outer",)
    )
    places = [str(root.parent), str(Path(amc_pymc.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    found = [line.split() for line in done.stdout.splitlines()]
    return [(float(value), int(hits)) for value, hits in found]


@pytest.mark.parametrize(
    ("decorator", "after"),
    [("amc_pymc.jit", 10.0), pytest.param("numba", 7.0, marks=pytest.mark.slow)],
)
def test_a_change_in_another_file_is_noticed(package, decorator, after):
    """Numba alone looks at the file of the function only, and runs what is stale.

    A function in a closure has another name in each process for it, so that nothing is found on disk.
    """
    ours = decorator == "amc_pymc.jit"
    root = package(decorator)
    assert run(root, "outer", "closed") == [(7.0, 0), (7.0, 0)]
    assert run(root, "outer", "closed") == [(7.0, 1), (7.0, int(ours))]
    inner = root / "middle" / "inner.py"
    inner.write_text(inner.read_text().replace("2.0", "3.0"))
    outer, closed = run(root, "outer", "closed")
    assert outer == (after, int(not ours))
    assert closed == (10.0, 0)


MOVED = """
from typing import NamedTuple
from amc_pymc.jit import njit
{place}

@njit(cache=True)
def outer(x):
    return total(Pair(x, x)) + 1.0

@njit(cache=True)
def total(pair):
    return pair.left + pair.right
"""
PAIR = """
from typing import NamedTuple

class Pair(NamedTuple):
    left: float
    right: float
"""


def test_an_index_that_names_a_module_of_before_is_ignored(package):
    """As after an update of the package that has moved a class of an argument."""
    root = package("amc_pymc.jit")
    (root / "pairs.py").write_text(PAIR)
    outer = root / "outer.py"
    outer.write_text(MOVED.format(place="from kernels_of_tests.pairs import Pair"))
    assert run(root) == [(7.0, 0)]
    assert run(root) == [(7.0, 1)]
    (root / "pairs.py").rename(root / "moved.py")
    outer.write_text(MOVED.format(place="from kernels_of_tests.moved import Pair"))
    assert run(root) == [(7.0, 0)]
    assert run(root) == [(7.0, 1)]


def test_the_digest_follows_imports_from_this_package():
    """Kernels of models and benchmarks call those of the package."""
    root = Path(amc_pymc.__file__).parents[1] / "models"
    files = source_files(root / "race_sums.py", root)
    assert Path(amc_pymc.__file__).parent / "jit.py" in files
    assert Path(amc_pymc.__file__) not in files


def test_the_digest_covers_what_is_imported_and_nothing_else(package):
    root = package("amc_pymc.jit")
    digests = {source_digest(root / "outer.py")}

    def changed(name, text):
        (root / name).write_text(text)
        script = "import sys; from pathlib import Path; from amc_pymc.jit import source_digest; "
        script += "print(source_digest(Path(sys.argv[1])).hex())"
        done = subprocess.run(
            [sys.executable, "-c", script, str(root / "outer.py")],
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(bytes.fromhex(done.stdout.strip()))
        return len(digests)

    assert changed("unrelated.py", "a = 1\n") == 1
    assert changed("middle/inner.py", FILES["middle/inner.py"]) == 2
    assert changed("middle/__init__.py", "import kernels_of_tests.unrelated\n") == 3
    assert changed("unrelated.py", "a = 2\n") == 4


def test_kernels_of_the_package_are_keyed_by_what_they_call():
    root = Path(amc_pymc.__file__).parent
    from amc_pymc.samplers.metropolis import run_transitions

    stamp = run_transitions._cache._impl.locator.get_source_stamp()
    assert stamp == source_digest(root / "samplers" / "metropolis.py")
    assert stamp != source_digest(root / "racing" / "race.py")


@pytest.mark.parametrize("name", ["samplers/metropolis.py", "row_kernels/loops.py"])
def test_kernels_do_not_depend_on_the_whole_package(name):
    """``from amc_pymc import x`` would lead to all that the package names."""
    root = Path(amc_pymc.__file__).parent
    rooms = {file.relative_to(root).parts[0] for file in source_files(root / name, root)}
    assert rooms and not rooms & {"__init__.py", "extract", "inference", "step_methods", "plots"}
