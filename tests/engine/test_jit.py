"""Machine code on disk is used only if it is the user's and all the source that went into it is what it was."""

import errno
import os
import subprocess
import sys
import time
import warnings

from pathlib import Path

import pytest

import amc_pymc

from amc_pymc.engine.cache import WITHOUT_KERNELS, kernel_folder, prune, read_cached, write_cached

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
    write_cached("a", b"some code")
    assert read_cached("a") == b"some code"
    return kernel_folder()


@pytest.mark.skipif(os.name != "posix", reason="needs owners and modes")
@pytest.mark.parametrize("fault", ["group", "world", "owner"])
def test_a_folder_that_others_can_write_is_not_used(folder, fault, monkeypatch):
    if fault == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    else:
        folder.chmod(0o770 if fault == "group" else 0o702)
    with pytest.warns(UserWarning, match="kernel cache .* others can write") as found:
        assert read_cached("a") is None
        write_cached("b", b"other code")
    assert len(found) == 1 and kernel_folder() is None
    assert [f.name for f in folder.iterdir()] == ["a"]


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
        write_cached("b", b"other code")
        assert read_cached("b") is None
    assert [f.name for f in folder.iterdir()] == ["a"]


def test_what_was_not_used_for_longest_is_removed(folder):
    for name, age in (("b", 50.0), ("c", 500.0), ("d", 5_000.0)):
        write_cached(name, bytes(1_000))
        os.utime(folder / name, (time.time() - age,) * 2)
    prune(folder)
    assert {f.name for f in folder.iterdir()} == {"a", "b", "c", "d"}
    assert read_cached("c") is not None  # it is now the one that was used last
    prune(folder, largest=1_500)
    assert {f.name for f in folder.iterdir()} == {"a", "c"}


@pytest.mark.parametrize("room", sorted(WITHOUT_KERNELS))
def test_rooms_whose_changes_leave_machine_code_as_it_is_have_no_kernels(room):
    files = sorted((Path(amc_pymc.__file__).parent / room).rglob("*.py"))
    assert files
    assert [f.name for f in files if "njit" in f.read_text(encoding="utf-8")] == []


@pytest.mark.slow
def test_names_of_machine_code_depend_on_all_source_beside_a_function(root):
    """That of its package, or beside its file, and that of this package, but nothing that was changed later."""
    names = set()
    script = "import sys; from amc_pymc.engine.cache import cached_name\n"
    script += "from kernels_of_tests.outer import outer; print(cached_name(outer.py_func, 'a'))"

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
        python(root, f"import time, amc_pymc.engine.cache; time.sleep(0.1); {late}{script}")
        == "None\n"
    )
